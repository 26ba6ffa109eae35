package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/kith/kith/internal/store/internal/query"
)

// TableCopy is a table that Copy has copied and verified.
type TableCopy struct {
	Table string
	Rows  int64
	// Sum is the sum of the first 8 bytes of each row's SHA-256 in the source. The target
	// has the same sum.
	Sum uint64
}

// epochJump is the distance from the last epoch of the source to the first of the target.
// A hub that is still running on the source can never reach it.
const epochJump = 1_000_000_000

// Copy copies all tables of an SQLite database to an empty PostgreSQL database, in one
// transaction, and reads them back: the number of rows and a checksum of their contents
// have to be equal. It calls progress after every 10,000 rows and at the end of each
// table. The epoch of the target is much higher, so that nothing that was cached from the
// source is used with the target.
//
// The list of tables comes from the database itself, so that none can be forgotten. After
// an error the target is empty as before.
func Copy(ctx context.Context, from, to *DB, progress func(TableCopy)) (copied []TableCopy, err error) {
	if from.flavor.copy == nil || to.flavor.copy != nil {
		return nil, errors.New("cannot copy the database: it goes from SQLite to PostgreSQL only")
	}
	source, err := from.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("cannot read the source: %w", err)
	}
	defer func() { _ = source.Rollback() }() // there is nothing to commit
	conn, err := to.write.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot write the target: %w", err)
	}
	defer conn.Close()
	target, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot write the target: %w", err)
	}
	defer func() { _ = target.Rollback() }() // no effect after Commit
	c := copier{source, target, conn, progress}
	tables, err := tablesToCopy(ctx, source, target)
	if err == nil {
		err = emptyTarget(ctx, target, tables)
	}
	if err != nil {
		return nil, err
	}
	for _, t := range tables {
		done, err := c.copy(ctx, t)
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause // the driver may have closed the connection because of it
		}
		if err != nil {
			return nil, fmt.Errorf("cannot copy the table %s: %w", t.name, err)
		}
		copied = append(copied, done)
	}
	if err := jumpEpoch(ctx, query.New(target)); err != nil {
		return nil, fmt.Errorf("cannot move the target's epoch: %w", err)
	}
	return copied, target.Commit()
}

// jumpEpoch increases the epoch by epochJump and records one change there, so that every
// reader is behind.
func jumpEpoch(ctx context.Context, q *query.Queries) error {
	epoch, err := q.MoveEpoch(ctx, epochJump)
	if err != nil {
		return err
	}
	return q.InsertChange(ctx, query.InsertChangeParams{Epoch: epoch, Nonce: rand.Text(), Kind: "moved", At: millis(time.Now())})
}

type table struct {
	name    string
	columns []column
}

type column struct{ name, kind string }

func (t table) names() []string {
	return convert(t.columns, func(c column) string { return c.name })
}

// tablesToCopy returns the tables of the source, each after the tables that it
// references. It returns an error if the target's tables differ.
func tablesToCopy(ctx context.Context, source, target *sql.Tx) ([]table, error) {
	mine, err := readTables(ctx, source, `
SELECT m.name, c.name, lower(c.type) FROM sqlite_master m JOIN pragma_table_info(m.name) c
WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite%' AND m.name <> 'goose_db_version' ORDER BY m.name, c.cid`)
	if err != nil {
		return nil, fmt.Errorf("cannot read the source's tables: %w", err)
	}
	theirs, err := readTables(ctx, target, `
SELECT t.relname, a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_class t JOIN pg_attribute a ON a.attrelid = t.oid
WHERE t.relnamespace = cast(current_schema() AS regnamespace) AND t.relkind IN ('r', 'p') AND NOT t.relispartition
    AND a.attnum > 0 AND NOT a.attisdropped AND t.relname <> 'goose_db_version' ORDER BY t.relname COLLATE "C", a.attnum`)
	if err != nil {
		return nil, fmt.Errorf("cannot read the target's tables: %w", err)
	}
	same := func(a, b table) bool { return a.name == b.name && slices.Equal(a.columns, b.columns) }
	for i := range max(len(mine), len(theirs)) {
		if i >= len(mine) || i >= len(theirs) || !same(mine[i], theirs[i]) {
			return nil, fmt.Errorf("cannot copy the database: the two do not have the same tables, from %s on; the target has to be a database for kith alone",
				append(slices.Clone(mine[min(i, len(mine)):]), theirs[min(i, len(theirs)):]...)[0].name)
		}
	}
	return inOrder(ctx, source, mine)
}

// readTables runs a query for table name, column name and column type, and returns its
// rows as tables.
func readTables(ctx context.Context, tx *sql.Tx, text string) ([]table, error) {
	rows, err := tx.QueryContext(ctx, text)
	var tables []table
	var name string
	var c column
	err = scan(rows, err, func() {
		if len(tables) == 0 || tables[len(tables)-1].name != name {
			tables = append(tables, table{name: name})
		}
		last := &tables[len(tables)-1]
		last.columns = append(last.columns, c)
	}, &name, &c.name, &c.kind)
	return tables, err
}

// inOrder sorts tables so that each comes after the tables that it references.
func inOrder(ctx context.Context, source *sql.Tx, tables []table) ([]table, error) {
	rows, err := source.QueryContext(ctx, `SELECT m.name, f."table" FROM sqlite_master m JOIN pragma_foreign_key_list(m.name) f WHERE m.type = 'table'`)
	refers := make(map[string][]string)
	var name, other string
	if err := scan(rows, err, func() { refers[name] = append(refers[name], other) }, &name, &other); err != nil {
		return nil, fmt.Errorf("cannot read the source's tables: %w", err)
	}
	var sorted []table
	placed := make(map[string]bool)
	for len(sorted) < len(tables) {
		before := len(sorted)
		for _, t := range tables {
			waits := func(other string) bool { return other != t.name && !placed[other] }
			if !placed[t.name] && !slices.ContainsFunc(refers[t.name], waits) {
				sorted, placed[t.name] = append(sorted, t), true
			}
		}
		if len(sorted) == before {
			return nil, errors.New("cannot copy the database: its tables refer to each other in a circle")
		}
	}
	return sorted, nil
}

