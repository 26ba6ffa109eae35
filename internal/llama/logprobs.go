package llama

import (
	"math"
	"strings"
	"unsafe"
)

// maxAlternatives limits top_logprobs, as in the chat dialect.
const maxAlternatives = 20

// logprob is the log probability of a token in the model's distribution, before the
// sampling parameters are applied.
type logprob struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
	// Top are the most likely tokens at this position; nil for the tokens in Top.
	Top []logprob `json:"top_logprobs,omitzero"`
}

// logprobs are the logprobs of a choice in the format of the answer.
type logprobs struct {
	Content []logprob `json:"content"`
	Refusal *string   `json:"refusal"`
}

// newLogprobs returns the list in the format of the answer, or nil if it was not
// requested.
func newLogprobs(asked bool, list []logprob) *logprobs {
	if !asked {
		return nil
	}
	if list == nil {
		list = []logprob{}
	}
	return &logprobs{Content: list}
}

// logprob returns the logprob of the chosen token from the output at index.
func (r *runner) logprob(chosen token, index int32, alternatives int) (logprob, bool) {
	first := r.lib.llama_get_logits_ith(r.loaded.chat, index)
	if first == nil {
		return logprob{}, false
	}
	logits := unsafe.Slice(first, r.vocab.size)
	var top []token // most likely first
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
			Logprob: max(float64(logits[t])-norm, -9999), // JSON has no infinity
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

// unsent holds the logprobs of tokens whose text has not been sent yet, because a stop
// string may still remove it.
type unsent struct {
	list []logprob
	ends []int // the ends of their texts in the answer, in bytes
}

// add adds the logprob of the token whose text ends at the given byte.
func (u *unsent) add(l logprob, end int) {
	u.list, u.ends = append(u.list, l), append(u.ends, end)
}

// until removes and returns the logprobs of the texts up to the given byte.
func (u *unsent) until(sent int) []logprob {
	n := 0
	for n < len(u.ends) && u.ends[n] <= sent {
		n++
	}
	out := u.list[:n:n]
	u.list, u.ends = u.list[n:], u.ends[n:]
	return out
}
