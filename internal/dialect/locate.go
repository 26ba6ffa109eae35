package dialect

import (
	"encoding/json/v2"
	"slices"
	"strings"

	"github.com/kith/kith/internal/fleet"
)

// maxParam is the longest parameter that a machine may name, in bytes.
const maxParam = 256

// EngineParam returns the parameter that an error document blames: names and indexes
// joined by dots, or "" if it names none. It comes from a machine, so look it up in the
// caller's body with OwnParam.
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

// ownNames maps a member of the chat body to the members of the original body that may
// have become it. If the body has several of them, the first is used.
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

// OwnParam returns the parameter of the caller's body that corresponds to place, the
// parameter that a machine blames in its chat body. If the machine got the caller's body
// unchanged, this is place itself. Otherwise it is the caller's member that contains it,
// or "" if the caller sent none.
func OwnParam(body []byte, of fleet.Endpoint, place string, asItCame bool) string {
	member, _, _ := strings.Cut(place, ".")
	names := append(slices.Clone(ownNames[of][member]), member)
	found := len(names)
	for name := range ScanMembers(body) {
		if at := slices.Index(names[:found], string(name)); at >= 0 {
			found = at
		}
	}
	switch {
	case found == len(names):
		return ""
	case asItCame && !strings.ContainsFunc(place, func(r rune) bool { return r <= ' ' || r > '~' }):
		return place
	}
	return names[found]
}
