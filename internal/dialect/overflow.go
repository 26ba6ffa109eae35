package dialect

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"regexp"
	"strconv"

	"github.com/kith/kith/internal/fault"
)

// overflows match the messages of engines for a prompt that is longer than the context.
// Their groups are n, the tokens of the prompt; all, those of the prompt plus the limit
// of the answer; and max, the size of the context. testdata/overflow.txt has examples.
var overflows = []*regexp.Regexp{
	// llama.cpp's server and engines based on it.
	regexp.MustCompile(`request \((?P<n>\d+) tokens\) exceeds the available context size \((?P<max>\d+) tokens\)`),
	regexp.MustCompile(`request exceeds the available context size`),
	regexp.MustCompile(`^Context size has been exceeded`),
	regexp.MustCompile(`input \((?P<n>\d+) tokens\) is too large to process\. increase the physical batch size \(current batch size: (?P<max>\d+)\)`), // for embeddings
	regexp.MustCompile(`input is too large to process\. increase the physical batch size`),
	// The built-in engine.
	regexp.MustCompile(`request has (?P<n>\d+) tokens and the context holds (?P<max>\d+)`),
	// vLLM, SGLang and services with OpenAI's messages.
	regexp.MustCompile(`maximum context length is (?P<max>\d+) tokens\. However, you requested (?P<all>\d+) tokens \((?P<n>\d+) in the messages`),
	regexp.MustCompile(`maximum context length is (?P<max>\d+) tokens\. However, (?:you requested \d+ output tokens and )?your (?:prompt contains|request has|messages resulted in)(?: at least)? (?P<n>\d+) (?:input )?tokens(?:, for a total of(?: at least)? (?P<all>\d+) tokens)?`),
	regexp.MustCompile(`maximum context length of (?P<max>\d+) tokens\. You requested a total of (?P<all>\d+) tokens: (?P<n>\d+) tokens from the input`),
	regexp.MustCompile(`maximum context length (?:is|of) \d+`),
	regexp.MustCompile(`Input length \((?P<n>\d+)\) exceeds model's maximum context length \((?P<max>\d+)\)`),
	regexp.MustCompile(`You passed (?P<n>\d+) input tokens and requested \d+ output tokens\. However, the model's context length is only (?P<max>\d+)`),
	regexp.MustCompile(`prompt \(length (?P<n>\d+)\) is longer than the maximum model length of (?P<max>\d+)`),
	regexp.MustCompile(`input \((?P<n>\d+) tokens\) is longer than the model's context length \((?P<max>\d+) tokens\)`),
	regexp.MustCompile(`Input length \((?P<n>\d+) tokens\) exceeds the maximum allowed length \((?P<max>\d+) tokens\)`),
	// Ollama.
	regexp.MustCompile(`input length exceeds the context length`),
	regexp.MustCompile(`prompt too long; exceeded max context length`),
	// LM Studio.
	regexp.MustCompile(`greater than the context length \(n_keep: (?P<n>\d+) ?>= ?n_ctx: (?P<max>\d+)\)`),
	regexp.MustCompile(`keep the first (?P<n>\d+) tokens when context the overflows.* context length of only (?P<max>\d+) tokens`),
	regexp.MustCompile(`^Reached context length of \d+ tokens`),
	// Services of the messages dialect, and kith.
	regexp.MustCompile(`^prompt is too long(?:: (?P<n>\d+) tokens > (?P<max>\d+) maximum)?`),
	// TGI.
	regexp.MustCompile("`inputs` must have less than (?P<max>\\d+) tokens\\. Given: (?P<n>\\d+)"),
	regexp.MustCompile("`inputs` tokens \\+ `max_new_tokens` must be <= (?P<max>\\d+)\\. Given: (?P<n>\\d+)"),
	// TabbyAPI.
	regexp.MustCompile(`Prompt length (?P<n>\d+) is greater than max_seq_len (?P<max>\d+)`),
	// Others: a term for the context and one for too much, in one sentence.
	regexp.MustCompile(`(?i)(?:context[ _]?(?:length|size|window|limit)|max_(?:seq|model)_len|n_ctx|num_ctx|maximum (?:model|sequence|input|prompt) length)[^.]{0,80}(?:exceeded|overflow|too (?:long|small|short))`),
	regexp.MustCompile(`(?i)(?:exceed|longer than|greater than|larger than|more than|too (?:long|large|many)|does(?: not|n't) fit)[^.]{0,80}(?:context[ _]?(?:length|size|window|limit)|max_(?:seq|model)_len|n_ctx|num_ctx|maximum (?:model|sequence|input|prompt) length)`),
	regexp.MustCompile(`(?i)(?:prompt|input|conversation|messages)[^.]{0,40}(?:too long|too many tokens|exceeds? the (?:model|token|maximum number of tokens))`),
}

