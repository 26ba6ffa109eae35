package cli

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/fleet"
)

// modelSpeed is how fast this machine runs a model, as measured by its hub.
type modelSpeed struct {
	Model           fleet.ModelID `json:"model"`
	FirstTokenMS    int64         `json:"first_token_ms,omitzero"`
	TokensPerSecond float64       `json:"tokens_per_second,omitzero"`
}

// speedsWithin limits how long the hub may take to report the speeds, because the status
// does not require them.
const speedsWithin = 3 * time.Second

// speeds returns the hub's measurements of this machine's models. It returns none if the
// machine is not connected or the hub does not report them.
func (a *app) speeds(ctx context.Context, line daemon.TunnelStatus) (speeds []modelSpeed) {
	if line.State != tunnelUp {
		return nil
	}
	_, saved, err := a.credential()
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, speedsWithin)
	defer cancel()
	machines, _, err := fetch(ctx, toHub(saved.Hub, saved.Secret), "read the speeds", api.ListMachines.With(api.None{}))
	if err != nil {
		return nil
	}
	for _, machine := range machines.Data {
		if machine.ID != saved.Machine {
			continue
		}
		for _, m := range machine.Models {
			if m.FirstTokenMS > 0 || m.TokensPerSecond > 0 {
				speeds = append(speeds, modelSpeed{m.ID, m.FirstTokenMS, m.TokensPerSecond})
			}
		}
	}
	return speeds
}

// String formats the speed: "about 0.4 s to first token, 48 tokens/s".
func (s modelSpeed) String() string {
	var parts []string
	switch first := time.Duration(s.FirstTokenMS) * time.Millisecond; {
	case first == 0:
	case first < 100*time.Millisecond:
		parts = append(parts, fmt.Sprintf("%d ms to first token", s.FirstTokenMS))
	default:
		parts = append(parts, estimate(first.Seconds())+" s to first token")
	}
	if s.TokensPerSecond > 0 {
		parts = append(parts, estimate(s.TokensPerSecond)+" tokens/s")
	}
	return "about " + strings.Join(parts, ", ")
}

// estimate formats an estimate. Numbers below 10 get one decimal.
func estimate(x float64) string {
	if text := fmt.Sprintf("%.1f", x); len(text) == len("1.0") {
		return text
	}
	return api.Number(int64(math.Round(x)))
}
