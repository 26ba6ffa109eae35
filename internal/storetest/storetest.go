// Package storetest creates databases for tests: SQLite files, and PostgreSQL databases
// on a server that the tests start.
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

// Postgres returns the URL of a new, empty database. The first call starts a server,
// which ends with the test process even if that is killed. The test fails if PostgreSQL
// is not installed. Call it outside a synctest bubble.
func Postgres(t testing.TB) string {
	t.Helper()
	server, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return server.Database(t)
}

// PostgresWithTables returns the URL of a new database on the same server, with its
// tables and no records.
func PostgresWithTables(t testing.TB) string {
	t.Helper()
	server, err := withTables()
	if err != nil {
		t.Fatal(err)
	}
	return server.copyOf(t, tables)
}

// tables is the database that is copied for databases with tables.
const tables = "tables"

// withTables creates the database named tables and returns its server.
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

// shared starts the server that most tests share.
var shared = sync.OnceValues(func() (*Server, error) { return launch(postgres.Config{}) })

// Server is a PostgreSQL server of one test, which can stop and restart it.
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

// Database creates an empty database and returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	return s.copyOf(t, "template1")
}

// copyOf copies a database that has no open connections and returns the URL of the copy.
func (s *Server) copyOf(t testing.TB, other string) string {
	t.Helper()
	name := fmt.Sprintf("test%d", s.made.Add(1))
	check(t, s.server.Execute("postgres", "CREATE DATABASE "+name+" TEMPLATE "+other))
	return s.server.URL(name)
}

// Stop kills the server: all connections close and unsaved data is lost. Start starts it
// again.
func (s *Server) Stop(t testing.TB) { t.Helper(); check(t, s.server.Kill()) }

// Start starts the server again after Stop.
func (s *Server) Start(t testing.TB) { t.Helper(); check(t, s.server.Restart()) }

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Promoted returns a second server: a standby of this one that was promoted to primary.
// This one has to be stopped first. Both can run afterwards, as after a failover while
// the old primary is still running.
func (s *Server) Promoted(t testing.TB) *Server {
	t.Helper()
	return start(t, postgres.Config{Copy: s.server})
}

// Host returns the host in the server's URL.
func (s *Server) Host() string { return s.server.Host() }
