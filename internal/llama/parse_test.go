package llama

import (
	"encoding/json/jsontext"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/llama/chatform"
)

func TestHolder(t *testing.T) {
	for _, c := range []struct {
		name   string
		stops  []string
		pieces []string
		want   []string // what each piece lets out; the last is the flush
	}{
		{"no stops", nil, []string{"a", "bc"}, []string{"a", "bc", ""}},
		{"a stop over three pieces", []string{"END"}, []string{"abE", "N", "Dx"}, []string{"ab", "", "", ""}},
		{"what looked like one", []string{"END"}, []string{"aE", "Nx", "y"}, []string{"a", "ENx", "y", ""}},
		{"held to the end", []string{"END"}, []string{"aEN"}, []string{"a", "EN"}},
		{"the earlier of two", []string{"cd", "b"}, []string{"abcd"}, []string{"a", ""}},
		{"half a rune", nil, []string{"\xe2\x82", "\xac!"}, []string{"", "€!", ""}},
		{"a rune that never ends", nil, []string{"a\xe2\x82"}, []string{"a", "\uFFFD"}},
		{"half a rune and a stop", []string{"€€"}, []string{"x€\xe2", "\x82\xac"}, []string{"x", "", ""}},
	} {
		h := stopFilter{stops: c.stops}
		var got []string
		for _, p := range c.pieces {
			text, _ := h.write([]byte(p))
			got = append(got, text)
		}
		got = append(got, h.flush())
		assert.Equal(t, strings.Join(got, "|"), strings.Join(c.want, "|"), c.name, got, c.want)
	}
}

// FuzzStopFilter cuts a text anywhere: the result does not depend on the cut, is
// UTF-8 and ends before the first stop string.
func FuzzStopFilter(f *testing.F) {
	f.Add("1, 2, 3", ", 2", uint8(2))
	f.Add("a€b", "€", uint8(1))
	f.Fuzz(func(t *testing.T, text, stop string, cut uint8) {
		if stop == "" || !utf8.ValidString(text) || !utf8.ValidString(stop) {
			return
		}
		h := stopFilter{stops: []string{stop}}
		var out strings.Builder
		for rest := text; rest != ""; {
			n := min(int(cut)+1, len(rest))
			part, _ := h.write([]byte(rest[:n]))
			assert.Require(t, utf8.ValidString(part), part, "is not UTF-8")
			out.WriteString(part)
			rest = rest[n:]
		}
		out.WriteString(h.flush())
		want, _, _ := strings.Cut(text, stop)
		assert.Require(t, out.String() == want, out.String(), want)
	})
}

