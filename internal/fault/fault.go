// Package fault defines every failure that a caller can receive: its code, its HTTP
// status, its type and when to retry. It renders nothing: gateway writes a Fault in the
// caller's dialect. An error that is not a *Fault is a bug: the caller gets
// internal_error, and the text is only logged.
package fault

import (
	"errors"
	"fmt"
)

// Code identifies a failure to clients. Clients compare it exactly; the mixed case is
// part of the contract (docs/errors.md).
type Code string

// The codes. The first six are results of routing.
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

	// Only in the member's API.

	NotFound   Code = "not_found"
	NotAllowed Code = "not_allowed"

	// Only for machines that connect.

	WrongRegion Code = "wrong_region"

	// Only for daemons that seal calls.

	StaleSeal Code = "stale_seal"
)

// WaitElapsed is the reason of a 503 after the call's wait ended
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

// Known reports whether the code is defined here.
func (c Code) Known() bool {
	_, ok := codes[c]
	return ok
}

// Quotes reports whether a message of the code may quote the request, or what an engine
// said about it. Such a message is the caller's alone: it is neither logged nor kept.
func (c Code) Quotes() bool {
	switch c {
	case ModelNotFound, NotInCircle, CascadeExhausted, CapacityFull, MachineOffline, OutsideSharingHours,
		ContextLengthExceeded, EngineTimeout, PreviousResponseNotFound, RateLimitExceeded, RequestTooLarge, StaleSeal:
		return false // made of the model's id, states and numbers
	}
	return true
}

// Fault is one failure as the caller sees it. Create it with New. A Fault is immutable:
// the With methods return copies.
type Fault struct {
	Code    Code
	Message string
	// Param is the request member that caused the failure; empty: none.
	Param string
	// Reason is WaitElapsed if the call's wait ended, otherwise empty.
	Reason string
	// RetryAfter is the number of seconds after which to retry. If it is 0 and the status
	// requires one, the gateway uses its default (spec/api.md#retry-after).
	RetryAfter int
	// Sealed is the error as the machine of a sealed call sealed it for the caller's daemon,
	// in base64; empty: none.
	Sealed string
	// NoRetry adds x-should-retry: false, because a retry cannot succeed.
	NoRetry bool

	cause error
}

// New creates a Fault. The message is for the caller: it names the cause and the next
// step. For model_not_found, Param is "model".
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

// Type returns error.type of the chat dialect, which depends on the status
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

// Unwrap returns the cause. Callers of the service never see it.
func (f *Fault) Unwrap() error { return f.cause }

// with returns a copy with the change applied.
func (f *Fault) with(change func(*Fault)) *Fault {
	c := *f
	change(&c)
	return &c
}

// Because returns a copy with a cause, for the log.
func (f *Fault) Because(cause error) *Fault { return f.with(func(c *Fault) { c.cause = cause }) }

// WithParam returns a copy that names the request member that caused the failure.
func (f *Fault) WithParam(name string) *Fault { return f.with(func(c *Fault) { c.Param = name }) }

// AfterWait returns a copy whose reason is WaitElapsed.
func (f *Fault) AfterWait() *Fault { return f.with(func(c *Fault) { c.Reason = WaitElapsed }) }

// WithSealed returns a copy with the error that a machine sealed.
func (f *Fault) WithSealed(sealed string) *Fault { return f.with(func(c *Fault) { c.Sealed = sealed }) }

// WithRetryAfter returns a copy with the number of seconds after which to retry.
func (f *Fault) WithRetryAfter(seconds int) *Fault {
	return f.with(func(c *Fault) { c.RetryAfter = seconds })
}

// WithNoRetry returns a copy that asks clients not to retry.
func (f *Fault) WithNoRetry() *Fault { return f.with(func(c *Fault) { c.NoRetry = true }) }

// Of returns the Fault in err's chain, or an internal_error with err as its cause
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
