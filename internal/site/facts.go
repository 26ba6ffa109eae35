package site

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
)

// factWords lists what is known of a model: "qwen3 · 8.2B · Q4_K_M · 4.9 GiB". It returns
// "" if nothing is.
func factWords(f fleet.ModelFacts) string {
	var parts []string
	for _, part := range []string{f.Architecture, parameterWords(f.Parameters), f.Quantization} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	if f.Size > 0 {
		parts = append(parts, size(f.Size))
	}
	return strings.Join(parts, " · ")
}

// parameterWords returns a number of parameters as people write it, such as "8.2B", or "".
func parameterWords(n int64) string {
	units := []struct {
		name string
		size float64
	}{{"T", 1e12}, {"B", 1e9}, {"M", 1e6}, {"K", 1e3}}
	for _, unit := range units {
		if x := float64(n) / unit.size; x >= 0.9995 {
			if x < 99.95 {
				return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0") + unit.name
			}
			return strconv.FormatFloat(math.Round(x), 'f', 0, 64) + unit.name
		}
	}
	if n <= 0 {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// kindWords describes what a model is for.
func kindWords(kinds []string) string {
	words := make([]string, len(kinds))
	for i, kind := range kinds {
		words[i] = map[string]string{fleet.Audio.String(): "transcription"}[kind]
		if words[i] == "" {
			words[i] = kind
		}
	}
	return strings.Join(words, ", ")
}

// engineWords lists engines with their versions.
func engineWords(engines []fleet.EngineVersion) string {
	words := make([]string, len(engines))
	for i, e := range engines {
		words[i] = strings.TrimSpace(e.Kind + " " + e.Version)
	}
	return strings.Join(words, ", ")
}

// computerWords describes a machine's computer in a row of a table, or returns "".
func computerWords(f *fleet.MachineFacts) string {
	if f == nil {
		return ""
	}
	var parts []string
	for _, card := range f.GPUs {
		parts = append(parts, strings.TrimSpace(card.Name+" "+sizeWords(card.Memory)))
	}
	if f.Memory > 0 {
		parts = append(parts, size(f.Memory)+" memory")
	}
	if f.System != "" {
		parts = append(parts, f.System)
	}
	if f.Kith != "" {
		parts = append(parts, "kith "+f.Kith)
	}
	return strings.Join(parts, ", ")
}

// sizeWords is size, or "" for 0.
func sizeWords(n int64) string {
	if n == 0 {
		return ""
	}
	return size(n)
}

// gauge is a measured part of something on the page of a machine. ID is that of its text;
// with "-bar" it is that of its meter.
type gauge struct {
	ID, Name, Text string
	Percent        int
}

// Bars returns the gauges of a machine that are known.
func (f filesView) Bars() (all []gauge) {
	g := f.Gauges
	if g == nil {
		return nil
	}
	if g.CPU >= 0 {
		percent := int(math.Round(g.CPU * 100))
		all = append(all, gauge{"gauge-cpu", "Processors", fmt.Sprintf("%d %%", percent), percent})
	}
	if g.Memory.Total > 0 {
		all = append(all, useGauge("gauge-memory", "Memory", g.Memory))
	}
	for i, use := range g.GPUs {
		name := "GPU memory"
		if len(g.GPUs) > 1 {
			name += " " + strconv.Itoa(i+1)
		}
		if use.Total > 0 {
			all = append(all, useGauge(fmt.Sprint("gauge-gpu-", i), name, use))
		}
	}
	return all
}

func useGauge(id, name string, use fleet.MemoryUse) gauge {
	return gauge{id, name, size(use.Used) + " of " + size(use.Total), int(math.Round(use.Part() * 100))}
}

// withGauges returns the live content with the gauges. Other gauges than before need
// another page.
func (a liveContent) withGauges(f *filesView) liveContent {
	for _, g := range f.Bars() {
		a.shape = a.shape.with("gauge", g.ID)
		a.texts[g.ID], a.texts[g.ID+"-bar"] = words{text: g.Text}, words{text: strconv.Itoa(g.Percent)}
	}
	return a
}

// showClass reads from the form whether others see the class of a machine.
func showClass(v *visit) (api.ShowClass, error) {
	return api.ShowClass{Machine: v.form.Get("machine"), Shown: v.form.Get("shown") != ""}, nil
}

func shownClass(act api.MachineAct) string {
	return "The sizes of " + act.Name + "'s GPUs and memory are " + act.State + "."
}

// modelCode is what the lines of code for a model depend on.
type modelCode struct {
	Base   string
	Model  fleet.ModelID
	Family string // the kind of its calls
}

// Pastes reports whether the lines can be pasted as they are.
func (c modelCode) Pastes() bool { return pastes(c.Model) }
