package engine

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// embedded returns what an engine of the kind answers to the members, and the
// request that it received.
func embedded(t *testing.T, kind enginetest.Kind, b enginetest.Behaviour, members string, trusted bool) (got, sent string, err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		double := enginetest.New(kind, enginetest.Options{Models: []enginetest.Model{{ID: "e", Embeddings: true}}, Behaviour: b})
		f := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport()})
		resp, doErr := f.Engines()[0].Do(t.Context(), Request{Endpoint: fleet.EmbeddingsEndpoint, Model: "e", Body: []byte(`{"model":"e",` + members + `}`), Trusted: trusted})
		if err = doErr; err != nil {
			return
		}
		text, _ := io.ReadAll(resp.Body)
		got, sent = string(text), string(double.Last().Body)
	})
	return got, sent, err
}

// The answer has the requested encoding, whatever the engine supports.
func TestEmbeddingCodings(t *testing.T) {
	encoded := base64.StdEncoding.EncodeToString([]byte{0, 0, 0, 0x3f, 0, 0, 0x80, 0xbf}) // 0.5, -1
	answer := func(vectors ...string) string {
		text := `{"object":"list","model":"/models/x.gguf","data":[`
		for i, v := range vectors {
			text += fmt.Sprintf(`{"index":%d,"embedding":%s},`, i, v)
		}
		return strings.TrimSuffix(text, ",") + `],"usage":{"prompt_tokens":2,"total_tokens":2}}`
	}
	want := func(vectors ...string) string {
		text := `{"object":"list","data":[`
		for i, v := range vectors {
			text += fmt.Sprintf(`{"object":"embedding","index":%d,"embedding":%s},`, i, v)
		}
		return strings.TrimSuffix(text, ",") + `],"model":"e","usage":{"prompt_tokens":2,"total_tokens":2}}`
	}
	for name, c := range map[string]struct{ asked, engine, want string }{
		"floats as they are":   {`"encoding_format":"float"`, answer(`[0.5, -1]`), want(`[0.5,-1]`)},
		"nothing said":         {`"user":"u"`, answer(`[0.5,-1]`), want(`[0.5,-1]`)},
		"base64 as it is":      {`"encoding_format":"base64"`, answer(`"` + encoded + `"`), want(`"` + encoded + `"`)},
		"base64 of floats":     {`"encoding_format":"base64"`, answer(`[0.5,-1]`), want(`"` + encoded + `"`)},
		"floats of base64":     {`"encoding_format":"float"`, answer(`"` + encoded + `"`), want(`[0.5,-1]`)},
		"floats, nothing said": {`"encoding_format":null`, answer(`"` + encoded + `"`), want(`[0.5,-1]`)},
	} {
		got, _, err := embedded(t, enginetest.VLLM, enginetest.Behaviour{Answer: c.engine}, `"input":"x",`+c.asked, false)
		assert.That(t, err == nil && got == c.want, name, err, got, c.want)
	}
	two := `{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}]}`
	if got, _, err := embedded(t, enginetest.VLLM, enginetest.Behaviour{Answer: two}, `"input":["a","b"]`, false); err != nil ||
		got != `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1]},{"object":"embedding","index":1,"embedding":[2]}],"model":"e","usage":{"prompt_tokens":0,"total_tokens":0}}` {
		t.Errorf("the order of the inputs: %v %s", err, got)
	}
	for name, body := range map[string]string{
		"too few":       answer(`[1]`),
		"too many":      answer(`[1]`, `[1]`, `[1]`),
		"none":          answer(`[1]`, `null`),
		"empty":         answer(`[1]`, `[]`),
		"nested":        answer(`[1]`, `[[1]]`),
		"words":         answer(`[1]`, `["a"]`),
		"no base64":     answer(`[1]`, `"??"`),
		"cut base64":    answer(`[1]`, `"AAAA"`),
		"not a number":  answer(`[1]`, `"AADAfw=="`),
		"nothing in it": `{}`,
		"no JSON":       `<html>`,
		"other data":    `{"data":1}`,
	} {
		_, _, err := embedded(t, enginetest.VLLM, enginetest.Behaviour{Answer: body}, `"input":["a","b"]`, false)
		if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.EngineError {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Indexes that are not each there once do not count, but the order of the list.
	for name, body := range map[string]string{
		"always 0":     `{"data":[{"index":0,"embedding":[1]},{"index":0,"embedding":[2]}]}`,
		"one missing":  `{"data":[{"embedding":[1]},{"index":0,"embedding":[2]}]}`,
		"from 1":       `{"data":[{"index":1,"embedding":[1]},{"index":2,"embedding":[2]}]}`,
		"as fractions": `{"data":[{"index":1.0,"embedding":[2]},{"index":"0","embedding":[1]}],"usage":{"prompt_tokens":"0"}}`,
	} {
		got, _, err := embedded(t, enginetest.VLLM, enginetest.Behaviour{Answer: body}, `"input":["a","b"]`, false)
		if err != nil || got != `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1]},{"object":"embedding","index":1,"embedding":[2]}],"model":"e","usage":{"prompt_tokens":0,"total_tokens":0}}` {
			t.Errorf("%s: %v %s", name, err, got)
		}
	}
	// An error with status 200 keeps its words.
	if got, _, err := embedded(t, enginetest.VLLM, enginetest.Behaviour{Answer: `{"error":{"message":"x"}}`}, `"input":"a"`, false); err != nil || got != `{"error":{"message":"x"}}` {
		t.Errorf("%v %s", err, got)
	}
}

// The inputs that each engine accepts, from the owner and from others.
func TestEmbeddingInputs(t *testing.T) {
	many := "[" + strings.Repeat(`"a",`, maxInputs-1) + `"a"]`
	for _, c := range []struct {
		kind    enginetest.Kind
		input   string
		trusted bool
		param   string // of the refusal; empty: it is sent
	}{
		{enginetest.VLLM, `"a"`, false, ""}, {enginetest.VLLM, `["a","b"]`, false, ""}, {enginetest.VLLM, `[1,2]`, false, ""}, {enginetest.VLLM, `[[1,2],[3]]`, false, ""},
		{enginetest.VLLM, many, false, ""}, {enginetest.VLLM, strings.Replace(many, "[", `["a",`, 1), false, "input.2047"}, {enginetest.VLLM, `[{"x":1}]`, false, "input.0"},
		{enginetest.VLLM, `[[1,"a"]]`, false, "input.0.1"}, {enginetest.VLLM, `{"a":1}`, true, "input"},
		{enginetest.LlamaCpp, `[1,2]`, false, ""}, {enginetest.LlamaCpp, `[[1]]`, true, ""},
		{enginetest.Ollama, `["a"]`, false, ""}, {enginetest.Ollama, `[1,2]`, false, "input"}, {enginetest.Ollama, `[[1,2]]`, true, "input"}, {enginetest.LMStudio, `[[1]]`, false, "input"},
	} {
		answer := enginetest.Behaviour{Answer: `{"error":{"message":"no"}}`} // the number of inputs is another test's
		_, sent, err := embedded(t, c.kind, answer, `"dimensions":256,"input":`+c.input, c.trusted)
		f, _ := errors.AsType[*fault.Fault](err)
		switch {
		case c.param == "" && err != nil, c.param != "" && (f == nil || f.Code != fault.InvalidRequest || f.Param != c.param):
			t.Errorf("%s %.60s: %v", c.kind, c.input, err)
		case c.param == "":
			if diff := cmp.Diff(value(t, `{"model":"e","dimensions":256,"input":`+c.input+`}`), value(t, sent)); diff != "" {
				t.Errorf("%s %.60s: -want +got\n%s", c.kind, c.input, diff)
			}
		}
	}
	for input, n := range map[string]string{`"a"`: "1", `[1,2,3]`: "1", `[[1],[2]]`: "2", `["a","b","c"]`: "3"} {
		_, _, err := embedded(t, enginetest.VLLM, enginetest.Behaviour{Answer: `{"data":[]}`}, `"input":`+input, false)
		assert.Fails(t, err, "0 embeddings for "+n+" inputs", input)
	}
}
