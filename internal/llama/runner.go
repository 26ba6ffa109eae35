package llama

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/kith/kith/internal/llama/chatform"
)

// maxWaiting is how many requests may wait for the slots of a model. The daemon counts
// slots, so only its owner's own calls wait here.
const maxWaiting = 64

var (
	errTooMany = errors.New("too many requests wait for this model; try again soon")
	errRemoved = &refusal{status: http.StatusNotFound, code: "model_not_found", message: "no such model here"}
)

// job is a chat request. The runner always ends its outbox and frees its sampler.
type job struct {
	ctx     context.Context
	caller  string // the caller; "" is the owner of this machine
	prompt  []token
	cached  int // prompt tokens that were not computed again; set when the job starts
	limit   int // maximum tokens of the answer, at least 1
	sampler *sampler
	text    stopFilter
	reader  *chatform.Reader // of text; closed with the outbox
	digest  string           // of the chat template
	tail    string           // what the template wrote after the last message
	// calls returns the rules for calls (callRules), until the model writes some.
	calls  func(plain bool) string
	called bool // the answer has a tool call
	out    *outbox

	wantLogprobs bool
	alternatives int // number of other tokens at each position
	unsent       unsent
}

// send adds text to the answer, together with the logprobs of all text sent so far.
func (j *job) send(text string, tokens int) {
	j.add(j.reader.Write(text), j.unsent.until(j.text.sent), tokens)
}

// add adds events to the answer. Stop strings count until the first call.
func (j *job) add(events []chatform.Event, logprobs []logprob, tokens int) {
	for _, e := range events {
		if e.Kind == chatform.EventCall {
			j.called, j.text.stops = true, nil
		}
	}
	j.out.add(events, logprobs, tokens)
}

// readError returns why the answer cannot be read, which is a defect, or nil.
func (j *job) readError() error {
	if err := j.reader.Err(); err != nil {
		return fmt.Errorf("cannot read the model's answer, a defect with its chat template (SHA-256 %s): %w", j.digest, err)
	}
	return nil
}

// end ends the answer with the finish reason or with err, and frees the sampler.
func (j *job) end(finish string, err error) {
	j.sampler.free()
	j.add(j.reader.Close(finish), nil, j.out.count())
	if err == nil {
		err = j.readError()
	}
	if finish == "stop" && j.called {
		finish = "tool_calls"
	}
	j.out.end(ending{finish, j.text.stopped}, err)
}

// runner serves one model. Only its goroutine uses the weights and slots.
type runner struct {
	*modelSpec
	idle    time.Duration // the weights are freed after this time; 0 means never
	prompts *promptStore  // nil: none
	jobs    chan *job
	embeds  chan *embedding
	orders  chan *order
	removed chan struct{} // closed when requests are refused
	leaving chan struct{} // closed when the runner has to end at once
	ended   chan struct{} // closed when it has ended

	mu     sync.Mutex // held to queue a request, and to close removed
	closed bool

	inMemory atomic.Bool // whether loaded is not nil, for other goroutines

	loaded  *weights
	slots   []slot
	began   uint64 // jobs that started in a slot
	nextFed int    // the slot whose prompt is fed first next time
	current *embedding

	candidates []tokenData    // buffer of sampler.sample
	stored     []storedPrompt // that no slot has
}

func newRunner(s *modelSpec, idle time.Duration, prompts *promptStore) *runner {
	return &runner{
		modelSpec: s,
		idle:      idle,
		prompts:   prompts,
		jobs:      make(chan *job, maxWaiting),
		embeds:    make(chan *embedding, maxWaiting),
		orders:    make(chan *order, maxWaiting),
		removed:   make(chan struct{}),
		leaving:   make(chan struct{}),
		ended:     make(chan struct{}),
		slots:     make([]slot, s.Slots),
	}
}

// order loads or frees the weights of a model without a request.
type order struct {
	load bool
	done chan error // buffered
}

// errRunning is why weights are not freed.
var errRunning = &refusal{status: http.StatusConflict, code: "busy", message: "a call runs on it: wait until it has ended"}

