package gateway

import (
	"errors"
	"strings"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// EngineFault is the fault of an engine's answer whose status is not 200 (spec/routing.md#what-the-engines-answer-becomes).
// Nil means that another machine may be tried. An engine's text stays in the message: an engine can never set the code.
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
		return fault.New(fault.InvalidRequest, "the engine refused the request: %s", text).WithParam(dialect.EngineParam(body))
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

// located is the refusal of a machine, which was asked in chat, with the member at
// fault named as it is in the caller's own request and dialect. A member that the
// caller did not send is not named.
func (x *exchange) located(err error) error {
	var f *fault.Fault
	if !errors.As(err, &f) || f.Code != fault.InvalidRequest || f.Param == "" || x.call.Body == nil || x.call.translationErr != nil {
		return err
	}
	own := ""
	// Where the body cannot be read again, no member is named.
	_ = x.call.Body.View(x.r.Context(), func(body []byte) error {
		own = x.ownPlace(body, f.Param)
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

// ownPlace is the place in the caller's body of what a machine names by its place
// in chat; empty where there is none.
func (x *exchange) ownPlace(body []byte, place string) string {
	switch {
	case x.response != nil:
		return x.response.Locate(place)
	case x.call.Endpoint == fleet.Messages:
		return dialect.LocateMessages(body, place)
	}
	// Chat, perhaps in other forms, which share most of their members.
	return dialect.DeepestMember(body, place)
}
