package llama

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
)

// TestPlace enumerates where prompts are computed.
func TestPlace(t *testing.T) {
	repeat := func(n int, more ...token) []token { return append(slices.Repeat([]token{7}, n), more...) }
	busy := new(job)
	for _, test := range []struct {
		name   string
		slots  []slot
		prompt []token
		want   placement
	}{
		{"the first call", make([]slot, 2), repeat(3), placement{0, 0, 0}},
		{"the next turn", []slot{{caller: "x", used: 1, tokens: repeat(5)}, {}}, repeat(9), placement{0, 0, 5}},
		{"the same prompt: its last token is computed", []slot{{caller: "x", used: 1, tokens: repeat(9)}, {}}, repeat(9), placement{0, 0, 8}},
		{"another caller's prompt", []slot{{caller: "y", used: 1, tokens: repeat(9)}, {}}, repeat(9), placement{1, 1, 0}},
		{"another caller's prompt, no empty slot", []slot{{caller: "y", used: 2, tokens: repeat(9)}, {caller: "z", used: 1, tokens: repeat(9)}}, repeat(9), placement{1, 1, 0}},
		{"the owner's prompt", []slot{{caller: "", used: 1, tokens: repeat(9)}, {}}, repeat(9), placement{1, 1, 0}},
		{"the longest", []slot{{caller: "x", used: 2, tokens: repeat(3, 1)}, {caller: "x", used: 1, tokens: repeat(5, 1)}}, repeat(9), placement{1, 1, 5}},
		{"another conversation with little in common", []slot{{caller: "x", used: 1, tokens: repeat(20, slices.Repeat([]token{1}, 90)...)}, {}}, repeat(90), placement{1, 1, 0}},
		{"another conversation with much in common", []slot{{caller: "x", used: 1, tokens: repeat(70, slices.Repeat([]token{1}, 90)...)}, {}}, repeat(90), placement{1, 0, 70}},
		{"at the same time with much in common", []slot{{caller: "x", used: 1, job: busy, tokens: repeat(70)}, {caller: "y", used: 2, tokens: repeat(99)}}, repeat(90), placement{1, 0, 70}},
		{"at the same time with little in common", []slot{{caller: "x", used: 1, job: busy, tokens: repeat(20)}, {}}, repeat(90), placement{1, 1, 0}},
		{"one slot", []slot{{caller: "x", used: 1, tokens: repeat(5, slices.Repeat([]token{1}, 90)...)}}, repeat(90), placement{0, 0, 5}},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Equal(t, place(test.slots, "x", test.prompt), test.want)
		})
	}
}

// counted is a runner in this process that counts the tokens it computes.
type counted struct {
	*runner
	t        *testing.T
	computed int
	fail     bool // the next decode step
}

func newCounted(t *testing.T, slots int) *counted {
	spec := openModel(t, testModels[0], slots)
	r := &counted{t: t, runner: newRunner(spec, 0, nil)}
	decode := spec.lib.llama_decode
	spec.lib.llama_decode = func(c cContext, b batch) int32 {
		r.computed += int(b.nTokens)
		if r.fail {
			r.fail = false
			return 1
		}
		return decode(c, b)
	}
	t.Cleanup(r.unload)
	return r
}

// steps runs the runner until it has no work.
func (r *counted) steps() {
	for r.busy() || len(r.jobs) > 0 {
		r.admit()
		r.step()
	}
}

// queue queues a chat of the caller, at temperature 0.
func (r *counted) queue(ctx context.Context, caller string, turns ...string) *job {
	r.t.Helper()
	j := assert.Value(r.start(ctx, &chat{caller: caller, conversation: says(turns...), limit: 30}))(r.t)
	return j
}

// answer returns the text of the job's answer.
func (r *counted) answer(j *job) string {
	r.t.Helper()
	var text strings.Builder
	for {
		p := assert.Value(j.out.take(r.t.Context()))(r.t)
		text.WriteString(p.said())
		if p.ended {
			return text.String()
		}
	}
}

// ask runs a chat to its end. It returns the answer and the tokens of the prompt that
// were computed.
func (r *counted) ask(caller string, turns ...string) (text string, computed int) {
	r.t.Helper()
	r.computed = 0
	j := r.queue(r.t.Context(), caller, turns...)
	r.steps()
	text = r.answer(j)
	i := slices.IndexFunc(r.slots, func(s slot) bool { return s.used == r.began })
	answer := len(r.slots[i].tokens) - len(j.prompt) // the tokens of the answer that are in the sequence
	if got := r.computed - answer; got != len(j.prompt)-j.cached {
		r.t.Errorf("%d tokens of %d were computed, and %d reported as cached", got, len(j.prompt), j.cached)
	}
	return text, r.computed - answer
}

// TestTurns holds a conversation of ten turns: each computes only what is new, and the
// answers are those of an engine that computes every prompt from its start.
func TestTurns(t *testing.T) {
	r, fresh := newCounted(t, 4), newCounted(t, 1)
	var turns []string
	before := 0
	for n := range 10 {
		turns = append(turns, fmt.Sprintf("What is %d+%d?", n+1, n))
		text, computed := r.ask("ann", turns...)
		plain, all := fresh.ask(fmt.Sprint(n), turns...)
		assert.Equal(t, text, plain, "turn", n, "without the cache")
		if n > 0 && computed > all-before {
			t.Errorf("turn %d: %d of %d tokens were computed, %d were there", n, computed, all, before)
		}
		turns, before = append(turns, text), all
	}
}

