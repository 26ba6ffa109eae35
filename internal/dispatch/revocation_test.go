package dispatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// A slow look-up does not confirm a credential that a later look-up could not confirm:
// that one is repeated.
func TestLateLookUp(t *testing.T) {
	for name, failed := range map[string]bool{"the first": false, "one that is repeated": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				away := func(context.Context, fleet.Caller) (*fault.Fault, error) { return nil, errors.New("away") }
				d := &Dispatcher{cfg: Config{Revoked: away}}
				c := &activeCall{d: d, call: new(gateway.Call)}
				_, unregister := d.active.register(t.Context(), c)
				defer unregister()
				again := func() { d.endRevoked([]*activeCall{c}, time.Now()) }
				if failed {
					again()
				}

				d.cfg.Revoked = func(context.Context, fleet.Caller) (*fault.Fault, error) {
					time.Sleep(time.Second)
					return nil, nil
				}
				go again()
				synctest.Wait()
				d.cfg.Revoked = away
				again()
				time.Sleep(2 * time.Second)
				assert.That(t, c.unchecked.Load() != nil, "it is not repeated")
				d.cfg.Revoked = func(context.Context, fleet.Caller) (*fault.Fault, error) { return nil, nil }
				if again(); c.unchecked.Load() != nil {
					t.Error("a look-up that succeeds is repeated")
				}
			})
		})
	}
}
