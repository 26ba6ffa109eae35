package daemon

import (
	"encoding/json/v2"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// thinker is an engine whose model thinks aloud.
func thinker() *enginetest.Engine {
	return enginetest.New(enginetest.VLLM, enginetest.Options{
		Models: []enginetest.Model{{ID: "test-model", Thinking: true}}, Behaviour: enginetest.Behaviour{Reasoning: "let me see"},
	})
}

// The four controls and their aliases have the same effect on the local surface as in
// a call of the hub, hiding included.
func TestThinkingOnBothSurfaces(t *testing.T) {
	e := thinker()
	r, _, l := joined(t, Config{}, e)
	surfaces := map[string]func(body string) *http.Response{
		"local": func(body string) *http.Response { return r.post("/v1/chat/completions", body) },
		"hub":   func(body string) *http.Response { return l.served("/v1/chat/completions", body) },
	}
	on, off := `"enable_thinking":true,"thinking":true`, `"enable_thinking":false,"thinking":false`
	for said, c := range map[string]struct {
		has, hasNot string
		hides       bool
	}{
		``:                             {"", "think", false},
		`"reasoning_effort":"none"`:    {off, `"high"`, false},
		`"reasoning_effort":"xhigh"`:   {`"reasoning_effort":"high"`, `xhigh`, false},
		`"reasoning_effort":null`:      {"", "think", false},
		`"reasoning":{"exclude":true}`: {"", "exclude", true},
		`"reasoning":{"effort":"low","exclude":true,"summary":"auto"}`: {`"reasoning_effort":"low"`, "summary", true},
		`"reasoning":{"max_tokens":700}`:                               {`"thinking_token_budget":700`, "max_tokens", false},
		`"thinking":{"type":"enabled","budget_tokens":2000}`:           {`"thinking_token_budget":2000`, `"enabled"`, false},
		`"thinking":false`: {off, "null", false},
		`"chat_template_kwargs":{"enable_thinking":true}`:                          {on, "null", false},
		`"include_reasoning":false`:                                                {"", "include_reasoning", true},
		`"reasoning_effort":"high","thinking":false,"reasoning":{"enabled":false}`: {on, off, false},
	} {
		for surface, ask := range surfaces {
			for _, stream := range []bool{false, true} {
				body := chat(stream)
				if said != "" {
					body = strings.Replace(body, "{", "{"+said+",", 1)
				}
				resp := ask(body)
				text := read(t, resp.Body)
				assert.Require(t, resp.StatusCode == 200, surface, said, resp.StatusCode, text)
				sent := string(e.Last().Body)
				if !strings.Contains(sent, c.has) || c.hasNot != "" && strings.Contains(sent, c.hasNot) {
					t.Errorf("%s %s: the engine got %s", surface, said, sent)
				}
				both := strings.Contains(text, `"reasoning_content":"let me see"`) && strings.Contains(text, `"reasoning":"let me see"`)
				if both == c.hides || c.hides && strings.Contains(text, "let me see") {
					t.Errorf("%s %s, stream %v: %s", surface, said, stream, text)
				}
			}
		}
	}
}

// What a control may not hold is refused before any engine is asked, and says
// which.
func TestBadThinkingOnTheLocalSurface(t *testing.T) {
	e := thinker()
	r := run(t, Config{}, e)
	for said, param := range map[string]string{
		`"reasoning_effort":"enormous"`:                          "reasoning_effort",
		`"reasoning_effort":3`:                                   "reasoning_effort",
		`"reasoning":{"effort":"HIGH"}`:                          "reasoning.effort",
		`"reasoning":"high"`:                                     "reasoning",
		`"reasoning":{"max_tokens":"many"}`:                      "reasoning",
		`"thinking":"yes"`:                                       "thinking",
		`"thinking":{"type":"sometimes"}`:                        "thinking.type",
		`"chat_template_kwargs":{"enable_thinking":"false"}`:     "chat_template_kwargs",
		`"chat_template_kwargs":{"reasoning_effort":"enormous"}`: "chat_template_kwargs.reasoning_effort",
		`"think":"enormous"`:                                     "think",
		`"thinking_budget":"many"`:                               "thinking_budget",
	} {
		resp := r.post("/v1/chat/completions", strings.Replace(chat(false), "{", "{"+said+",", 1))
		text := assert.Value(io.ReadAll(resp.Body))(t)
		var got struct {
			Error struct{ Code, Param string } `json:"error"`
		}
		if err := json.Unmarshal(text, &got, json.MatchCaseInsensitiveNames(true)); err != nil || resp.StatusCode != 400 || got.Error.Code != "invalid_request" || got.Error.Param != param {
			t.Errorf("%s: %d %s", said, resp.StatusCode, text)
		}
	}
	assert.Equal(t, e.Counts().Runs, 0, "the engine ran")
}
