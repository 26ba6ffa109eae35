package sim

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/storetest"
	"github.com/kith/kith/internal/tunnel"
)

// TestWrongDataFolder starts the hub on an empty data folder for a minute, and then on its
// own again: each machine says meanwhile that it was refused and when it tries again, and
// is back by itself within 15 minutes, or within 5 s of a reload (docs/faults.md#57).
func TestWrongDataFolder(t *testing.T) {
	inBubble(t, func(w *world) {
		ann := w.addMember("ann")
		for _, name := range []string{"one", "two", "three", "four"} {
			w.addMachine(ann, name, 1, "m")
		}
		right := w.path
		wrongFolder := func() {
			w.t.Helper()
			w.stopHub()
			w.path = filepath.Join(filepath.Dir(storetest.SQLite(t)), "kith.db")
			w.startHub()
			time.Sleep(time.Minute)
			for _, m := range w.machines {
				s := m.Status().Tunnel
				if s.State != daemon.TunnelRefused || !strings.Contains(s.Error, "unless the hub itself is at fault") || !s.Retry.After(time.Now()) {
					w.t.Errorf("%s on the wrong folder: %+v", m.name, s)
				}
			}
			w.stopHub()
			w.path = right
			w.startHub()
		}
		back := func(within time.Duration) {
			w.t.Helper()
			began := time.Now()
			for _, m := range w.machines {
				for m.Status().Tunnel.State != string(tunnel.Acked) && time.Since(began) < within {
					time.Sleep(100 * time.Millisecond)
				}
				if s := m.Status().Tunnel; s.State != string(tunnel.Acked) {
					w.t.Errorf("%s is not back after %s: %+v", m.name, within, s)
				}
			}
			w.wantServed(w.do(ask{by: ann, model: "m"}), 1)
		}

		wrongFolder()
		back(15 * time.Minute)

		wrongFolder()
		for _, m := range w.machines {
			w.must(m.Reload(w.t.Context(), m.config))
		}
		back(5 * time.Second)
	})
}
