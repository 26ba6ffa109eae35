package llama

import (
	"context"
	"fmt"
	"math"
	"unsafe"
)

// embedding is an embeddings request, with a vector for each input.
type embedding struct {
	ctx     context.Context
	inputs  [][]token // each of 1 to embedContext tokens
	vectors [][]float32
	done    chan error // receives the result once; never blocks
}

// embed queues a request and waits for its vectors.
func (r *runner) embed(ctx context.Context, inputs [][]token) ([][]float32, error) {
	e := &embedding{ctx: ctx, inputs: inputs, done: make(chan error, 1)}
	if err := queueFor(r, r.embeds, e); err != nil {
		return nil, err
	}
	select {
	case err := <-e.done:
		return e.vectors, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startEmbedding makes e the current request and loads the weights if necessary.
func (r *runner) startEmbedding(e *embedding) {
	err := e.ctx.Err()
	if err == nil {
		err = r.ensureLoaded()
	}
	if err == nil {
		if err = r.loaded.loadEmbed(r.modelSpec); err != nil {
			err = &loadError{err}
		}
	}
	if err != nil {
		e.done <- err
		return
	}
	r.current = e
}

// embedStep computes as many inputs of the current request as fit into one batch. Chats
// run between two batches.
func (r *runner) embedStep() {
	e := r.current
	if e == nil {
		return
	}
	if err := e.ctx.Err(); err != nil {
		r.current = nil
		return
	}
	b := &r.loaded.embedBatch
	b.nTokens = 0
	n := 0
	for _, input := range e.inputs[len(e.vectors):] {
		if n == embeddingInputs || int(b.nTokens)+len(input) > r.embedContext {
			break
		}
		for pos, t := range input {
			b.add(t, pos, n, true)
		}
		n++
	}
	status := r.lib.llama_decode(r.loaded.embed, *b)
	for seq := range n {
		var p *float32
		if status == 0 {
			p = r.lib.llama_get_embeddings_seq(r.loaded.embed, int32(seq))
		}
		if p == nil {
			r.current = nil
			e.done <- r.lib.failure(fmt.Sprintf("cannot compute the embeddings (llama_decode returned %d)", status))
			break
		}
		e.vectors = append(e.vectors, append([]float32(nil), unsafe.Slice(p, r.Dimensions)...))
	}
	for seq := range n {
		clearSequence(r.lib, r.loaded.embed, int32(seq))
	}
	if len(e.vectors) == len(e.inputs) && r.current != nil {
		r.current = nil
		e.done <- nil
	}
}

// normalize truncates a vector to n dimensions and scales it to unit length.
func normalize(v []float32, n int) []float32 {
	v = v[:n]
	sum := 0.0
	for _, x := range v {
		sum += float64(x) * float64(x)
	}
	if sum == 0 {
		return v
	}
	scale := 1 / math.Sqrt(sum)
	for i, x := range v {
		v[i] = float32(float64(x) * scale)
	}
	return v
}
