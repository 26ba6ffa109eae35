package llama

import "slices"

// slot is one sequence of the model's context, and the job that it runs; job is nil if
// the slot is free. The tokens of a job stay in the sequence after its answer, for the
// next prompt of the same caller.
type slot struct {
	caller string  // whose tokens these are; "" is the owner of this machine
	tokens []token // in the sequence, in their order
	used   uint64  // the number of the last job that began here; 0 means none did

	job    *job
	fed    int   // tokens of the prompt that are in the sequence
	next   token // sampled, but not in the sequence yet; valid once the prompt is fed
	count  int   // tokens of the answer
	output int32 // index of its output in the current batch, or noOutput
	queued bool  // has tokens in the current batch
}

const noOutput = -1

// minCopied is the number of tokens from which on a copy of another slot's sequence
// costs less than computing them: a copy moves the memory of a complete context.
const minCopied = 64

// placement is where a prompt is computed, and which tokens of it need not be.
type placement struct {
	slot   int // a free one
	source int // the slot that holds them: slot itself, or one to copy from
	reused int // tokens at the start of the prompt
}

// place chooses a slot for a prompt; one of them is free.
//
//  1. Only sequences of the same caller count. The one that has the most tokens in
//     common with the start of the prompt is the source.
//  2. If that slot is free and at least half of its tokens are in common, the prompt
//     goes on there: it is the next turn of the same conversation.
//  3. Otherwise it takes the slot that was not used for the longest time, empty ones
//     first. What is there is lost, and minCopied or more tokens in common are copied.
//
// The last token of the prompt is computed in any case: the first token of the answer
// is sampled from its output.
func place(slots []slot, caller string, prompt []token) placement {
	best, longest := -1, 0
	for i := range slots {
		s := &slots[i]
		if n := commonPrefix(s.tokens, prompt[:len(prompt)-1]); s.caller == caller && n > longest {
			best, longest = i, n
		}
	}
	if best >= 0 && slots[best].job == nil && 2*longest >= len(slots[best].tokens) {
		return placement{best, best, longest}
	}
	oldest := -1
	for i := range slots {
		if slots[i].job == nil && (oldest < 0 || slots[i].used < slots[oldest].used) {
			oldest = i
		}
	}
	if best != oldest && longest < minCopied {
		return placement{oldest, oldest, 0}
	}
	return placement{oldest, best, longest}
}

// commonPrefix returns how many tokens a and b have in common at their start.
func commonPrefix(a, b []token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// begin starts a job in the slot that place chooses, with the tokens that it need not
// compute.
func (r *runner) begin(j *job) {
	p := place(r.slots, j.caller, j.prompt)
	r.began++
	s := &r.slots[p.slot]
	if p.slot != p.source {
		r.forget(p.slot)
		r.copySequence(p.source, p.slot)
		s.tokens = slices.Clone(r.slots[p.source].tokens)
	}
	if p.reused == 0 || !r.truncate(p.slot, p.reused) {
		r.forget(p.slot)
	}
	s.caller, s.used = j.caller, r.began
	s.job, s.fed, s.count = j, len(s.tokens), 0
	j.cached = s.fed
}

// copySequence replaces the sequence of a slot with that of another one. llama.cpp
// copies between slots complete sequences only.
func (r *runner) copySequence(from, to int) {
	if m := r.lib.llama_get_memory(r.loaded.chat); m != 0 {
		r.lib.llama_memory_seq_cp(m, int32(from), int32(to), -1, -1)
	}
}

// truncate removes the tokens from n on from a sequence. It returns false for a
// recurrent model, whose state cannot lose single tokens, and then changes nothing.
func (r *runner) truncate(i, n int) bool {
	s := &r.slots[i]
	if n == len(s.tokens) {
		return true
	}
	m := r.lib.llama_get_memory(r.loaded.chat)
	if m == 0 || !r.lib.llama_memory_seq_rm(m, int32(i), int32(n), -1) {
		return false
	}
	s.tokens = s.tokens[:n]
	return true
}

// forget removes all tokens of a slot.
func (r *runner) forget(i int) {
	clearSequence(r.lib, r.loaded.chat, int32(i))
	r.slots[i].tokens = nil
}
