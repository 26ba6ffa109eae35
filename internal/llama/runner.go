package llama

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// maxWaiting is how many requests may wait for one model's slots; the daemon
// counts slots itself, so only its owner's own calls ever wait here.
const maxWaiting = 64

var errTooMany = errors.New("too many requests wait for this model; try again soon")

// job is one chat request. The runner that takes it ends its outbox and frees
// its sampler, whatever happens.
type job struct {
	ctx     context.Context
	prompt  []token
	limit   int // tokens of the answer at most, at least 1
	sampler cSampler
	text    holder
	thinks  thoughts // the handler's
	out     *outbox

	likely       bool // logprobs are asked for
	alternatives int  // … with so many other tokens at each place
	unsent       unsent
}

// send adds text to the answer, with the logprobs of all that was sent.
func (j *job) send(text string, tokens int) { j.out.add(text, j.unsent.until(j.text.sent), tokens) }

// runner serves one model. Its goroutine alone touches weights and slots.
type runner struct {
	*modelSpec
	idle   time.Duration // weights leave memory after this long; 0 never
	jobs   chan *job
	embeds chan *embedding

	loaded  *weights
	slots   []slot
	first   int // which slot's prompt goes first next
	current *embedding
}

// slot is a place for one running job; job nil means it is free.
type slot struct {
	job   *job
	fed   int   // tokens of the prompt that are in the context
	pos   int   // tokens of prompt and answer that are in the context
	next  token // chosen, not in the context yet; meaningful once fed is all
	count int   // tokens of the answer
	at    int32 // where its output stands in this step's batch, or noOutput
	given bool  // has tokens in this step's batch
}

const noOutput = -1

func newRunner(s *modelSpec, idle time.Duration) *runner {
	return &runner{
		modelSpec: s,
		idle:      idle,
		jobs:      make(chan *job, maxWaiting),
		embeds:    make(chan *embedding, maxWaiting),
		slots:     make([]slot, s.Slots),
	}
}

// submit queues a job, or says that too many wait.
func (r *runner) submit(j *job) error {
	select {
	case r.jobs <- j:
		return nil
	default:
		r.lib.llama_sampler_free(j.sampler)
		return errTooMany
	}
}

// run answers jobs until the process ends: one decode step after the other,
// each over everything that runs. New jobs and cancellations are seen between
// two steps.
func (r *runner) run() {
	for {
		if !r.busy() {
			r.await()
		}
		r.admit()
		if r.loaded != nil {
			r.step()
			r.embedStep()
		}
	}
}

func (r *runner) busy() bool {
	for i := range r.slots {
		if r.slots[i].job != nil {
			return true
		}
	}
	return r.current != nil
}

// await blocks until there is work; meanwhile the weights may leave memory.
func (r *runner) await() {
	var unload <-chan time.Time
	if r.loaded != nil && r.idle > 0 {
		t := time.NewTimer(r.idle)
		defer t.Stop()
		unload = t.C
	}
	select {
	case j := <-r.jobs:
		r.place(j)
	case e := <-r.embeds:
		r.begin(e)
	case <-unload:
		r.loaded.free()
		r.loaded = nil
	}
}

// admit frees the slots of those who left and fills free slots from the queue.
func (r *runner) admit() {
	for i := range r.slots {
		if s := &r.slots[i]; s.job != nil && s.job.ctx.Err() != nil {
			r.release(i, "", s.job.ctx.Err())
		}
	}
	for r.freeSlot() >= 0 {
		select {
		case j := <-r.jobs:
			r.place(j)
			continue
		default:
		}
		break
	}
	if r.current == nil {
		select {
		case e := <-r.embeds:
			r.begin(e)
		default:
		}
	}
}

// freeSlot is the index of a free slot, or -1.
func (r *runner) freeSlot() int {
	for i := range r.slots {
		if r.slots[i].job == nil {
			return i
		}
	}
	return -1
}

// place gives a job a slot, loading the weights first if they are not there.
func (r *runner) place(j *job) {
	err := j.ctx.Err()
	if err == nil {
		err = r.ensure()
	}
	if err != nil {
		r.lib.llama_sampler_free(j.sampler)
		j.out.end(ending{}, err)
		return
	}
	r.slots[r.freeSlot()] = slot{job: j}
}

