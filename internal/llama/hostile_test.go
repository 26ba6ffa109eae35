package llama

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/kith/kith/internal/assert"
)

// hostileTemplates need more time, memory or stack than a template may use. Those that are
// ended by time are left out of short runs.
var hostileTemplates = []struct{ id, template, problem string }{
	{"parentheses", "{{ " + strings.Repeat("(", 60_000) + "1" + strings.Repeat(")", 60_000) + " }}", "it leaves out the message"},
	{"doubling", "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}", "the chat template"},
	{"repeat", "{{ 'xxxx' * 1000000000 }}", "allocation limit"},
	{"range", "{% for i in range(1000000000) %}{% endfor %}", "the chat template"},
	{"macro", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "the chat template"},
	{"loops", strings.Repeat("{% for i in range(10000) %}", 3) + "{% set x = 1 %}" + strings.Repeat("{% endfor %}", 3), "the chat template"},
}

// TestHostileTemplates adds models with hostile templates: another model answers while they
// are read, each has its problem, and then nothing computes any longer.
func TestHostileTemplates(t *testing.T) {
	hostile := hostileTemplates
	if testing.Short() {
		hostile = hostile[:3]
	}
	files := testModels[:1:1]
	e := startEngine(t, Config{Models: files})
	for _, h := range hostile {
		files = append(files, templateModel(t, h.id, h.template))
	}
	slow := templateModel(t, "slow", "{% for m in messages %}{{ m.content }}{% if m.content == 'slow' %}"+hostileTemplates[5].template+"{% endif %}{% endfor %}")
	beside := func(what string, do func() error) {
		t.Helper()
		done, answers := make(chan error, 1), 0
		go func() { done <- do() }()
		for {
			assert.Equal(t, e.say(ask("Hello")), conversation[0][1], what)
			select {
			case err := <-done:
				assert.OK(t, err, what)
				assert.That(t, answers > 10, "only", answers, "answers beside", what)
				return
			default:
				answers++
			}
		}
	}
	beside("reading", func() error { return e.SetModels(t.Context(), append(files, slow)) })
	problems := e.Problems()
	for _, h := range hostile {
		if late := strings.Contains(problems[h.id], "takes too long"); !late { // on a busy computer any of them
			assert.Contains(t, problems[h.id], h.problem, h.id)
		}
	}
	assert.Equal(t, len(problems), len(hostile))
	if !testing.Short() {
		beside("rendering", func() error {
			status, body := e.post("/v1/chat/completions", ask("slow", object{"model": "slow"}))
			if status != 400 || !strings.Contains(string(body), "takes too long") {
				return errors.New(string(body))
			}
			return nil
		})
	}
	e.say(ask("Hello", object{"model": "slow", "max_tokens": 3})) // it is not the model's fault
	awaitIdle(t)
}

// awaitIdle waits until the processes that this one started do not compute, and fails after
// 15 s. Of the worker's children those remain that rendered a template for a model: one each.
func awaitIdle(t *testing.T) {
	t.Helper()
	me := assert.Value(process.NewProcess(int32(os.Getpid())))(t)
	computed := func() (seconds float64, renderers int) {
		for _, worker := range assert.Value(me.Children())(t) {
			children, err := worker.Children()
			if err != nil && !errors.Is(err, process.ErrorNoChildren) {
				t.Fatal(err)
			}
			renderers += len(children)
			for _, p := range append(children, worker) {
				if times, err := p.Times(); err == nil { // else it has ended
					seconds += times.User + times.System
				}
			}
		}
		return seconds, renderers
	}
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for before, late := -1.0, time.Now().Add(15*time.Second); ; <-tick.C {
		now, renderers := computed()
		if now-before < 0.05 && renderers <= 2 {
			return
		}
		assert.Require(t, time.Now().Before(late), renderers, "processes still compute:", now-before, "s of CPU in 0.3 s")
		before = now
	}
}