// A seed of 64 bits, signed or not, is folded to the 32 of llama.cpp.
func TestSeedIsFolded(t *testing.T) {
	parse := func(seed string) (*chat, error) {
		return parseChat([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"seed":` + seed + `}`))
	}
	for seed, want := range map[string]uint32{
		"0": 0, "7": 7, "4294967295": 1<<32 - 2, "4294967303": 6, "9223372036854775807": 1 << 31, "18446744073709551615": 0,
		"-2": 1, "-9223372036854775808": 1 << 31,
	} {
		if c, err := parse(seed); err != nil || c.sampling.seed != want {
			t.Errorf("%s: %+v, %v; want %d", seed, c, err, want)
		}
	}
	for seed, taken := range map[string]bool{"null": true, "-1": true, "18446744073709551616": false, "1.5": false, `"7"`: false} {
		if _, err := parse(seed); (err == nil) != taken {
			t.Errorf("%s: %v", seed, err)
		}
	}
}

// A refusal names the member at fault, as far as it is known.
func TestRefusalsNameTheMember(t *testing.T) {
	const said = `"messages":[{"role":"user","content":"x"}]`
	for body, param := range map[string]string{
		said + `,"n":2`: "n", said + `,"tool_choice":"required"`: "tool_choice", said + `,"top_logprobs":21`: "top_logprobs", said + `,"max_tokens":0`: "max_tokens",
		said + `,"max_tokens":"ten"`: "max_tokens", said + `,"stop":7`: "stop", said + `,"stop":""`: "stop", said + `,"temperature":3`: "temperature", said + `,"seed":1.5`: "seed",
		said + `,"logit_bias":{"3":101}`: "logit_bias.3", said + `,"logit_bias":{"x":1}`: "logit_bias.x",
		said + `,"response_format":{"type":"xml"}`: "response_format", `"messages":[]`: "messages", `"messages":[{"role":"root","content":"x"}]`: "messages.0",
		`"messages":[{"role":"user","content":[{"type":"image_url"}]}]`: "messages.0.content", said + `,"n":1,"n":1`: "",
	} {
		_, err := parseChat([]byte(`{"model":"m",` + body + `}`))
		status, answer := errorResponse(err)
		assert.That(t, err != nil && status == 400 && answer.Error.Param == param, body, status, answer, param)
	}
	// The hub and the daemon have the same bound.
	_, err := parseChat([]byte(`{"model":"m","messages":[` + strings.Repeat(`{},`, dialect.MaxMessages) + `{}]}`))
	assert.Fails(t, err, "messages must hold 1 to 8192 messages")
	_, err = parseInputs(jsontext.Value(`""`))
	if _, answer := errorResponse(err); answer.Error.Param != "input" {
		t.Errorf("%+v", answer)
	}
}

// FuzzParseChat gives the request parser any bytes: it refuses them with a message
// or returns a valid request.
func FuzzParseChat(f *testing.F) {
	f.Add([]byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"stop":["a"],"seed":1}`))
	f.Add([]byte(`{"messages":[{"role":"tool","content":[{"type":"text","text":"x"}]}],"response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object"}}}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, err := parseChat(body)
		var r *refusal
		if err != nil {
			assert.Require(t, errors.As(err, &r) && r.status == 400 && r.message != "", "refused with", err)
			return
		}
		if len(c.conversation.Messages) == 0 || c.limit < 0 || c.sampling.temperature < 0 || c.sampling.temperature > maxTemperature {
			t.Fatalf("let through: %+v", c)
		}
		if _, err := parseInputs(jsontext.Value(body)); err != nil && !errors.As(err, &r) {
			t.Fatalf("inputs: %v", err)
		}
	})
}

// FuzzSchema converts any bytes to a grammar within its limits.
func FuzzSchema(f *testing.F) {
	for _, s := range schemas {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, schema []byte) {
		v := jsontext.Value(schema)
		if !v.IsValid() {
			return
		}
		grammar, err := schemaRules(v)
		assert.Require(t, err != nil || len(grammar) <= 2*maxGrammarBytes, len(grammar), "bytes of grammar")
		assert.Require(t, err == nil || errors.Is(err, errUnsupportedSchema), err)
	})
}

// schemas use every supported keyword.
var schemas = []string{
	`{}`, `true`, `{"type":"object"}`, `{"type":"object","additionalProperties":false}`,
	`{"type":"object","additionalProperties":{"type":"integer"}}`,
	`{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"number"},"c":{"type":"null"}}}`,
	`{"type":"object","properties":{"a \"quoted\" \\ name\n":{"const":"]] \" | root"}},"required":["a \"quoted\" \\ name\n"]}`,
	`{"type":["string","null"],"minLength":2,"maxLength":3}`,
	`{"type":"array","items":{"type":"boolean"},"minItems":2,"maxItems":3}`,
	`{"type":"array","maxItems":0}`, `{"type":"array","maxItems":1}`, `{"type":"array","minItems":3}`,
	`{"anyOf":[{"type":"integer"},{"enum":["a",1,null,{"b":[]}]}]}`,
	`{"$defs":{"tree":{"type":"object","properties":{"kids":{"type":"array","items":{"$ref":"#/$defs/tree"}}},"required":["kids"]}},"$ref":"#/$defs/tree"}`,
	`{"type":"object","properties":{"self":{"$ref":"#"}}}`,
	`{"type":"string","pattern":"(((a+)+)+)$","format":"email"}`,
}

// TestSchemaGrammars parses every grammar with llama.cpp.
func TestSchemaGrammars(t *testing.T) {
	spec := openModel(t, testModels[1], 1)
	for _, s := range append(schemas, "json_object") {
		rules, err := objectRules, error(nil)
		if s != "json_object" {
			rules, err = schemaRules(jsontext.Value(s))
		}
		if err != nil {
			t.Errorf("%s: %v", s, err)
			continue
		}
		sampler := newSampler(spec.vocab, defaultSampling(), 64)
		assert.That(t, sampler.constrain("root ::= json\n"+rules+jsonRules, nil), s, "llama.cpp refuses", rules)
		sampler.free()
	}
}

// A text with an end goes on up to the first occurrence of the mark, however it repeats
// itself.
func TestUntil(t *testing.T) {
	spec := openModel(t, testModels[0], 1)
	for _, mark := range []string{"a", "ab", "aab", "abab", "aabaaa"} {
		c := &schemaConverter{prefix: "k", maxRules: maxGrammarRules, maxBytes: maxGrammarBytes}
		grammar := "root ::= " + assert.Value(c.until(mark))(t) + "\n" + c.out.String()
		for n := range 2187 {
			text := ""
			for ; n > 0; n /= 3 {
				text += string("abc"[n%3])
			}
			end := strings.Index(text, mark)
			allowed := end < 0 || end+len(mark) == len(text)
			if left := refused(t, spec, grammar, text); (left == "") != allowed {
				t.Fatalf("%q until %q: %q is left", text, mark, left)
			}
		}
	}
}

func TestSchemaRefusals(t *testing.T) {
	deep := strings.Repeat(`{"type":"array","items":`, 60) + `{}` + strings.Repeat(`}`, 60)
	for schema, says := range map[string]string{
		`[]`:                                  "must be an object",
		`false`:                               "must be an object",
		`{"type":"date"}`:                     "no such type",
		`{"enum":[]}`:                         "allows nothing",
		`{"not":{}}`:                          "not understood",
		`{"allOf":[{},{}]}`:                   "list of one",
		`{"$ref":"http://elsewhere/schema"}`:  "not in $defs",
		`{"type":"array","minItems":1000000}`: "whole number",
		`{"type":"array","minItems":3,"maxItems":2}`: "less than",
		deep: "deeper",
		`{"enum":["` + strings.Repeat("x", maxSchemaBytes) + `"]}`:                                          "larger",
		`{"type":"object","properties":{` + strings.TrimSuffix(manyProperties(maxGrammarRules), ",") + `}}`: "too large",
	} {
		if _, err := schemaRules(jsontext.Value(schema)); !errors.Is(err, errUnsupportedSchema) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.80s: %v", schema, err)
		}
	}
}

func manyProperties(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(`"p` + strings.Repeat("a", i%7) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676)) + `":{},`)
	}
	return b.String()
}

// TestTemplates renders with the model's own template, with alternating roles and
// with llama.cpp's built-in templates, and with hostile templates.
func TestTemplates(t *testing.T) {
	spec := openModel(t, testModels[0], 1)
	renderer := assert.Value(newRenderer())(t)
	t.Cleanup(renderer.Close)
	talk := chatform.Conversation{Messages: []chatform.Message{{Role: "system", Content: "Be kind."}, {Role: "user", Content: "Hi"}, {Role: "user", Content: "there"}}, Answer: true}
	render := func(source string, extra map[string]any) (string, error) {
		of := newChatTemplate(t.Context(), spec.lib, renderer, chatform.Source{Text: source, BOS: spec.vocab.bos, EOS: spec.vocab.eos})
		talk.Variables = extra
		prompt, err := of.render(t.Context(), &talk)
		text := ""
		for _, p := range prompt.Pieces {
			text += p.Text
		}
		return text, err
	}
	const all = "{% for m in messages %}{{ m.content }}{% endfor %}"
	for _, c := range []struct{ name, source, want string }{
		{"none", "", "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>user\nthere<|im_end|>\n<|im_start|>assistant\n"},
		{"a simple one", "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] | trim }}{% endfor %}{% if add_generation_prompt %}>{% endif %}", "<|endoftext|>[system] Be kind.[user] Hi[user] there>"},
		{"one that insists on taking turns", "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{{ m.content }}{% endfor %}", "Be kind.\n\nHi\n\nthere"},
		{"a switch", all + "{% if enable_thinking is defined and not enable_thinking %}quiet{% endif %}", "Be kind.Hitherequiet"},
		{"a date", all + "{{ strftime_now('%%') }}", "Be kind.Hithere%"},
		{"counting", all + "{% for i in range(3) %}{{ i }}{% endfor %}{% for i in range(4, 0, -2) %}{{ i }}{% endfor %}", "Be kind.Hithere01242"},
	} {
		assert.Equal(t, assert.Value(render(c.source, map[string]any{"enable_thinking": false}))(t), c.want, c.name)
	}
	file := filepath.Join(t.TempDir(), "secret")
	assert.OK(t, os.WriteFile(file, []byte("secret"), 0o600))
	for name, source := range map[string]string{
		"a file":      "{% include '" + file + "' %}",
		"an import":   "{% from '" + file + "' import x %}",
		"itself":      "{% include '/chat' %}",
		"a base":      "{% extends '" + file + "' %}",
		"counting on": "{% for i in range(10000000) %}{% endfor %}",
		"without end": "{% for i in range(9999) %}{% for j in range(9999) %}" + strings.Repeat("x", 100) + "{% endfor %}{% endfor %}",
		"its size":    strings.Repeat("x", chatform.MaxSource+1),
		"refusing":    "{{ raise_exception('never') }}",
		"broken":      "{% for %}",
	} {
		if got, err := render(source, nil); err == nil {
			t.Errorf("%s: rendered %.80q", name, got)
		}
	}
}

func TestLibrariesAreChecked(t *testing.T) {
	needLibraries(t)
	if os.Getenv(libraryEnv) != "" {
		return // nothing is unpacked
	}
	data := t.TempDir()
	dir := assert.Value(libraries(data))(t)
	changed := filepath.Join(dir, libraryNames[0])
	assert.OK(t, os.WriteFile(changed, []byte("something else"), 0o600))
	before := assert.Value(fileSum(changed))(t)
	assert.Equal(t, assert.Value(libraries(data))(t), dir)
	if after, err := fileSum(changed); err != nil || after == before {
		t.Errorf("a changed library stays: %v", err)
	}
	if err := writeFile(filepath.Join(data, "x"), tinySum, strings.NewReader("not that")); err == nil {
		t.Error("content of another sum is written")
	}
}

func TestTiny(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "models")
	for range 2 {
		file, err := Tiny(dir)
		assert.Require(t, err == nil && file.ID == TinyID, file, err)
		assert.Equal(t, assert.Value(fileSum(file.Path))(t), tinySum, "sum")
	}
}
