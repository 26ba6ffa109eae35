package gateway

import (
	"errors"
	"strings"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// EngineFault returns the fault for an engine's answer with a status other than 200
// (spec/routing.md#what-the-engines-answer-becomes), or nil if another machine may be
// tried. An engine's text goes into the message only: an engine can never set the code.
func EngineFault(status int, body []byte) *fault.Fault {
	if status == 400 || status == 413 || status == 422 || status == 500 {
		if f := dialect.ContextExceeded(body); f != nil {
			return f
		}
	}
	text := dialect.EngineText(body)
	switch {
	case dialect.Crowded(body):
		return nil
	case dialect.NoInput(body):
		return fault.New(fault.InvalidRequest,
			"the machine refused the request: its model does not accept such images or audio (%s)",
			text).WithParam("messages")
	case status == 400 || status == 422:
		if text == "" {
			text = "it gave no reason"
		}
		// The engine refused the request, or one of the daemon's own checks.
		return fault.New(fault.InvalidRequest, "the machine refused the request: %s",
			text).WithParam(dialect.EngineParam(body))
	case status == 413: // its owner allows smaller requests than this service
		return fault.New(fault.RequestTooLarge, "the request is too large for the machine's engine: send less")
	case status == 404 || status == 429 || status == 503:
		return nil
	case status == 401 || status == 403:
		return fault.New(fault.EngineError,
			"the engine on the machine requires a credential that its owner has not configured")
	case text != "":
		return fault.New(fault.EngineError, "the engine on the machine failed on this request: %s", text)
	default:
		return fault.New(fault.EngineError, "the engine on the machine failed on this request (its status was %d)",
			status)
	}
}

// inOwnTerms rewrites a machine's refusal of the translated request: it names the
// parameter at fault as the caller's own request does, or no parameter if the caller did
// not send it. Other errors are returned unchanged.
func (r *request) inOwnTerms(err error) error {
	var f *fault.Fault
	if !errors.As(err, &f) || f.Code != fault.InvalidRequest || f.Param == "" || r.call.Body == nil ||
		r.call.translationErr != nil {
		return err
	}
	own := ""
	// If the body cannot be read again, no parameter is named.
	_ = r.call.Body.View(r.Context(), func(body []byte) error {
		own = dialect.OwnParam(body, r.call.Endpoint, f.Param,
			r.call.forms == nil && r.call.Endpoint == fleet.ChatCompletions)
		return nil
	})
	g := f.WithParam(own)
	for _, after := range [...]string{": ", " "} {
		before, rest, found := strings.Cut(" "+f.Message, " "+f.Param+after)
		if found && own != "" {
			g.Message = strings.TrimPrefix(before+" "+own+after+rest, " ")
			break
		}
	}
	return g
}
