package dialect

import (
	"cmp"
	"encoding/json/v2"

	"github.com/kith/kith/internal/fault"
)

// FaultBody returns the JSON body that reports f in the dialect; id is the correlation
// id.
func FaultBody(d Dialect, f *fault.Fault, id string) []byte {
	if d == Messages {
		return encode(newMessagesFault(f, id, false))
	}
	return encode(chatFault{newChatError(d, f, id, false)})
}

// FaultFrame returns the last SSE frame of a stream that failed after it had begun. No
// end mark may follow it.
func FaultFrame(d Dialect, f *fault.Fault, id string) []byte {
	var out outbox
	switch d {
	case Messages:
		out.event("error", newMessagesFault(f, id, true)) // without the event name SDKs take it for a normal end
	case Responses:
		return new(Stream).Fail(f, id)
	default:
		out.data(encode(chatFault{newChatError(d, f, id, true)}))
	}
	return out.out
}

type chatFault struct {
	Error chatError `json:"error"`
}

type chatError struct {
	Code          fault.Code    `json:"code"`
	Message       string        `json:"message"`
	Type          string        `json:"type"`
	Param         *string       `json:"param"`
	CorrelationID string        `json:"correlation_id"`
	Reason        string        `json:"reason,omitzero"`  // only in a body
	Details       *errorDetails `json:"details,omitzero"` // only in a frame
	Sealed        string        `json:"sealed,omitzero"`  // Fault.Sealed
}

type errorDetails struct {
	Code   fault.Code `json:"error_code,omitzero"`
	Reason string     `json:"reason,omitzero"`
}

func newChatError(d Dialect, f *fault.Fault, id string, frame bool) chatError {
	e := chatError{Code: f.Code, Message: f.Message, Type: f.Type(), CorrelationID: id, Sealed: f.Sealed}
	if f.Param != "" || d == Responses { // one client library requires a string there
		e.Param = &f.Param
	}
	if frame {
		e.Details = &errorDetails{Reason: f.Reason}
	} else {
		e.Reason = f.Reason
	}
	return e
}

type messagesFault struct {
	Type      string        `json:"type"`
	Error     messagesError `json:"error"`
	RequestID string        `json:"request_id"`
}

type messagesError struct {
	Type          string       `json:"type"`
	Code          fault.Code   `json:"code"`
	Message       string       `json:"message"`
	Param         string       `json:"param,omitzero"`
	CorrelationID string       `json:"correlation_id"`
	Reason        string       `json:"reason,omitzero"` // only in a body
	Details       errorDetails `json:"details"`         // SDKs read its error_code
}

func newMessagesFault(f *fault.Fault, id string, frame bool) messagesFault {
	e := messagesError{
		Type: messagesType(f), Code: f.Code, Message: f.Message, Param: f.Param, CorrelationID: id,
		Reason: f.Reason, Details: errorDetails{f.Code, f.Reason},
	}
	if frame {
		e.Reason = ""
	}
	return messagesFault{"error", e, id}
}

// messagesTypes are the error.type of the messages envelope by status.
var messagesTypes = map[int]string{
	401: "authentication_error", 403: "permission_error", 404: "not_found_error",
	413: "request_too_large", 429: "rate_limit_error", 504: "timeout_error",
}

func messagesType(f *fault.Fault) string {
	standard := "invalid_request_error"
	if f.Status() >= 500 {
		standard = "api_error"
	}
	if f.Code == fault.CapacityFull {
		return "overloaded_error"
	}
	return cmp.Or(messagesTypes[f.Status()], standard)
}

// ParseFault parses the fault that a hub or daemon rendered in the chat dialect, as a
// body or as the data of a frame. ok is false if the document has no known code. Use it
// only for answers of a hub: codes from machines are never used.
func ParseFault(document []byte) (f *fault.Fault, ok bool) {
	var body struct {
		Error struct {
			Code    fault.Code `json:"code"`
			Message string     `json:"message"`
			Param   *string    `json:"param"`
			Reason  string     `json:"reason"`
			Sealed  string     `json:"sealed"`
			Details struct {
				Reason string `json:"reason"`
			} `json:"details"`
		} `json:"error"`
	}
	if json.Unmarshal(document, &body) != nil || !body.Error.Code.Known() {
		return nil, false
	}
	f = fault.New(body.Error.Code, "%s", body.Error.Message)
	if body.Error.Param != nil && *body.Error.Param != "" {
		f = f.WithParam(*body.Error.Param)
	}
	if body.Error.Reason == fault.WaitElapsed || body.Error.Details.Reason == fault.WaitElapsed {
		f = f.AfterWait()
	}
	if body.Error.Sealed != "" {
		f = f.WithSealed(body.Error.Sealed)
	}
	return f, true
}
