package certificate

import (
	"context"
	"crypto/tls"
	"log/slog"
	"time"

	"github.com/caddyserver/certmagic"
	"go.uber.org/zap"
)

// renewEvery is how often it is checked whether a certificate is to be renewed, which is
// when two thirds of its life are over or when the server asks for it (RFC 9773).
const renewEvery = time.Minute

// ACMEConfig is what an ACME certificate is requested with.
type ACMEConfig struct {
	Domains []string
	// Email is where the server sends warnings; may be empty.
	Email string
	// Directory is the server's directory URL; empty: Let's Encrypt.
	Directory string
	// Folder keeps the account, the certificates and their keys.
	Folder string
	// Port is the one at which the listener with TLS listens. The server connects to
	// port 443 of the domains, which has to lead there: it proves the domains by a
	// handshake (RFC 8737).
	Port int
	Log  *slog.Logger
}

// ACME is a certificate of an ACME server (RFC 8555).
type ACME struct {
	config ACMEConfig
	cache  *certmagic.Cache
	magic  *certmagic.Config
}

// NewACME returns the certificates that Run gets.
func NewACME(config ACMEConfig) *ACME {
	a := &ACME{config: config}
	quiet := zap.NewNop() // what matters of its log are events
	a.cache = certmagic.NewCache(certmagic.CacheOptions{
		GetConfigForCert:   func(certmagic.Certificate) (*certmagic.Config, error) { return a.magic, nil },
		RenewCheckInterval: renewEvery,
		Logger:             quiet,
	})
	a.magic = certmagic.New(a.cache, certmagic.Config{
		Storage: &certmagic.FileStorage{Path: config.Folder}, OnEvent: a.onEvent, Logger: quiet,
		DefaultServerName: config.Domains[0], // of clients that name none
	})
	a.magic.Issuers = []certmagic.Issuer{certmagic.NewACMEIssuer(a.magic, certmagic.ACMEIssuer{
		CA: config.Directory, Email: config.Email, Agreed: true,
		DisableHTTPChallenge: true, AltTLSALPNPort: config.Port, Logger: quiet,
	})}
	return a
}

// onEvent logs how requests for certificates end.
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

// TLS returns the configuration of a listener with the certificates.
func (a *ACME) TLS() *tls.Config {
	return configured(a.magic.GetCertificate, "acme-tls/1")
}

// Run gets the certificates and renews them, until ctx ends. A failure is logged
// and tried again, less and less often.
func (a *ACME) Run(ctx context.Context) error {
	defer a.cache.Stop()
	if err := a.magic.ManageAsync(ctx, a.config.Domains); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Renew begins to renew the certificates that are to be renewed.
func (a *ACME) Renew(ctx context.Context) error {
	return a.cache.RenewManagedCertificates(context.WithoutCancel(ctx))
}

// Expires returns when the certificate that ends first ends; zero: there is none yet.
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
