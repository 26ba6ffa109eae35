package gateway

import (
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// EngineFault is what a caller is told when an engine answered with another
// status than 200 (decisions 2, the second table). Nil means that another
// machine may be tried. An engine's words stay in the message, quoted: it can
// never put one of our codes into an answer.
func EngineFault(status int, body []byte) *fault.Fault {
	switch {
	case status == 400 || status == 422:
		return fault.New(fault.InvalidRequest, "the engine refused the request: %s", engineText(body))
	case status == 404 || status == 429 || status == 503:
		return nil
	case status == 401 || status == 403:
		return fault.New(fault.EngineError, "the engine on the machine asks for a credential that its owner has not configured")
	default:
		return fault.New(fault.EngineError, "the engine on the machine failed on this request (its status was %d)", status)
	}
}

// engineText is what an engine wrote about its refusal: its code and message
// where it sent an error object, else the start of its text; one line, bounded.
func engineText(raw []byte) string {
	var told struct {
		Error   jsontext.Value `json:"error"`
		Message string         `json:"message"`
	}
	text := string(raw)
	if json.Unmarshal(raw, &told) == nil {
		var object struct {
			Code    jsontext.Value `json:"code"`
			Type    string         `json:"type"`
			Message string         `json:"message"`
		}
		var plain string
		switch {
		case json.Unmarshal(told.Error, &object) == nil && object.Message != "":
			text = object.Message
			if code := strings.Trim(string(object.Code), `"`); code != "" && code != "null" {
				text = code + ": " + text
			}
		case json.Unmarshal(told.Error, &plain) == nil && plain != "":
			text = plain
		case told.Message != "":
			text = told.Message
		}
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text, "?"))
	if text = strings.TrimSpace(text); text == "" {
		return "it gave no reason"
	}
	if runes := []rune(text); len(runes) > 500 {
		text = string(runes[:500]) + "…"
	}
	return text
}
