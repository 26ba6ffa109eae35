package dialect

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// long returns a text of about that many tokens that begins with a word.
func long(word string, tokens int) string { return word + strings.Repeat(" la", tokens*4/3) }

// shortenedTo shortens a request until nothing else can be removed, and returns the
// bodies.
func shortenedTo(t *testing.T, body, message string) []string {
	t.Helper()
	q := assert.Value(ReadResponses([]byte(body)))(t)
	assert.Value(q.Chat())(t)
	r := q.Answer("own", began, false)
	var bodies []string
	for range 20 {
		chat, ok := r.Shorten(fault.New(fault.ContextLengthExceeded, "%s", message))
		if !ok {
			return bodies
		}
		bodies = append(bodies, string(chat))
	}
	t.Fatal("it never ends")
	return nil
}

// With truncation auto the oldest turns are removed, according to the engine's numbers,
// but never the instructions, the first system messages or the last message of the user;
// a tool call is removed only together with its output.
func TestShorten(t *testing.T) {
	user := func(text string) string { return fmt.Sprintf(`{"role":"user","content":%q}`, text) }
	said := func(text string) string { return fmt.Sprintf(`{"role":"assistant","content":%q}`, text) }
	call := func(id string) string {
		return fmt.Sprintf(`{"type":"function_call","call_id":%q,"name":"f","arguments":%q}`, id, fmt.Sprintf(`{"of":%q}`, long(id, 80)))
	}
	output := func(id string) string {
		return fmt.Sprintf(`{"type":"function_call_output","call_id":%q,"output":%q}`, id, long("output of "+id, 80))
	}
	request := func(items ...string) string {
		return `{"model":"m","truncation":"auto","instructions":"the instructions","tools":[{"type":"function","name":"f"}],"input":[` + strings.Join(items, ",") + `]}`
	}
	check := func(name, body string, there, gone []string) {
		t.Helper()
		for _, word := range there {
			assert.Contains(t, body, word, name, "lacks")
		}
		for _, word := range gone {
			assert.Lacks(t, body, word, name, "holds")
		}
	}

	talk := request(`{"role":"developer","content":"the rules"}`, user(long("first", 300)), said(long("answer1", 300)), call("A"), output("A"),
		user(long("second", 300)), said("answer2"), user("third"))
	bodies := shortenedTo(t, talk, "prompt is too long: 1400 tokens > 1000 maximum")
	assert.Require(t, len(bodies) == 2, "shortened", len(bodies), "times")
	check("by the numbers", bodies[0], []string{"the instructions", "the rules", "second", "answer2", "third"}, []string{"first", "answer1", "A"})
	check("again", bodies[1], []string{"the instructions", "the rules", "third"}, []string{"second", "answer2"})

	bodies = shortenedTo(t, talk, "prompt is too long: 9000 tokens > 1000 maximum")
	assert.Require(t, len(bodies) == 1, "far too long: shortened", len(bodies), "times")
	check("far too long", bodies[0], []string{"the instructions", "the rules", "third"}, []string{"first", "second"})

	bodies = shortenedTo(t, talk, "prompt is too long for the model's context")
	check("without numbers", bodies[0], []string{"the rules", "third"}, []string{"first", "answer1"})

	agent := request(user("the task"), call("A"), `{"type":"function_call_output","call_id":"A","output":"`+long("output of A", 240)+`"}`, call("B"), call("C"), output("B"), output("C"), call("D"), output("D"))
	bodies = shortenedTo(t, agent, "prompt is too long: 900 tokens > 800 maximum")
	check("an agent", bodies[0], []string{"the task", `"id":"B"`, "output of B", `"id":"C"`, "output of C", "output of D"}, []string{`"id":"A"`, "output of A"})
	check("an agent, at last", bodies[len(bodies)-1], []string{"the task", `"id":"D"`, "output of D"}, []string{"output of B", `"id":"C"`})

	late := request(user(long("first", 300)), call("A"), user("third"), output("A"))
	bodies = shortenedTo(t, late, "prompt is too long: 900 tokens > 500 maximum")
	check("a late output", bodies[0], []string{"third"}, []string{"first", `"id":"A"`, "output of A"})

	for name, body := range map[string]string{
		"disabled": strings.Replace(talk, `"auto"`, `"disabled"`, 1), "not said": strings.Replace(talk, `"truncation":"auto",`, "", 1),
		"one message": request(user(long("first", 900))),
	} {
		if bodies := shortenedTo(t, body, "prompt is too long: 1400 tokens > 1000 maximum"); len(bodies) != 0 {
			t.Errorf("%s: shortened to %s", name, bodies[0])
		}
	}
	q, _ := ReadResponses([]byte(talk))
	if _, ok := q.Answer("own", began, false).Shorten(fault.New(fault.CapacityFull, "busy")); ok {
		t.Error("another fault shortened the talk")
	}
}
