package gateway

import (
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// EngineFault is what a caller is told when an engine answered with another
// status than 200 (decisions 2, the second table). Nil means that another
// machine may be tried. An engine's words stay in the message: it can never put
// one of our codes into an answer.
func EngineFault(status int, body []byte) *fault.Fault {
	if status == 400 || status == 413 || status == 422 || status == 500 {
		if f := dialect.ContextExceeded(body); f != nil {
			return f
		}
	}
	switch {
	case status == 400 || status == 422:
		text := dialect.EngineText(body)
		if text == "" {
			text = "it gave no reason"
		}
		return fault.New(fault.InvalidRequest, "the engine refused the request: %s", text)
	case status == 413: // its owner takes less than this service does
		return fault.New(fault.RequestTooLarge, "the request is too large for the machine's engine: send less")
	case status == 404 || status == 429 || status == 503:
		return nil
	case status == 401 || status == 403:
		return fault.New(fault.EngineError, "the engine on the machine asks for a credential that its owner has not configured")
	default:
		return fault.New(fault.EngineError, "the engine on the machine failed on this request (its status was %d)", status)
	}
}
