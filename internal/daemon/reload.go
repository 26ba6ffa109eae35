package daemon

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// policy is what the configuration says of others' calls and the owner's ease.
type policy struct {
	models   []fleet.ModelID
	groups   []string
	unshared bool
	comfort  Comfort
}

func (c *Config) policy() *policy { return &policy{c.Models, c.Groups, c.Unshared, c.Comfort} }

// Reloaded says what came of a configuration that was read anew.
type Reloaded struct {
	Applied []string `json:"applied"` // keys that are in force now
	Restart []string `json:"restart"` // keys that changed and wait for the next start
}

// Reload brings into force what of c can change while calls run: Rate,
// Discovery, Sharing's first values, Models, Groups, Unshared and
// Comfort without Awake; the rest is left aside. No call is dropped: those of the hub that run when Unshared is set
// run on, and none begins. On an error nothing has changed.
func (d *Daemon) Reload(ctx context.Context, c Config) error {
	if err := d.settings.begin(c.Sharing); err != nil {
		return err
	}
	if err := d.finder.Reconfigure(c.Discovery); err != nil {
		return errors.Join(err, d.settings.begin(d.config.Sharing))
	}
	d.mu.Lock()
	if d.config.Rate != c.Rate {
		d.config.Rate = c.Rate
		d.surface = d.newSurface(d.port)
	}
	d.config.Sharing = c.Sharing
	d.mu.Unlock()
	if before := d.policy.Swap(c.policy()); before.unshared && !c.Unshared {
		d.reconnect() // to open the line that was kept closed
	}
	d.desk.yield(c.Comfort.Yield)
	d.askCheck()
	d.finder.Probe(ctx)
	d.board.touch()
	return nil
}

// reconnect has the line begin anew, with the credential that is kept now.
func (d *Daemon) reconnect() {
	select {
	case d.signedIn <- struct{}{}:
	default: // it is due already
	}
}

// serveReload has the program read its configuration anew.
func (d *Daemon) serveReload(w http.ResponseWriter, r *http.Request) {
	if d.config.Reread == nil {
		refuseChange(w, errors.New("cannot reload: this daemon was started without a configuration file"))
		return
	}
	done, err := d.config.Reread(r.Context())
	if err != nil {
		refuseChange(w, err)
		return
	}
	writeJSON(w, http.StatusOK, done)
}

// current is the local surface in force: a call stays with the one it began on.
func (d *Daemon) current(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	surface := d.surface
	d.mu.Unlock()
	surface.ServeHTTP(w, r)
}

// newSurface makes the local surface for the port it listens on.
func (d *Daemon) newSurface(port int) http.Handler {
	return gateway.New(gateway.Config{
		Backend: wakeful{d},
		Base:    strings.TrimSuffix(d.base, "/v1"), Version: d.config.Version,
		Guard:  &gateway.Guard{Port: port, Origins: d.config.Origins},
		Rate:   d.config.Rate,
		Limits: gateway.Limits{Upload: d.config.Audio.MaxUpload},
		Count:  d.count,
		Log:    d.log,
	})
}
