package llama

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/llama/chatform"
)

// openModel loads llama.cpp into this process and inspects a model.
func openModel(t testing.TB, file ModelFile, slots int) *modelSpec {
	t.Helper()
	needLibraries(t)
	dir := assert.Value(libraries(testData))(t)
	lib := assert.Value(open(dir, nil))(t)
	renderer := assert.Value(newRenderer())(t)
	t.Cleanup(renderer.Close)
	spec := assert.Value(inspect(lib, renderer, file, slots, 0, memoryUnknown))(t)
	return spec
}

// said returns the text of the part.
func (p part) said() (text string) {
	for _, e := range p.events {
		text += e.Text
	}
	return text
}

// says returns a conversation with the texts of a user and an assistant by turns.
func says(texts ...string) chatform.Conversation {
	c := chatform.Conversation{Answer: true}
	for i, text := range texts {
		c.Messages = append(c.Messages, chatform.Message{Role: [...]string{"user", "assistant"}[i%2], Content: text})
	}
	return c
}

// memoryUnknown is a machine whose free memory is unknown.
func memoryUnknown() (bytes uint64, known bool) { return 0, false }

// TestLayout compares the structs with sizeof and offsetof of the C header.
func TestLayout(t *testing.T) {
	var m modelParams
	var c contextParams
	got := map[string]uintptr{
		"model": unsafe.Sizeof(m), "model.lazy_mode": unsafe.Offsetof(m.lazyMode), "model.vocab_only": unsafe.Offsetof(m.vocabOnly),
		"context": unsafe.Sizeof(c), "context.cb_eval": unsafe.Offsetof(c.evalCallback), "context.type_k": unsafe.Offsetof(c.typeK),
		"context.abort": unsafe.Offsetof(c.abortCallback), "context.embeddings": unsafe.Offsetof(c.embeddings), "context.samplers": unsafe.Offsetof(c.samplers),
		"batch": unsafe.Sizeof(batch{}), "batch.token": unsafe.Offsetof(batch{}.token),
	}
	want := map[string]uintptr{
		"model": 80, "model.lazy_mode": 28, "model.vocab_only": 72,
		"context": 160, "context.cb_eval": 88, "context.type_k": 104,
		"context.abort": 112, "context.embeddings": 128, "context.samplers": 136,
		"batch": 56, "batch.token": 8,
	}
	assert.Same(t, got, want)
	spec := openModel(t, testModels[0], 1)
	if v := spec.lib.llama_version(); !strings.Contains(libraryVersion, v) && !strings.Contains(v, strings.TrimPrefix(libraryVersion, "v")) {
		t.Errorf("the library is %q, pinned is %s", v, libraryVersion)
	}
	spec.lib.llama_context_default_params = func() contextParams { return contextParams{nCtx: 2048, nBatch: 512, nUbatch: 512} }
	assert.Fails(t, spec.lib.checkLayout(), libraryVersion, "another layout")
}

// endless returns a job that generates up to its limit.
func endless(t *testing.T, ctx context.Context, r *runner) *job {
	t.Helper()
	c := &chat{conversation: says("x"), sampling: sampling{temperature: 1, seed: 3}, format: "json ::= [a-z]* \"\\n\" [a-z]* json\n"}
	j := assert.Value(r.start(ctx, c))(t)
	return j
}

// finishOf reads a job to its end.
func finishOf(j *job) (tokens int, finish string, err error) {
	for {
		p, err := j.out.take(context.Background())
		if err != nil || p.ended {
			return p.tokens, p.finish.reason, err
		}
	}
}

// TestLeaving cancels a running answer: it ends at the next decode step and frees
// the only slot for the next job.
func TestLeaving(t *testing.T) {
	r := newRunner(openModel(t, testModels[1], 1), 0, nil)
	go r.run()
	ctx, leave := context.WithCancel(t.Context())
	first := endless(t, ctx, r)
	assert.Value(first.out.take(t.Context()))(t)
	second := endless(t, t.Context(), r)
	gone, cancel := context.WithCancel(t.Context())
	third := endless(t, gone, r)
	cancel() // before it has a slot
	leave()
	if _, finish, err := finishOf(first); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled answer ended with %q, %v", finish, err)
	}
	tokens, finish, err := finishOf(second)
	if err != nil || finish != "length" || tokens != r.ContextLength-len(second.prompt)+1 {
		t.Errorf("the next: %d tokens, %q, %v", tokens, finish, err)
	}
	assert.Is(t, assert.Err(finishOf(third)), context.Canceled, "one that left in the queue")
}

// TestQueueIsBounded fills the queue of a model without a running goroutine.
func TestQueueIsBounded(t *testing.T) {
	r := newRunner(openModel(t, testModels[1], 1), 0, nil)
	for range maxWaiting {
		endless(t, t.Context(), r)
	}
	c := &chat{conversation: says("x")}
	assert.Is(t, assert.Err(r.start(t.Context(), c)), errTooMany, "one more")
}

// TestIdleUnload frees the weights and loads them again.
func TestIdleUnload(t *testing.T) {
	r := newRunner(openModel(t, testModels[0], 2), time.Nanosecond, nil)
	c := &chat{conversation: says("Hello"), limit: 1}
	for range 3 {
		j := assert.Value(r.start(t.Context(), c))(t)
		r.await()
		for r.busy() {
			r.admit()
			r.step()
		}
		if _, finish, err := finishOf(j); finish != "length" || err != nil {
			t.Fatalf("finish %q, %v", finish, err)
		}
		assert.Require(t, r.loaded != nil, "no weights after an answer")
		r.await()
		if r.loaded != nil {
			t.Fatal("the weights stay in memory")
		}
	}
}