// order loads the weights, or frees them unless a request is running, and waits for that.
// It fails with errRunning, a loadError, errTooMany or errRemoved.
func (r *runner) order(ctx context.Context, load bool) error {
	o := &order{load, make(chan error, 1)}
	if err := queueFor(r, r.orders, o); err != nil {
		return err
	}
	select {
	case err := <-o.done:
		return err
	case <-r.ended:
		return errRemoved
	case <-ctx.Done():
		return ctx.Err()
	}
}

// obey carries out an order. Requests in the queue count as running.
func (r *runner) obey(o *order) {
	switch {
	case o.load:
		o.done <- r.ensureLoaded()
	case r.busy() || len(r.jobs)+len(r.embeds) > 0:
		o.done <- errRunning
	default:
		r.unload()
		o.done <- nil
	}
}

// submit queues a job. It fails with errTooMany or errRemoved.
func (r *runner) submit(j *job) error {
	err := queueFor(r, r.jobs, j)
	if err != nil {
		j.end("", err)
	}
	return err
}

// queueFor queues a request for the runner. It fails with errTooMany or errRemoved.
func queueFor[Request any](r *runner, queue chan Request, request Request) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return errRemoved
	}
	select {
	case queue <- request:
		return nil
	default:
		return errTooMany
	}
}

// remove makes the runner end after its current requests.
func (r *runner) remove() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	close(r.removed)
}

// leave makes the runner end after its current decode step. It stores the sequences.
func (r *runner) leave() { close(r.leaving) }

// run answers jobs until the runner is removed or left, in decode steps over all slots.
// It handles new and canceled jobs between steps.
func (r *runner) run() {
	defer close(r.ended)
	for {
		if !r.busy() && !r.await() {
			return
		}
		select {
		case <-r.leaving:
			r.unload()
			return
		default:
		}
		r.admit()
		if r.loaded != nil {
			r.step()
			r.embedStep()
		}
	}
}

func (r *runner) busy() bool {
	return r.current != nil || slices.ContainsFunc(r.slots, func(s slot) bool { return s.job != nil })
}

// await waits for work, and frees the weights after the idle time. It returns false if
// the runner is removed and has no work left.
func (r *runner) await() bool {
	var unload <-chan time.Time
	if r.loaded != nil && r.idle > 0 {
		t := time.NewTimer(r.idle)
		defer t.Stop()
		unload = t.C
	}
	select {
	case j := <-r.jobs:
		r.assign(j)
	case e := <-r.embeds:
		r.startEmbedding(e)
	case o := <-r.orders:
		r.obey(o)
	case <-unload:
		r.unload()
	case <-r.leaving:
	case <-r.removed:
		if len(r.jobs)+len(r.embeds)+len(r.orders) == 0 {
			r.prompts = nil // its files were deleted
			r.unload()
			return false
		}
	}
	return true
}

// unload stores the sequences, and frees them and the weights. It is only called when no slot has a job.
func (r *runner) unload() {
	if r.loaded != nil {
		r.keepPrompts()
		r.loaded.free()
		r.loaded = nil
		r.inMemory.Store(false)
		clear(r.slots)
	}
}

// admit frees the slots of canceled jobs and fills free slots from the queue.
func (r *runner) admit() {
	for i := range r.slots {
		if s := &r.slots[i]; s.job != nil && s.job.ctx.Err() != nil {
			r.release(i, "", s.job.ctx.Err())
		}
	}
	for r.freeSlot() >= 0 && len(r.jobs) > 0 { // no other goroutine receives from the channels
		r.assign(<-r.jobs)
	}
	if r.current == nil && len(r.embeds) > 0 {
		r.startEmbedding(<-r.embeds)
	}
	for len(r.orders) > 0 {
		r.obey(<-r.orders)
	}
}

// freeSlot returns the index of a free slot, or -1.
func (r *runner) freeSlot() int {
	return slices.IndexFunc(r.slots, func(s slot) bool { return s.job == nil })
}

// assign assigns a job to a free slot and loads the weights if necessary.
func (r *runner) assign(j *job) {
	err := j.ctx.Err()
	if err == nil {
		err = r.ensureLoaded()
	}
	if err != nil {
		j.end("", err)
		return
	}
	r.begin(j)
}

