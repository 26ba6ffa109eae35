package fleet

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ModelFacts describes a model as its engine reports it: nothing is derived from its id.
// Zero values are unknown. Routing does not use them.
type ModelFacts struct {
	// Architecture is the family of models that it belongs to, such as "qwen3" or "bert".
	Architecture string `json:"architecture,omitzero"`
	Parameters   int64  `json:"parameters,omitzero"` // number of weights
	// Quantization is the format of most of its weights, such as "Q4_K_M" or "F16".
	Quantization string `json:"quantization,omitzero"`
	Size         int64  `json:"size,omitzero"` // of its weights or their files, in bytes
}

// MachineFacts describes a machine's computer and programs, as its daemon reports them.
// Zero values are unknown. Routing does not use them.
type MachineFacts struct {
	System  string          `json:"system,omitzero"` // with its version, such as "Debian GNU/Linux 12 (bookworm)"
	Arch    string          `json:"arch,omitzero"`   // of the daemon's program, such as "amd64"
	CPU     string          `json:"cpu,omitzero"`    // the name of its model
	Cores   int             `json:"cores,omitzero"`  // logical processors
	Memory  int64           `json:"memory,omitzero"` // main memory that programs can use, in bytes
	GPUs    []GPU           `json:"gpus,omitzero"`   // with their own memory
	Engines []EngineVersion `json:"engines,omitzero"`
	Kith    string          `json:"kith,omitzero"` // the version of kith
}

// GPU is a graphics card.
type GPU struct {
	Name   string `json:"name,omitzero"`
	Memory int64  `json:"memory,omitzero"` // bytes
}

// EngineVersion is an engine on a machine.
type EngineVersion struct {
	Kind    string `json:"kind"`             // as in advertisements
	Version string `json:"version,omitzero"` // as the engine reports it
}

// Gauges is how busy a machine's computer is now.
type Gauges struct {
	CPU    float64     `json:"cpu"`             // busy part of all processors, 0 to 1; -1: unknown
	Memory MemoryUse   `json:"memory,omitzero"` // main memory
	GPUs   []MemoryUse `json:"gpus,omitzero"`   // memory of each card, in the order of MachineFacts.GPUs
}

// MemoryUse is how much of a memory is in use, in bytes. Total is 0 if that is unknown.
type MemoryUse struct {
	Used  int64 `json:"used"`
	Total int64 `json:"total"`
}

// Limits of facts. A machine is not trusted, so everything beyond them counts as unknown.
const (
	maxFact       = 128     // bytes of a text
	maxBytes      = 1 << 50 // of a memory or a model
	maxParameters = 1e15
	maxCores      = 1 << 16
	maxParts      = 32 // number of GPUs, and of engines
)

// Checked returns the facts without values that are out of range.
func (f ModelFacts) Checked() ModelFacts {
	return ModelFacts{
		Architecture: checkedText(f.Architecture), Parameters: checked(f.Parameters, maxParameters),
		Quantization: checkedText(f.Quantization), Size: checked(f.Size, maxBytes),
	}
}

// Checked returns the facts without values that are out of range, and with at most 32 GPUs
// and engines.
func (f MachineFacts) Checked() MachineFacts {
	f.System, f.Arch, f.CPU, f.Kith = checkedText(f.System), checkedText(f.Arch), checkedText(f.CPU), checkedText(f.Kith)
	f.Cores, f.Memory = checked(f.Cores, maxCores), checked(f.Memory, maxBytes)
	f.GPUs = slices.Clone(f.GPUs[:min(len(f.GPUs), maxParts)])
	for i, g := range f.GPUs {
		f.GPUs[i] = GPU{checkedText(g.Name), checked(g.Memory, maxBytes)}
	}
	f.Engines = slices.Clone(f.Engines[:min(len(f.Engines), maxParts)])
	for i, e := range f.Engines {
		f.Engines[i] = EngineVersion{checkedText(e.Kind), checkedText(e.Version)}
	}
	return f
}

// Checked returns the gauges without values that are out of range.
func (g Gauges) Checked() Gauges {
	if !(g.CPU >= 0 && g.CPU <= 1) { // or NaN
		g.CPU = -1
	}
	g.Memory = g.Memory.checked()
	g.GPUs = slices.Clone(g.GPUs[:min(len(g.GPUs), maxParts)])
	for i, u := range g.GPUs {
		g.GPUs[i] = u.checked()
	}
	return g
}

func (u MemoryUse) checked() MemoryUse {
	if u.Total <= 0 || u.Total > maxBytes || u.Used < 0 || u.Used > u.Total {
		return MemoryUse{}
	}
	return u
}

// Part returns which part of the memory is in use, 0 to 1.
func (u MemoryUse) Part() float64 {
	if u.Total <= 0 {
		return 0
	}
	return float64(u.Used) / float64(u.Total)
}

func checkedText(text string) string {
	if len(text) > maxFact || !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return ""
	}
	return text
}

func checked[T int | int64](n, most T) T {
	if n < 0 || n > most {
		return 0
	}
	return n
}
