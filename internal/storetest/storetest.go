// Package storetest runs a PostgreSQL server for tests.
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

// startPostgres starts the one server of the process.
var startPostgres = sync.OnceValues(func() (*postgresServer, error) {
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
	guard.Env = append(os.Environ(), "PROGRAMS="+programs, "DIR="+dir)
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
	return &postgresServer{programs: programs, dir: dir, life: life}, nil
})

// guardScript runs the server until its standard input ends.
//
//go:embed postgres.sh
var guardScript string

type postgresServer struct {
	programs string    // the folder of its programs
	dir      string    // holds data and socket
	life     io.Closer // the guard's standard input: open as long as this process lives
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
