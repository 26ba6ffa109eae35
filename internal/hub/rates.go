package hub

import (
	"context"
	"time"

	"encoding/json/v2"

	"github.com/kith/kith/internal/gateway"
)

// ratesEvery is how often what callers took of their rates is sent to the other nodes.
const ratesEvery = 100 * time.Millisecond

// shareRates sends the other nodes of the region what callers took of their rates at this
// one, until ctx ends (spec/peers.md#rates).
func (h *Hub) shareRates(ctx context.Context) error {
	if !h.live.HasPeers() {
		return nil
	}
	ticker := time.NewTicker(ratesEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if taken := h.edge.Taken(); len(taken) > 0 {
				data, err := json.Marshal(taken)
				if err != nil {
					return err
				}
				h.live.PublishRates(data)
			}
		}
	}
}

// onRates takes what callers took of their rates at another node.
func (h *Hub) onRates(data []byte) {
	var taken []gateway.Taken
	if err := json.Unmarshal(data, &taken); err == nil {
		h.edge.TakeElsewhere(taken)
	}
}
