package dialect

import "unicode/utf8"

// What CountMessages takes for a token, from looking at what the tokenizers of
// open models make of prose and code in several scripts.
const (
	quarterOfASCII  = 1    // a token has about four bytes of Latin prose or code
	quartersBeyond  = 2    // … and about two of any other script
	tokensOfPicture = 1000 // whatever its size
	tokensOfMessage = 4    // what a chat template puts around each
)

// CountMessages estimates the tokens of the input of a body of the messages
// dialect, which may lack max_tokens. No tokenizer is asked: it may be wrong by
// a third either way. Every error is a *fault.Fault.
func CountMessages(body []byte) (tokens int64, err error) {
	q, err := readMessages(body)
	if err != nil {
		return 0, err
	}
	w := weight{}
	w.blocks(q.system)
	for _, t := range q.turns {
		w.tokens += tokensOfMessage
		w.blocks(t.blocks)
	}
	for _, t := range q.tools {
		w.tokens += tokensOfMessage
		w.text(t.name)
		w.text(t.description)
		w.text(t.schema)
	}
	w.text(q.schema)
	return w.tokens + (w.quarters+3)/4, nil
}

// weight adds up the tokens of text, in quarters, and of what is no text.
type weight struct{ tokens, quarters int64 }

func (w *weight) text(text []byte) {
	for _, b := range text {
		if b < utf8.RuneSelf {
			w.quarters += quarterOfASCII
		} else {
			w.quarters += quartersBeyond
		}
	}
}

func (w *weight) blocks(blocks []block) {
	for i := range blocks {
		b := &blocks[i]
		if b.kind == imageBlock {
			w.tokens += tokensOfPicture
		}
		for _, text := range [...][]byte{b.text, b.title, b.name, b.input} {
			w.text(text)
		}
		w.blocks(b.content)
	}
}