func (r *runner) ensureLoaded() error {
	if r.loaded != nil {
		return nil
	}
	w, err := r.load()
	if err != nil {
		return &loadError{err}
	}
	r.loaded = w
	r.inMemory.Store(true)
	r.stored = nil
	if w.restores {
		r.stored = r.prompts.list(r.storedPrefix)
	}
	return nil
}

// loadError reports that a model could not be loaded on this machine now.
type loadError struct{ error }

// release ends the job of a slot. The slot keeps its tokens.
func (r *runner) release(i int, finish string, err error) {
	s := &r.slots[i]
	s.job.end(finish, err)
	s.job = nil
}

// clearSequence removes a sequence from the context's memory, if it has one.
func clearSequence(lib *library, c cContext, seq int32) {
	if m := lib.llama_get_memory(c); m != 0 {
		lib.llama_memory_seq_rm(m, seq, -1, -1)
	}
}

// step decodes once: the next token of each slot that is answering, and as many prompt
// tokens of other slots as fit.
func (r *runner) step() {
	b := &r.loaded.chatBatch
	b.nTokens = 0
	starting := 0
	for i := range r.slots {
		s := &r.slots[i]
		s.output, s.queued = noOutput, false
		switch {
		case s.job == nil:
		case s.fed < len(s.job.prompt):
			starting++
		default:
			s.output, s.queued = b.nTokens, true
			b.add(s.next, len(s.tokens), i, true)
			s.tokens = append(s.tokens, s.next)
		}
	}
	r.feed(b, starting)
	if b.nTokens == 0 {
		return
	}
	if status := r.lib.llama_decode(r.loaded.chat, *b); status != 0 {
		err := r.lib.failure(fmt.Sprintf("cannot compute the next token (llama_decode returned %d)", status))
		for i := range r.slots {
			if r.slots[i].queued {
				r.release(i, "", err)
				r.forget(i)
			}
		}
		return
	}
	for i := range r.slots {
		if r.slots[i].output != noOutput {
			r.advance(i)
		}
	}
}

// feed divides the rest of the batch among the prompts, starting with a different slot
// each time.
func (r *runner) feed(b *batch, starting int) {
	r.nextFed = (r.nextFed + 1) % len(r.slots)
	for k := range r.slots {
		i := (r.nextFed + k) % len(r.slots)
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
				s.output = b.nTokens
			}
			b.add(t, len(s.tokens), i, last)
			s.tokens = append(s.tokens, t)
			s.queued = true
		}
	}
}

// advance samples the next token of a slot. It ends the answer at an end token, a stop
// string or the limit.
func (r *runner) advance(i int) {
	s := &r.slots[i]
	t, err := s.job.sampler.sample(r.loaded.chat, s.output, &r.candidates)
	if err != nil {
		r.release(i, "", err)
		return
	}
	if r.vocab.ends(t) {
		s.job.send(s.job.text.flush(), s.count)
		r.release(i, "stop", nil)
		return
	}
	s.count++
	s.next = t
	piece := r.vocab.piece(t, r.marks[t])
	if s.job.wantLogprobs {
		if l, ok := r.logprob(t, s.output, s.job.alternatives); ok {
			s.job.unsent.add(l, s.job.text.written+len(piece))
		}
	}
	text, stopped := s.job.text.write(piece)
	s.job.send(text, s.count)
	if s.job.calls != nil && s.job.reader.InCall() {
		s.job.constrain(r.vocab, s.job.calls, append(s.tokens[len(s.job.prompt):len(s.tokens):len(s.tokens)], t), len(s.job.text.held))
		s.job.calls = nil
	}
	switch {
	case stopped:
		r.release(i, "stop", nil)
	case s.count >= s.job.limit || len(s.tokens) >= r.ContextLength:
		s.job.send(s.job.text.flush(), s.count)
		r.release(i, "length", nil)
	}
}

// add appends a token of a sequence; output requests its logits.
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

// at returns element i of a C array.
func at[T any](p *T, i uintptr) *T {
	return (*T)(unsafe.Add(unsafe.Pointer(p), i*unsafe.Sizeof(*p)))
}
