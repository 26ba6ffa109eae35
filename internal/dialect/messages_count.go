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

// Count is the input of a body of the messages dialect whose tokens are to be
// counted.
type Count struct {
	Head
	// Chat is the input as the body of a chat call, for a tokenizer; nil where
	// none can count: with pictures, which each model counts in its own way and
	// tokenizers not at all, or where no engine would take the input.
	Chat []byte
	// Estimate is the number of tokens as this package sees it, without any
	// tokenizer. It may be wrong by a third either way.
	Estimate int64
}

// CountMessages reads a body of the messages dialect, which may lack max_tokens,
// for the tokens of its input. Every error is a *fault.Fault.
func CountMessages(body []byte) (Count, error) {
	q, err := readMessages(body)
	if err != nil {
		return Count{}, err
	}
	w := estimate{}
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
	count := Count{Head: q.Head, Estimate: w.total()}
	if !w.pictures {
		q.Stream = false
		if count.Chat, err = writeChat(&q.request, len(body)); err != nil {
			count.Chat = nil // there is nothing to answer; the estimate remains
		}
	}
	return count, nil
}

// estimate adds up the tokens of text, in quarters, and of what is no text.
type estimate struct {
	tokens, quarters int64
	pictures         bool
}

func (w *estimate) total() int64 { return w.tokens + (w.quarters+3)/4 }

func (w *estimate) text(text []byte) {
	for _, b := range text {
		if b < utf8.RuneSelf {
			w.quarters += quarterOfASCII
		} else {
			w.quarters += quartersBeyond
		}
	}
}

func (w *estimate) blocks(blocks []block) {
	for i := range blocks {
		b := &blocks[i]
		if b.kind == imageBlock {
			w.tokens += tokensOfPicture
			w.pictures = true
		}
		for _, text := range [...][]byte{b.text, b.title, b.name, b.input} {
			w.text(text)
		}
		w.blocks(b.content)
	}
}
