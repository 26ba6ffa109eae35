// Package postgres runs PostgreSQL servers with the programs that this computer has, for
// `kith dev` with several nodes and for tests. A server ends with the process that
// started it, even if that is killed.
package postgres

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// User is the superuser of each server. It needs no password: a server accepts this
// computer's connections alone.
const User = "kith"

// ErrMissing is the absence of PostgreSQL's server programs.
var ErrMissing = errors.New("PostgreSQL's server programs (initdb, pg_ctl) are not installed; on Debian: apt install postgresql")

// Config is how a server starts. The zero Config is an empty server on a unix socket,
// whose data is removed at the end.
type Config struct {
	// Data is the folder that keeps the data; empty: one that is removed at the end.
	Data string
	// Listen is a loopback address for TCP, host:port; empty: the unix socket alone.
	Listen string
	// Settings are of postgresql.conf, such as "fsync=off".
	Settings []string
	// Primary is the URL of a running server that a server without data follows as a
	// standby.
	Primary string
	// Copy is a stopped server. A server without data begins with its data, as the
	// next primary.
	Copy *Server
}

// Server is a PostgreSQL server.
type Server struct {
	programs string         // the folder of its programs
	folder   string         // of its socket
	port     string         // of its socket too
	data     string         // the folder of its data
	life     io.WriteCloser // the script's standard input: open as long as this process lives
	script   *exec.Cmd
	output   *bufio.Reader // the script's
}

// script runs the server until its standard input ends. A line there stops or starts it.
//
//go:embed server.sh
var script string

// Start starts a server and returns once it accepts connections.
func Start(c Config) (*Server, error) {
	programs, err := Programs()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "kith-pg-") // the path of a unix socket is short
	if err != nil {
		return nil, err
	}
	s := &Server{programs: programs, folder: folder, port: "5432", data: c.Data, script: exec.Command("/bin/sh", "-c", script)}
	if s.data == "" {
		s.data = filepath.Join(folder, "data")
	}
	host := ""
	if c.Listen != "" {
		if host, s.port, err = net.SplitHostPort(c.Listen); err != nil {
			return nil, err
		}
	}
	options := ""
	for _, setting := range append([]string{"max_connections=300", "listen_addresses=" + host, "port=" + s.port}, c.Settings...) {
		options += " -c " + setting
	}
	s.script.Env = append(os.Environ(), "PROGRAMS="+programs, "DIR="+folder, "DATA="+s.data, "OPTIONS="+options, "PRIMARY="+c.Primary)
	if c.Copy != nil {
		s.script.Env = append(s.script.Env, "COPY="+c.Copy.data)
	}
	if s.life, err = s.script.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.script.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.script.Start(); err != nil {
		return nil, errors.Join(err, os.Remove(folder))
	}
	s.output = bufio.NewReader(out)
	if first, err := s.output.ReadString('\n'); err != nil || first != "ready\n" {
		message, _ := io.ReadAll(s.output)
		return nil, errors.Join(fmt.Errorf("cannot start PostgreSQL: %s%s", first, message), s.script.Wait())
	}
	return s, nil
}

// Close ends the server and removes the data that is not kept.
func (s *Server) Close() error { return errors.Join(s.life.Close(), s.script.Wait()) }

// Kill ends the server as its death does: it closes all connections and saves nothing
// more. Restart starts it again.
func (s *Server) Kill() error { return s.command("stop") }

// Restart starts the server after Kill.
func (s *Server) Restart() error { return s.command("start") }

// Promote makes a standby the primary. The old one is not stopped.
func (s *Server) Promote() error { return s.command("promote") }

func (s *Server) command(name string) error {
	if _, err := io.WriteString(s.life, name+"\n"); err != nil {
		return err
	}
	if line, err := s.output.ReadString('\n'); line != "done 0\n" {
		log, _ := os.ReadFile(filepath.Join(s.folder, "server.log"))
		return fmt.Errorf("%s of PostgreSQL: %s%w; its log ends with %s", name, line, err, log[max(0, len(log)-1000):])
	}
	return nil
}

// programTimeout bounds the programs of PostgreSQL that end by themselves.
const programTimeout = 5 * time.Minute

// Execute runs statements one by one, each its own transaction.
func (s *Server) Execute(database string, statements ...string) error {
	args := []string{"--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--host=" + s.folder, "--port=" + s.port, "--username=" + User, database}
	for _, statement := range statements {
		args = append(args, "--command="+statement)
	}
	ctx, cancel := context.WithTimeout(context.Background(), programTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.programs, "psql"), args...)
	cmd.WaitDelay = time.Second
	if message, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot change PostgreSQL: %w: %s", err, message)
	}
	return nil
}

// URL returns the URL of a database over the unix socket.
func (s *Server) URL(database string) string {
	u := url.URL{
		Scheme: "postgres", User: url.User(User), Path: "/" + database,
		RawQuery: url.Values{"host": {s.folder}, "port": {s.port}}.Encode(),
	}
	return u.String()
}

// Host returns the host of the server in a URL.
func (s *Server) Host() string { return s.folder }

// Programs returns the folder of PostgreSQL's programs, or ErrMissing.
func Programs() (string, error) {
	var folders []string
	ctx, cancel := context.WithTimeout(context.Background(), programTimeout)
	defer cancel()
	config := exec.CommandContext(ctx, "pg_config", "--bindir")
	config.WaitDelay = time.Second
	if out, err := config.Output(); err == nil {
		folders = append(folders, strings.TrimSpace(string(out)))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, folder := range append(folders, debian...) {
		if _, err := os.Stat(filepath.Join(folder, "initdb")); err == nil {
			return folder, nil
		}
	}
	return "", ErrMissing
}
