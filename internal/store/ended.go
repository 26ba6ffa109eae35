package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/kith/kith/internal/store/internal/query"
)

// A PostgreSQL server closes idle connections when an administrator does so
// (pg_terminate_backend), when it restarts, and after its own timeouts. Poolers and
// firewalls cut connections, too. The next statement on such a connection fails. A failed
// read or begin has changed nothing, so it is retried on another connection.

// endedTries is the maximum number of attempts at a read or at the begin of a
// transaction.
const endedTries = 3

// The error numbers of Windows for a closed connection (WSAECONNABORTED, WSAECONNRESET),
// which differ from syscall.ECONNRESET and syscall.EPIPE there. No other system has
// errors with these numbers.
const (
	wsaAborted = syscall.Errno(10053)
	wsaReset   = syscall.Errno(10054)
)

// isEnded reports whether a statement failed because its connection was closed.
func isEnded(err error) bool {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch refused.Code {
		case "57P01", "57P02", "57P05", "25P03": // admin_shutdown, crash_shutdown, idle_session_timeout, idle_in_transaction_session_timeout
			return true
		}
		return false
	}
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return false // there is no other connection
	}
	for _, ended := range []error{
		driver.ErrBadConn, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE, wsaAborted, wsaReset,
	} {
		if errors.Is(err, ended) {
			return true
		}
	}
	return false
}

// again reports whether a statement is retried after it failed with err. If its
// connection was closed, all connections that were opened before are checked before their
// next use.
func (p *primary) again(ctx context.Context, try int, err error) bool {
	if p == nil || !isEnded(err) || ctx.Err() != nil {
		return false
	}
	p.ended.Add(1)
	return try < endedTries
}

// shouldPing reports whether a connection is checked before it is used again: if it was
// idle for a second, and once after another connection was found closed.
func (p *primary) shouldPing(_ context.Context, is stdlib.ShouldPingParams) bool {
	now, known := p.ended.Load(), is.Conn.PgConn().CustomData()
	if known["ended"] != now {
		known["ended"] = now
		return true
	}
	return is.IdleDuration > time.Second
}

// opened marks a new connection as checked.
func (p *primary) opened(_ context.Context, conn *pgx.Conn) error {
	conn.PgConn().CustomData()["ended"] = p.ended.Load()
	return nil
}

// retried returns the result of do, which it repeats while again says so.
func retried[T any](ctx context.Context, p *primary, do func() (T, error)) (T, error) {
	for try := 1; ; try++ {
		result, err := do()
		if err == nil || !p.again(ctx, try, err) {
			return result, err
		}
	}
}

// repeated is a pool that retries reads. It does not retry writes: if the answer is lost,
// a write may have been committed.
type repeated struct {
	*sql.DB
	primary *primary
}

func (r repeated) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	return retried(ctx, r.primary, func() (*sql.Rows, error) { return r.DB.QueryContext(ctx, text, args...) })
}

func (r repeated) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	row, _ := retried(ctx, r.primary, func() (*sql.Row, error) {
		row := r.DB.QueryRowContext(ctx, text, args...)
		return row, row.Err()
	})
	return row // with the error
}

// reads returns the pool for reads.
func (db *DB) reads() query.DBTX {
	if db.flavor.primary == nil {
		return db.read
	}
	return repeated{db.read, db.flavor.primary}
}

// begin begins a transaction, and retries if the connection was closed.
func (db *DB) begin(ctx context.Context, pool *sql.DB, options *sql.TxOptions) (*sql.Tx, error) {
	return retried(ctx, db.flavor.primary, func() (*sql.Tx, error) { return pool.BeginTx(ctx, options) })
}
