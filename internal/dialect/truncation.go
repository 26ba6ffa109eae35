package dialect

import (
	"fmt"
	"slices"

	"github.com/kith/kith/internal/fault"
)

// The part of the context that a shortened conversation leaves for the answer, if the
// request does not limit the answer's length: one in answerPart.
const answerPart = 4

// Shorten returns the body of the chat call without the oldest turns, after a machine
// refused it with f because the prompt is too long. It returns false if the request does
// not allow that (truncation: auto) or if nothing else can be removed. The system prompt,
// the last message of the user and everything after the last tool call are always kept. A
// tool call and its output are removed together.
func (r *Response) Shorten(f *fault.Fault) ([]byte, bool) {
	q := r.request
	if f.Code != fault.ContextLengthExceeded || string(q.echo.Truncation) != `"auto"` {
		return nil, false
	}
	before := len(q.turns)
	q.turns = shortened(q, f.Message)
	if len(q.turns) == before {
		return nil, false
	}
	chat, err := q.write()
	return chat, err == nil
}

// shortened returns the request's turns without the oldest, so that an estimate of the
// rest fits: in proportion to the numbers in the engine's message, or half of the turns
// if it has none. It removes at least one group of turns if it can.
func shortened(q *ResponsesRequest, message string) []turn {
	fixed := estimate{}
	fixed.blocks(q.system)
	for _, t := range q.tools {
		fixed.text(t.description)
		fixed.text(t.schema)
	}
	all := fixed.total()
	for _, t := range q.turns {
		all += estimateOf(t)
	}
	goal := all / 2
	var tokens, context int64
	if n, _ := fmt.Sscanf(message, "prompt is too long: %d tokens > %d maximum", &tokens, &context); n == 2 {
		answer := context / answerPart
		if q.chat.MaxTokens != nil {
			var most int64
			_, _ = fmt.Sscan(string(q.chat.MaxTokens), &most) // it was decoded as a number
			answer = max(min(most, context*3/4), answer)
		}
		goal = int64(float64(all) * float64(context-answer) / float64(tokens))
	}
	dropped := 0
	var out []turn
	for _, p := range groupsOf(q.turns) {
		if p.stays || dropped > 0 && all <= goal {
			out = append(out, p.turns...)
			continue
		}
		dropped++
		for _, t := range p.turns {
			all -= estimateOf(t)
		}
	}
	if dropped == 0 {
		return q.turns
	}
	return withCalls(out)
}

// turnGroup is a group of turns that are removed together.
type turnGroup struct {
	turns []turn
	stays bool
}

// groupsOf divides the conversation into groups. Before the last message of the user, a
// group is a user message and everything that follows it. After that message, a group is
// output of the model with its calls and their outputs.
func groupsOf(turns []turn) []turnGroup {
	last := -1 // the last message of the user
	for i, t := range turns {
		if t.role == "user" && !t.results() {
			last = i
		}
	}
	var parts []turnGroup
	for i, t := range turns {
		lead := t.role == "system" && (i == 0 || parts[0].turns[0].role == "system" && len(parts) == 1)
		begins := i == 0 || !lead && parts[len(parts)-1].turns[0].role == "system" && len(parts) == 1
		if i <= last {
			begins = begins || t.role == "user" && !t.results() && (turns[i-1].role == "assistant" || turns[i-1].results())
		} else {
			begins = begins || i == last+1 || t.role == "assistant" && turns[i-1].results()
		}
		if begins {
			parts = append(parts, turnGroup{})
		}
		p := &parts[len(parts)-1]
		p.turns = append(p.turns, t)
		p.stays = p.stays || lead || i == last || i == len(turns)-1
	}
	return parts
}

func (t turn) results() bool {
	return len(t.blocks) > 0 && !slices.ContainsFunc(t.blocks, func(b block) bool { return b.kind != toolResultBlock })
}

// withCalls returns the turns without the outputs whose calls are missing.
func withCalls(turns []turn) []turn {
	called := map[string]bool{}
	var out []turn
	for _, t := range turns {
		if t.results() {
			t.blocks = slices.DeleteFunc(slices.Clone(t.blocks), func(b block) bool { return !called[string(b.id)] })
		}
		for i := range t.blocks {
			if t.blocks[i].kind == toolUseBlock {
				called[string(t.blocks[i].id)] = true
			}
		}
		if len(t.blocks) > 0 {
			out = append(out, t)
		}
	}
	return out
}

func estimateOf(t turn) int64 {
	w := estimate{tokens: tokensOfMessage}
	w.blocks(t.blocks)
	return w.total()
}
