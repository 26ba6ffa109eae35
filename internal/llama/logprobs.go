package llama

import (
	"math"
	"strings"
	"unsafe"
)

// mostAlternatives bounds top_logprobs, as in the chat dialect.
const mostAlternatives = 20

// logprob is how likely a token was by the model alone, before the caller's
// sampling changes anything.
type logprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
	// Top are the likeliest at the place of a token of the answer; nil for one of
	// these.
	Top []logprob `json:"top_logprobs,omitzero"`
}

// logprobs are those of a choice as they are sent; nil where none are asked for.
type logprobs struct {
	Content []logprob `json:"content"`
	Refusal *string   `json:"refusal"`
}

// newLogprobs is the list as it is sent, nil where none are asked for.
func newLogprobs(asked bool, list []logprob) *logprobs {
	if !asked {
		return nil
	}
	if list == nil {
		list = []logprob{}
	}
	return &logprobs{Content: list}
}

// logprob is that of the chosen token, from the output at index.
func (r *runner) logprob(chosen token, index int32, alternatives int) (logprob, bool) {
	first := r.lib.llama_get_logits_ith(r.loaded.chat, index)
	if first == nil {
		return logprob{}, false
	}
	logits := unsafe.Slice(first, r.vocab.size)
	var top []token // the likeliest first
	highest := logits[0]
	for i, logit := range logits {
		highest = max(highest, logit)
		at := len(top)
		for at > 0 && logit > logits[top[at-1]] {
			at--
		}
		if at == alternatives {
			continue
		}
		if len(top) < alternatives {
			top = append(top, 0)
		}
		copy(top[at+1:], top[at:])
		top[at] = token(i)
	}
	sum := 0.0
	for _, logit := range logits {
		sum += math.Exp(float64(logit - highest))
	}
	norm := float64(highest) + math.Log(sum)
	of := func(t token) logprob {
		piece := r.vocab.piece(t, true)
		l := logprob{
			Token: strings.ToValidUTF8(string(piece), "\uFFFD"), Bytes: make([]int, len(piece)),
			Logprob: max(float64(logits[t])-norm, -9999), // which is as good as never, and a number in JSON
		}
		for i, b := range piece {
			l.Bytes[i] = int(b)
		}
		return l
	}
	l := of(chosen)
	l.Top = []logprob{}
	for _, t := range top {
		l.Top = append(l.Top, of(t))
	}
	return l, true
}

// unsent holds the logprobs of tokens whose text is not sent yet: a stop string
// may take it back.
type unsent struct {
	list []logprob
	ends []int // of their texts, in the bytes of the answer
}

// add takes the logprob of the token whose text ends there.
func (u *unsent) add(l logprob, end int) {
	u.list, u.ends = append(u.list, l), append(u.ends, end)
}

// until takes out those whose texts, to that byte, are sent.
func (u *unsent) until(sent int) []logprob {
	n := 0
	for n < len(u.ends) && u.ends[n] <= sent {
		n++
	}
	out := u.list[:n:n]
	u.list, u.ends = u.list[n:], u.ends[n:]
	return out
}
