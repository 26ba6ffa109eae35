package llama

import (
	"context"
	"fmt"
	"math"
	"unsafe"
)

// embedding is one embeddings request: every input becomes a vector.
type embedding struct {
	ctx     context.Context
	inputs  [][]token // each of 1 to embedContext tokens
	vectors [][]float32
	done    chan error // given one value at the end; holds it
}

// embed queues a request and waits for its vectors.
func (r *runner) embed(ctx context.Context, inputs [][]token) ([][]float32, error) {
	e := &embedding{ctx: ctx, inputs: inputs, done: make(chan error, 1)}
	select {
	case r.embeds <- e:
	default:
		return nil, errTooMany
	}
	select {
	case err := <-e.done:
		return e.vectors, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// begin makes a request the current one, loading what it needs.
func (r *runner) begin(e *embedding) {
	err := e.ctx.Err()
	if err == nil {
		err = r.ensure()
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

// embedStep computes as many of the current request's inputs as fit at once,
// so that long lists and chats take turns.
func (r *runner) embedStep() {
	e := r.current
	if e == nil {
		return
	}
	if err := e.ctx.Err(); err != nil {
		r.current = nil
		return
	}
	b := &r.loaded.multi
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
			e.done <- r.lib.failure(fmt.Sprintf("cannot compute the embeddings (llama_decode says %d)", status))
			break
		}
		e.vectors = append(e.vectors, append([]float32(nil), unsafe.Slice(p, r.Dimensions)...))
	}
	for seq := range n {
		forget(r.lib, r.loaded.embed, int32(seq))
	}
	if len(e.vectors) == len(e.inputs) && r.current != nil {
		r.current = nil
		e.done <- nil
	}
}

// normalize cuts a vector to n dimensions and scales it to length 1.
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
