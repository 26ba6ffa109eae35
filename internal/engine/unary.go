package engine

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

var (
	errNoObject = errors.New("a JSON object was expected")
	errNoAnswer = errors.New("it is no whole chat answer")
)

// streamFrames returns a complete chat answer as a stream: each message in one
// chunk, its finish reason in another, the token counts, the end mark. The result
// is then normalized as any stream.
func streamFrames(body []byte) ([]byte, error) {
	var whole struct {
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
	if err := json.Unmarshal(body, &whole); err != nil {
		return nil, err
	}
	if whole.Object != "chat.completion" || len(whole.Choices) == 0 {
		return nil, errNoAnswer
	}
	var out bytes.Buffer
	frame := func(rest string) {
		fmt.Fprintf(&out, "data: {\"id\":%s,\"object\":\"chat.completion.chunk\",\"created\":%d,%s}\n\n", quoted(whole.ID), whole.Created, rest)
	}
	for _, c := range whole.Choices {
		if c.Message.Kind() != '{' || c.Finish.Kind() != '"' {
			return nil, errNoAnswer
		}
		message := bytes.ReplaceAll(c.Message, newline, []byte(" ")) // between values: in strings they are escaped
		logprobs := "null"
		if c.Logprobs.Kind() == '{' {
			logprobs = string(bytes.ReplaceAll(c.Logprobs, newline, []byte(" ")))
		}
		frame(fmt.Sprintf(`"choices":[{"index":%d,"delta":%s,"logprobs":%s,"finish_reason":null}]`, c.Index, message, logprobs))
		frame(fmt.Sprintf(`"choices":[{"index":%d,"delta":{},"finish_reason":%s}]`, c.Index, c.Finish))
	}
	if whole.Usage.Kind() == '{' {
		frame(`"choices":[],"usage":` + string(bytes.ReplaceAll(whole.Usage, newline, []byte(" "))))
	}
	out.WriteString("data: [DONE]\n\n")
	return out.Bytes(), nil
}
