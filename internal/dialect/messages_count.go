package dialect

import "unicode/utf8"

// Average token sizes that CountMessages assumes, taken from the tokenizers of open
// models for prose and code in several scripts.
const (
	quarterOfASCII  = 1    // a token has about four bytes of Latin prose or code
	quartersBeyond  = 2    // … and about two bytes of any other script
	tokensOfPicture = 1000 // of any size
	tokensOfMessage = 4    // added to each by a chat template
)

// Count is the input of a body of the messages dialect whose tokens are to be counted.
type Count struct {
	Head
	// Chat is the input as the body of a chat call, for a tokenizer. It is nil if the
	// input has images, which each model counts differently and tokenizers do not count,
	// or if no engine would accept it.
	Chat []byte
	// Estimate is an estimate of the number of tokens that needs no tokenizer. It may be
	// off by a third in either direction.
	Estimate int64
}

// CountMessages reads a body of the messages dialect, which may lack max_tokens, to count
// the tokens of its input. Every error is a *fault.Fault.
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
			count.Chat = nil // there is nothing to answer; the estimate is still valid
		}
	}
	return count, nil
}

// estimate adds up the tokens of text, in quarters, and of everything else.
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
