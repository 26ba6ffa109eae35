package fleet

import "testing"

// TestShown: nothing that may be secret is logged or shown.
func TestShown(t *testing.T) {
	for model, want := range map[string]string{
		"qwen3-4b": "qwen3-4b", "hf.co/ann/words:Q4_K_M": "hf.co/ann/words:Q4_K_M", "odd@name": "odd@name",
		"https://files.test/a/w.gguf?signature=abc": "https://files.test/a/w.gguf",
		"https://ada:pass@files.test/a@b/w.gguf":    "https://files.test/a@b/w.gguf",
		"https://ada@pass@files.test":               "https://files.test/",
	} {
		if got := (FileAct{Model: model}).Shown(); got != want {
			t.Errorf("%s: %q, want %q", model, got, want)
		}
	}
}
