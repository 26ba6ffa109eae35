package llama

import (
	"cmp"
	"slices"
	"testing"
	"unsafe"

	"github.com/kith/kith/internal/assert"
)

// TestSampleWithGrammar compares each token of an answer in JSON, where the model would write
// text, with the most likely one of those that the grammar allows.
func TestSampleWithGrammar(t *testing.T) {
	spec := openModel(t, testModels[0], 1)
	w := assert.Value(spec.load())(t)
	defer w.free()
	talk := says("What is 7+5?")
	_, prompt, err := newRunner(spec, 0, nil).prompt(t.Context(), &talk)
	assert.OK(t, err)
	s := newSampler(spec.vocab, sampling{}, 100)
	defer s.free()
	assert.Require(t, s.constrain("root ::= object\n"+jsonRules, nil), "llama.cpp refuses the grammar")
	w.chatBatch.nTokens = 0
	for i, next := range prompt {
		w.chatBatch.add(next, i, 0, i == len(prompt)-1)
	}
	var buffer []tokenData
	few, many := 0, 0 // steps in which a few tokens were refused, and more than are checked one by one
	for pos := len(prompt); pos < len(prompt)+40; pos++ {
		assert.Require(t, spec.lib.llama_decode(w.chat, w.chatBatch) == 0, "llama_decode")
		index := w.chatBatch.nTokens - 1
		logits := unsafe.Slice(spec.lib.llama_get_logits_ith(w.chat, index), spec.vocab.size)
		order := make([]token, len(logits))
		for i := range order {
			order[i] = token(i)
		}
		slices.SortStableFunc(order, func(a, b token) int { return cmp.Compare(logits[b], logits[a]) })
		refused := slices.IndexFunc(order, s.allows)
		want := order[refused]
		got := assert.Value(s.sample(w.chat, index, &buffer))(t)
		assert.Require(t, got == want, pos, string(spec.vocab.piece(got, true)), string(spec.vocab.piece(want, true)))
		if refused > maxRefused {
			many++
		} else if refused > 0 {
			few++
		}
		if spec.vocab.ends(got) {
			break
		}
		w.chatBatch.nTokens = 0
		w.chatBatch.add(got, pos, 0, true)
	}
	assert.Require(t, few > 0 && many > 0, "steps with refused tokens:", few, many)
}
