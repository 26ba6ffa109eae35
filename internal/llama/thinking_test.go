package llama

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// thinkingModel is the small model with a template that has enable_thinking.
func thinkingModel(t *testing.T) ModelFile {
	t.Helper()
	start := bytes.Index(tinyModel, []byte("{% for message in messages %}"))
	const length = 198
	template := "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}"
	template += "{#" + strings.Repeat(" ", length-len(template)-4) + "#}"
	path := filepath.Join(t.TempDir(), "thinker.gguf")
	if err := os.WriteFile(path, bytes.Replace(tinyModel, tinyModel[start:start+length], []byte(template), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	return ModelFile{ID: "thinker", Path: path}
}

// The reasoning of a thinking model has a field of its own, streamed or not, and
// only if thinking is enabled.
func TestThinkingModel(t *testing.T) {
	e := startEngine(t, Config{Models: []ModelFile{thinkingModel(t), testModels[0]}})
	for _, m := range e.Models() {
		assert.Equal(t, m.Thinking, (m.ID == "thinker"), m)
	}
	const text = `{"model":"thinker","messages":[{"role":"user","content":"What is 7+5?"}],"temperature":0,"max_tokens":8,"chat_template_kwargs":{"enable_thinking":true}`
	if status, body := e.post("/v1/chat/completions", text+"}"); status != 200 || !strings.Contains(string(body), `"reasoning_content":"`) || !strings.Contains(string(body), `"content":""`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := e.post("/v1/chat/completions", text+`,"stream":true}`); status != 200 || !strings.Contains(string(body), `"delta":{"reasoning_content":"`) || strings.Count(string(body), `"content":`) != 1 {
		t.Errorf("%d %s", status, body)
	}
	if _, body := e.post("/v1/chat/completions", strings.Replace(text, "true", "false", 1)+"}"); strings.Contains(string(body), "reasoning") || !strings.Contains(string(body), "12") {
		t.Errorf("%s", body)
	}
	object := strings.Replace(text, `"max_tokens":8`, `"max_tokens":40,"response_format":{"type":"json_object"}`, 1)
	if _, body := e.post("/v1/chat/completions", object+"}"); !strings.Contains(string(body), `"reasoning_content":"`) || !strings.Contains(string(body), `"content":""`) {
		t.Errorf("a format is kept after the reasoning: %s", body)
	}
	if _, body := e.post("/v1/chat/completions", strings.Replace(object, "true", "false", 1)+"}"); strings.Contains(string(body), "reasoning") || !strings.Contains(string(body), `"content":"{`) {
		t.Errorf("%s", body)
	}
}
