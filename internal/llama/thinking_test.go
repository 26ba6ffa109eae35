package llama

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// templateModel is the small model with another template, as a file.
func templateModel(t testing.TB, id, template string) ModelFile {
	t.Helper()
	key := []byte("tokenizer.chat_template\x08\x00\x00\x00")
	at := bytes.Index(tinyModel, key) + len(key)
	old := int(binary.LittleEndian.Uint64(tinyModel[at:]))
	const alignment = 32 // of what follows in the file
	if pad := (old - len(template)) & (alignment - 1); pad > 0 {
		if pad < len("{##}") {
			pad += alignment
		}
		template += "{#" + strings.Repeat(" ", pad-len("{##}")) + "#}"
	}
	changed := binary.LittleEndian.AppendUint64(tinyModel[:at:at], uint64(len(template)))
	changed = append(append(changed, template...), tinyModel[at+8+old:]...)
	path := filepath.Join(t.TempDir(), id+".gguf")
	assert.OK(t, os.WriteFile(path, changed, 0o600))
	return ModelFile{ID: id, Path: path}
}

// thinkingModel is the small model with a template that has enable_thinking.
func thinkingModel(t *testing.T) ModelFile {
	return templateModel(t, "thinker", "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}")
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
