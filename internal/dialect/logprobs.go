package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
)

const (
	// maxAlternatives is how many other tokens a caller may ask for at each place.
	maxAlternatives = 20
	// maxLogprobs bounds the logprobs of one answer, which is written four times, in bytes as they are written. Those of
	// later tokens are left out.
	maxLogprobs = 2 << 20
	// maxLogprob bounds the logprobs of one token, in bytes. Larger ones are left out before they are decoded, which takes
	// many times their memory.
	maxLogprob = 64 << 10
)

// logprob is how likely a token was. The members and their order are those of
// the responses dialect; what an engine adds is left out.
type logprob struct {
	Token   string  `json:"token"`
	Bytes   []int   `json:"bytes"`
	Logprob float64 `json:"logprob"`
	// Top is what else was likely at the place; an alternative has none.
	Top []logprob `json:"top_logprobs,omitzero"`
}

// complete gives a logprob what every one has.
func (l *logprob) complete() {
	if l.Bytes == nil {
		l.Bytes = []int{}
		for _, b := range []byte(l.Token) {
			l.Bytes = append(l.Bytes, int(b))
		}
	}
}

// appendLogprobs appends the logprobs of a chat answer's choice, separated by commas, with at most so many alternatives
// for each token, while that is at most so many bytes in all. It skips what it cannot read.
func appendLogprobs(dst []byte, value jsontext.Value, alternatives, most int) []byte {
	var told struct {
		Content jsontext.Value `json:"content"`
	}
	if json.Unmarshal(value, &told) != nil || told.Content.Kind() != '[' {
		return dst
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(told.Content))
	_, _ = dec.ReadToken()
	for most += len(dst); dec.PeekKind() != ']'; {
		value, err := dec.ReadValue()
		if err != nil {
			break
		}
		var l logprob
		if len(value) > maxLogprob || json.Unmarshal(value, &l) != nil {
			continue
		}
		l.complete()
		l.Top = append([]logprob{}, l.Top[:min(len(l.Top), alternatives)]...)
		for j := range l.Top {
			l.Top[j].complete()
			l.Top[j].Top = nil
		}
		text, err := json.Marshal(l)
		switch {
		case err != nil: // a number that JSON does not have
			continue
		case len(dst)+len(",")+len(text) > most:
			return dst
		case len(dst) > 0:
			dst = append(dst, ',')
		}
		dst = append(dst, text...)
	}
	return dst
}
