package api

import (
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// What others may see has sizes only, and those that memories are sold in.
func TestClass(t *testing.T) {
	const mib = 1 << 20
	gpu := func(sizes ...int64) (all []fleet.GPU) {
		for _, n := range sizes {
			all = append(all, fleet.GPU{Name: "a name", Memory: n})
		}
		return all
	}
	for want, f := range map[string]fleet.MachineFacts{
		"":                                 {System: "Debian", CPU: "AMD", Cores: 8},
		"24 GB GPU":                        {GPUs: gpu(24564 * mib)},
		"2 × 24 GB GPU, 64 GB memory":      {GPUs: gpu(24564*mib, 24564*mib), Memory: 63000 * mib},
		"80 GB GPU, 8 GB GPU":              {GPUs: gpu(8188*mib, 81559*mib)},
		"16 GB memory":                     {Memory: 15900 * mib, GPUs: gpu(0)},
		"1 GB memory":                      {Memory: 1},
		"4096 GB GPU":                      {GPUs: gpu(1 << 50)},
		"141 GB GPU, 2048 GB memory":       {GPUs: gpu(143771 * mib), Memory: 2_063_000 * mib},
		"12 GB GPU, 8 GB GPU, 2 GB memory": {GPUs: gpu(12282*mib, 8188*mib), Memory: 1900 * mib},
	} {
		assert.Equal(t, classOf(&f), want)
	}
}
