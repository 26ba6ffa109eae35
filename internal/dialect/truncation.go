package dialect

import (
	"fmt"

	"github.com/kith/kith/internal/fault"
)

// What a shortened talk is to leave of the context for the answer, as a part of
// the context, where the request does not say how long that may become.
const answerPart = 4

// Shorten is the body of the chat call without the oldest turns, after a machine
// has refused it with f because the prompt is too long; false: the request does
// not ask for that (truncation: auto), or nothing may be left out any more. The
// system prompt, the last of what the user said and what came after the last call
// of a tool always stay, and a tool's call and its output go together.
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

// shortened is the request's turns without so many of the oldest that the rest
// fits by an estimate: in proportion to the numbers in the engine's message, or
// half of them where it has none. At least one part of the talk is left out, if
// one may be.
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
			_, _ = fmt.Sscan(string(q.chat.MaxTokens), &most) // it was read as a number
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

// turnGroup is turns that are left out together.
type turnGroup struct {
	turns []turn
	stays bool
}

// groupsOf takes the talk apart. Before the last message of the user a part is a
// message and all that followed it; behind that message, what the model said with
// its calls and their outputs.
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

// results reports whether the turn holds outputs of tools and nothing else.
func (t turn) results() bool {
	for i := range t.blocks {
		if t.blocks[i].kind != toolResultBlock {
			return false
		}
	}
	return len(t.blocks) > 0
}

// withCalls is the turns without outputs whose calls are not among them.
func withCalls(turns []turn) []turn {
	called := map[string]bool{}
	var out []turn
	for _, t := range turns {
		if t.results() {
			var kept []block
			for _, b := range t.blocks {
				if called[string(b.id)] {
					kept = append(kept, b)
				}
			}
			t.blocks = kept
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

// estimateOf is about how many tokens a turn has.
func estimateOf(t turn) int64 {
	w := estimate{tokens: tokensOfMessage}
	w.blocks(t.blocks)
	return w.total()
}
