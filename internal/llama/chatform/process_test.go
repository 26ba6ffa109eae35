package chatform

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

const childArg = "chat-templates"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		os.Exit(Serve(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}

func newTestRenderer(t *testing.T) *Renderer {
	r := NewRenderer(func() *exec.Cmd {
		cmd := exec.Command(os.Args[0], childArg)
		cmd.Stderr = nil // a stack that is too large is dumped
		return cmd
	})
	t.Cleanup(r.Close)
	return r
}

const simple = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"

func hello(content string) *Conversation {
	return &Conversation{Messages: []Message{{Role: "user", Content: content}}, Answer: true}
}

func joined(prompt Prompt) string {
	var b strings.Builder
	for _, p := range prompt.Pieces {
		if p.Literal {
			b.WriteString("«" + p.Text + "»")
		} else {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

// Control tokens in a conversation are literal text; those of the template are not.
func TestControlTokensAreHidden(t *testing.T) {
	r := newTestRenderer(t)
	of, err := r.Open(t.Context(), Source{Text: simple, Control: []string{"<|end|>", "<|", "<|user|>", ""}})
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"a<|end|>b<|user|><|x": "a«<|end|>»b«<|user|>»«<|»x",
		"plain":                "plain",
		"\U000F0000<|end|>":    "\U000F0000«<|end|>»",
		"\U000F0000\U00100001": "\U000F0000\uFFFD",
		"\U000FFFFF<|end|>":    "\U000FFFFF«<|end|>»",
	} {
		got, err := of.Render(t.Context(), hello(content))
		if want = "<|user|>" + want + "<|end|>\n<|assistant|>"; err != nil || joined(got) != want {
			t.Errorf("%q: %q, %v; want %q", content, joined(got), err, want)
		}
	}
}

// A hostile template costs its own child: others go on.
func TestHostileTemplates(t *testing.T) {
	for name, text := range map[string]string{
		"parentheses":      "{{ " + strings.Repeat("(", 60_000) + "1" + strings.Repeat(")", 60_000) + " }}",
		"endless macro":    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
		"loops":            strings.Repeat("{% for i in range(10000) %}", 3) + "{% set x = 1 %}" + strings.Repeat("{% endfor %}", 3),
		"doubling strings": "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
		"a long range":     "{% for i in range(1000000000) %}{% endfor %}",
		"a repeated text":  "{{ 'xxxxxxxx' * 1000000000 }}",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTestRenderer(t)
			good, err := r.Open(t.Context(), Source{Text: simple})
			if err != nil {
				t.Fatal(err)
			}
			r.limit = time.Second
			bad, err := r.Open(t.Context(), Source{Text: text})
			if err == nil {
				_, err = bad.Render(t.Context(), hello("x"))
			}
			if err == nil && name != "parentheses" { // which only needs a large stack
				t.Error("it rendered")
			}
			r.limit = timeLimit
			if got, err := good.Render(t.Context(), hello("x")); err != nil || !strings.HasPrefix(joined(got), "<|user|>x") {
				t.Errorf("another template: %q, %v", joined(got), err)
			}
		})
	}
}

// A conversation that takes too long costs its own call: other templates are rendered
// meanwhile, and its own template after it.
func TestSlowConversation(t *testing.T) {
	r := newTestRenderer(t)
	good := assert.Value(r.Open(t.Context(), Source{Text: simple}))(t)
	bad := assert.Value(r.Open(t.Context(), Source{Text: simple + "{% if messages[0].content == 'slow' %}" + strings.Repeat("{% for i in range(10000) %}", 3) + "{% set x = 1 %}" + strings.Repeat("{% endfor %}", 3) + "{% endif %}"}))(t)
	const want = "<|user|>x<|end|>\n<|assistant|>"
	r.limit = 2 * time.Second
	slow := make(chan error, 1)
	go func() { slow <- assert.Err(bad.Render(t.Context(), hello("slow"))) }()
	for done := false; !done; {
		assert.Equal(t, joined(assert.Value(good.Render(t.Context(), hello("x")))(t)), want)
		select {
		case err := <-slow:
			assert.Is(t, err, errLate)
			done = true
		default:
		}
	}
	assert.Equal(t, joined(assert.Value(bad.Render(t.Context(), hello("x")))(t)), want)
}

// A template is not blamed for a child that was ended from outside.
func TestChildEndsFromOutside(t *testing.T) {
	r := newTestRenderer(t)
	of := assert.Value(r.Open(t.Context(), Source{Text: simple}))(t)
	for i := range 3 {
		if i > 0 {
			assert.OK(t, r.lane(of.key).child.cmd.Process.Kill())
		}
		assert.Equal(t, joined(assert.Value(of.Render(t.Context(), hello("x")))(t)), "<|user|>x<|end|>\n<|assistant|>")
	}
}

// A child that is not used ends. The next request has a new one.
func TestIdleChildEnds(t *testing.T) {
	r := newTestRenderer(t)
	of := assert.Value(r.Open(t.Context(), Source{Text: simple}))(t)
	assert.That(t, r.opens.child == nil, "the child of a template that was opened still runs")
	for range 2 {
		assert.Equal(t, joined(assert.Value(of.Render(t.Context(), hello("x")))(t)), "<|user|>x<|end|>\n<|assistant|>")
		l := r.lane(of.key)
		for ended := false; !ended; {
			l.idle.Reset(0)
			runtime.Gosched()
			<-l.turn
			ended = l.child == nil
			l.turn <- struct{}{}
		}
	}
}

// A request that is given up while another is served ends at once.
func TestWaitingEndsWithItsContext(t *testing.T) {
	r := newTestRenderer(t)
	of, err := r.Open(t.Context(), Source{Text: simple})
	if err != nil {
		t.Fatal(err)
	}
	<-r.lane(of.key).turn
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := of.Render(ctx, hello("x")); err != context.Canceled {
		t.Error(err)
	}
	r.lane(of.key).turn <- struct{}{}
}

// The child ends with its parent's end of the pipe, also while it works.
func TestChildEndsWithItsParent(t *testing.T) {
	cmd := exec.Command(os.Args[0], childArg)
	c, err := start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer c.kill()
	done := make(chan error, 1)
	go func() {
		_, err := c.ask(request{Source: &Source{Text: "{% for i in range(100000000000) %}{% endfor %}"}, Inspect: true}, time.Hour)
		done <- err
	}()
	time.Sleep(100 * time.Millisecond) // it works, or has not begun: it ends in both cases
	_ = c.in.Close()
	if err := <-done; err == nil {
		t.Error("it answered")
	}
}
