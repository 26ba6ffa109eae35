package store

import (
	"context"
	"database/sql"
	"sync"

	"github.com/kith/kith/internal/store/internal/query"
)

// prepared is a pool or a transaction that prepares each statement once. Otherwise SQLite
// spends more time on parsing a statement than on running it. The statements are closed
// with the pool or the transaction.
type prepared struct {
	query.DBTX
	statements sync.Map // text → *sql.Stmt
}

func (p *prepared) statement(ctx context.Context, text string) (*sql.Stmt, error) {
	if found, ok := p.statements.Load(text); ok {
		return found.(*sql.Stmt), nil
	}
	made, err := p.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	if found, ok := p.statements.LoadOrStore(text, made); ok { // another goroutine prepared it first
		_ = made.Close()
		return found.(*sql.Stmt), nil
	}
	return made, nil
}

func (p *prepared) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	s, err := p.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

func (p *prepared) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	s, err := p.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	return s.QueryContext(ctx, args...)
}

func (p *prepared) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	s, err := p.statement(ctx, text)
	if err != nil {
		return p.DBTX.QueryRowContext(ctx, text, args...) // returns a Row with the error
	}
	return s.QueryRowContext(ctx, args...)
}
