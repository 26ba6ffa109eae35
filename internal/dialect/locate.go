package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"
	"strings"

	"github.com/kith/kith/internal/fleet"
)

// maxParam bounds the place that a machine may name, in bytes.
const maxParam = 256

// EngineParam returns the place that an error document says is at fault, names and indexes
// with dots between them; empty if it names none. It is a machine's word: OwnParam finds it in
// the caller's body.
func EngineParam(document []byte) string {
	var body struct {
		Error struct {
			Param string `json:"param"`
		} `json:"error"`
	}
	if json.Unmarshal(document, &body) != nil || len(body.Error.Param) > maxParam {
		return ""
	}
	return body.Error.Param
}

// ownNames has the members of a body that become a member of another name in its translation
// to chat, by that name. The first that the body has is meant.
var ownNames = map[fleet.Endpoint]map[string][]string{
	fleet.ChatCompletions: {"tools": {"functions"}, "tool_choice": {"function_call"}},
	fleet.Messages: {
		"stop": {"stop_sequences"}, "response_format": {"output_format", "output_config"}, "reasoning_effort": {"output_config"},
		"parallel_tool_calls": {"tool_choice"}, "reasoning": {"thinking"},
	},
	fleet.Responses: {
		"max_tokens": {"max_output_tokens"}, "messages": {"input", "instructions"}, "response_format": {"text"},
		"reasoning_effort": {"reasoning"}, "thinking": {"reasoning"}, "logprobs": {"include"},
	},
}

// OwnParam returns what is at fault in the body of an endpoint's caller, if a machine says that
// the place is at fault in the chat body that it got: the same place if that was the caller's
// body as it came, else the caller's member that holds it. Empty: the caller sent none.
func OwnParam(body []byte, of fleet.Endpoint, place string, asItCame bool) string {
	member, _, _ := strings.Cut(place, ".")
	names := append(slices.Clone(ownNames[of][member]), member)
	found := len(names)
	dec := jsontext.NewDecoder(bytes.NewBuffer(body))
	err := Members(dec, func(name []byte) error {
		if at := slices.Index(names[:found], string(name)); at >= 0 {
			found = at
		}
		return dec.SkipValue()
	})
	switch {
	case err != nil || found == len(names):
		return ""
	case asItCame && !strings.ContainsFunc(place, func(r rune) bool { return r <= ' ' || r > '~' }):
		return place
	}
	return names[found]
}
