package dialect

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

func nest(depth int) string {
	return `{"model":"m","x":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + `}`
}

func TestPeek(t *testing.T) {
	for _, c := range []struct {
		body string
		want Head
	}{
		{`{"model":"m"}`, Head{Model: "m"}},
		{` {"stream":true,"model":"a/b:c"} ` + "\n", Head{Model: "a/b:c", Stream: true}},
		{`{"mod\u0065l":"m\u00e9","stream":null}`, Head{Model: "mé"}},
		{`{"model":"m","stream":false,"stream_options":{"include_usage":true,"other":[]}}`, Head{Model: "m", IncludeUsage: true}},
		{`{"model":"m","stream_options":"odd"}`, Head{Model: "m"}},
		{`{"model":"m","messages":[{"Model":"x","content":"{[\"\\"}]}`, Head{Model: "m", Text: 34}},
		{`{"model":"m","reasoning_effort":"xhigh","reasoning":{"effort":"none","max_tokens":5,"enabled":true,"exclude":false,"summary":"auto"},"thinking":{"type":"adaptive"},"chat_template_kwargs":{"enable_thinking":true,"foo":{}}}`, Head{Model: "m"}},
		{`{"model":"m","reasoning_effort":null,"reasoning":null,"thinking":true,"chat_template_kwargs":null}`, Head{Model: "m"}},
		{nest(MaxDepth), Head{Model: "m"}},
		{`{"model":"m","text":"` + strings.Repeat(`[{\"`, 100) + `"}`, Head{Model: "m"}},
	} {
		got, err := ReadHead([]byte(c.body))
		if err != nil || got != c.want {
			t.Errorf("ReadHead(%s) = %+v, %v; want %+v", c.body, got, err, c.want)
		}
	}
}

func TestPeekRefuses(t *testing.T) {
	for _, c := range []struct{ body, param, message string }{
		{``, "", "empty"},
		{`  `, "", "empty"},
		{`hello`, "", "strict JSON"},
		{`[]`, "", "must be a JSON object"},
		{`"model"`, "", "must be a JSON object"},
		{`null`, "", "must be a JSON object"},
		{`{}`, "model", "names no model"},
		{`{"model":""}`, "model", "names no model"},
		{`{"model":null}`, "model", "must be a string"},
		{`{"model":1}`, "model", "must be a string"},
		{`{"model":["m"]}`, "model", "must be a string"},
		{`{"model":"m","stream":"true"}`, "stream", "true or false"},
		{`{"model":"m","stream":1}`, "stream", "true or false"},
		{`{"model":"m","model":"m"}`, "model", "twice"},
		{`{"model":"m","mod\u0065l":"m"}`, "model", "twice"},
		{`{"model":"m","a":{"b":[{"c":1,"c":1}]}}`, "c", "twice"},
		{`{"Model":"m"}`, "Model", "case"},
		{`{"model":"m","MODEL":"n"}`, "MODEL", "case"},
		{`{"model":"m","Stream":true}`, "Stream", "case"},
		{`{"model":"m","ſtream":true}`, "ſtream", "case"},
		{"{\"model\":\"m\",\"x\":\"\xff\"}", "", "UTF-8"},
		{`{"model":"m","x":"\ud800"}`, "", "escape"},
		{`{"model":"m","x":"\x"}`, "", "escape"},
		{"{\"model\":\"m\",\"x\":\"a\x01b\"}", "", "strict JSON"},
		{`{"model":"m"}{}`, "", "follows"},
		{`{"model":"m"} x`, "", "follows"},
		{"\ufeff" + `{"model":"m"}`, "", "strict JSON"},
		{`{"model":"m"`, "", "cut short"},
		{`{"model":"m","n":01}`, "", "strict JSON"},
		{`{"model":"m","n":NaN}`, "", "strict JSON"},
		{`{"model":"m",}`, "", "strict JSON"},
		{`{'model':'m'}`, "", "strict JSON"},
		{nest(MaxDepth + 1), "", "deeper"},
		{nest(100_000), "", "deeper"},
		{`{"model":"m","reasoning_effort":"huge"}`, "reasoning_effort", "must be one of"},
		{`{"model":"m","reasoning_effort":3}`, "reasoning_effort", "must be one of"},
		{`{"model":"m","reasoning":"off"}`, "reasoning", "must be an object"},
		{`{"model":"m","reasoning":{"effort":"huge"}}`, "reasoning.effort", "must be one of"},
		{`{"model":"m","reasoning":{"max_tokens":"9"}}`, "reasoning", "must be an object"},
		{`{"model":"m","thinking":"yes"}`, "thinking", "must be a boolean"},
		{`{"model":"m","thinking":{"type":"maybe"}}`, "thinking.type", "must be one of"},
		{`{"model":"m","chat_template_kwargs":{"enable_thinking":"false"}}`, "chat_template_kwargs", "must be an object"},
		{`{"model":"m","chat_template_kwargs":{"reasoning_effort":"huge"}}`, "chat_template_kwargs.reasoning_effort", "must be one of"},
	} {
		_, err := ReadHead([]byte(c.body))
		var f *fault.Fault
		if !errors.As(err, &f) || f.Code != fault.InvalidRequest || f.Param != c.param || !strings.Contains(f.Message, c.message) {
			t.Errorf("ReadHead(%.60q) = %v; want invalid_request, param %q, a message with %q", c.body, err, c.param, c.message)
			if f != nil {
				t.Logf("param %q", f.Param)
			}
		}
	}
}

// FuzzPeek checks that whatever passes has the same meaning for ScanHead and for another
// parser: encoding/json into a map, which uses the last duplicate.
func FuzzPeek(f *testing.F) {
	f.Add([]byte(`{"model":"m","stream":true}`))
	f.Add([]byte(`{"mod\u0065l":"m","Model":"n"}`))
	f.Add([]byte(nest(65)))
	f.Add([]byte("{ \"n\" : 3 ,\n\"x\":[1,{\"model\":\"}\\\"\"}] , \"model\":\"a\\\\\",\"stream\" :true }"))
	f.Fuzz(func(t *testing.T, body []byte) {
		scanned, scanErr := ScanHead(body) // it must not panic on any input
		head, err := ReadHead(body)
		if err != nil {
			var refused *fault.Fault
			assert.Require(t, errors.As(err, &refused) && refused.Code == fault.InvalidRequest, "a refusal", err)
			return
		}
		if scanErr != nil || scanned.Model != head.Model || scanned.Stream != head.Stream || scanned.Choices != head.Choices {
			t.Fatalf("ScanHead returned %+v, %v; ReadHead %+v", scanned, scanErr, head)
		}
		var other map[string]any
		assert.OK(t, json.Unmarshal(body, &other), "passed what another reader refuses")
		if other["model"] != string(head.Model) {
			t.Fatalf("model is %q here and %q there", head.Model, other["model"])
		}
		if stream, _ := other["stream"].(bool); stream != head.Stream {
			t.Fatalf("stream is %v here and %v there", head.Stream, stream)
		}
	})
}
