// Package storetest makes databases for tests: files of SQLite, and PostgreSQL with
// a server of its own.
package storetest

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// Postgres returns the URL of a new, empty database. The first call starts a
// server, which ends with the test process, even if that is killed. A machine without
// PostgreSQL fails the test. Call it outside a synctest bubble.
func Postgres(t testing.TB) string {
	t.Helper()
	server, err := startPostgres()
	if err != nil {
		t.Fatal(err)
	}
	name, err := server.create()
	if err != nil {
		t.Fatal(err)
	}
	return server.url(name)
}

// Program returns the path of one of PostgreSQL's programs, such as pg_dump.
func Program(t testing.TB, name string) string {
	t.Helper()
	folder, err := findPostgres()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(folder, name)
}

// startPostgres starts the one server that most tests share.
var startPostgres = sync.OnceValues(func() (*postgresServer, error) { return launch() })

// Server is a PostgreSQL server of one test, which may stop and start it.
type Server struct{ server *postgresServer }

// Start starts a server that ends with the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t)
}

func start(t testing.TB, settings ...string) *Server {
	t.Helper()
	server, err := launch(settings...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(server.life.Close(), server.guard.Wait()); err != nil {
			t.Errorf("the end of PostgreSQL: %v", err)
		}
	})
	return &Server{server}
}

// Database makes an empty database and returns its URL.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name, err := s.server.create()
	if err != nil {
		t.Fatal(err)
	}
	return s.server.url(name)
}

// Stop ends the server as its death does: it closes all connections and saves nothing
// more. Start starts it again.
func (s *Server) Stop(t testing.TB) { t.Helper(); s.command(t, "stop") }

// Start starts the server again after Stop.
func (s *Server) Start(t testing.TB) { t.Helper(); s.command(t, "start") }

func (s *Server) command(t testing.TB, command string) {
	t.Helper()
	if _, err := io.WriteString(s.server.life, command+"\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := s.server.output.ReadString('\n'); line != "done 0\n" {
		t.Fatalf("%s of PostgreSQL: %s, %v", command, line, err)
	}
}

// Promoted returns a second server: a standby of this one, which has to be stopped, that
// became the primary. Both may run then, as after a fail-over while the old primary lives.
func (s *Server) Promoted(t testing.TB) *Server {
	t.Helper()
	return start(t, "FROM="+s.server.dir)
}

// Host returns the host of the server in a URL.
func (s *Server) Host() string { return s.server.dir }

// launch starts a server with a data folder of its own.
func launch(settings ...string) (*postgresServer, error) {
	programs, err := findPostgres()
	if err != nil {
		return nil, err
	}
	// Not t.TempDir: the path of a unix socket is short, and the server outlives a test.
	dir, err := os.MkdirTemp("", "kith-pg-")
	if err != nil {
		return nil, err
	}
	guard := exec.Command("/bin/sh", "-c", guardScript)
	guard.Env = append(append(os.Environ(), "PROGRAMS="+programs, "DIR="+dir), settings...)
	life, err := guard.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := guard.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := guard.Start(); err != nil {
		return nil, err
	}
	output := bufio.NewReader(out)
	first, err := output.ReadString('\n')
	if err != nil || first != "ready\n" {
		message, _ := io.ReadAll(output)
		return nil, errors.Join(fmt.Errorf("cannot start PostgreSQL for the tests: %s%s", first, message), guard.Wait())
	}
	return &postgresServer{programs: programs, dir: dir, life: life, guard: guard, output: output}, nil
}

// guardScript runs the server until its standard input ends. A line there stops or
// starts it.
//
//go:embed postgres.sh
var guardScript string

type postgresServer struct {
	programs string         // the folder of its programs
	dir      string         // holds data and socket
	life     io.WriteCloser // the guard's standard input: open as long as this process lives
	guard    *exec.Cmd
	output   *bufio.Reader // the guard's
	made     atomic.Int64
}

func (s *postgresServer) url(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User("kith"), Path: "/" + database,
		RawQuery: url.Values{"host": {s.dir}}.Encode(),
	}
	return u.String()
}

// create makes an empty database.
func (s *postgresServer) create() (name string, err error) {
	name = fmt.Sprintf("test%d", s.made.Add(1))
	createdb := exec.Command(filepath.Join(s.programs, "createdb"), "--host", s.dir, "--username", "kith", name)
	if message, err := createdb.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot make a database for the test: %w: %s", err, message)
	}
	return name, nil
}

// findPostgres returns the folder of the server's programs.
func findPostgres() (string, error) {
	var folders []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		folders = append(folders, strings.TrimSpace(string(out)))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, folder := range append(folders, debian...) {
		if _, err := os.Stat(filepath.Join(folder, "initdb")); err == nil {
			return folder, nil
		}
	}
	return "", errors.New("cannot find PostgreSQL's server programs (initdb, pg_ctl): run make test, which installs them")
}
