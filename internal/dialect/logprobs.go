package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
)

const (
	// maxAlternatives is how many alternative tokens a caller may request at each
	// position.
	maxAlternatives = 20
	// maxLogprobs limits the logprobs of one answer, in bytes as written, because they
	// are written four times. The logprobs of later tokens are omitted.
	maxLogprobs = 2 << 20
	// maxLogprob limits the logprobs of one token, in bytes. Larger ones are omitted
	// before they are decoded, because decoding takes many times their memory.
	maxLogprob = 64 << 10
)

// logprob is the log probability of a token. The members and their order are those of the
// responses dialect; other members from an engine are omitted.
type logprob struct {
	Token   string  `json:"token"`
	Bytes   []int   `json:"bytes"`
	Logprob float64 `json:"logprob"`
	// Top are the most likely tokens at this position; an alternative has none.
	Top []logprob `json:"top_logprobs,omitzero"`
}

// complete sets the members that every logprob must have.
func (l *logprob) complete() {
	if l.Bytes == nil {
		l.Bytes = []int{}
		for _, b := range []byte(l.Token) {
			l.Bytes = append(l.Bytes, int(b))
		}
	}
}

// appendLogprobs appends the logprobs of a chat answer's choice to dst, separated by
// commas. alternatives limits the alternatives of each token, and most the bytes of all
// logprobs. It skips malformed ones.
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
