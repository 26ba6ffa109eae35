package daemon

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// policy is the part of the configuration that Reload replaces at once.
type policy struct {
	models   []fleet.ModelID
	groups   []string
	unshared bool
	power    PowerPolicy
	// sharedCache is Config.SharedCache.
	sharedCache bool
}

func (c *Config) policy() *policy {
	return &policy{c.Models, c.Groups, c.Unshared, c.PowerPolicy, c.SharedCache}
}

// ReloadResult lists what a reload of the configuration has changed.
type ReloadResult struct {
	Applied []string `json:"applied"` // keys that are in effect now
	Restart []string `json:"restart"` // changed keys that take effect at the next start
}

// Reload applies the fields of c that can change while calls run: Rate, Discovery,
// Sharing, Models, Groups, Unshared, SharedCache, and PowerPolicy without Awake. It ignores the
// others. Running calls continue; once Unshared is set no call of the hub starts. A hub
// that refused this daemon is tried again at once. On an error nothing has changed.
func (d *Daemon) Reload(ctx context.Context, c Config) error {
	if err := d.settings.reconfigure(c.Sharing); err != nil {
		return err
	}
	if err := d.finder.Reconfigure(c.Discovery); err != nil {
		return errors.Join(err, d.settings.reconfigure(d.config.Sharing))
	}
	d.mu.Lock()
	if d.config.Rate != c.Rate {
		d.config.Rate = c.Rate
		d.surface = d.newSurface(d.port)
	}
	d.config.Sharing = c.Sharing
	d.mu.Unlock()
	if before := d.policy.Swap(c.policy()); before.unshared && !c.Unshared {
		d.reconnect() // to open the tunnel
	} else {
		d.retryRefused()
	}
	d.admission.setYields(c.PowerPolicy.Yield)
	d.checkAudioSoon()
	d.finder.Probe(ctx)
	d.offers.setChanged()
	return nil
}

// reconnect opens a new tunnel with the present credential.
func (d *Daemon) reconnect() { request(d.credentialChanged) }

func (d *Daemon) serveReload(w http.ResponseWriter, r *http.Request) {
	if d.config.ReloadConfig == nil {
		refuseChange(w, errors.New("cannot reload: this daemon was started without a configuration file"))
		return
	}
	result, err := d.config.ReloadConfig(r.Context())
	if err != nil {
		refuseChange(w, err)
		return
	}
	writeJSON(w, http.StatusOK, result)
}

// serveLocal serves a request by the present local surface. The request stays with it
// when Reload replaces the surface.
func (d *Daemon) serveLocal(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	surface := d.surface
	d.mu.Unlock()
	surface.ServeHTTP(w, r)
}

// newSurface returns the local surface for the port on which it listens.
func (d *Daemon) newSurface(port int) http.Handler {
	return gateway.New(gateway.Config{
		Backend: awakeBackend{d},
		Base:    strings.TrimSuffix(d.base, "/v1"), Version: d.config.Version,
		Guard:  &gateway.Guard{Port: port, Origins: d.config.Origins},
		Rate:   d.config.Rate,
		Limits: gateway.Limits{Upload: d.config.Audio.MaxUpload},
		Count:  d.count,
		Log:    d.log,
	})
}
