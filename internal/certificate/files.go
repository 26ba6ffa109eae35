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

// filesEvery is how often files are looked at. Looking finds every kind of replacement,
// also through the links of certbot and of Kubernetes, and on a network file system.
const filesEvery = 10 * time.Second

// A certificate that ends within endsSoon is logged, and again after warnEvery.
const (
	endsSoon  = 14 * 24 * time.Hour
	warnEvery = 24 * time.Hour
)

// Files is a certificate in PEM files.
type Files struct {
	log *slog.Logger

	mu      sync.Mutex
	names   [2]string // of the certificate chain and of its key
	seen    [2]os.FileInfo
	pair    *tls.Certificate
	problem string // that was logged; empty: none
	warned  time.Time
}

// Open reads a certificate chain and its key.
func Open(chain, key string, log *slog.Logger) (*Files, error) {
	f := &Files{log: log}
	return f, f.Use(chain, key)
}

// Use reads the certificate from these files from now on. On an error nothing changes.
func (f *Files) Use(chain, key string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.read([2]string{chain, key})
}

// read reads the files, whatever was read of them before. Needs mu.
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

// TLS returns the configuration of a listener with the certificate.
func (f *Files) TLS() *tls.Config {
	return configured(func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.pair, nil
	})
}

// Run reads the files when they have changed, until ctx ends. While they cannot be
// used, a certificate without its new key for example, the one before stays.
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

// warn logs, once a day, that the certificate has ended, ends soon, or is not valid yet.
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

// look reads the files if they have changed, and logs a failure once.
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

// unchanged reports whether the files are those that were read. Needs mu.
func (f *Files) unchanged() bool {
	for i, name := range f.names {
		now, err := os.Stat(name)
		if before := f.seen[i]; err != nil || !os.SameFile(now, before) || now.Size() != before.Size() || !now.ModTime().Equal(before.ModTime()) {
			return false
		}
	}
	return true
}

// Expires returns when the certificate ends.
func (f *Files) Expires() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.pair.Leaf.NotAfter
}
