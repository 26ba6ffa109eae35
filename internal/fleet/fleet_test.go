package fleet

import (
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

func TestModelIDValid(t *testing.T) {
	for id, want := range map[ModelID]bool{
		"qwen3:8b": true, "org/模型-7B": true, "two words": true,
		ModelID(strings.Repeat("a", 256)): true, ModelID(strings.Repeat("a", 257)): false,
		"": false, " x": false, "x ": false, "a\u202eb": false, "a\x00b": false, "a\xffb": false,
	} {
		if id.Valid() != want {
			t.Errorf("%q: valid is %v", id, !want)
		}
	}
}

// The words and paths are on the wire: they never change.
func TestTheWordsOfTheWire(t *testing.T) {
	for f, want := range map[Family]string{Chat: "chat", Embeddings: "embeddings", Audio: "audio"} {
		if got, ok := ParseFamily(want); f.String() != want || got != f || !ok {
			t.Errorf("family %d is %s, and %s is %d", f, f, want, got)
		}
	}
	for e, want := range map[Endpoint]struct {
		path   string
		family Family
	}{
		ChatCompletions:    {"/v1/chat/completions", Chat},
		EmbeddingsEndpoint: {"/v1/embeddings", Embeddings},
		Transcriptions:     {"/v1/audio/transcriptions", Audio},
		Responses:          {"/v1/responses", Chat},
		Messages:           {"/v1/messages", Chat},
	} {
		got, ok := ParseEndpoint(want.path)
		if e.Path() != want.path || e.String() != want.path || e.Family() != want.family || got != e || !ok {
			t.Errorf("endpoint %d is %s for %s, and %s is %d", e, e, e.Family(), want.path, got)
		}
	}
	family, ok1 := ParseFamily("video")
	endpoint, ok2 := ParseEndpoint("/v1/video")
	assert.That(t, !ok1 && !ok2 && family == 0 && endpoint == 0, "a word that no one knows parses")
}

// Equal on every hub, whatever it was built with: these numbers break ties.
func TestMixIsSplitMix64(t *testing.T) {
	// SplitMix64 from seed 0: its state goes up by the golden ratio.
	golden, want := uint64(0x9e3779b97f4a7c15), []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f}
	for i := range want {
		assert.Equal(t, mix(golden*uint64(i+1)), want[i], "number", i)
	}
}

func TestIsPath(t *testing.T) {
	for id, want := range map[ModelID]bool{
		"/home/ana/models/x.gguf": true, `C:\models\x.gguf`: true, "d:/x.gguf": true,
		"hf.co/org/x": false, "x": false, "qwen3:8b": false, "": false, "a:": false, "org/x.gguf": false,
	} {
		if id.IsPath() != want {
			t.Errorf("%q: %v", id, !want)
		}
	}
}
