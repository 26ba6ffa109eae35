package llama

import "slices"

// slot is a sequence in the model's context, and the job that uses it; job is nil if the
// slot is free. After the answer the tokens remain in the sequence, for the next prompt
// of the same caller.
type slot struct {
	caller string  // the owner of these tokens; "" is the owner of this machine
	tokens []token // in the sequence, in their order
	used   uint64  // number of the last job that started here; 0 means none
	// stored is the file that the sequence was restored from, if it was.
	stored storedPrompt

	job    *job
	fed    int   // prompt tokens that are in the sequence
	next   token // sampled but not yet in the sequence; valid after the prompt was fed
	count  int   // tokens of the answer
	output int32 // index of its output in the current batch, or noOutput
	queued bool  // has tokens in the current batch
}

const noOutput = -1

// minCopied is the minimum number of tokens to copy from another slot's sequence.
// Computing fewer tokens is cheaper, because a copy moves the memory of a complete
// context.
const minCopied = 64

// placement is the slot for a prompt, and the tokens that can be reused.
type placement struct {
	slot   int // a free one
	source int // the slot with the tokens to reuse: slot itself, or one to copy from
	reused int // number of tokens to reuse at the start of the prompt
}

// place chooses a slot for a prompt; one of them is free.
//
//  1. Only sequences of the same caller are considered. The one with the longest common
//     start with the prompt is the source.
//  2. If that slot is free and at least half of its tokens are in common, the prompt
//     uses that slot: it is the next turn of the same conversation.
//  3. Otherwise the prompt uses the least recently used slot, empty ones first. The
//     tokens in that slot are lost, and minCopied or more common tokens are copied.
//
// The last token of the prompt is always computed, because the first token of the answer
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
	oldest := oldestFree(slots)
	if best != oldest && longest < minCopied {
		return placement{oldest, oldest, 0}
	}
	return placement{oldest, best, longest}
}

// oldestFree returns the index of the free slot that was used least recently.
func oldestFree(slots []slot) int {
	oldest := -1
	for i := range slots {
		if slots[i].job == nil && (oldest < 0 || slots[i].used < slots[oldest].used) {
			oldest = i
		}
	}
	return oldest
}

// commonPrefix returns the length of the common prefix of a and b.
func commonPrefix(a, b []token) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// begin starts a job in the slot that place chooses, with the reused tokens. If a stored
// prompt has more of them, it is restored there.
func (r *runner) begin(j *job) {
	p := place(r.slots, j.caller, j.prompt)
	r.began++
	if _, common := longestStored(r.stored, j.caller, j.prompt[:len(j.prompt)-1]); common >= p.reused+minCopied {
		oldest := oldestFree(r.slots)
		p = placement{oldest, oldest, 0}
		r.forget(p.slot)
		if r.restore(p.slot, j) {
			p.reused = common
		}
	}
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

// copySequence replaces the sequence of a slot by that of another one. llama.cpp can only
// copy complete sequences between slots.
func (r *runner) copySequence(from, to int) {
	if m := r.lib.llama_get_memory(r.loaded.chat); m != 0 {
		r.lib.llama_memory_seq_cp(m, int32(from), int32(to), -1, -1)
	}
}

// truncate removes the tokens of a sequence from index n. For a recurrent model, whose
// state cannot be truncated, it returns false and changes nothing.
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
	s := &r.slots[i]
	if s.tokens = nil; s.stored.path != "" {
		r.stored = append(r.stored, s.stored)
		s.stored = storedPrompt{}
	}
}
