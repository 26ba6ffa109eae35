package enginetest

import (
	"io"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"
)

// What the double's tokenizer makes of a talk: a token for each word, one for
// each role, and one at the beginning.

// counted is what the double reads of a request to count.
type counted struct {
	body
	Content string `json:"content"`
	Special bool   `json:"add_special"`
}

// counting answers a request to count; such a one is no run, and Last tells it.
func (e *Engine) counting(answer func(counted) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		call := Call{Path: r.URL.Path, From: r.RemoteAddr, Header: r.Header}
		var asked counted
		var err error
		if call.Body, err = io.ReadAll(r.Body); err == nil {
			err = json.Unmarshal(call.Body, &asked)
		}
		if err != nil {
			e.refuse(w, http.StatusBadRequest, "this cannot be read")
			return
		}
		call.Model = asked.Model
		e.mu.Lock()
		e.last = call
		b := e.script(call)
		e.mu.Unlock()
		switch {
		case b.Fault == Hang:
			<-r.Context().Done()
		case b.Status != 0 && b.Status != http.StatusOK:
			e.refuse(w, b.Status, "asked for")
		case b.Answer != "":
			_, _ = io.WriteString(w, b.Answer) // the reader left: nobody to tell
		default:
			say(w, http.StatusOK, answer(asked))
		}
	}
}

// form is the talk in the double's own form.
func (c *counted) form() string {
	var form strings.Builder
	for _, m := range c.Messages {
		form.WriteString("<" + m.Role + "> " + textOf(m.Content) + "\n")
	}
	return form.String()
}

func applyTemplate(c counted) any { return object{"prompt": c.form()} }

func tokenizeText(c counted) any {
	tokens := make([]int, len(strings.Fields(c.Content)))
	if c.Special {
		tokens = append(tokens, 1)
	}
	return object{"tokens": tokens}
}

func tokenizeTalk(c counted) any {
	n := len(strings.Fields(c.form())) + 1
	return object{"tokens": make([]int, n), "count": n, "max_model_len": 4096}
}

func countInput(c counted) any { return object{"input_tokens": len(strings.Fields(c.form())) + 1} }
