// Package fault is every failure a caller can be told: its code, its HTTP
// status, its type word and how soon a retry makes sense. It renders nothing:
// the edge (gateway, through dialect) turns a Fault into the caller's dialect.
// An error that is not a *Fault is a defect of ours and is told as
// internal_error, its text kept in the log.
package fault

import (
	"errors"
	"fmt"
)

// Code is the machine-readable word a client branches on; matched exactly,
// casing mixed on purpose (S7).
type Code string

// The hosted codes of S7 and the rest of decisions 4.
const (
	ModelNotFound       Code = "model_not_found"
	NotInCircle         Code = "NOT_IN_CIRCLE"
	CascadeExhausted    Code = "CASCADE_EXHAUSTED"
	CapacityFull        Code = "CAPACITY_FULL"
	MachineOffline      Code = "machine_offline"
	OutsideSharingHours Code = "outside_sharing_hours"

	InvalidRequest           Code = "invalid_request"
	ContextLengthExceeded    Code = "context_length_exceeded"
	PreviousResponseNotFound Code = "previous_response_not_found"
	InvalidAPIKey            Code = "invalid_api_key"
	ForbiddenOrigin          Code = "forbidden_origin"
	RouteNotFound            Code = "route_not_found"
	MethodNotAllowed         Code = "method_not_allowed"
	RequestTooLarge          Code = "request_too_large"
	UnsupportedEncoding      Code = "unsupported_encoding"
	RateLimitExceeded        Code = "rate_limit_exceeded"
	InternalError            Code = "internal_error"
	NotImplemented           Code = "not_implemented"
	EngineError              Code = "engine_error"
	NoInferenceBackend       Code = "no_inference_backend"
	EngineTimeout            Code = "engine_timeout"

	// Of the member's JSON API alone.

	NotFound   Code = "not_found"
	NotAllowed Code = "not_allowed"
)

// WaitElapsed is the reason beside a 503 whose cause is a wait that ended (S7.1).
const WaitElapsed = "wait_elapsed"

// statuses is the one table from code to HTTP status.
var statuses = map[Code]int{
	ModelNotFound:            404,
	NotInCircle:              403,
	CascadeExhausted:         503,
	CapacityFull:             503,
	MachineOffline:           503,
	OutsideSharingHours:      503,
	InvalidRequest:           400,
	ContextLengthExceeded:    400,
	PreviousResponseNotFound: 400,
	InvalidAPIKey:            401,
	ForbiddenOrigin:          403,
	RouteNotFound:            404,
	MethodNotAllowed:         405,
	RequestTooLarge:          413,
	UnsupportedEncoding:      415,
	RateLimitExceeded:        429,
	InternalError:            500,
	NotImplemented:           501,
	EngineError:              502,
	NoInferenceBackend:       503,
	EngineTimeout:            504,

	NotFound:   404,
	NotAllowed: 403,
}

// Codes lists every code with its status, for the table in docs/errors.md.
func Codes() map[Code]int {
	out := make(map[Code]int, len(statuses))
	for code, status := range statuses {
		out[code] = status
	}
	return out
}

// Known reports whether the code is one of ours.
func (c Code) Known() bool {
	_, ok := statuses[c]
	return ok
}

// Fault is one failure as a caller may be told it. Build it with New; a Fault
// is a value to read, never changed after it was returned: use the With methods,
// which copy.
type Fault struct {
	Code    Code
	Message string
	// Param names the request member at fault, if one is.
	Param string
	// Reason is WaitElapsed after a wait that ended, else empty.
	Reason string
	// RetryAfter is whole seconds to the earliest sensible retry; 0 means the
	// edge's standard back-off where the status calls for one (decisions 4).
	RetryAfter int
	// NoRetry asks for x-should-retry: false: repeating cannot help.
	NoRetry bool

	cause error
}

// New makes a Fault; the message is for the caller and names cause and next step.
// The Param of model_not_found is model (decisions 4).
func New(code Code, format string, args ...any) *Fault {
	f := &Fault{Code: code, Message: fmt.Sprintf(format, args...), NoRetry: code == NotImplemented || code == EngineTimeout}
	if code == ModelNotFound {
		f.Param = "model"
	}
	return f
}

// Status is the HTTP status of the code; 500 for one that is not in the table.
func (f *Fault) Status() int {
	if s, ok := statuses[f.Code]; ok {
		return s
	}
	return 500
}

// Type is error.type of the chat dialect: it follows the status, not the cause
// (S2, S7.4; 429 as decisions 4).
func (f *Fault) Type() string {
	switch status := f.Status(); {
	case status == 429:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	default:
		return "invalid_request_error"
	}
}

// Error satisfies error: code and message, then the cause, for logs.
func (f *Fault) Error() string {
	if f.cause != nil {
		return string(f.Code) + ": " + f.Message + ": " + f.cause.Error()
	}
	return string(f.Code) + ": " + f.Message
}

// Unwrap is the cause, which callers of the service never see.
func (f *Fault) Unwrap() error { return f.cause }

// Because returns a copy that carries cause for the log.
func (f *Fault) Because(cause error) *Fault {
	c := *f
	c.cause = cause
	return &c
}

// WithParam returns a copy that names the request member at fault.
func (f *Fault) WithParam(name string) *Fault {
	c := *f
	c.Param = name
	return &c
}

// AfterWait returns a copy whose reason is wait_elapsed (S7.1).
func (f *Fault) AfterWait() *Fault {
	c := *f
	c.Reason = WaitElapsed
	return &c
}

// WithRetryAfter returns a copy with that many whole seconds to the next try.
func (f *Fault) WithRetryAfter(seconds int) *Fault {
	c := *f
	c.RetryAfter = seconds
	return &c
}

// WithNoRetry returns a copy that asks clients not to repeat the call.
func (f *Fault) WithNoRetry() *Fault {
	c := *f
	c.NoRetry = true
	return &c
}

// Of is the Fault in err's chain, or an internal_error that keeps err as its
// cause and says nothing of the inside. Of(nil) is nil.
func Of(err error) *Fault {
	if err == nil {
		return nil
	}
	var f *Fault
	if errors.As(err, &f) {
		return f
	}
	return New(InternalError, "something went wrong on our side; the correlation id finds it in the log").Because(err)
}
