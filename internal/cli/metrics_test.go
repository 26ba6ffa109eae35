package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/storetest"
)

// metricName matches the name of a metric of ours.
var metricName = regexp.MustCompile(`\bkith_[a-z_]+`)

// TestMetricsAreDocumented compares the metrics of a hub with docs/operate/metrics.md,
// both ways, and finds each one that the alerts and the dashboard use.
func TestMetricsAreDocumented(t *testing.T) {
	certificate, key := selfSigned(t)
	home := shortDir(t)
	file := filepath.Join(home, "hub.toml")
	write(t, file, "[hub]\nlisten = \"127.0.0.1:0\"\ndata = \""+home+"\"\n[database]\nurl = \""+storetest.Postgres(t)+"\"\n"+
		"[tls]\ncertificate = \""+certificate+"\"\nkey = \""+key+"\"\n")
	config, err := loadHubFile(home, file)
	assert.OK(t, err)
	p, err := openHub(t.Context(), config, logTo(newPrinted(), slog.LevelInfo))
	assert.OK(t, err)
	defer p.close()
	registry := p.metrics()
	problems, err := testutil.GatherAndLint(registry)
	assert.That(t, err == nil && len(problems) == 0, err, problems)
	descriptions := make(map[string]bool)
	families, err := registry.Gather()
	assert.OK(t, err)
	for _, f := range families {
		descriptions[f.GetName()] = true
	}
	// Absent until there is something to show: another hub, a confirmation, a backup.
	for _, name := range []string{
		"kith_peer_up", "kith_peer_state_age_seconds", "kith_forwards_total", "kith_confirmation_age_seconds",
		"kith_backup_last_timestamp_seconds", "kith_backup_last_failed",
		"kith_call_wait_seconds", "kith_call_first_byte_seconds", "kith_call_duration_seconds",
	} {
		assert.That(t, !descriptions[name], name, "is there from the start: take it off this list")
		descriptions[name] = true
	}
	page := namesIn(t, "docs/operate/metrics.md")
	for name := range descriptions {
		assert.That(t, !strings.HasPrefix(name, "kith_") || page[name], "docs/operate/metrics.md lacks", name)
	}
	for _, used := range []string{"docs/operate/metrics.md", "deploy/prometheus/alerts.yml", "deploy/grafana/kith.json"} {
		for name := range namesIn(t, used) {
			base := name
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				if whole, ok := strings.CutSuffix(name, part); ok && strings.HasPrefix(whole, "kith_call_") {
					base = whole
				}
			}
			assert.That(t, descriptions[base], used, "names", name, "which a hub does not")
		}
	}
}

// namesIn returns the names of our metrics in a file of the repository.
func namesIn(t *testing.T, file string) map[string]bool {
	t.Helper()
	text := assert.Value(os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(file))))(t)
	names := make(map[string]bool)
	for _, name := range metricName.FindAllString(string(text), -1) {
		names[name] = true
	}
	return names
}

// selfSigned writes a certificate and its key, and returns their files.
func selfSigned(t *testing.T) (certificate, key string) {
	t.Helper()
	private := assert.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der := assert.Value(x509.CreateCertificate(rand.Reader, template, template, private.Public(), private))(t)
	secret := assert.Value(x509.MarshalPKCS8PrivateKey(private))(t)
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "certificate.pem"), filepath.Join(dir, "key.pem")
	write(t, certificate, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})))
	return certificate, key
}
