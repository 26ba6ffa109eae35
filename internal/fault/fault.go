// Package fault defines every failure that a caller can get: its code, its HTTP
// status, its type and how soon a retry makes sense. It renders nothing: gateway
// writes a Fault in the caller's dialect. An error that is not a *Fault is a defect
// of ours; the caller gets internal_error, and the text stays in the log.
package fault

import (
	"errors"
	"fmt"
)

// Code is the word that a client branches on. It is compared exactly; the mixed casing
// is part of the contract (docs/errors.md).
type Code string

// The codes. The first six are the results of routing.
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

	// Of the member's API only.

	NotFound   Code = "not_found"
	NotAllowed Code = "not_allowed"

	// Of machines that connect only.

	WrongRegion Code = "wrong_region"
)

// WaitElapsed is the reason of a 503 whose cause is a wait that ended
// (spec/api.md#wait-elapsed).
const WaitElapsed = "wait_elapsed"

// Codes returns every code with its status.
func Codes() map[Code]int {
	out := make(map[Code]int, len(codes))
	for code, c := range codes {
		out[code] = c.status
	}
	return out
}

// Known reports whether the code is one of ours.
func (c Code) Known() bool {
	_, ok := codes[c]
	return ok
}

// Fault is one failure as a caller gets it. Make it with New. A Fault is never changed
// after it was returned: the With methods return copies.
type Fault struct {
	Code    Code
	Message string
	// Param names the member of the request that is at fault; empty: none.
	Param string
	// Reason is WaitElapsed after a wait that ended, else empty.
	Reason string
	// RetryAfter is the seconds until a retry makes sense; 0: the edge's standard
	// back-off where the status requires one (spec/api.md#retry-after).
	RetryAfter int
	// NoRetry asks for x-should-retry: false: repeating cannot help.
	NoRetry bool

	cause error
}

// New makes a Fault. The message is for the caller and names cause and next step. The
// Param of model_not_found is model.
func New(code Code, format string, args ...any) *Fault {
	f := &Fault{Code: code, Message: fmt.Sprintf(format, args...), NoRetry: code == NotImplemented || code == EngineTimeout}
	if code == ModelNotFound {
		f.Param = "model"
	}
	return f
}

// Status returns the HTTP status of the code; 500 for an unknown code.
func (f *Fault) Status() int {
	if c, ok := codes[f.Code]; ok {
		return c.status
	}
	return 500
}

// Type returns error.type of the chat dialect, which follows the status
// (spec/api.md#error-type).
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

// Error returns code, message and cause, for logs.
func (f *Fault) Error() string {
	if f.cause != nil {
		return string(f.Code) + ": " + f.Message + ": " + f.cause.Error()
	}
	return string(f.Code) + ": " + f.Message
}

// Unwrap returns the cause, which callers of the service never see.
func (f *Fault) Unwrap() error { return f.cause }

// with returns a changed copy.
func (f *Fault) with(change func(*Fault)) *Fault {
	c := *f
	change(&c)
	return &c
}

// Because returns a copy with a cause for the log.
func (f *Fault) Because(cause error) *Fault { return f.with(func(c *Fault) { c.cause = cause }) }

// WithParam returns a copy that names the request member at fault.
func (f *Fault) WithParam(name string) *Fault { return f.with(func(c *Fault) { c.Param = name }) }

// AfterWait returns a copy whose reason is WaitElapsed.
func (f *Fault) AfterWait() *Fault { return f.with(func(c *Fault) { c.Reason = WaitElapsed }) }

// WithRetryAfter returns a copy with so many seconds until the next try.
func (f *Fault) WithRetryAfter(seconds int) *Fault {
	return f.with(func(c *Fault) { c.RetryAfter = seconds })
}

// WithNoRetry returns a copy that asks clients not to repeat the call.
func (f *Fault) WithNoRetry() *Fault { return f.with(func(c *Fault) { c.NoRetry = true }) }

// Of returns the Fault in err's chain, else an internal_error with err as its cause
// (spec/api.md#internal-error). Of(nil) is nil.
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
