package daemon

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/tunnel"
)

// computer is a staged one, of files under a root.
type computer struct {
	t    *testing.T
	root string
}

func (c computer) set(name, text string) {
	c.t.Helper()
	path := filepath.Join(c.root, name)
	assert.OK(c.t, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.OK(c.t, os.WriteFile(path, []byte(text+"\n"), 0o600))
}

// local makes a call of the local surface without a connection.
func local(t *testing.T, d *Daemon, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, d.Status().Local+"/chat/completions", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	d.Handler().ServeHTTP(w, r)
	return w
}

// A machine pauses by itself within seconds for each of the three reasons, its
// status says why, the hub is notified, and it resumes when the reason is over. The
// owner's programs here are served throughout.
func TestPausesByItself(t *testing.T) {
	home, staged := t.TempDir(), computer{t, t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(enginetest.Plain, enginetest.Options{})
		d, l := falseTime(t, Config{Home: home, PowerPolicy: PowerPolicy{
			Computer: host.Computer{Root: staged.root}, OnBattery: true, OnBusyGPU: true, OnHotCPU: true,
		}}, double)
		staged.set("sys/class/power_supply/BAT0/type", "Battery")
		staged.set("sys/class/hwmon/hwmon0/name", "coretemp")
		staged.set("proc/40/comm", "game")
		staged.set("proc/40/status", "PPid:\t1")
		staged.set("proc/40/fdinfo/3", "drm-client-id:\t1\ndrm-memory-vram:\t4 MiB")
		assert.OK(t, os.MkdirAll(filepath.Join(staged.root, "proc/40/fd"), 0o700))
		assert.OK(t, os.Symlink("/dev/dri/renderD128", filepath.Join(staged.root, "proc/40/fd/3")))
		for name, c := range map[string]struct {
			file, bad, good, says string
		}{
			"battery":   {"sys/class/power_supply/BAT0/status", "Discharging", "Charging", "it runs on its battery"},
			"processor": {"sys/class/hwmon/hwmon0/temp1_input", "95000", "60000", "its processor is hot"},
			"GPU":       {"proc/40/fdinfo/3", "drm-client-id:\t1\ndrm-memory-vram:\t4096 MiB", "", "game holds its GPU"},
		} {
			staged.set("sys/class/drm/card0/device/mem_info_vram_used", "6000000000")
			began := time.Now()
			staged.set(c.file, c.bad)
			l.until("paused for its "+name, func(ad tunnel.Advertisement) bool { return ad.Paused })
			if took := time.Since(began); took > powerCheckInterval+time.Second {
				t.Errorf("%s: notified of the pause after %v", name, took)
			}
			if s := d.Status(); !slices.Equal(s.PausedBy, []string{c.says}) || s.Sharing.Paused {
				t.Errorf("%s: the status says %q, paused by the owner: %v", name, s.PausedBy, s.Sharing.Paused)
			}
			for _, caller := range []string{"own ada", "shared bob"} {
				assert.Equal(t, l.refusedAs(caller), tunnel.RefusedPaused, name, caller, "is refused")
			}
			if w := local(t, d, chat(false)); w.Code != 200 {
				t.Errorf("%s: the owner's program: %d %s", name, w.Code, w.Body)
			}
			staged.set(c.file, c.good)
			l.until("resumed", func(ad tunnel.Advertisement) bool { return !ad.Paused })
			if got, s := l.refusedAs("shared bob"), d.Status(); got != "" || s.PausedBy != nil {
				t.Errorf("%s is over: refused %q, status %q", name, got, s.PausedBy)
			}
		}
		l.leave()
	})
}

// Each of the pauses is a setting.
func TestPausesByItselfAsConfigured(t *testing.T) {
	home, staged := t.TempDir(), computer{t, t.TempDir()}
	staged.set("sys/class/power_supply/BAT0/type", "Battery")
	staged.set("sys/class/power_supply/BAT0/status", "Discharging")
	staged.set("sys/class/hwmon/hwmon0/name", "coretemp")
	staged.set("sys/class/hwmon/hwmon0/temp1_input", "95000")
	for _, c := range []struct {
		power PowerPolicy
		want  []string
	}{
		{PowerPolicy{}, nil},
		{PowerPolicy{OnBusyGPU: true}, nil},
		{PowerPolicy{OnBattery: true}, []string{"it runs on its battery"}},
		{PowerPolicy{OnHotCPU: true}, []string{"its processor is hot"}},
		{PowerPolicy{OnBattery: true, OnHotCPU: true}, []string{"it runs on its battery", "its processor is hot"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			c.power.Computer = host.Computer{Root: staged.root}
			d, l := falseTime(t, Config{Home: home, PowerPolicy: c.power}, enginetest.New(enginetest.Plain, enginetest.Options{}))
			time.Sleep(time.Minute)
			if got := d.Status().PausedBy; !slices.Equal(got, c.want) {
				t.Errorf("%+v: paused by %q, want %q", c.power, got, c.want)
			}
			l.leave()
		})
	}
}

