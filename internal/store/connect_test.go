package store_test

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// TestConnectFaults checks that for an unusable database there is an error in one line,
// with the cause and what to do, and without the password.
func TestConnectFaults(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	parsed, err := url.Parse(server.Database(t))
	ok(t, err)
	rules := filepath.Join(server.Host(), "data", "pg_hba.conf")
	execute(t, parsed.String(), "CREATE ROLE locked LOGIN PASSWORD 'right'", "CREATE ROLE crowded LOGIN CONNECTION LIMIT 0",
		fmt.Sprintf("COPY (VALUES ('local all locked scram-sha-256'), ('local all all trust')) TO '%s'", rules))
	server.Stop(t)
	server.Start(t) // loads its rules
	for name, c := range map[string]struct {
		url        string
		cause, fix string
	}{
		"wrong password":       {with(parsed, url.UserPassword("locked", "s3cret"), parsed.Path, nil), `password authentication failed for user "locked"`, "check the user and the password"},
		"no such database":     {with(parsed, parsed.User, "/nowhere", nil), `database "nowhere" does not exist`, `CREATE DATABASE "nowhere" OWNER "kith"`},
		"too many connections": {with(parsed, url.User("crowded"), parsed.Path, nil), `too many connections for role "crowded"`, "max_connections"},
		"no server":            {with(parsed, url.UserPassword("kith", "s3cret"), parsed.Path, url.Values{"host": {t.TempDir()}}), "no such file or directory", "check that it runs"},
	} {
		db, err := store.Open(t.Context(), store.Config{URL: c.url})
		if err == nil {
			t.Errorf("%s: the database was opened", name)
			ok(t, db.Close())
			continue
		}
		if s := err.Error(); !strings.Contains(s, c.cause) || !strings.Contains(s, c.fix) || strings.ContainsAny(s, "\n") || strings.Contains(s, "s3cret") || strings.Contains(s, "tls") {
			t.Errorf("%s: %s", name, s)
		}
	}
}

// with returns a URL with another user, path and, unless nil, query.
func with(u *url.URL, user *url.Userinfo, path string, query url.Values) string {
	changed := *u
	changed.User, changed.Path = user, path
	if query != nil {
		changed.RawQuery = query.Encode()
	}
	return changed.String()
}

// Open waits for a server that is slow at first, because its computer is busy or it is
// starting.
func TestConnectToSlowServer(t *testing.T) {
	t.Parallel()
	server := storetest.Start(t)
	parsed, err := url.Parse(server.Database(t))
	ok(t, err)
	for name, hosts := range map[string]int{"one host": 1, "two hosts": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			var names, ports []string
			for range hosts {
				listener, err := net.Listen("tcp", "127.0.0.1:0")
				ok(t, err)
				t.Cleanup(func() { listener.Close() })
				go func() {
					for {
						from, err := listener.Accept()
						if err != nil {
							return
						}
						go func() {
							defer from.Close()
							time.Sleep(time.Duration(hosts)*2*time.Second - time.Since(began))
							to, err := net.Dial("unix", filepath.Join(server.Host(), ".s.PGSQL.5432"))
							if err != nil {
								return
							}
							defer to.Close()
							go io.Copy(to, from)
							io.Copy(from, to)
						}()
					}
				}()
				host, port, err := net.SplitHostPort(listener.Addr().String())
				ok(t, err)
				names, ports = append(names, host), append(ports, port)
			}
			db, err := store.Open(t.Context(), store.Config{URL: with(parsed, parsed.User, parsed.Path, url.Values{
				"host": {strings.Join(names, ",")}, "port": {strings.Join(ports, ",")}, "sslmode": {"disable"},
			})})
			ok(t, err)
			ok(t, db.Close())
		})
	}
}