func TestTooLargeForMemory(t *testing.T) {
	spec := openModel(t, testModels[0], 1)
	spec.free = func() (bytes uint64, known bool) { return spec.needs - 1, true }
	r := newRunner(spec, 0, nil)
	go r.run()
	j, err := r.start(t.Context(), &chat{conversation: says("Hello")})
	assert.OK(t, err)
	_, _, err = finishOf(j)
	if status, body := errorResponse(err); status != 503 || !strings.Contains(body.Error.Message, "MiB are free") {
		t.Errorf("status %d: %v", status, body)
	}
}

// TestPromptInPieces answers prompts longer than a batch, several at once, with the
// same answers as alone.
func TestPromptInPieces(t *testing.T) {
	spec := openModel(t, testModels[0], 3)
	r := newRunner(spec, 0, nil)
	go r.run()
	question := strings.Repeat("Tell me about the owl. ", 110)
	ask := func() *job {
		j := assert.Value(r.start(t.Context(), &chat{conversation: says(question), limit: 20}))(t)
		return j
	}
	text := func(j *job) string {
		var b strings.Builder
		for {
			p := assert.Value(j.out.take(t.Context()))(t)
			b.WriteString(p.said())
			if p.ended {
				return b.String()
			}
		}
	}
	first := ask()
	assert.Require(t, len(first.prompt) > batchTokens, "the prompt has only", len(first.prompt), "tokens")
	want := text(first)
	three := []*job{ask(), ask(), ask()}
	for i, j := range three {
		assert.Equal(t, text(j), want, i, "of three")
	}
}

// BenchmarkTokens generates 150 tokens at temperature 0, for one caller and for four at
// once, on one thread. Its CPU figure is steady on a loaded machine.
func BenchmarkTokens(b *testing.B) {
	for _, slots := range []int{1, 4} {
		b.Run(map[int]string{1: "slots=1", 4: "slots=4"}[slots], func(b *testing.B) {
			r := newRunner(openModel(b, testModels[0], slots), 0, nil)
			go r.run()
			tokens, before := 0, cpuTime(b)
			for b.Loop() {
				jobs := make([]*job, slots)
				for i := range jobs {
					var err error
					if jobs[i], err = r.start(b.Context(), &chat{conversation: says("Tell me a long story about an owl."), limit: 150}); err != nil {
						b.Fatal(err)
					}
				}
				for _, j := range jobs {
					n, _, err := finishOf(j)
					assert.OK(b, err)
					tokens += n
				}
			}
			b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
			b.ReportMetric(float64(tokens)/(cpuTime(b)-before).Seconds(), "tokens/cpu-s")
		})
	}
}

// cpuTime returns what this process has used.
func cpuTime(b *testing.B) time.Duration {
	times := assert.Value((&process.Process{Pid: int32(os.Getpid())}).Times())(b)
	return time.Duration((times.User + times.System) * float64(time.Second))
}

// TestOrders loads the weights without a request, and frees them only while no request runs
// or waits.
func TestOrders(t *testing.T) {
	r := newRunner(openModel(t, testModels[1], 1), 0, nil)
	go r.run()
	assert.OK(t, r.order(t.Context(), false), "nothing to free")
	assert.OK(t, r.order(t.Context(), true))
	assert.That(t, r.inMemory.Load(), "not in memory after an order to load")
	ctx, leave := context.WithCancel(t.Context())
	j := endless(t, ctx, r)
	assert.Value(j.out.take(t.Context()))(t)
	assert.Is(t, r.order(t.Context(), false), errRunning, "freed under a request")
	assert.OK(t, r.order(t.Context(), true), "loaded already")
	leave()
	assert.Is(t, assert.Err(finishOf(j)), context.Canceled, "the request")
	assert.OK(t, r.order(t.Context(), false))
	assert.That(t, !r.inMemory.Load(), "in memory after an order to free")
	r.remove()
	<-r.ended
	assert.Is(t, r.order(t.Context(), true), errRemoved, "removed")

	spec := openModel(t, testModels[0], 1)
	spec.free = func() (bytes uint64, known bool) { return spec.needs - 1, true }
	small := newRunner(spec, 0, nil)
	go small.run()
	assert.Fails(t, small.order(t.Context(), true), "MiB are free", "too large for the memory")
}

// TestSupervisorLoads goes the way of the daemon: by the supervisor to the worker.
func TestSupervisorLoads(t *testing.T) {
	e := startEngine(t, Config{})
	assert.Equal(t, len(e.Loaded(t.Context())), 0, "models in memory at the start")
	assert.OK(t, e.Load(t.Context(), "tiny"))
	assert.Same(t, e.Loaded(t.Context()), []string{"tiny"})
	assert.OK(t, e.Unload(t.Context(), "tiny"))
	assert.Equal(t, len(e.Loaded(t.Context())), 0, "models in memory")
	assert.Fails(t, e.Load(t.Context(), "another"), "no such model")
	stopped := NewSupervisor(Config{})
	assert.Fails(t, stopped.Load(t.Context(), "tiny"), ErrStarting.Error())
}
