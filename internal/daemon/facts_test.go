package daemon

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/host"
	"github.com/kith/kith/internal/tunnel"
)

// aComputer is a computer with Debian, a processor and 16 GB.
func aComputer(t *testing.T) *host.Computer {
	t.Helper()
	c := &host.Computer{Root: t.TempDir()}
	for name, text := range map[string]string{
		"etc/os-release": `PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"`,
		"proc/cpuinfo":   "processor\t: 0\nmodel name\t: AMD Ryzen 9",
		"proc/meminfo":   "MemTotal: 16000000 kB\nMemFree: 1 kB\nMemAvailable: 4000000 kB",
		"proc/stat":      "cpu  100 0 0 100 0 0 0 0 0 0",
	} {
		path := filepath.Join(c.Root, name)
		assert.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
		assert.OK(t, os.WriteFile(path, []byte(text+"\n"), 0o600))
	}
	return c
}

// The hub learns of the machine and of each model what the computer and the engines
// report, and the owner sees the same in the status.
func TestFactsReachTheHub(t *testing.T) {
	double := enginetest.New(enginetest.Plain, enginetest.Options{})
	known := fleet.ModelFacts{Architecture: "qwen3", Parameters: 8_190_735_360, Quantization: "Q4_K_M", Size: 5_225_388_164}
	models := []engine.Model{
		{ID: "known", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 1, ModelFacts: known},
		{ID: "odd", Families: []fleet.Family{fleet.Chat}, Endpoints: []fleet.Endpoint{fleet.ChatCompletions}, Slots: 1,
			ModelFacts: fleet.ModelFacts{Architecture: "\x1b[2J", Parameters: -1}},
	}
	own := engine.Builtin("built-in", double.Transport(), engine.BuiltinState{Models: models, Version: "llama.cpp v0.5.0"})
	odd := engine.Builtin("odd", double.Transport(), engine.BuiltinState{Version: "\x1b[2J"})
	r, _, l := joined(t, Config{Own: []*engine.Engine{own, odd}, Computer: aComputer(t)})
	want := fleet.MachineFacts{
		System: "Debian GNU/Linux 12 (bookworm)", Arch: runtime.GOARCH, CPU: "AMD Ryzen 9", Cores: runtime.NumCPU(), Memory: 16_000_000 << 10,
		Engines: []fleet.EngineVersion{{Kind: "builtin", Version: "llama.cpp v0.5.0"}, {Kind: "builtin"}}, Kith: "test",
	}
	if isRead := func(ad tunnel.Advertisement) bool { return ad.Facts.Memory > 0 }; !isRead(l.ad) {
		l.until("the computer is read", isRead)
	}
	assert.Same(t, *l.ad.Facts, want)
	assert.Equal(t, l.ad.Models[0].ModelFacts, known)
	assert.Equal(t, l.ad.Models[1].ModelFacts, fleet.ModelFacts{})
	assert.Same(t, *r.Status().Facts, want)
}

// Gauges are in what the hub asks for, and not in what a command here does, nor in the
// answers to acts.
func TestGaugesForTheHub(t *testing.T) {
	files := new(fakeFiles)
	r, _, l := joined(t, Config{Files: files.act, Computer: aComputer(t)})
	var gauges *fleet.Gauges
	for gauges == nil { // on a busy computer a reading may take longer than a request waits
		gauges = assert.Value(tunnel.SendFileAct(t.Context(), l, fleet.FileAct{Act: fleet.ActList}))(t).Gauges
	}
	assert.Same(t, *gauges, fleet.Gauges{CPU: 0, Memory: fleet.MemoryUse{Used: 12_000_000 << 10, Total: 16_000_000 << 10}})
	after := assert.Value(tunnel.SendFileAct(t.Context(), l, fleet.FileAct{Act: fleet.ActLoad, Model: "words"}))(t)
	assert.That(t, after.Gauges == nil, "an act has gauges", after)
	here := assert.Value(r.actOnFiles(t.Context(), fleet.FileAct{Act: fleet.ActList}))(t)
	assert.That(t, here.Gauges == nil, "a command here has gauges", here)
}
