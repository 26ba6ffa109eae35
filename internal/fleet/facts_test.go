package fleet

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

func TestModelFactsOutOfRange(t *testing.T) {
	good := ModelFacts{Architecture: "qwen3", Parameters: 8_190_735_360, Quantization: "Q4_K_M", Size: 5_225_388_164}
	assert.Equal(t, good.Checked(), good)
	for _, bad := range []ModelFacts{
		{Architecture: strings.Repeat("x", 129)}, {Architecture: "a\u202eb"}, {Quantization: "\x1b[2J"}, {Quantization: "\xff"}, {Architecture: "a\nb"},
		{Parameters: -1}, {Parameters: math.MaxInt64}, {Size: -1}, {Size: math.MaxInt64},
	} {
		assert.Equal(t, bad.Checked(), (ModelFacts{}), bad)
	}
}

func TestMachineFactsOutOfRange(t *testing.T) {
	good := MachineFacts{
		System: "Debian GNU/Linux 12 (bookworm)", Arch: "amd64", CPU: "AMD Ryzen 9", Cores: 32, Memory: 64 << 30,
		GPUs: []GPU{{"NVIDIA L4", 23 << 30}}, Engines: []EngineVersion{{"ollama", "0.32.9"}}, Kith: "1.2.0",
	}
	assert.Same(t, good.Checked(), good)
	bad := MachineFacts{
		System: "\x1b]0;x\a", Arch: "a\u2028", CPU: strings.Repeat("x", 1000), Cores: -1, Memory: -1, Kith: "\xff",
		GPUs: slices.Repeat([]GPU{{"\x00", -1}}, 100), Engines: slices.Repeat([]EngineVersion{{"\n", "\t"}}, 100),
	}
	assert.Same(t, bad.Checked(), MachineFacts{GPUs: make([]GPU, 32), Engines: make([]EngineVersion, 32)})
	assert.Equal(t, bad.GPUs[0].Memory, -1, "the original is unchanged")
}

func TestGaugesOutOfRange(t *testing.T) {
	good := Gauges{CPU: 0.5, Memory: MemoryUse{1, 4}, GPUs: []MemoryUse{{0, 4}, {4, 4}}}
	assert.Same(t, good.Checked(), good)
	assert.Equal(t, good.Memory.Part(), 0.25)
	for _, cpu := range []float64{-0.1, 1.1, math.NaN(), math.Inf(1)} {
		assert.Equal(t, Gauges{CPU: cpu}.Checked().CPU, -1)
	}
	for _, use := range []MemoryUse{{-1, 4}, {5, 4}, {0, 0}, {1, math.MaxInt64}, {1, -1}} {
		got := Gauges{Memory: use, GPUs: []MemoryUse{use}}.Checked()
		assert.That(t, got.Memory == MemoryUse{} && got.GPUs[0] == MemoryUse{} && got.Memory.Part() == 0, use, got)
	}
	assert.Equal(t, len(Gauges{GPUs: make([]MemoryUse, 1000)}.Checked().GPUs), 32)
}