func (r *runner) ensure() error {
	if r.loaded != nil {
		return nil
	}
	w, err := r.load()
	if err != nil {
		return &loadError{err}
	}
	r.loaded = w
	return nil
}

// loadError is why a model could not be loaded: another machine may be able to.
type loadError struct{ error }

// release ends a slot's job and empties its sequence.
func (r *runner) release(i int, finish string, err error) {
	s := &r.slots[i]
	forget(r.lib, r.loaded.chat, int32(i))
	r.lib.llama_sampler_free(s.job.sampler)
	s.job.out.end(ending{finish, s.job.text.stopped}, err)
	*s = slot{}
}

// forget removes a whole sequence from a context, if that has a memory.
func forget(lib *library, c cContext, seq int32) {
	if m := lib.llama_get_memory(c); m != 0 {
		lib.llama_memory_seq_rm(m, seq, -1, -1)
	}
}

// step decodes once: the next token of every slot that answers, and pieces of
// the prompts of those that begin, as many as fit.
func (r *runner) step() {
	b := &r.loaded.batch
	b.nTokens = 0
	starting := 0
	for i := range r.slots {
		s := &r.slots[i]
		s.at, s.given = noOutput, false
		switch {
		case s.job == nil:
		case s.fed < len(s.job.prompt):
			starting++
		default:
			s.at, s.given = b.nTokens, true
			b.add(s.next, s.pos, i, true)
			s.pos++
		}
	}
	r.feed(b, starting)
	if b.nTokens == 0 {
		return
	}
	if status := r.lib.llama_decode(r.loaded.chat, *b); status != 0 {
		err := r.lib.failure(fmt.Sprintf("cannot compute the next token (llama_decode says %d)", status))
		for i := range r.slots {
			if r.slots[i].given {
				r.release(i, "", err)
			}
		}
		return
	}
	for i := range r.slots {
		if r.slots[i].at != noOutput {
			r.advance(i)
		}
	}
}

// feed shares the room left in the batch fairly among the prompts, beginning
// with another slot each time.
func (r *runner) feed(b *batch, starting int) {
	r.first = (r.first + 1) % len(r.slots)
	for k := range r.slots {
		i := (r.first + k) % len(r.slots)
		s := &r.slots[i]
		if s.job == nil || s.fed == len(s.job.prompt) {
			continue
		}
		n := min((batchTokens-int(b.nTokens))/starting, len(s.job.prompt)-s.fed)
		starting--
		for _, t := range s.job.prompt[s.fed : s.fed+n] {
			s.fed++
			last := s.fed == len(s.job.prompt)
			if last {
				s.at = b.nTokens
			}
			b.add(t, s.pos, i, last)
			s.pos++
			s.given = true
		}
	}
}

// advance chooses a slot's next token from what was computed, and ends the
// answer where the model, a stop string or a limit does.
func (r *runner) advance(i int) {
	s := &r.slots[i]
	t := r.lib.llama_sampler_sample(s.job.sampler, r.loaded.chat, s.at)
	if r.vocab.ends(t) {
		s.job.send(s.job.text.flush(), s.count)
		r.release(i, "stop", nil)
		return
	}
	s.count++
	s.next = t
	piece := r.vocab.piece(t, false)
	if s.job.likely {
		if l, ok := r.logprob(t, s.at, s.job.alternatives); ok {
			s.job.unsent.add(l, s.job.text.written+len(piece))
		}
	}
	text, stopped := s.job.text.write(piece)
	s.job.send(text, s.count)
	switch {
	case stopped:
		r.release(i, "stop", nil)
	case s.count >= s.job.limit || s.pos >= r.ContextLength:
		s.job.send(s.job.text.flush(), s.count)
		r.release(i, "length", nil)
	}
}

// add appends one token of a sequence; output asks for logits after it.
func (b *batch) add(t token, pos, seq int, output bool) {
	i := uintptr(b.nTokens)
	*at(b.token, i) = t
	*at(b.pos, i) = int32(pos)
	*at(b.nSeqID, i) = 1
	**at(b.seqID, i) = int32(seq)
	*at(b.logits, i) = 0
	if output {
		*at(b.logits, i) = 1
	}
	b.nTokens++
}

// at is element i of a C array.
func at[T any](p *T, i uintptr) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(p), i*unsafe.Sizeof(*p)))
}
