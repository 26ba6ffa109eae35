package dialect

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// AppendFault appends the JSON body that tells f in d to dst; id is the
// correlation id (decisions 4).
func AppendFault(dst []byte, d Dialect, f *fault.Fault, id string) []byte {
	return appendFault(dst, d, f, id, false)
}

// AppendFaultFrame appends the last SSE frame of a stream that failed after it
// had begun. No end mark may follow it (S6.2).
func AppendFaultFrame(dst []byte, d Dialect, f *fault.Fault, id string) []byte {
	if d == Messages {
		dst = append(dst, "event: error\n"...) // without it SDKs read a clean end
	}
	dst = append(dst, "data: "...)
	dst = appendFault(dst, d, f, id, true)
	return append(dst, "\n\n"...)
}

// appendFault writes the object of either form. error.reason belongs to a
// body, error.details.reason to a frame; the messages envelope has details in
// both, because SDKs read details.error_code.
func appendFault(dst []byte, d Dialect, f *fault.Fault, id string, frame bool) []byte {
	if d != Messages {
		dst = append(dst, `{"error":`...)
		return append(appendChatError(dst, d, f, id, frame), '}')
	}
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = appendString(dst, messagesType(f))
	dst = appendMember(dst, "code", string(f.Code))
	dst = appendMember(dst, "message", f.Message)
	if f.Param != "" {
		dst = appendMember(dst, "param", f.Param)
	}
	dst = appendMember(dst, "correlation_id", id)
	if f.Reason != "" && !frame {
		dst = appendMember(dst, "reason", f.Reason)
	}
	dst = append(dst, `,"details":{"error_code":`...)
	dst = appendString(dst, string(f.Code))
	if f.Reason != "" {
		dst = appendMember(dst, "reason", f.Reason)
	}
	dst = append(dst, `}},"request_id":`...)
	dst = appendString(dst, id)
	return append(dst, '}')
}

// appendChatError appends the error object of the chat or responses dialect.
func appendChatError(dst []byte, d Dialect, f *fault.Fault, id string, frame bool) []byte {
	dst = append(dst, `{"code":`...)
	dst = appendString(dst, string(f.Code))
	dst = appendMember(dst, "message", f.Message)
	dst = appendMember(dst, "type", f.Type())
	if d == Responses { // a released client library needs a string
		dst = appendMember(dst, "param", f.Param)
	} else {
		dst = appendOptional(dst, "param", f.Param)
	}
	dst = appendMember(dst, "correlation_id", id)
	if f.Reason != "" && !frame {
		dst = appendMember(dst, "reason", f.Reason)
	}
	if frame {
		dst = append(dst, `,"details":{`...)
		if f.Reason != "" {
			dst = append(dst, `"reason":`...)
			dst = appendString(dst, f.Reason)
		}
		dst = append(dst, '}')
	}
	return append(dst, '}')
}

// messagesType is error.type of the messages envelope.
func messagesType(f *fault.Fault) string {
	switch status := f.Status(); {
	case f.Code == fault.CapacityFull:
		return "overloaded_error"
	case status == 401:
		return "authentication_error"
	case status == 403:
		return "permission_error"
	case status == 404:
		return "not_found_error"
	case status == 413:
		return "request_too_large"
	case status == 429:
		return "rate_limit_error"
	case status == 504:
		return "timeout_error"
	case status >= 500:
		return "api_error"
	default:
		return "invalid_request_error"
	}
}

// ParseFault reads the fault that another hub or daemon of ours rendered in
// the chat dialect, as a body or as the data of a frame. ok is false for a
// document that tells no code of ours. Only an answer whose sender may speak
// for the service is read so: a machine's own codes are never taken over.
func ParseFault(document []byte) (f *fault.Fault, ok bool) {
	var body struct {
		Error struct {
			Code    fault.Code `json:"code"`
			Message string     `json:"message"`
			Param   *string    `json:"param"`
			Reason  string     `json:"reason"`
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
	return f, true
}

// appendMember appends a comma, a name that needs no escape, and a string.
func appendMember(dst []byte, name, value string) []byte {
	dst = append(dst, ',', '"')
	dst = append(dst, name...)
	dst = append(dst, '"', ':')
	return appendString(dst, value)
}

// appendOptional is appendMember, with null for an empty value.
func appendOptional(dst []byte, name, value string) []byte {
	if value == "" {
		dst = append(append(dst, `,"`...), name...)
		return append(dst, `":null`...)
	}
	return appendMember(dst, name, value)
}

// appendString appends value as a JSON string; invalid UTF-8 becomes U+FFFD.
func appendString(dst []byte, value string) []byte {
	dst, _ = jsontext.AppendQuote(dst, value) // the error only reports the mending
	return dst
}
