package daemon

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/engine"
)

const (
	// upstreamEvery is how often the upstreams are asked for their models.
	upstreamEvery = 10 * time.Minute
	// upstreamAgain is how soon while one of them does not tell.
	upstreamAgain = time.Minute
)

// newUpstreams are the upstreams of the configuration.
func newUpstreams(c *Config) ([]*engine.Upstream, error) {
	var all []*engine.Upstream
	for _, config := range c.Upstreams {
		if config.Log == nil {
			config.Log = c.Log
		}
		u, err := engine.NewUpstream(config)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// checkUpstreams asks all upstreams for their models, all at once, and reports
// whether all are in order.
func (d *Daemon) checkUpstreams(ctx context.Context) bool {
	var all sync.WaitGroup
	var failed atomic.Bool
	for _, u := range d.board.upstreams {
		all.Go(func() {
			before := u.Engine()
			if !u.Check(ctx) {
				failed.Store(true)
			}
			if u.Engine() != before {
				d.board.touch()
			}
		})
	}
	all.Wait()
	return !failed.Load()
}

// keepUpstreams keeps what is known of the upstreams new.
func (d *Daemon) keepUpstreams(ctx context.Context) error {
	if len(d.board.upstreams) == 0 {
		return nil
	}
	for {
		wait := upstreamAgain
		if d.checkUpstreams(ctx) {
			wait = upstreamEvery
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}