// emptyTarget locks hubs out of the target until the transaction ends, returns an error
// if it has data, and removes the rows that the migrations created.
func emptyTarget(ctx context.Context, target *sql.Tx, tables []table) error {
	if _, err := target.ExecContext(ctx, "LOCK TABLE epoch IN ACCESS EXCLUSIVE MODE"); err != nil {
		return fmt.Errorf("cannot lock the target: %w", err)
	}
	for _, t := range tables {
		text := "SELECT count(*) > 0 FROM " + t.name
		switch t.name { // rows of the migrations
		case "meta":
			text += " WHERE name <> '" + metaReadableFrom + "'"
		case "epoch":
			text += " WHERE n <> 0"
		}
		var used bool
		if err := target.QueryRowContext(ctx, text).Scan(&used); err != nil {
			return fmt.Errorf("cannot read the target: %w", err)
		}
		if used {
			return fmt.Errorf("cannot copy to a database that is in use: its table %s has rows; make an empty one (createdb NAME), nothing is written over", t.name)
		}
	}
	_, err := target.ExecContext(ctx, "DELETE FROM meta; DELETE FROM epoch")
	return err
}

type copier struct {
	source, target *sql.Tx
	conn           *sql.Conn // of the target
	progress       func(TableCopy)
}

// copy copies the rows of a table and compares both sides.
func (c *copier) copy(ctx context.Context, t table) (TableCopy, error) {
	if t.name == "usage" {
		days, err := usageDaysIn(ctx, c.source)
		if err == nil {
			err = makePartitions(ctx, c.target, days)
		}
		if err != nil {
			return TableCopy{}, err
		}
	}
	sent := tableReader{table: t, progress: c.progress}
	if err := sent.open(ctx, c.source); err != nil {
		return TableCopy{}, err
	}
	defer sent.rows.Close()
	err := c.conn.Raw(func(driver any) error {
		_, err := driver.(*stdlib.Conn).Conn().CopyFrom(ctx, pgx.Identifier{t.name}, t.names(), pgx.CopyFromFunc(sent.next))
		return err
	})
	if err != nil {
		return TableCopy{}, err
	}
	found := tableReader{table: t}
	if err := found.open(ctx, c.target); err != nil {
		return TableCopy{}, err
	}
	defer found.rows.Close()
	for {
		if row, err := found.next(); err != nil || row == nil {
			if err == nil && found.count != sent.count {
				err = fmt.Errorf("the target has %d rows with the sum %016x, the source %d with %016x",
					found.count.Rows, found.count.Sum, sent.count.Rows, sent.count.Sum)
			}
			return sent.count, err
		}
	}
}

type tableReader struct {
	table    table
	rows     *sql.Rows
	count    TableCopy
	progress func(TableCopy) // may be nil
}

func (r *tableReader) open(ctx context.Context, tx *sql.Tx) (err error) {
	r.count.Table = r.table.name
	r.rows, err = tx.QueryContext(ctx, "SELECT "+strings.Join(r.table.names(), ", ")+" FROM "+r.table.name)
	return err
}

// next returns the values of the next row; nil after the last.
func (r *tableReader) next() ([]any, error) {
	if !r.rows.Next() {
		if r.progress != nil {
			r.progress(r.count)
		}
		return nil, r.rows.Err()
	}
	values := make([]any, len(r.table.columns))
	pointers := make([]any, len(values))
	for i := range values {
		pointers[i] = &values[i]
	}
	if err := r.rows.Scan(pointers...); err != nil {
		return nil, err
	}
	var text []byte
	for i, c := range r.table.columns {
		var err error
		if values[i], err = valueOf(c.kind, values[i]); err != nil {
			return nil, fmt.Errorf("row %d, column %s: %w", r.count.Rows+1, c.name, err)
		}
		text = appendValue(text, values[i])
	}
	hash := sha256.Sum256(text)
	r.count.Rows++
	r.count.Sum += binary.BigEndian.Uint64(hash[:])
	if r.progress != nil && r.count.Rows%10_000 == 0 {
		r.progress(r.count)
	}
	return values, nil
}

// valueOf converts a value that the SQLite driver read from a column of that type for
// PostgreSQL. SQLite has no booleans, and stores values of any type in any column.
func valueOf(kind string, value any) (any, error) {
	switch v := value.(type) {
	case nil, bool:
		return v, nil
	case int64:
		if kind == "boolean" {
			return v != 0, nil
		}
		if kind == "bigint" {
			return v, nil
		}
	case string:
		if kind == "text" {
			return v, nil
		}
	case []byte:
		if kind == "bytea" {
			return v, nil
		}
		if kind == "text" {
			return string(v), nil
		}
	}
	return nil, fmt.Errorf("a value of Go's type %T in a column of type %s", value, kind)
}

// appendValue appends a value with its type and length, so that different rows never have
// the same text.
func appendValue(text []byte, value any) []byte {
	switch v := value.(type) {
	case bool:
		return fmt.Appendf(text, "%t,", v)
	case int64:
		return fmt.Appendf(text, "%d,", v)
	case string:
		return fmt.Appendf(text, "t%d:%s", len(v), v)
	case []byte:
		return fmt.Appendf(text, "b%d:%s", len(v), v)
	}
	return append(text, "null,"...)
}
