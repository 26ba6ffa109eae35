package llama

import (
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"unsafe"

	"github.com/kith/kith/internal/llama/chatform"
)

// vocab is a model's vocabulary. It is safe for concurrent use.
type vocab struct {
	lib      *library
	handle   cVocab
	size     int // number of tokens
	bos, eos string
	addBOS   bool
}

func newVocab(lib *library, handle cVocab) *vocab {
	v := &vocab{
		lib:    lib,
		handle: handle,
		size:   int(lib.llama_vocab_n_tokens(handle)),
		addBOS: lib.llama_vocab_get_add_bos(handle),
	}
	v.bos = string(v.piece(lib.llama_vocab_bos(handle), true))
	v.eos = string(v.piece(lib.llama_vocab_eos(handle), true))
	return v
}

// control returns the control tokens and their texts.
func (v *vocab) control() iter.Seq2[token, string] {
	return func(yield func(token, string) bool) {
		for t := range token(v.size) {
			if v.lib.llama_vocab_is_control(v.handle, t) && !yield(t, string(v.piece(t, true))) {
				return
			}
		}
	}
}

// prompt returns the tokens of a rendered prompt, including those that the model requires
// at its beginning and end.
func (v *vocab) prompt(pieces []chatform.Piece) ([]token, error) {
	var tokens []token
	for i, p := range pieces {
		if i == 0 && v.addBOS && v.bos != "" && !p.Literal {
			p.Text = strings.TrimPrefix(p.Text, v.bos) // tokenizing adds it again
		}
		more, err := v.tokenize(p.Text, i == 0, !p.Literal)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, more...)
	}
	return tokens, nil
}

// tokenize returns the tokens of text. With ends it includes those that the model
// requires at the beginning and end of a text. If special is true, names of control tokens
// are converted to these tokens.
func (v *vocab) tokenize(text string, ends, special bool) ([]token, error) {
	if len(text) > math.MaxInt32/2 {
		return nil, fmt.Errorf("cannot take %d bytes of text at once", len(text))
	}
	tokens := make([]token, len(text)/2+8)
	for range 2 {
		n := v.lib.llama_tokenize(v.handle, stringBytes(text), int32(len(text)), &tokens[0], int32(len(tokens)), ends, special)
		if n >= 0 {
			return tokens[:n], nil
		}
		if n == math.MinInt32 {
			break
		}
		tokens = make([]token, -n)
	}
	return nil, fmt.Errorf("cannot split %d bytes of text into tokens", len(text))
}

// piece returns the bytes of a token, possibly a part of a rune. For control tokens it
// returns nothing unless special is true.
func (v *vocab) piece(t token, special bool) []byte {
	if t < 0 {
		return nil
	}
	var buf [64]byte
	n := v.lib.llama_token_to_piece(v.handle, t, &buf[0], int32(len(buf)), 0, special)
	if n >= 0 {
		return append([]byte(nil), buf[:n]...)
	}
	long := make([]byte, -n)
	n = v.lib.llama_token_to_piece(v.handle, t, &long[0], int32(len(long)), 0, special)
	return long[:max(n, 0)]
}

// ends reports whether the token ends the answer.
func (v *vocab) ends(t token) bool { return v.lib.llama_vocab_is_eog(v.handle, t) }

// beforeEnd returns text up to the first token in it that ends the answer: what a model
// writes does not include it.
func (v *vocab) beforeEnd(text string) string {
	tokens, err := v.tokenize(text, false, true)
	if i := slices.IndexFunc(tokens, v.ends); err == nil && i >= 0 {
		text, _, _ = strings.Cut(text, string(v.piece(tokens[i], true)))
	}
	return text
}

// stringBytes returns a pointer to the bytes of s, never nil.
func stringBytes(s string) *byte {
	if s == "" {
		return new(byte)
	}
	return unsafe.StringData(s)
}
