package daemon

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// A body that an upstream of the call's own dialect does not take is sent to the hub
// unchanged, even if it is large enough for a file.
func TestLargeBodyGoesOn(t *testing.T) {
	h := newHub(t)
	h.does(refuseWith(200, `{"id":"msg_1","type":"message","role":"assistant","model":"far","content":[],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":2}}`))
	home := shortHome(t)
	h.signIn(home)
	room := assert.Value(spool.Open(filepath.Join(t.TempDir(), "spool"), spool.Limits{}))(t)
	busy := service(t, "both")
	busy.Set(enginetest.Behaviour{Status: http.StatusServiceUnavailable})
	c := upstream(busy, "messages")
	c.Models = []fleet.ModelID{"both"}
	r := run(t, Config{Home: home, Unshared: true, Spool: room, Upstreams: []engine.UpstreamConfig{c}})
	r.await("ready", func(s Status) bool { return s.Tunnel.SignedIn && len(s.Models) == 1 })
	for _, size := range []int{1 << 10, 2 << 20} {
		sent := strings.Replace(claude("both", false), `"messages"`, `"metadata":{"user_id":"`+strings.Repeat("x", size)+`"},"messages"`, 1)
		resp := r.post("/v1/messages", sent)
		if text := read(t, resp.Body); resp.StatusCode != 200 {
			t.Errorf("%d bytes: %d %s", size, resp.StatusCode, text)
		}
		h.mu.Lock()
		assert.Equal(t, h.bodies[len(h.bodies)-1], sent, size, "bytes: the hub got others")
		h.mu.Unlock()
		if u := room.Use(); u.Memory != 0 || u.Disk != 0 {
			t.Errorf("%d bytes: still held: %+v", size, u)
		}
	}
}
