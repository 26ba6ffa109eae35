package certificate

import (
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// renewEvery is how often certificates are checked for renewal. A certificate is renewed
// after two thirds of its lifetime, or earlier if the server asks for it (RFC 9773).
const renewEvery = time.Minute

// ACMEConfig configures the request for an ACME certificate.
type ACMEConfig struct {
	Domains []string
	// Email is the address for the server's warnings; optional.
	Email string
	// Directory is the server's directory URL; empty: Let's Encrypt.
	Directory string
	// Folder holds the account, the certificates and their keys.
	Folder string
	// Port is the port of the TLS listener. The ACME server validates the domains with a
	// handshake on their port 443 (RFC 8737), so connections to that port must reach this
	// one.
	Port int
	Log  *slog.Logger
}

// ACME obtains and renews a certificate from an ACME server (RFC 8555).
type ACME struct {
	config ACMEConfig
	cache  *certmagic.Cache
	magic  *certmagic.Config
}

// NewACME returns an ACME. It requests nothing until Run is called.
func NewACME(config ACMEConfig) *ACME {
	a := &ACME{config: config}
	quiet := zap.NewNop() // onEvent logs the parts of its log that matter
	a.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return a.magic, nil },
		RenewCheckInterval: renewEvery,
		Logger:             quiet,
	})
	a.magic = certmagic.New(a.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: config.Folder}, OnEvent: a.onEvent, Logger: quiet,
		DefaultServerName: config.Domains[0], // for clients without SNI
	})
	a.magic.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(a.magic, certmagic.ACMEIssuer{
		CA: config.Directory, Email: config.Email, Agreed: true,
		DisableHTTPChallenge: true, AltTLSALPNPort: config.Port, Logger: quiet,
	})}
	return a
}

// onEvent logs the results of certificate requests.
func (a *ACME) onEvent(_ context.Context, event string, data map[string]any) error {
	switch event {
	case "cert_obtained":
		a.config.Log.Info("got a certificate", "domain", data["identifier"], "renewed", data["renewal"])
	case "cert_failed":
		a.config.Log.Error("cannot get a certificate; it is tried again. Does port 443 of the domain lead to this hub?",
			"domain", data["identifier"], "renewed", data["renewal"], "error", data["error"])
	}
	return nil
}

// TLS returns the configuration for a listener that uses the certificates.
func (a *ACME) TLS() *tls.Config {
	return configured(a.magic.GetCertificate, "acme-tls/1")
}

// Run obtains the certificates and renews them until ctx ends. It logs failures and
// retries with increasing delays.
func (a *ACME) Run(ctx context.Context) error {
	defer a.cache.Stop()
	if err := a.magic.ManageAsync(ctx, a.config.Domains); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Renew starts the renewal of all certificates that are due.
func (a *ACME) Renew(ctx context.Context) error {
	return a.cache.RenewManagedCertificates(context.WithoutCancel(ctx))
}

// Expires returns the earliest expiry of the certificates, or zero if there are none yet.
func (a *ACME) Expires() (first time.Time) {
	for _, domain := range a.config.Domains {
		for _, c := range a.cache.AllMatchingCertificates(domain) {
			if c.Leaf != nil && (first.IsZero() || c.Leaf.NotAfter.Before(first)) {
				first = c.Leaf.NotAfter
			}
		}
	}
	return first
}
