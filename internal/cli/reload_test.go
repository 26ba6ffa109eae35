//go:build unix

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// TestReload changes the configuration under a running daemon, by the command
// and by the signal.
func TestReload(t *testing.T) {
	home := shortDir(t)
	t.Setenv("KITH_HOME", home)
	file := filepath.Join(home, "config.toml")
	base := "[discovery]\nenabled = false\n[daemon]\nlisten = \"127.0.0.1:0\"\n"
	write(t, file, base)
	check(t, kith(t, "", "reload"), said{1, "", "start it with `kith serve`"})
	p := begin(t, "serve")
	assert.Require(t, strings.HasPrefix(p.first, "daemon on http://127.0.0.1:"), p.first)
	check(t, kith(t, "", "reload"), said{out: "nothing has changed\n"})

	changed := base + "[share]\nslots = 3\ngroups = [\"lab\"]\n[ratelimit]\nrps = 7\n[privacy]\nsealed = \"prefer\"\n[engine]\nslots = 2\n"
	write(t, file, changed)
	check(t, kith(t, "", "reload"), said{out: "in effect now: ratelimit.rps, share.slots, share.groups, privacy.sealed\nfrom the next start of the daemon: engine.slots\n"})
	check(t, kith(t, "", "reload", "--json"), said{out: `{"applied":[],"restart":["engine.slots"]}` + "\n"})
	if got := kith(t, "", "status"); !strings.Contains(got.out, "slots     3;") || !strings.Contains(got.out, "groups    lab") {
		t.Errorf("status says %+v", got)
	}

	// A broken file changes nothing, and says where.
	write(t, file, "[share]\nslots = \"many\"\n")
	check(t, kith(t, "", "reload"), said{1, "", "config.toml:2:9: share.slots takes"})

	write(t, file, strings.Replace(changed, "slots = 3", "slots = 4", 1))
	assert.OK(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for late := time.Now().Add(soon); !strings.Contains(kith(t, "", "status").out, "slots     4;"); <-again.C {
		assert.Require(t, !time.Now().After(late), "SIGHUP changed nothing")
	}
	if end := p.stop(); end.status != 0 {
		t.Errorf("the daemon ended with %+v", end)
	}
}
