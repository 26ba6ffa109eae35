package daemon

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/engine"
)

const (
	// upstreamCheckInterval is how often the models of the upstreams are listed.
	upstreamCheckInterval = 10 * time.Minute
	// upstreamRetryInterval is how often they are listed while one of them does not work.
	upstreamRetryInterval = time.Minute
)

func newUpstreams(c *Config) ([]*engine.Upstream, error) {
	var all []*engine.Upstream
	for _, config := range c.Upstreams {
		config.Log = c.Log
		u, err := engine.NewUpstream(config)
		if err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}

// checkUpstreams lists the models of all upstreams concurrently, and reports whether all
// of them work.
func (d *Daemon) checkUpstreams(ctx context.Context) bool {
	var all sync.WaitGroup
	var failed atomic.Bool
	for _, u := range d.offers.upstreams {
		all.Go(func() {
			before := u.Engine()
			if !u.Check(ctx) {
				failed.Store(true)
			}
			if u.Engine() != before {
				d.offers.setChanged()
			}
		})
	}
	all.Wait()
	return !failed.Load()
}

func (d *Daemon) runUpstreamChecks(ctx context.Context) error {
	if len(d.offers.upstreams) == 0 {
		return nil
	}
	for {
		wait := upstreamRetryInterval
		if d.checkUpstreams(ctx) {
			wait = upstreamCheckInterval
		}
		if !sleep(ctx, wait, d.checkUpstreamsNow) {
			return nil
		}
	}
}
