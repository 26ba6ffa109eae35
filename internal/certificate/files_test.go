package certificate

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

// pair writes a new certificate with a serial number, and its key, and returns their
// files.
func pair(t *testing.T, serial int64) (chain, key string) {
	t.Helper()
	private := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"hub.example.org"}, NotAfter: time.Date(2030, 1, 1, 0, 0, int(serial), 0, time.UTC)}
	der := assert.Value(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))(t)
	secret := assert.Value(x509.MarshalPKCS8PrivateKey(private))(t)
	dir := t.TempDir()
	chain, key = filepath.Join(dir, "chain.pem"), filepath.Join(dir, "key.pem")
	write(t, chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}))
	return chain, key
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	assert.OK(t, os.WriteFile(file, text, 0o600))
}

// copyOver replaces the content of a file.
func copyOver(t *testing.T, to, from string) {
	t.Helper()
	text := assert.Value(os.ReadFile(from))(t)
	write(t, to+".new", text)
	assert.OK(t, os.Rename(to+".new", to))
}

// serial is the serial number of the certificate that a handshake gets.
func serial(t *testing.T, f *Files) int64 {
	t.Helper()
	got := assert.Value(f.TLS().GetCertificate(new(tls.ClientHelloInfo)))(t)
	return got.Leaf.SerialNumber.Int64()
}

func TestFilesAreTakenUp(t *testing.T) {
	chain, key := pair(t, 1)
	chain2, key2 := pair(t, 2)
	chain3, key3 := pair(t, 3)
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		f := assert.Value(Open(chain, key, slog.New(slog.NewTextHandler(log, nil))))(t)
		go f.Run(t.Context())
		assert.Equal(t, serial(t, f), 1, "another certificate")
		time.Sleep(time.Minute)
		copyOver(t, chain, chain2) // its key is still the old one
		time.Sleep(time.Minute)
		if serial(t, f) != 1 || strings.Count(log.String(), "level=ERROR") != 1 {
			t.Errorf("half of a new pair: %d, %s", serial(t, f), log)
		}
		copyOver(t, key, key2)
		time.Sleep(11 * time.Second)
		if serial(t, f) != 2 || !f.Expires().Equal(time.Date(2030, 1, 1, 0, 0, 2, 0, time.UTC)) {
			t.Errorf("after both files changed: %d, %s", serial(t, f), f.Expires())
		}
		assert.OK(t, os.Remove(chain))
		time.Sleep(time.Minute)
		if serial(t, f) != 2 || strings.Count(log.String(), "level=ERROR") != 2 {
			t.Errorf("without its file: %d, %s", serial(t, f), log)
		}
		if err := f.Use(chain3, "absent"); err == nil || serial(t, f) != 2 {
			t.Errorf("another file that is absent: %v, %d", err, serial(t, f))
		}
		if err := f.Use(chain3, key3); err != nil || serial(t, f) != 3 {
			t.Errorf("other files: %v, %d", err, serial(t, f))
		}
	})
}

// TestEndIsLogged: a certificate that ends within 14 days, or has ended, is logged once a
// day, until a new one is there.
func TestEndIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		chain, key := pair(t, 1)
		var log bytes.Buffer
		f := assert.Value(Open(chain, key, slog.New(slog.NewTextHandler(&log, nil))))(t)
		f.warn(time.Now())
		assert.That(t, log.Len() == 0, "years before its end", log.String())
		time.Sleep(time.Until(f.Expires()) - 10*24*time.Hour)
		for range 3 * 24 { // three days
			f.warn(time.Now())
			time.Sleep(time.Hour)
		}
		if got := strings.Count(log.String(), "level=WARN msg=\"the certificate ends soon: renew it"); got != 3 {
			t.Errorf("logged %d times in three days: %s", got, log.String())
		}
		time.Sleep(time.Until(f.Expires()) + time.Hour)
		log.Reset()
		f.warn(time.Now())
		if !strings.Contains(log.String(), "level=ERROR msg=\"the certificate has ended, and clients refuse this hub: renew it") {
			t.Errorf("after its end: %s", log.String())
		}
	})
}

func TestKeyIsPrivate(t *testing.T) {
	chain, key := pair(t, 1)
	for mode, want := range map[os.FileMode]string{0o600: "", 0o400: "", 0o640: "", 0o440: "", 0o644: "chmod 640", 0o604: "chmod 600", 0o660: "chmod 600", 0o666: "mode 0666"} {
		assert.OK(t, os.Chmod(key, mode))
		_, err := Open(chain, key, slog.New(slog.DiscardHandler))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
	for _, files := range [][2]string{{"absent", key}, {chain, "absent"}, {key, chain}} {
		if _, err := Open(files[0], files[1], slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%q was taken", files)
		}
	}
}
