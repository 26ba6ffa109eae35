package sim

import (
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/tunnel"
)

// A machine gets a name for each caller's prompt cache: the same for all calls of a
// member on one day, another one for another member, and not the member's id.
func TestCacheNames(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		names := make(chan string, 1)
		trap := w.addTrap(ann, "box", func(rw http.ResponseWriter, r *http.Request) {
			names <- r.Header.Get(tunnel.HeaderCache)
			rw.WriteHeader(http.StatusBadRequest)
		})
		defer trap.end()
		w.together(ann, bob)
		name := func(by *member) string {
			w.do(ask{by: by, model: "m"})
			return <-names
		}
		first, again, other := name(bob), name(bob), name(ann)
		if first == "" || first != again || first == other || strings.Contains(first, string(bob.ID)) {
			t.Errorf("bob's %q and %q, ann's %q", first, again, other)
		}
	})
}
