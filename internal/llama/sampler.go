package llama

import (
	"fmt"
	"math/rand/v2"
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
	grammar     string // GBNF with the rule root, or ""
}

// defaultSampling returns llama.cpp's defaults with a random seed.
func defaultSampling() sampling {
	return sampling{temperature: 0.8, topK: 40, topP: 0.95, minP: 0.05, seed: rand.Uint32N(1<<32 - 1)}
}

// newSampler returns the sampler chain for a request. The grammar comes first, because
// llama.cpp aborts on a token that does not conform to it. Penalties consider the last
// window tokens of the answer. The caller must free the chain.
func newSampler(v *vocab, s sampling, window int32) (cSampler, error) {
	lib := v.lib
	chain := lib.llama_sampler_chain_init(true)
	if s.grammar != "" {
		g := lib.llama_sampler_init_grammar(v.handle, s.grammar, "root")
		if g == 0 {
			lib.llama_sampler_free(chain)
			lib.errors.take()
			return 0, fmt.Errorf("cannot use the schema: it leads back to itself without an object or an array between")
		}
		lib.llama_sampler_chain_add(chain, g)
	}
	if n := len(s.biases); n > 0 {
		lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_logit_bias(int32(v.size), int32(n), &s.biases[0]))
	}
	if s.presence != 0 || s.frequency != 0 {
		lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_penalties(int32(v.size), window, 1, s.frequency, s.presence))
	}
	if s.temperature <= 0 {
		lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_greedy())
		return chain, nil
	}
	for _, next := range []cSampler{
		lib.llama_sampler_init_top_k(s.topK),
		lib.llama_sampler_init_top_p(s.topP, 1),
		lib.llama_sampler_init_min_p(s.minP, 1),
		lib.llama_sampler_init_temp(s.temperature),
		lib.llama_sampler_init_dist(s.seed),
	} {
		lib.llama_sampler_chain_add(chain, next)
	}
	return chain, nil
}