// TestCallersApart sends the same prompt for several callers, some of them at once:
// each is computed completely, also where a caller takes over the slot of another.
func TestCallersApart(t *testing.T) {
	r := newCounted(t, 2)
	question := strings.Repeat("Tell me about the owl. ", 20)
	first, all := r.ask("ann", question)
	for _, caller := range []string{"bob", "", "cleo", "bob"} {
		text, computed := r.ask(caller, question)
		if computed != all || text != first {
			t.Errorf("%q: %d of %d tokens were computed; %q, want %q", caller, computed, all, text, first)
		}
	}
	together := []*job{r.queue(t.Context(), "dan", question), r.queue(t.Context(), "eve", question)}
	r.steps()
	for _, j := range together {
		if text := r.answer(j); text != first || j.cached != 0 {
			t.Errorf("at once: %d tokens were cached; %q, want %q", j.cached, text, first)
		}
	}
	if _, computed := r.ask("eve", question); computed != 1 {
		t.Errorf("eve again: %d tokens were computed, want the last one", computed)
	}
}

// TestCommonStart copies the tokens that two conversations have in common, from a slot
// that runs and from one that does not, and each goes on by itself.
func TestCommonStart(t *testing.T) {
	r, fresh := newCounted(t, 3), newCounted(t, 1)
	long := strings.Repeat("Tell me about the owl. ", 15)
	a, b := []string{long, "Yes.", "Hello"}, []string{long, "Yes.", "Count to 7."}
	wantA, _ := fresh.ask("1", a...)
	wantB, _ := fresh.ask("2", b...)

	one := r.queue(t.Context(), "ann", a...)
	for len(r.jobs) > 0 || r.slots[0].fed < len(one.prompt) {
		r.admit()
		r.step()
	}
	two := r.queue(t.Context(), "ann", b...)
	r.steps()
	assert.Equal(t, r.answer(one), wantA, "the first")
	if text := r.answer(two); text != wantB || two.cached < minCopied {
		t.Errorf("the second, %d tokens cached: %q, want %q", two.cached, text, wantB)
	}
	if text, computed := r.ask("ann", b...); text != wantB || computed != 1 {
		t.Errorf("the second again, %d tokens computed: %q, want %q", computed, text, wantB)
	}
	if text, computed := r.ask("ann", a...); text != wantA || computed != 1 {
		t.Errorf("the first again, %d tokens computed: %q, want %q", computed, text, wantA)
	}
}

// TestKeptAfterCancel keeps what a canceled call computed, and nothing of a decode step
// that failed or of weights that were unloaded.
func TestKeptAfterCancel(t *testing.T) {
	r := newCounted(t, 1)
	question := strings.Repeat("Tell me about the owl. ", 20)
	ctx, cancel := context.WithCancel(t.Context())
	r.queue(ctx, "ann", question)
	r.admit()
	r.step()
	cancel()
	r.steps()
	want, computed := r.ask("ann", question)
	assert.Equal(t, computed, 1, "after a canceled call", "tokens were computed")
	failed := r.queue(t.Context(), "ann", question)
	r.admit()
	r.fail = true
	r.step()
	assert.Fails(t, assert.Err(finishOf(failed)), "llama_decode returned 1", "a step that failed")
	for _, after := range []string{"a step that failed", "an unload"} {
		text, computed := r.ask("ann", question)
		if diff := cmp.Diff(want, text); diff != "" || computed < 100 {
			t.Errorf("after %s: %d tokens were computed\n%s", after, computed, diff)
		}
		r.unload()
	}
}

// TestCachedTokens reads the count of cached tokens in unary and streamed answers.
func TestCachedTokens(t *testing.T) {
	e := startEngine(t, Config{})
	question := strings.Repeat("Tell me about the owl. ", 20)
	for _, salt := range []string{"ann", ""} {
		for n := range 2 {
			status, answer := e.post("/v1/chat/completions", ask(question, object{"cache_salt": salt}))
			stream := e.open(t.Context(), "/v1/chat/completions", ask(question, object{"cache_salt": salt + "streamed", "stream": true, "stream_options": object{"include_usage": true}}))
			frames, err := io.ReadAll(stream.Body)
			stream.Body.Close()
			assert.Require(t, status == 200 && err == nil, status, err)
			for _, text := range [][]byte{answer, frames} {
				assert.Equal(t, bytes.Contains(text, []byte(`"cached_tokens":0}`)), (n == 0), salt, "call", n, text)
			}
		}
	}
}

// An answer that cannot be read, which is a defect, ends with the digest of its template.
// Its slot serves the next call.
func TestReaderFails(t *testing.T) {
	r := newCounted(t, 1)
	form := r.template.own.Form
	r.template.own.Form = nil // the reader fails
	j := assert.Value(r.start(t.Context(), &chat{conversation: says("Hello"), limit: 30}))(t)
	r.template.own.Form = form
	r.steps()
	assert.Fails(t, assert.Err(finishOf(j)), "(SHA-256 "+r.template.digest+"): runtime error: invalid memory address")
	text, _ := r.ask("", "Hello")
	assert.Equal(t, text, conversation[0][1])
}
