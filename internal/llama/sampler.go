package llama

import (
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"unsafe"
)

// sampling holds the sampling parameters. A zero topK, minP or penalty is off.
type sampling struct {
	temperature float32
	topP        float32
	minP        float32
	topK        int32
	presence    float32
	frequency   float32
	seed        uint32
	biases      []logitBias
}

// defaultSampling returns llama.cpp's defaults with a random seed.
func defaultSampling() sampling {
	return sampling{temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05, seed: rand.Uint32N(1<<32 - 1)}
}

// sampler chooses the tokens of one answer.
type sampler struct {
	vocab   *vocab
	chain   cSampler
	grammar cSampler // 0: none
}

// newSampler returns the sampler for a request. Penalties consider the last window tokens
// of the answer. The caller must free it.
func newSampler(v *vocab, s sampling, window int32) *sampler {
	lib := v.lib
	of := &sampler{vocab: v, chain: lib.llama_sampler_chain_init(true)}
	add := func(next cSampler) { lib.llama_sampler_chain_add(of.chain, next) }
	if n := len(s.biases); n > 0 {
		add(lib.llama_sampler_init_logit_bias(int32(v.size), int32(n), &s.biases[0]))
	}
	if s.presence != 0 || s.frequency != 0 {
		add(lib.llama_sampler_init_penalties(int32(v.size), window, 1, s.frequency, s.presence))
	}
	if s.temperature <= 0 {
		add(lib.llama_sampler_init_greedy())
		return of
	}
	add(lib.llama_sampler_init_top_k(s.topK))
	add(lib.llama_sampler_init_top_p(s.topP, 1))
	add(lib.llama_sampler_init_min_p(s.minP, 1))
	add(lib.llama_sampler_init_temp(s.temperature))
	add(lib.llama_sampler_init_dist(s.seed))
	return of
}

// constrain makes a grammar with the rule root decide what follows the tokens written, which
// are a part of the text that it describes. It reports false, and changes nothing, if the
// grammar is "", if llama.cpp refuses it, or if it refuses the tokens.
func (s *sampler) constrain(grammar string, written []token) bool {
	if grammar == "" { // llama.cpp would allow everything
		return false
	}
	lib := s.vocab.lib
	s.grammar = lib.llama_sampler_init_grammar(s.vocab.handle, grammar, "root")
	if s.grammar == 0 {
		lib.errors.take()
		return false
	}
	for _, t := range written {
		if !s.allows(t) {
			lib.llama_sampler_free(s.grammar)
			s.grammar = 0
			return false
		}
		lib.llama_sampler_accept(s.grammar, t)
	}
	return true
}

// free frees the sampler.
func (s *sampler) free() {
	s.vocab.lib.llama_sampler_free(s.chain)
	if s.grammar != 0 {
		s.vocab.lib.llama_sampler_free(s.grammar)
	}
}

// sample returns the next token for the output at index. buffer is reused between calls.
//
// A grammar over all tokens costs milliseconds with a large vocabulary. So the grammar
// first checks only the token that would be chosen without it, which it nearly always
// allows, and then those that would be chosen without the ones it does not allow. A grammar
// must never accept a token that it does not allow: llama.cpp ends the process. If no token
// is left, for instance because biases forbid them, sample fails with errNoToken.
func (s *sampler) sample(c cContext, index int32, buffer *[]tokenData) (token, error) {
	lib := s.vocab.lib
	if s.grammar == 0 {
		return lib.llama_sampler_sample(s.chain, c, index), nil
	}
	var refused []token
	t := s.choose(c, index, buffer, nil, s.chain)
	for t != noToken && len(refused) < maxRefused && !s.allows(t) {
		refused = append(refused, t)
		t = s.choose(c, index, buffer, refused, s.chain)
	}
	if !s.allows(t) {
		if t = s.choose(c, index, buffer, nil, s.grammar, s.chain); !s.allows(t) {
			return 0, errNoToken
		}
	}
	lib.llama_sampler_accept(s.grammar, t)
	lib.llama_sampler_accept(s.chain, t)
	return t, nil
}

var errNoToken = badMember("logit_bias", "no token of the model is left that the schema or the tools of the request allow; check logit_bias")

// maxRefused is the number of tokens that are checked one by one before a grammar is applied
// to all: together they cost a tenth of that.
const maxRefused = 8

// choose applies samplers to all tokens but the refused ones, and returns the one that they
// select.
func (s *sampler) choose(c cContext, index int32, buffer *[]tokenData, refused []token, samplers ...cSampler) token {
	*buffer = slices.Grow((*buffer)[:0], s.vocab.size)[:s.vocab.size]
	all := *buffer
	for i, logit := range unsafe.Slice(s.vocab.lib.llama_get_logits_ith(c, index), s.vocab.size) {
		all[i] = tokenData{id: token(i), logit: logit}
	}
	for _, t := range refused {
		all[t].logit = float32(math.Inf(-1))
	}
	array := &tokenDataArray{data: &all[0], size: uintptr(len(all)), selected: -1}
	for _, sampler := range samplers {
		s.vocab.lib.llama_sampler_apply(sampler, array)
	}
	t := noToken
	if array.selected >= 0 && array.selected < int64(array.size) {
		t = at(array.data, uintptr(array.selected)).id // a sampler may have replaced data
	}
	runtime.KeepAlive(all)
	return t
}

// noToken is no entry of a vocabulary.
const noToken token = -1

// allows reports whether the grammar allows the token next.
func (s *sampler) allows(t token) bool {
	if t == noToken {
		return false
	}
	one := &tokenData{id: t, logit: 1}
	s.vocab.lib.llama_sampler_apply(s.grammar, &tokenDataArray{data: one, size: 1, selected: -1})
	return !math.IsInf(float64(one.logit), -1)
}
