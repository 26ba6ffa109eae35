package dialect

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fleet"
)

// maxNativeFrame bounds one event of an answer that passes as it is, in bytes:
// the last of the responses dialect repeats the whole answer and its request.
const maxNativeFrame = 8 << 20

// Native reports whether answers at the endpoint are of a dialect that is
// checked here and never changed: messages and responses.
func Native(e fleet.Endpoint) bool { return e == fleet.Messages || e == fleet.Responses }

// nativeEvent is what the edge has to know of one event, or of a whole answer,
// of the messages and responses dialects.
type nativeEvent struct {
	Type     string         `json:"type"`
	Usage    *nativeUsage   `json:"usage"`
	Delta    jsontext.Value `json:"delta"`
	Error    jsontext.Value `json:"error"`
	Message  nativeMessage  `json:"message"`
	Response nativeMessage  `json:"response"`
}

type nativeMessage struct {
	Usage *nativeUsage
}

// UnmarshalJSON satisfies json.Unmarshaler: an error event's message is text.
func (m *nativeMessage) UnmarshalJSON(data []byte) error {
	if len(data) == 0 || data[0] != '{' {
		return nil
	}
	var inner struct {
		Usage *nativeUsage `json:"usage"`
	}
	err := json.Unmarshal(data, &inner)
	m.Usage = inner.Usage
	return err
}

// nativeUsage has the counts of both dialects; in messages the cached tokens are
// not among the input's.
type nativeUsage struct {
	In      *int64 `json:"input_tokens"`
	Out     *int64 `json:"output_tokens"`
	Read    int64  `json:"cache_read_input_tokens"`
	Written int64  `json:"cache_creation_input_tokens"`
	Details struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// add lays what was told over what was known: messages tells input and output
// in two events.
func (u *nativeUsage) add(known *Usage) {
	if u == nil {
		return
	}
	if u.In != nil && *u.In >= 0 && u.Read >= 0 && u.Written >= 0 && *u.In+u.Read+u.Written >= *u.In {
		known.In, known.Reported = *u.In+u.Read+u.Written, true
		known.Cached = min(max(u.Details.Cached, u.Read, 0), known.In)
	}
	if u.Out != nil && *u.Out >= 0 {
		known.Out, known.Reported = *u.Out, true
	}
}

// native reads the data of one event; end says that none may follow. A failed
// response is an answer, whole and told by its service: it passes as it is.
func (s *Stream) native(data []byte) (end bool, err error) {
	event, err := readNative(data)
	if err != nil {
		return false, err
	}
	event.Usage.add(&s.object.usage)
	event.Message.Usage.add(&s.object.usage)
	event.Response.Usage.add(&s.object.usage)
	switch event.Type {
	case "error":
		return false, s.failure(data)
	case "message_stop", "response.completed", "response.incomplete", "response.failed":
		return true, nil
	case "":
		return false, nonsense("an event without a type")
	}
	s.object.content = event.Delta != nil
	return false, nil
}

// readNative reads strict JSON of which everything else is left alone.
func readNative(document []byte) (event nativeEvent, err error) {
	dec := jsontext.NewDecoder(bytes.NewReader(document))
	value, err := dec.ReadValue() // names twice and bytes that are no UTF-8 are refused here
	if err != nil || value.Kind() != '{' || len(bytes.TrimSpace(document[dec.InputOffset():])) > 0 {
		return event, nonsense("something that is not a JSON object")
	}
	if err := json.Unmarshal(value, &event); err != nil {
		return event, nonsense("an answer that is of no such dialect")
	}
	return event, nil
}

// CheckNative checks a whole answer of the messages or responses dialect, which
// passes as it is, and returns the usage it tells; errors are *fault.Fault.
func CheckNative(body []byte) (Usage, error) {
	answer, err := readNative(body)
	if err != nil {
		return Usage{}, err
	}
	if answer.Type == "error" {
		return Usage{}, engineSays(body)
	}
	var usage Usage
	answer.Usage.add(&usage)
	return usage, nil
}
