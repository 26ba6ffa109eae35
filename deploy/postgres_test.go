package deploy_test

import (
	"errors"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestPostgres starts a primary and its standby with the scripts of deploy/compose, sees
// that commits wait for the standby, and promotes it as the README says.
func TestPostgres(t *testing.T) {
	s := newServers(t)
	primary, standby := s.server("primary"), s.server("standby")
	s.primary = primary.port
	s.must(primary, "initdb", "--username", "kith", "--auth-local", "trust", "--auth-host", "scram-sha-256", "--no-sync")
	settings := "unix_socket_directories = '" + s.dir + "'\nlisten_addresses = '127.0.0.1'\n"
	file := value(os.OpenFile(filepath.Join(primary.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0))(t)
	if _, err := file.WriteString(settings); err != nil || file.Close() != nil {
		t.Fatal(err)
	}
	s.must(primary, "pg_ctl", "start", "--wait", "--log", filepath.Join(s.dir, "first.log"))
	s.must(primary, "createdb", "--username", "kith", "kith")
	s.must(primary, "bash", s.script("primary.sh"))
	s.must(primary, "pg_ctl", "stop", "--wait")

	primary.start("postgres")
	standby.start("bash", s.script("standby.sh"))
	s.until("the standby is synchronous", func() bool {
		return s.sql(primary, "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'standby'") == "sync"
	})
	s.sql(primary, "CREATE TABLE kept (n int)")
	s.sql(primary, "INSERT INTO kept VALUES (1)")

	primary.kill()
	s.must(standby, "pg_ctl", "promote", "--wait")
	if got := s.sql(standby, "SELECT n FROM kept"); got != "1" {
		t.Errorf("the promoted standby has %q", got)
	}
	// It has the primary's setting, and waits for a standby until it is changed.
	s.sql(standby, "ALTER SYSTEM RESET synchronous_standby_names")
	s.sql(standby, "SELECT pg_reload_conf()")
	s.until("it commits alone", func() bool { return s.sql(standby, "SHOW synchronous_standby_names") == "" })
	s.sql(standby, "INSERT INTO kept VALUES (2)")
}

// servers are the PostgreSQL servers of a test. As root they run as the user postgres.
type servers struct {
	t    *testing.T
	dir  string
	path string
	as   *syscall.SysProcAttr

	primary string // the primary's port
}

type server struct {
	*servers
	data, port string
	process    *exec.Cmd
}

func newServers(t *testing.T) *servers {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Fatal("PostgreSQL is not installed: make setup-test installs it")
	}
	dir, err := os.MkdirTemp("", "kith") // t.TempDir is too long for a socket
	ok(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &servers{t: t, dir: dir, path: slices.Max(found) + ":" + os.Getenv("PATH")}
	secret := filepath.Join(dir, "replication_password")
	ok(t, os.WriteFile(secret, []byte("a password-with_all\n"), 0o644))
	if os.Getuid() == 0 {
		postgres := value(user.Lookup("postgres"))(t)
		uid, _ := strconv.Atoi(postgres.Uid)
		gid, _ := strconv.Atoi(postgres.Gid)
		s.as = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
		ok(t, os.Chown(dir, uid, gid))
	}
	return s
}

func (s *servers) server(name string) *server {
	s.t.Helper()
	return &server{servers: s, data: filepath.Join(s.dir, name), port: strconv.Itoa(freePort(s.t))}
}

// script copies a script to where the servers' user can read it.
func (s *servers) script(name string) string {
	s.t.Helper()
	to := filepath.Join(s.dir, name)
	ok(s.t, os.WriteFile(to, []byte(read(s.t, "compose/postgres/"+name)), 0o755))
	return to
}

func (s *servers) command(on *server, name string, args ...string) *exec.Cmd {
	cmd := exec.Command("/usr/bin/env", append([]string{name}, args...)...) // which searches PATH
	cmd.Dir, cmd.SysProcAttr = s.dir, s.as
	cmd.Env = []string{
		"PATH=" + s.path, "LC_ALL=C", "PGDATA=" + on.data, "PGPORT=" + on.port, "PGHOST=" + s.dir,
		"SECRETS=" + s.dir, "POSTGRES_USER=kith", "POSTGRES_DB=kith", "PRIMARY=127.0.0.1 port=" + s.primary,
	}
	return cmd
}

func (s *servers) must(on *server, name string, args ...string) string {
	s.t.Helper()
	cmd := s.command(on, name, args...)
	out := filepath.Join(s.dir, "out") // a pipe would stay open in a server that the command starts
	file, err := os.Create(out)
	ok(s.t, err)
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	err = cmd.Run()
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s", name, args, err, read(s.t, out))
	}
	return strings.TrimSpace(read(s.t, out))
}

func (s *servers) sql(on *server, text string) string {
	s.t.Helper()
	return s.must(on, "psql", "--quiet", "--no-align", "--tuples-only", "--username", "kith", "--dbname", "kith", "--command", text)
}

// until tries again and again until it is so. The limit only ends a test that hangs.
func (s *servers) until(what string, is func() bool) {
	s.t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	late := time.After(2 * time.Minute)
	for !is() {
		select {
		case <-again.C:
		case <-late:
			s.t.Fatalf("%s: not within 2 minutes", what)
		}
	}
}

// start runs a server until the test ends, and returns when it answers.
func (r *server) start(name string, args ...string) {
	r.t.Helper()
	r.process = r.command(r, name, args...)
	ok(r.t, r.process.Start())
	r.t.Cleanup(r.kill)
	r.until(name+" answers", func() bool { return r.command(r, "pg_isready", "--quiet").Run() == nil })
}

// kill ends a server at once, as a computer that fails does.
func (r *server) kill() {
	if err := r.process.Process.Signal(syscall.SIGQUIT); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.t.Error(err)
	}
	_ = r.process.Wait()
}
