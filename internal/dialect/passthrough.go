package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"strconv"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// maxPassedFrame is the largest event of an answer that is passed through, in bytes. The
// last event of the responses dialect repeats the complete answer and its request.
const maxPassedFrame = 8 << 20

// PassesThrough reports whether answers at the endpoint are checked but never changed:
// those of the messages and responses dialects.
func PassesThrough(e fleet.Endpoint) bool { return e == fleet.Messages || e == fleet.Responses }

// passedEvent is what the edge needs from an event, or from a unary answer, of the
// messages and responses dialects.
type passedEvent struct {
	Type     string         `json:"type"`
	Usage    *passedUsage   `json:"usage"`
	Delta    jsontext.Value `json:"delta"`
	Error    jsontext.Value `json:"error"`
	Message  jsontext.Value `json:"message"` // a text in an error event
	Response jsontext.Value `json:"response"`
	Sequence int            `json:"sequence_number"`
}

// addUsage updates known with the usage of a message or response, if value is one.
func addUsage(known *Usage, value jsontext.Value) error {
	var inner struct {
		Usage *passedUsage `json:"usage"`
	}
	if value.Kind() == '{' {
		if err := json.Unmarshal(value, &inner); err != nil {
			return foreign(err)
		}
	}
	inner.Usage.add(known)
	return nil
}

// passedUsage has the counts of both dialects. In messages the input tokens exclude the
// cached ones.
type passedUsage struct {
	In      *int64 `json:"input_tokens"`
	Out     *int64 `json:"output_tokens"`
	Read    int64  `json:"cache_read_input_tokens"`
	Written int64  `json:"cache_creation_input_tokens"`
	Details struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
}

// add updates known with the counts; messages reports input and output in two events.
func (u *passedUsage) add(known *Usage) {
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

// native reads the data of one event; end is true if no other event may follow. A failed
// response is a complete answer of its service and is passed through.
func (s *Stream) native(data []byte) (end bool, err error) {
	var event passedEvent
	if err := readObject(bytes.NewReader(data), &event); err != nil {
		return false, foreign(err)
	}
	event.Usage.add(&s.object.usage)
	for _, value := range [...]jsontext.Value{event.Message, event.Response} {
		if err := addUsage(&s.object.usage, value); err != nil {
			return false, err
		}
	}
	if event.Response.Kind() == '{' && s.response == nil {
		s.response = bytes.Clone(event.Response)
	}
	s.sequence = event.Sequence + 1
	switch event.Type {
	case "error":
		return false, s.failure(data)
	case "message_stop", "response.completed", "response.incomplete", "response.failed":
		return true, nil
	case "":
		return false, invalidAnswer("an event without a type")
	}
	s.object.content = event.Delta != nil
	return false, nil
}

// Fail ends a stream of the responses dialect with a failure and returns its last events,
// as Response.Fail does. The response is that of the stream's first event.
func (s *Stream) Fail(f *fault.Fault, id string) []byte {
	var out outbox
	out.sequence = s.sequence
	out.responseError(f, id)
	response := jsonObject{"id": quote("resp_" + id), "object": quote("response"), "output": jsontext.Value("[]")}
	_ = json.Unmarshal(s.response, &response) // an object, or nil
	response["status"], response["error"] = quote("failed"), encode(&responseError{f.Code, f.Message})
	out.event("response.failed", jsonObject{"type": quote("response.failed"), "sequence_number": strconv.AppendInt(nil, int64(out.sequence), 10), "response": encode(response)})
	return out.out
}

// foreign returns the fault of an answer for an error of readObject.
func foreign(err error) error {
	if errors.As(err, new(*json.SemanticError)) {
		return invalidAnswer("an answer that is of no such dialect")
	}
	return err
}

// CheckPassthrough checks a unary answer of the messages or responses dialect, which is
// passed through, and returns the usage that it reports. Errors are *fault.Fault, or
// those of reading.
func CheckPassthrough(answer io.Reader) (usage Usage, err error) {
	var event passedEvent
	if err := readObject(answer, &event); err != nil {
		return Usage{}, foreign(err)
	}
	if err := addUsage(new(Usage), event.Message); err != nil {
		return Usage{}, err
	}
	if event.Type == "error" {
		return Usage{}, errorMember(event.Error)
	}
	event.Usage.add(&usage)
	return usage, nil
}
