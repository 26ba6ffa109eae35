package daemon

import (
	"context"
	"errors"
	"net/http"

	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// policy holds those fields of Config that Reload can replace and that no other part
// stores.
type policy struct {
	rate        gateway.Rate
	models      []fleet.ModelID
	groups      []string
	unshared    bool
	power       PowerPolicy
	sharedCache bool
	reach       fleet.KeyReach
	sealed      sealed.Mode
}

func (c *Config) policy() *policy {
	return &policy{c.Rate, c.Models, c.Groups, c.Unshared, c.PowerPolicy, c.SharedCache, c.Reach, c.Sealed}
}

// ReloadResult is the result of reloading the configuration.
type ReloadResult struct {
	Applied []string `json:"applied"` // changed keys that are in effect now
	Restart []string `json:"restart"` // changed keys that need a restart
}

// Reload applies the fields of c that can change while calls run: Rate, Discovery,
// Sharing, Models, Groups, Unshared, SharedCache, Reach, Sealed, and PowerPolicy without
// Awake.
// It ignores the others. Running calls continue; if Unshared is set, calls of the hub no
// longer start. If the hub had refused this daemon, it reconnects at once. On error
// nothing changes.
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
	if hub := d.hubClient.Load(); hub != nil && !c.Sealed.IsOn() {
		hub.dropSealing()
	}
	d.mu.Lock()
	_, limits := d.surface.InForce()
	d.surface.Reconfigure(gateway.Config{Rate: c.Rate, Limits: limits})
	d.mu.Unlock()
	d.admission.setYields(c.PowerPolicy.Yield)
	d.checkAudioNow.request()
	d.checkUpstreamsNow.request()
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
