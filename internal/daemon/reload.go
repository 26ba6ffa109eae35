package daemon

import (
	"context"
	"errors"
	"net/http"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// policy holds the fields of Config that Reload replaces and that nothing else keeps.
type policy struct {
	rate        gateway.Rate
	models      []fleet.ModelID
	groups      []string
	unshared    bool
	power       PowerPolicy
	sharedCache bool
	reach       fleet.Narrow
}

func (c *Config) policy() *policy {
	return &policy{c.Rate, c.Models, c.Groups, c.Unshared, c.PowerPolicy, c.SharedCache, c.Reach}
}

// ReloadResult lists what a reload of the configuration has changed.
type ReloadResult struct {
	Applied []string `json:"applied"` // keys that are in effect now
	Restart []string `json:"restart"` // changed keys that take effect at the next start
}

// Reload applies the fields of c that can change while calls run: Rate, Discovery,
// Sharing, Models, Groups, Unshared, SharedCache, Reach, and PowerPolicy without Awake. It ignores the
// others. Running calls continue; once Unshared is set no call of the hub starts. A hub
// that refused this daemon is tried again at once. On an error nothing has changed.
func (d *Daemon) Reload(ctx context.Context, c Config) error {
	before, err := d.settings.reconfigure(c.Sharing)
	if err != nil {
		return err
	}
	if err := d.finder.Reconfigure(c.Discovery); err != nil {
		_, undone := d.settings.reconfigure(before)
		return errors.Join(err, undone)
	}
	if before := d.policy.Swap(c.policy()); before.unshared && !c.Unshared {
		d.reconnect() // to open the tunnel
	} else {
		d.retryRefused()
	}
	d.mu.Lock()
	_, limits := d.surface.InForce()
	d.surface.Reconfigure(gateway.Config{Rate: c.Rate, Limits: limits})
	d.mu.Unlock()
	d.admission.setYields(c.PowerPolicy.Yield)
	d.checkAudioSoon()
	d.checkUpstreamsSoon()
	d.finder.Probe(ctx)
	d.discoverLate()
	d.offers.setChanged()
	return nil
}

func (d *Daemon) serveReload(w http.ResponseWriter, r *http.Request) {
	if d.config.ReloadConfig == nil {
		refuseChange(w, errors.New("this daemon was started without a configuration file"))
		return
	}
	result, err := d.config.ReloadConfig(r.Context())
	if err != nil {
		refuseChange(w, err)
		return
	}
	writeJSON(w, http.StatusOK, result)
}