// noInput matches the messages of engines whose model does not support images or audio.
var noInput = regexp.MustCompile(`(?i)(?:image|audio|video|vision|multimodal)[a-z ]*(?:is|are) not supported|(?:not|n't) support[a-z ]* (?:image|audio|video|vision|multimodal)|not a multimodal model|missing data required for image input`)

// NoInput reports whether an engine's error document means that the model does not
// support the images or audio of the request.
func NoInput(document []byte) bool { return noInput.MatchString(readEngineError(document).text) }

// Crowded reports whether an engine's error document means that other calls occupy the
// memory that the call needs, so that the engine is busy
// (spec/routing.md#engine-crowded). llama.cpp's server reports this. LM Studio uses the
// same text for a single call that is too long.
func Crowded(document []byte) bool {
	e := readEngineError(document)
	return e.Type == "server_error" && e.text == "Context size has been exceeded."
}

// ContextExceeded returns the fault for an engine's error document if it means that the
// prompt is longer than the model's context, else nil. Agents shorten their conversation
// when they read the fault's message (spec/routing.md#engine-too-long).
func ContextExceeded(document []byte) *fault.Fault {
	e := readEngineError(document)
	if Crowded(document) {
		return nil
	}
	var all, n, most int64
	known := e.code == "exceed_context_size_error" || e.code == string(fault.ContextLengthExceeded) || e.Type == "exceed_context_size_error"
	if known {
		n, most = e.Tokens, e.Context
	}
	for _, form := range overflows {
		found := form.FindStringSubmatch(e.text)
		if found == nil {
			continue
		}
		known = true
		into := map[string]*int64{"n": &n, "all": &all, "max": &most}
		for i, name := range form.SubexpNames() {
			if into[name] != nil {
				*into[name], _ = strconv.ParseInt(found[i], 10, 64) // digits; 0 if absent
			}
		}
		break
	}
	if !known {
		return nil
	}
	if n <= most { // it is too long only together with the answer's limit
		n = all
	}
	text := "prompt is too long for the model's context: send less, or choose a model with a longer context"
	if n > most && most > 0 {
		text = fmt.Sprintf("prompt is too long: %d tokens > %d maximum", n, most)
	}
	return fault.New(fault.ContextLengthExceeded, "%s", text)
}

// errorWords are the members in which engines describe an error.
type errorWords struct {
	Message jsontext.Value `json:"message"`
	Detail  jsontext.Value `json:"detail"` // a string, or a list with the error of each member
	Reason  jsontext.Value `json:"reason"`
	Error   jsontext.Value `json:"error"`
}

// words returns the first of them that is not empty.
func (w *errorWords) words() string {
	for _, v := range [...]jsontext.Value{w.Message, w.Detail, w.Reason, w.Error} {
		var list []struct {
			Message string `json:"msg"`
		}
		switch {
		case v.Kind() == '"' && len(v) > len(`""`):
			return text(v)
		case v.Kind() == '[' && json.Unmarshal(v, &list) == nil && len(list) > 0:
			return list[0].Message
		}
	}
	return ""
}

type engineError struct {
	Type    string         `json:"type"`
	Code    jsontext.Value `json:"code"`
	Tokens  int64          `json:"n_prompt_tokens"` // of llama.cpp, like the next
	Context int64          `json:"n_ctx"`

	code string // if it is a string
	text string // the message as received
}

// readEngineError parses an error document. Its error member is an object or a string;
// engines like vLLM write the error without an error member.
func readEngineError(document []byte) engineError {
	var outer struct {
		Error jsontext.Value `json:"error"`
		errorWords
	}
	var e engineError
	if json.Unmarshal(document, &outer) != nil {
		if !bytes.HasPrefix(document, []byte("<")) { // not an HTML page
			e.text = string(bytes.TrimSpace(document))
		}
		return e
	}
	e.text = outer.words()
	switch outer.Error.Kind() {
	case '"':
		_ = json.Unmarshal(outer.Error, &e.text) // it is a string
	case '{':
		var inner errorWords
		_ = json.Unmarshal(outer.Error, &e)     // members of another type are ignored
		_ = json.Unmarshal(outer.Error, &inner) // the same
		e.text = cmp.Or(inner.words(), e.text)
	}
	_ = json.Unmarshal(e.Code, &e.code) // a number is ignored
	return e
}
