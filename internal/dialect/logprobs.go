package dialect

import (
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const (
	// mostAlternatives is how many other tokens a caller may ask for at each place.
	mostAlternatives = 20
	// maxLogprobs bounds the logprobs of one text, which is told four times, in
	// bytes. Those of later tokens are left out.
	maxLogprobs = 2 << 20
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

// mend gives a logprob what every one has.
func (l *logprob) mend() {
	if l.Bytes == nil {
		l.Bytes = []int{}
		for _, b := range []byte(l.Token) {
			l.Bytes = append(l.Bytes, int(b))
		}
	}
}

// appendLogprobs appends what the logprobs of a chat answer's choice tell, with
// at most so many alternatives at each place, behind a comma where something
// stands before it. What cannot be read tells nothing.
func appendLogprobs(dst []byte, value jsontext.Value, alternatives int) []byte {
	var told struct {
		Content []logprob `json:"content"`
	}
	if json.Unmarshal(value, &told) != nil {
		return dst
	}
	for i := range told.Content {
		l := &told.Content[i]
		l.mend()
		l.Top = append([]logprob{}, l.Top[:min(len(l.Top), alternatives)]...)
		for j := range l.Top {
			l.Top[j].mend()
			l.Top[j].Top = nil
		}
		text, err := json.Marshal(l)
		if err != nil { // a number that JSON does not have
			continue
		}
		if len(dst) > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, text...)
	}
	return dst
}
