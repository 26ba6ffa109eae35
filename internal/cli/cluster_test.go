package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kith/kith/internal/storetest"
)

// TestTwoHubs runs two hubs on one PostgreSQL as processes of their own. The machine
// connects to one, the calls come to the other. When the machine's hub is killed, the
// other one refuses them within its wait and stays up.
func TestTwoHubs(t *testing.T) {
	t.Parallel()
	settings := fmt.Sprintf("[database]\nurl = %q\n[peer]\nlisten = \"127.0.0.1:0\"\n", storetest.Postgres(t))
	home := newRig(t, settings, "[hub]\nnode = \"a\"\n")
	entry := emptyRig(t)
	entry.key, entry.engine = home.key, home.engine
	entry.open(settings, "[hub]\nnode = \"b\"\n")
	entry.until("a call to the other hub is served", func() error { _, err := entry.ask(false); return err })
	entry.until("a streamed call to the other hub is served", func() error { _, err := entry.ask(true); return err })
	home.hub.kill()
	entry.hasty = true
	entry.until("a call whose machine's hub is gone is refused", func() error {
		if _, err := entry.ask(false); err == nil || !strings.Contains(err.Error(), "status 503") {
			return fmt.Errorf("it was answered, or otherwise refused: %v", err)
		}
		return nil
	})
	home.startHub()
	entry.until("a call is served again", func() error { _, err := entry.ask(false); return err })
}
