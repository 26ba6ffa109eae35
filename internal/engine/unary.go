package engine

import (
	"bytes"
	"cmp"
	"errors"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

var (
	errNoObject = errors.New("a JSON object was expected")
	errNoAnswer = errors.New("it is no complete chat answer")
)

// streamFrames returns a complete chat answer as a stream: each message in one
// chunk, its finish reason in another, the token counts, the end mark. The result
// is then normalized as any stream.
func streamFrames(body []byte) ([]byte, error) {
	var answer struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Choices []struct {
			Index    int            `json:"index"`
			Message  jsontext.Value `json:"message"`
			Logprobs jsontext.Value `json:"logprobs"`
			Finish   jsontext.Value `json:"finish_reason"`
		} `json:"choices"`
		Usage jsontext.Value `json:"usage"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if answer.Object != "chat.completion" || len(answer.Choices) == 0 {
		return nil, errNoAnswer
	}
	type choice struct {
		Index    int            `json:"index"`
		Delta    jsontext.Value `json:"delta"`
		Logprobs jsontext.Value `json:"logprobs,omitzero"`
		Finish   jsontext.Value `json:"finish_reason"`
	}
	var out bytes.Buffer
	frame := func(usage jsontext.Value, choices ...choice) error {
		out.WriteString("data: ")
		err := json.MarshalWrite(&out, struct {
			ID      string         `json:"id"`
			Object  string         `json:"object"`
			Created int64          `json:"created"`
			Choices []choice       `json:"choices"`
			Usage   jsontext.Value `json:"usage,omitzero"`
		}{answer.ID, "chat.completion.chunk", answer.Created, choices, usage})
		out.WriteString("\n\n")
		return err
	}
	null, empty := jsontext.Value("null"), jsontext.Value("{}")
	for _, c := range answer.Choices {
		if c.Message.Kind() != '{' || c.Finish.Kind() != '"' {
			return nil, errNoAnswer
		}
		if c.Logprobs.Kind() != '{' {
			c.Logprobs = null
		}
		if err := cmp.Or(frame(nil, choice{c.Index, c.Message, c.Logprobs, null}), frame(nil, choice{Index: c.Index, Delta: empty, Finish: c.Finish})); err != nil {
			return nil, err
		}
	}
	if answer.Usage.Kind() == '{' {
		if err := frame(answer.Usage); err != nil {
			return nil, err
		}
	}
	out.WriteString("data: [DONE]\n\n")
	return out.Bytes(), nil
}
