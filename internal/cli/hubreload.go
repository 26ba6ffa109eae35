package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"path/filepath"
	"reflect"
	"time"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/certificate"
)

// reload is `kith admin reload`, which makes the hub read its configuration again.
func (o *operator) reload() *cobra.Command {
	return command("kith admin reload", func(ctx context.Context, _ []string) error {
		return ask(ctx, o.socket("reload"), api.OperatorReload.With(api.None{}), func(done api.Reloaded) {
			o.showReloaded("hub", done.Applied, done.Restart)
		})
	})
}

// reload reads the configuration and the certificate again and applies the settings that
// can change. On error nothing changes.
func (p *hubProcess) reload(ctx context.Context) (api.Reloaded, error) {
	p.reloading.Lock()
	defer p.reloading.Unlock()
	if p.read == nil {
		return api.Reloaded{}, errors.New("this hub was started without a configuration file")
	}
	next, err := p.read()
	if err != nil {
		return api.Reloaded{}, err
	}
	after := p.inForce.apply(next)
	if err := p.reloadCertificate(ctx, after); err != nil {
		return api.Reloaded{}, err
	}
	applied := changed(reflect.ValueOf(*p.inForce), reflect.ValueOf(*after), "")
	restart := changed(reflect.ValueOf(*after), reflect.ValueOf(*next), "")
	p.level.Set(after.Log.level())
	p.clients.Reconfigure(after.proxies(), int(after.RateLimit.Connections))
	p.hub.Reload(p.hubConfig(after))
	p.inForce = after
	p.log.Info("the configuration was read again", "applied", applied, "restart", restart)
	return api.Reloaded{Applied: append([]string{}, applied...), Restart: append([]string{}, restart...)}, nil
}

// apply returns the configuration with those settings from next that a running hub can
// change: all limits except those of the spool, the proxies and the origins, the files of
// the certificate, and the level of the log.
func (c *hubFile) apply(next *hubFile) *hubFile {
	after := *c
	after.Hub.Drain, after.Hub.Proxies, after.Hub.CORS = next.Hub.Drain, next.Hub.Proxies, next.Hub.CORS
	after.Limits, after.RateLimit = next.Limits, next.RateLimit
	after.Limits.Member, after.Limits.Spool = c.Limits.Member, c.Limits.Spool
	if c.TLS.Certificate != "" && next.TLS.Certificate != "" {
		after.TLS.Certificate, after.TLS.Key = next.TLS.Certificate, next.TLS.Key
	}
	after.Log.Level = next.Log.Level
	return &after
}

// proxies returns the networks in [hub] proxies.
func (c *hubFile) proxies() []netip.Prefix {
	return convert(c.Hub.Proxies, func(p proxy) netip.Prefix { return p.Prefix })
}

// certificateSource is the source of the public address's certificate: files or an ACME
// server.
type certificateSource interface {
	// TLS returns the configuration for a listener that uses the certificate.
	TLS() *tls.Config
	// Run keeps the certificate current until ctx ends.
	Run(ctx context.Context) error
	// Expires returns when the certificate expires; zero: there is none yet.
	Expires() time.Time
}

// openCertificate opens the certificate configured in [tls]. Without one the public
// address uses plain HTTP. port is the port of the listener.
func (p *hubProcess) openCertificate(port int) (err error) {
	switch t := p.config.TLS; {
	case t.ACME:
		p.certificate = certificate.NewACME(certificate.ACMEConfig{
			Domains: t.domains(), Email: t.Email, Directory: t.Directory.Text,
			Folder: filepath.Join(p.config.Hub.Data, "acme"), Port: port, Log: p.log,
		})
	case t.Certificate != "":
		p.certificate, err = certificate.Open(t.Certificate, t.Key, p.log)
	}
	return err
}

// reloadCertificate checks for a new certificate.
func (p *hubProcess) reloadCertificate(ctx context.Context, after *hubFile) error {
	switch source := p.certificate.(type) {
	case *certificate.Files:
		return source.Use(after.TLS.Certificate, after.TLS.Key)
	case *certificate.ACME:
		return source.Renew(ctx)
	}
	return nil
}
