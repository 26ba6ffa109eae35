// Package certificate provides the TLS certificate of a hub's public address. Files loads
// it from files and reloads it when they change; ACME obtains it from an ACME server and
// renews it. A new certificate applies to new handshakes at once, and open connections
// stay open.
package certificate

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/kith/kith/internal/host"
)

// filesEvery is how often the files are checked. Polling detects every kind of
// replacement, including the symbolic links of certbot and Kubernetes and changes on
// network file systems.
const filesEvery = 10 * time.Second

// A certificate that expires within endsSoon is logged, and again every warnEvery.
const (
	endsSoon  = 14 * 24 * time.Hour
	warnEvery = 24 * time.Hour
)

// Files is a certificate that is loaded from PEM files.
type Files struct {
	log *slog.Logger

	mu      sync.Mutex
	names   [2]string // of the certificate chain and of its key
	seen    [2]os.FileInfo
	pair    *tls.Certificate
	problem string // the last one logged; empty: none
	warned  time.Time
}

// Open loads a certificate chain and its key.
func Open(chain, key string, log *slog.Logger) (*Files, error) {
	f := &Files{log: log}
	return f, f.Use(chain, key)
}

// Use switches to the certificate in these files. On error it keeps the current one.
func (f *Files) Use(chain, key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read([2]string{chain, key})
}

// read loads the files even if they have not changed. mu must be held.
func (f *Files) read(names [2]string) error {
	var seen [2]os.FileInfo
	for i, name := range names {
		info, err := os.Stat(name)
		if err != nil {
			return fmt.Errorf("cannot look at %s: %w", name, err)
		}
		if i == 1 {
			if err := host.CheckSecretFile(name); err != nil {
				return fmt.Errorf("cannot trust the key %s: %w", name, err)
			}
		}
		seen[i] = info
	}
	pair, err := tls.LoadX509KeyPair(names[0], names[1])
	if err != nil {
		return fmt.Errorf("cannot use the certificate %s with the key %s: %w", names[0], names[1], err)
	}
	f.names, f.seen, f.pair, f.problem, f.warned = names, seen, &pair, "", time.Time{}
	return nil
}

// TLS returns the configuration for a listener that uses the certificate.
func (f *Files) TLS() *tls.Config {
	return configured(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.pair, nil
	})
}

// Run reloads the files when they change, until ctx ends. While they are unusable, for
// example because the certificate was replaced before its key, it keeps the previous
// certificate.
func (f *Files) Run(ctx context.Context) error {
	ticker := time.NewTicker(filesEvery)
	defer ticker.Stop()
	for {
		f.warn(time.Now())
		select {
		case <-ticker.C:
			f.look()
		case <-ctx.Done():
			return nil
		}
	}
}

// warn logs, once a day, a certificate that has expired, expires soon or is not yet
// valid.
func (f *Files) warn(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.warned) < warnEvery {
		return
	}
	leaf := f.pair.Leaf
	switch {
	case now.After(leaf.NotAfter):
		f.log.Error("the certificate has ended, and clients refuse this hub: renew it, the new files are used within 10 s", "file", f.names[0], "ended", leaf.NotAfter)
	case now.Before(leaf.NotBefore):
		f.log.Error("the certificate is not valid yet, and clients refuse this hub: check this computer's clock", "file", f.names[0], "begins", leaf.NotBefore)
	case leaf.NotAfter.Sub(now) < endsSoon:
		f.log.Warn("the certificate ends soon: renew it, the new files are used within 10 s", "file", f.names[0], "expires", leaf.NotAfter)
	default:
		return
	}
	f.warned = now
}

// look reloads the files if they have changed. It logs each failure once.
func (f *Files) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.unchanged() {
		return
	}
	if err := f.read(f.names); err == nil {
		f.log.Info("the certificate was read again", "file", f.names[0], "expires", f.pair.Leaf.NotAfter)
	} else if f.problem != err.Error() {
		f.problem = err.Error()
		f.log.Error("cannot read the new certificate; the one before is used on", "error", err, "expires", f.pair.Leaf.NotAfter)
	}
}

// unchanged reports whether the files are the ones already loaded. mu must be held.
func (f *Files) unchanged() bool {
	for i, name := range f.names {
		now, err := os.Stat(name)
		if before := f.seen[i]; err != nil || !os.SameFile(now, before) || now.Size() != before.Size() || !now.ModTime().Equal(before.ModTime()) {
			return false
		}
	}
	return true
}

// Expires returns when the certificate expires.
func (f *Files) Expires() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pair.Leaf.NotAfter
}

// configured returns the configuration for a listener that gets its certificates from
// get.
func configured(get func(*tls.ClientHelloInfo) (*tls.Certificate, error), protocols ...string) *tls.Config {
	return &tls.Config{GetCertificate: get, MinVersion: tls.VersionTLS12, NextProtos: protocols}
}
