// Package storetest makes databases for tests: files of SQLite, and PostgreSQL with
// a server of its own.
package storetest

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kith/kith/internal/postgres"
	"github.com/kith/kith/internal/store"
)

// Postgres returns the URL of a new, empty database. The first call starts a
// server, which ends with the test process, even if that is killed. A machine without
// PostgreSQL fails the test. Call it outside a synctest bubble.
func Postgres(t testing.TB) string {
	t.Helper()
	server, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return server.Database(t)
}

// PostgresWithTables returns the URL of a new database of the server that Postgres
// starts. It has its tables and no records, as SQLite's has.
func PostgresWithTables(t testing.TB) string {
	t.Helper()
	server, err := withTables()
	if err != nil {
		t.Fatal(err)
	}
	return server.copyOf(t, tables)
}

// tables is the database that the others with tables are copies of.
const tables = "tables"

// withTables makes the database tables and returns its server.
var withTables = sync.OnceValues(func() (*Server, error) {
	s, err := shared()
	if err != nil {
		return nil, err
	}
	if err := s.server.Execute("postgres", "CREATE DATABASE "+tables); err != nil {
		return nil, err
	}
	db, err := store.Open(context.Background(), store.Config{URL: s.server.URL(tables)})
	if err != nil {
		return nil, err
	}
	return s, db.Close()
})

// Program returns the path of one of PostgreSQL's programs, such as pg_dump.
func Program(t testing.TB, name string) string {
	t.Helper()
	folder, err := postgres.Programs()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(folder, name)
}

// shared starts the one server that most tests share.
var shared = sync.OnceValues(func() (*Server, error) { return launch(postgres.Config{}) })

// Server is a PostgreSQL server of one test, which may stop and start it.
type Server struct {
	server *postgres.Server
	made   atomic.Int64 // databases
}

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, postgres.Config{})
}

func start(t testing.TB, config postgres.Config) *Server {
	t.Helper()
	s, err := launch(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.server.Close(); err != nil {
			t.Errorf("the end of PostgreSQL: %v", err)
		}
	})
	return s
}

func launch(config postgres.Config) (*Server, error) {
	config.Settings = []string{"fsync=off"}
	server, err := postgres.Start(config)
	return &Server{server: server}, err
}

// Database makes an empty database and returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	return s.copyOf(t, "template1")
}

// copyOf makes a copy of a database that no one is connected to and returns its URL.
func (s *Server) copyOf(t testing.TB, other string) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.made.Add(1))
	check(t, s.server.Execute("postgres", "CREATE DATABASE "+name+" TEMPLATE "+other))
	return s.server.URL(name)
}

// Stop ends the server as its death does: it closes all connections and saves nothing
// more. Start starts it again.
func (s *Server) Stop(t testing.TB) { t.Helper(); check(t, s.server.Kill()) }

// Start starts the server again after Stop.
func (s *Server) Start(t testing.TB) { t.Helper(); check(t, s.server.Restart()) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Promoted returns a second server: a standby of this one, which has to be stopped, that
// became the primary. Both may run then, as after a fail-over while the old primary lives.
func (s *Server) Promoted(t testing.TB) *Server {
	t.Helper()
	return start(t, postgres.Config{Copy: s.server})
}

// Host returns the host of the server in a URL.
func (s *Server) Host() string { return s.server.Host() }
