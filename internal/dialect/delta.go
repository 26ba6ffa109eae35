package dialect

import (
	"cmp"
	"encoding/json/jsontext"
	"io"
	"strconv"
)

// delta is what one chunk adds to the first choice of an answer. Its values alias the
// chunk. A nil delta ignores the chunk.
type delta struct {
	document []byte
	done     bool // the first choice is complete; this dialect has no second one

	text, refusal, thought, finish jsontext.Value

	stop     jsontext.Value // the stop sequence, if the engine reports it
	logprobs jsontext.Value // of the choice, an object
	calls    []callDelta
}

type callDelta struct {
	index               int64
	id, name, arguments jsontext.Value
}

func (p *delta) choice(name []byte, value jsontext.Value) {
	switch {
	case p.done:
		return
	case value.Kind() == '{' && string(name) == "logprobs":
		p.logprobs = value
	case value.Kind() != '"':
		return
	}
	switch string(name) {
	case "finish_reason":
		p.finish = value
	case "stop_reason": // of vLLM
		p.stop = value
	}
}

// delta handles a member of a choice's delta. Reasoning has two names with the same
// meaning.
func (p *delta) delta(name []byte, value jsontext.Value) {
	if p.done || value.Kind() != '"' || len(value) == len(`""`) {
		return
	}
	switch string(name) {
	case "content":
		p.text = value
	case "refusal":
		p.refusal = value
	case "reasoning_content", "reasoning":
		p.thought = value
	}
}

// toolCalls reads the next value of dec, a list of parts of tool calls, and reports
// whether it has any.
func (p *delta) toolCalls(dec *jsontext.Decoder) (any bool, err error) {
	err = Elements(dec, func() error {
		any = true
		if dec.PeekKind() != '{' {
			return skip(dec)
		}
		call, err := p.toolCall(dec)
		if err == nil && !p.done {
			p.calls = append(p.calls, call)
		}
		return err
	})
	return any, err
}

func (p *delta) toolCall(dec *jsontext.Decoder) (call callDelta, err error) {
	text := func(into *jsontext.Value) error {
		value, err := valueIn(p.document, dec)
		if value.Kind() == '"' && len(value) > len(`""`) {
			*into = value
		}
		return err
	}
	err = Members(dec, func(name []byte) error {
		switch string(name) {
		case "index":
			value, err := dec.ReadValue()
			call.index, _ = strconv.ParseInt(string(value), 10, 64) // 0 if it is not a number
			return err
		case "id":
			return text(&call.id)
		case "function":
			if dec.PeekKind() == '{' {
				return Members(dec, func(name []byte) error {
					switch string(name) {
					case "name":
						return text(&call.name)
					case "arguments":
						return text(&call.arguments)
					}
					return skip(dec)
				})
			}
		}
		return skip(dec)
	})
	return call, err
}

// callID returns the id of a tool call, or an id made from stem and number if the engine
// sent none.
func callID(id jsontext.Value, stem string, number int) jsontext.Value {
	if len(id) > len(`""`) {
		return id
	}
	return quote(stem + "_" + strconv.Itoa(number))
}

// readChatAnswer reads and checks a unary chat answer and returns its first choice.
// Errors are *fault.Fault.
func readChatAnswer(answer io.Reader) (*delta, Usage, error) {
	var chat struct {
		Error   jsontext.Value `json:"error"`
		Choices []struct {
			Message struct {
				Content          string `json:"content"`
				Refusal          string `json:"refusal"`
				ReasoningContent string `json:"reasoning_content"`
				Reasoning        string `json:"reasoning"`
				ToolCalls        []struct {
					ID       string `json:"id"`
					Function struct {
						Name      string `json:"name"`
						Arguments string `json:"arguments"`
					} `json:"function"`
				} `json:"tool_calls"`
			} `json:"message"`
			Logprobs jsontext.Value `json:"logprobs"`
			Finish   string         `json:"finish_reason"`
			Stop     jsontext.Value `json:"stop_reason"`
		} `json:"choices"`
		Usage jsontext.Value `json:"usage"`
	}
	err := readObject(answer, &chat)
	switch {
	case chat.Error != nil && chat.Error.Kind() != 'n':
		return nil, Usage{}, errorMember(chat.Error)
	case err != nil || len(chat.Choices) == 0:
		return nil, Usage{}, invalidAnswer("something that is not a chat answer")
	}
	value := func(text string) jsontext.Value {
		if text == "" {
			return nil
		}
		return quote(text)
	}
	choice := &chat.Choices[0]
	message := &choice.Message
	said := &delta{
		thought: value(cmp.Or(message.ReasoningContent, message.Reasoning)), text: value(message.Content), refusal: value(message.Refusal),
		logprobs: choice.Logprobs, finish: value(choice.Finish), stop: choice.Stop,
	}
	for i := range message.ToolCalls {
		call := &message.ToolCalls[i]
		said.calls = append(said.calls, callDelta{
			index: int64(i), id: value(call.ID), name: value(call.Function.Name), arguments: value(call.Function.Arguments),
		})
	}
	return said, readUsage(chat.Usage), nil
}
