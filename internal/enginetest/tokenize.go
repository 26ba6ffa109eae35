package enginetest

import (
	"encoding/json/v2"
	"io"
	"net/http"
	"strings"
)

// The double's tokenizer: a token for each word and each role, and one at the
// beginning.

// countRequest holds the fields of a request to count that the double reads.
type countRequest struct {
	body
	Content string `json:"content"`
	Special bool   `json:"add_special"`
}

// counting returns the handler of a route that counts. Its calls are in Last, but
// not in Counts.
func (e *Engine) counting(answer func(countRequest) any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var asked countRequest
		call, err := readCall(r)
		if err == nil {
			err = json.Unmarshal(call.Body, &asked)
		}
		if err != nil {
			e.refuse(w, http.StatusBadRequest, "this cannot be read")
			return
		}
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
			_, _ = io.WriteString(w, b.Answer) // fails only if the caller left
		default:
			writeJSON(w, http.StatusOK, answer(asked))
		}
	}
}

// template returns the messages in the double's chat template.
func (c *countRequest) template() string {
	var form strings.Builder
	for _, m := range c.Messages {
		form.WriteString("<" + m.Role + "> " + textOf(m.Content) + "\n")
	}
	return form.String()
}

func applyTemplate(c countRequest) any { return object{"prompt": c.template()} }

func tokenizeText(c countRequest) any {
	tokens := make([]int, len(strings.Fields(c.Content)))
	if c.Special {
		tokens = append(tokens, 1)
	}
	return object{"tokens": tokens}
}

func tokenizeChat(c countRequest) any {
	n := len(strings.Fields(c.template())) + 1
	return object{"tokens": make([]int, n), "count": n, "max_model_len": 4096}
}

func countInput(c countRequest) any {
	return object{"input_tokens": len(strings.Fields(c.template())) + 1}
}
