package engine

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"math"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fleet"
)

// optional is a member of an engine's page that describes a model for people. A value of
// another type is ignored: it must not keep the engine from being found.
type optional[T any] struct{ value T }

// UnmarshalJSON implements json.Unmarshaler. It never fails.
func (o *optional[T]) UnmarshalJSON(text []byte) error {
	if json.Unmarshal(text, &o.value, jsontext.AllowDuplicateNames(true)) != nil {
		*o = optional[T]{}
	}
	return nil
}

// versionAt returns a function that reads the version at a member of a page.
func versionAt(path, member string) func(p *probe) string {
	return func(p *probe) string { return textIn(p.value(path, member)) }
}

// llamaFacts returns what llama.cpp's server lists of a loaded model. It does not list the
// architecture.
func (d listed) llamaFacts() fleet.ModelFacts {
	return fleet.ModelFacts{Parameters: d.Meta.Params.value, Quantization: quantization(d.Meta.FileType.value), Size: d.Meta.Size.value}
}

// quantization returns the usual name of a quantization, or "" if the engine does not know
// it. llama.cpp's server lists Q4_K_M as "Q4_K - Medium", and a quantization that the file
// does not name as "(guessed) Q4_K - Medium".
func quantization(listed string) string {
	listed = strings.TrimPrefix(strings.TrimPrefix(listed, "(guessed) "), "all ")
	switch name, mix, _ := strings.Cut(listed, " - "); {
	case strings.HasPrefix(strings.ToLower(name), "unknown"):
		return ""
	case name == "IQ3_S mix":
		return "IQ3_M"
	case mix == "Small" || mix == "Large" || mix == "Medium" && name != "Q2_K":
		return name + "_" + mix[:1]
	default:
		return name
	}
}

// parameters parses a number of parameters such as "7.6B", "270M" or "26B-A4B", of which
// only the first part counts. It returns 0 for anything else.
func parameters(text string) int64 {
	text, _, _ = strings.Cut(text, "-")
	if text = strings.TrimSpace(text); text == "" {
		return 0
	}
	unit := map[byte]float64{'K': 1e3, 'M': 1e6, 'B': 1e9, 'T': 1e12}[text[len(text)-1]]
	n, err := strconv.ParseFloat(strings.TrimSpace(text[:len(text)-1]), 64)
	if err != nil || unit == 0 || !(n > 0 && n <= 1e6) { // ParseFloat accepts NaN
		return 0
	}
	return int64(math.Round(n * unit))
}
