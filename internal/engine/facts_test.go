package engine

import (
	"encoding/json/v2"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// What llama.cpp's server lists becomes the name that Ollama, LM Studio and files use.
func TestQuantizationNames(t *testing.T) {
	for listed, want := range map[string]string{
		"Q4_K - Medium": "Q4_K_M", "Q4_K - Small": "Q4_K_S", "Q3_K - Large": "Q3_K_L", "Q2_K - Medium": "Q2_K", "Q2_K - Small": "Q2_K_S",
		"IQ3_S mix - 3.66 bpw": "IQ3_M", "IQ2_XXS - 2.0625 bpw": "IQ2_XXS", "(guessed) Q5_K - Medium": "Q5_K_M", "(guessed) all F32": "F32",
		"all F32": "F32", "F16": "F16", "MXFP4 MoE": "MXFP4 MoE", "4bit": "4bit", "unknown, may not work": "", "(guessed) unknown, may not work": "", "unknown": "", "": "",
	} {
		assert.Same(t, quantization(listed), want, listed)
	}
}

func TestParameterTexts(t *testing.T) {
	for text, want := range map[string]int64{
		"7.6B": 7_600_000_000, "270M": 270_000_000, "26B-A4B": 26_000_000_000, "361.82 M": 361_820_000, "1.5T": 1_500_000_000_000, "512K": 512_000,
		"8x7B": 0, "7": 0, "B": 0, "": 0, "-7B": 0, "NaNB": 0, "InfB": 0, "1e300B": 0, "a lot": 0,
	} {
		assert.Same(t, parameters(text), want, text)
	}
}

// A fact of another type than documented is unknown, and the page is read all the same.
func TestOddFacts(t *testing.T) {
	for _, odd := range []string{`"7"`, `{"a":1}`, `[1]`, `1.5`, `true`, `null`, `99999999999999999999`} {
		var d listed
		assert.OK(t, json.Unmarshal([]byte(`{"id":"m","meta":{"n_ctx":8,"n_params":`+odd+`,"size":5}}`), &d))
		assert.That(t, d.Meta.Params.value == 0 && d.Meta.Size.value == 5 && d.Meta.Ctx == 8, odd, d)
	}
}