// While a local call runs, and for yieldGrace after, no call of the hub starts; a
// running one continues, and the hub sees a busy machine.
func TestYieldsToLocal(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Chunks: 10, Interval: time.Second}})
		d, l := falseTime(t, Config{Home: home, PowerPolicy: PowerPolicy{Yield: true}}, double)
		running := l.served("/v1/chat/completions", chat(true))
		firstFrame(t, running.Body)

		served := make(chan int, 1)
		go func() { served <- local(t, d, chat(true)).Code }()
		l.until("yielding", func(ad tunnel.Advertisement) bool {
			return ad.Free == 0 && ad.Local == ad.Slots && ad.Models[0].Free == 0 && ad.Models[0].Local == ad.Models[0].Slots
		})
		if got, s := l.refusedAs("shared bob"), d.Status(); got != tunnel.RefusedBusy || !s.Yielding || s.Own != 1 || s.Routed != 1 {
			t.Errorf("while the owner's call runs: refused %q, status %+v", got, s)
		}
		if text := read(t, running.Body); !strings.HasSuffix(text, done) {
			t.Errorf("what ran already: %s", text)
		}
		assert.Equal(t, <-served, 200, "the owner's call")
		ended := time.Now()
		if got := l.refusedAs("own ada"); got != tunnel.RefusedBusy || !d.Status().Yielding {
			t.Errorf("just after it: refused %q", got)
		}
		l.until("free again", func(ad tunnel.Advertisement) bool { return ad.Free == ad.Slots && ad.Local == 0 })
		if took := time.Since(ended); took < yieldGrace || took > yieldGrace+time.Second {
			t.Errorf("free again %v after the owner's call, want %v", took, yieldGrace)
		}
		if got := l.refusedAs("shared bob"); got != "" || d.Status().Yielding {
			t.Errorf("after the yieldGrace: refused %q", got)
		}

		// A second call within yieldGrace restarts it.
		for range 2 {
			local(t, d, chat(false))
			time.Sleep(yieldGrace - time.Second)
		}
		assert.That(t, d.Status().Yielding, "the yieldGrace of the first call ended that of the second")
		l.leave()
	})
}

// A call that an upstream serves does not use this machine: the machine does not yield.
func TestDoesNotYieldToUpstream(t *testing.T) {
	k := &admission{yields: true, onLocal: func() {}}
	release := k.startLocal("gpt", 1, false)
	assert.That(t, !k.ownerOnly(), "yields while an upstream serves")
	release()
	assert.That(t, !k.ownerOnly(), "yields after an upstream served")
	release = k.startLocal("llama", 1, true)
	if release(); !k.ownerOnly() {
		t.Error("does not yield in the yieldGrace after an engine here served")
	}
}

// Without the setting the owner's calls hold their slots and no more.
func TestDoesNotYieldUnasked(t *testing.T) {
	home := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Chunks: 10, Interval: time.Second}})
		d, l := falseTime(t, Config{Home: home}, double)
		served := make(chan int, 1)
		go func() { served <- local(t, d, chat(true)).Code }()
		l.until("used", func(ad tunnel.Advertisement) bool { return ad.Local == 1 && ad.Free == ad.Slots-1 })
		if got := l.refusedAs("shared bob"); got != "" || d.Status().Yielding {
			t.Errorf("refused %q", got)
		}
		<-served
		l.leave()
	})
}

// The computer is kept awake for local calls, for those of the hub and for those sent
// to the hub, each until its response is complete; and not for a refusal.
func TestAwakeWhileAnAnswerRuns(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "said")
	e := enginetest.New(enginetest.Plain, enginetest.Options{Behaviour: enginetest.Behaviour{Fault: enginetest.Hang, After: 1}})
	r, _, l := joined(t, Config{PowerPolicy: PowerPolicy{Awake: []string{"sh", "-c", "echo awake >>" + pipe + "; cat; echo over >>" + pipe}}}, e)
	said := func(want string) {
		t.Helper()
		for end := time.Now().Add(patience); ; <-time.After(5 * time.Millisecond) {
			text, _ := os.ReadFile(pipe)
			if string(text) == want {
				return
			}
			assert.Require(t, !time.Now().After(end), text, want)
		}
	}
	r.post("/v1/chat/completions", strings.Replace(chat(false), "{", `{"model":1,`, 1)) // malformed: never a call
	if _, err := os.Stat(pipe); err == nil {
		t.Fatal("kept awake for a refusal")
	}
	routed := l.served("/v1/chat/completions", chat(true))
	firstFrame(t, routed.Body)
	said("awake\n")
	own := r.post("/v1/chat/completions", chat(true))
	firstFrame(t, own.Body)
	routed.Body.Close()
	r.await("rid of the routed call", func(s Status) bool { return s.Routed == 0 })
	said("awake\n")
	own.Body.Close()
	said("awake\nover\n")
	own = r.post("/v1/chat/completions", chat(true))
	firstFrame(t, own.Body)
	said("awake\nover\nawake\n")
	own.Body.Close()
	r.end() // the daemon's end lets the computer sleep at once
	said("awake\nover\nawake\nover\n")
}
