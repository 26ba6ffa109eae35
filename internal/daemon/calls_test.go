package daemon

import (
	"fmt"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/gateway"
)

// The last calls are kept, and counted by whether they were sealed.
func TestCallsHere(t *testing.T) {
	var c callsHere
	for i := range maxCallsHere + 7 {
		trace := gateway.Trace{HubID: fmt.Sprintf("hub_%d", i), Sealed: []string{sealed.Yes, sealed.NoKey, sealed.Here, sealed.Upstream}[i%4]}
		c.add(&gateway.Call{ID: fmt.Sprintf("req_%d", i), Model: "m", Trace: trace}, gateway.Outcome{Status: 200, Duration: time.Second})
	}
	assert.That(t, c.of("req_6") == nil && c.of("hub_6") == nil && c.of("") == nil && len(c.last) == maxCallsHere)
	for _, id := range []string{"req_7", "hub_7", "req_1006"} {
		made := c.of(id)
		assert.That(t, made != nil && made.TookMS == 1000 && made.Status == 200 && (made.ID == id || made.HubID == id), id, made)
	}
	n := c.sealed()
	assert.That(t, n.Sealed == 252 && n.Clear == 252 && n.LastClear.ID == "req_1005", n)
}
