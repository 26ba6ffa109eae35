package engine

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

func TestCount(t *testing.T) {
	body := []byte(`{"model":"m","stream":true,"messages":[{"role":"system","content":"be brief"},{"role":"user","content":"one two three"}],` +
		`"reasoning_effort":"high","guided_json":{},"grammar":"x","prompt":"another","content":"another","chat_template":"another"}`)
	count := func(t *testing.T, kind enginetest.Kind, b enginetest.Behaviour, req Request) (tokens int64, last string, err error) {
		synctest.Test(t, func(t *testing.T) {
			double := enginetest.New(kind, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}, Behaviour: b})
			e := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport()}).Engines()[0]
			tokens, err = e.Count(t.Context(), req)
			last = double.Last().Path + " " + string(double.Last().Body)
			if runs := double.Counts().Runs; runs > 0 {
				t.Errorf("%d calls ran", runs)
			}
		})
		return tokens, last, err
	}
	chat := Request{Endpoint: fleet.ChatCompletions, Model: "m", Stream: true, Body: body, Caller: "bob"}
	for _, kind := range enginetest.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			tokens, last, err := count(t, kind, enginetest.Behaviour{}, chat)
			if kind != enginetest.LlamaCpp && kind != enginetest.VLLM {
				assert.Is(t, err, ErrNoTokenizer, tokens)
				return
			}
			assert.That(t, tokens == 8 && err == nil && strings.HasPrefix(last, "/tokenize "), tokens, err, last)
			for _, word := range []string{"guided_json", "grammar", `"another"`, "chat_template\":\"", `"stream":true`} {
				assert.Lacks(t, last, word, "arrived")
			}
		})
	}
	for name, c := range map[string]struct {
		kind  enginetest.Kind
		b     enginetest.Behaviour
		req   Request
		wants error // nil: another
	}{
		"older":            {enginetest.LlamaCpp, enginetest.Behaviour{Status: 404}, chat, ErrNoTokenizer},
		"loading":          {enginetest.LlamaCpp, enginetest.Behaviour{Status: 503}, chat, nil},
		"refuses":          {enginetest.VLLM, enginetest.Behaviour{Status: 400}, chat, nil},
		"no JSON":          {enginetest.VLLM, enginetest.Behaviour{Answer: "<html>"}, chat, nil},
		"no list":          {enginetest.VLLM, enginetest.Behaviour{Answer: `{"tokens":7}`}, chat, nil},
		"cut list":         {enginetest.VLLM, enginetest.Behaviour{Answer: `{"tokens":[7,`}, chat, nil},
		"negative":         {enginetest.VLLM, enginetest.Behaviour{Answer: `{"count":-7}`}, chat, nil},
		"nothing":          {enginetest.VLLM, enginetest.Behaviour{Answer: `{}`}, chat, nil},
		"another model":    {enginetest.VLLM, enginetest.Behaviour{}, Request{Endpoint: fleet.ChatCompletions, Model: "n", Body: body}, nil},
		"another endpoint": {enginetest.VLLM, enginetest.Behaviour{}, Request{Endpoint: fleet.Messages, Model: "m", Body: body, Trusted: true}, nil},
		"a stranger's URL": {enginetest.VLLM, enginetest.Behaviour{}, Request{
			Endpoint: fleet.ChatCompletions, Model: "m",
			Body: chatBody(`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://10.0.0.1/"}}]}]`),
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			tokens, _, err := count(t, c.kind, c.b, c.req)
			assert.That(t, err != nil && tokens == 0 && (c.wants == nil || errors.Is(err, c.wants)), tokens, err)
		})
	}
}

// The dialects that pass unchanged serve only the owner's own calls.
func TestNativeIsTheOwners(t *testing.T) {
	double := enginetest.New(enginetest.Service, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}})
	u, err := NewUpstream(UpstreamConfig{Name: "s", URL: "https://127.0.0.1/v1", Dialect: "messages", Models: []fleet.ModelID{"m"}, Transport: double.Transport()})
	assert.OK(t, err)
	_, err = u.Engine().Do(t.Context(), Request{Endpoint: fleet.Messages, Model: "m", Body: []byte(`{}`)})
	if f := fault.Of(err); f == nil || f.Code != fault.ModelNotFound || double.Counts().Runs != 0 {
		t.Errorf("%v, %+v", err, double.Counts())
	}
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"one two three"}]}`)
	if _, err := u.Engine().Count(t.Context(), Request{Endpoint: fleet.Messages, Model: "m", Body: body}); !errors.Is(err, ErrNoTokenizer) {
		t.Error(err)
	}
	n, err := u.Engine().Count(t.Context(), Request{Endpoint: fleet.Messages, Model: "m", Body: body, Trusted: true})
	if n != 5 || err != nil || string(double.Last().Body) != string(body) || double.Last().Path != "/v1/messages/count_tokens" {
		t.Errorf("%d, %v, %s", n, err, double.Last().Path)
	}
}
