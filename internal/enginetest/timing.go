package enginetest

import (
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"
	"time"
)

// Timing makes chat calls take the time of a real machine, and keeps computed prompts: a
// prompt with the same beginning as one of them takes less time. A token of a prompt is
// four bytes of its tools and messages; a chunk of an answer is a token.
type Timing struct {
	Start       time.Duration // before the first token, independent of the prompt's length
	Prefill     float64       // prompt tokens per second
	Decode      float64       // answer tokens per second
	KeptPrompts int           // number of prompts to keep; 0: the number of slots; negative: none
}

const bytesOfToken = 4

// kept is a prompt that the double computed.
type kept struct {
	salt string
	text []byte
}

// cost is what a prompt costs.
type cost struct{ tokens, cached int }

// charge computes the prompt of a call: it returns how much of it was kept before, and
// keeps the prompt. Calls with cache_prompt false neither use kept prompts nor are kept;
// calls with cache_salt use only prompts with the same salt.
func (e *Engine) charge(body []byte) cost {
	var asked struct {
		Tools    jsontext.Value   `json:"tools"`
		Messages []jsontext.Value `json:"messages"`
		Cache    *bool            `json:"cache_prompt"`
		Salt     string           `json:"cache_salt"`
	}
	_ = json.Unmarshal(body, &asked) // readCall has read it
	text := append([]byte(nil), asked.Tools...)
	for _, m := range asked.Messages {
		text = append(text, m...)
	}
	c := cost{tokens: max(1, len(text)/bytesOfToken)}
	e.count(func(counts *Counts) {
		if e.timing.KeptPrompts >= 0 && (asked.Cache == nil || *asked.Cache) {
			c.cached = e.reuse(kept{asked.Salt, text}, c.tokens)
		}
		counts.Prompt += c.tokens
		counts.Computed += c.tokens - c.cached
	})
	return c
}

// reuse returns how many tokens of the prompt were kept before, and keeps the prompt. It
// replaces the prompt that it continues, or the oldest. The last token of a prompt is
// always computed. mu must be held.
func (e *Engine) reuse(p kept, tokens int) (cached int) {
	at := -1
	for i, k := range e.kept {
		n := 0
		for n < min(len(k.text), len(p.text)) && k.text[n] == p.text[n] {
			n++
		}
		if k.salt == p.salt && n/bytesOfToken > cached {
			at, cached = i, n/bytesOfToken
		}
	}
	if at < 0 && len(e.kept) >= cmp.Or(e.timing.KeptPrompts, e.slots) {
		at = 0
	}
	if at >= 0 {
		e.kept = slices.Delete(e.kept, at, at+1)
	}
	e.kept = append(e.kept, p)
	return min(cached, tokens-1)
}

// Forget forgets the kept prompts, as a restart does.
func (e *Engine) Forget() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.kept = nil
}

// take adds the time of the call to its behaviour.
func (t *Timing) take(b *Behaviour, c cost) {
	b.First += t.Start + time.Duration(float64(c.tokens-c.cached)/t.Prefill*float64(time.Second))
	b.Interval += time.Duration(float64(time.Second) / t.Decode)
}
