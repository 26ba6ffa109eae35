package sim

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// tokens asks how long a prompt is, and whether that is an estimate.
func (w *world) tokens(by *member, model string) (text string, estimate bool) {
	w.t.Helper()
	status, header, text := w.countAt(by, model)
	assert.Require(w.t, status == http.StatusOK, status, text)
	// The machine that has seen the prompt is named, if one has.
	estimate = header.Get("X-Kith-Estimate") == "true"
	if route := header.Get("X-Kith-Route"); !estimate && !strings.HasSuffix(route, "; machine=box; owner=ann") {
		w.t.Errorf("route %q", route)
	}
	return text, estimate
}

// countAt asks how long a prompt is.
func (w *world) countAt(by *member, model string) (status int, header http.Header, text string) {
	w.t.Helper()
	return w.countOf(w.client, by, model, "one two three")
}

// countOf asks a hub node how long a prompt is.
func (w *world) countOf(client *http.Client, by *member, model, prompt string) (status int, header http.Header, text string) {
	w.t.Helper()
	body := `{"model":"` + model + `","messages":[{"role":"user","content":"` + prompt + `"}]}`
	r, err := http.NewRequest(http.MethodPost, hubURL+"/v1/messages/count_tokens", strings.NewReader(body))
	w.must(err)
	r.Header.Set("X-Api-Key", by.secret)
	r.Header.Set("Anthropic-Version", "2023-06-01")
	r.Header.Set("Content-Type", "application/json")
	response, err := client.Do(r)
	w.must(err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	w.must(err)
	return response.StatusCode, response.Header, string(answer)
}

// A prompt is counted by a machine that its caller could use for it now, at
// once, and by no other; otherwise it is estimated. Nothing runs for it.
func TestCountTokens(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob := w.addMember("ann"), w.addMember("bob")
		box := w.addMachine(ann, "box", 1, "m")
		exactly := func(what string, by *member) {
			t.Helper()
			if text, estimate := w.tokens(by, "m"); estimate || text != `{"input_tokens":5}` {
				t.Errorf("%s: %s, estimate %v", what, text, estimate)
			}
		}
		about := func(what string, by *member, model string) {
			t.Helper()
			before, began := box.engine.Last().Path, time.Now()
			box.engine.Set(enginetest.Behaviour{Answer: `{"tokens":[1,2]}`}) // a wrong answer
			defer box.engine.Set(enginetest.Behaviour{})
			if text, estimate := w.tokens(by, model); !estimate || text != `{"input_tokens":8}` || time.Since(began) > time.Second || box.engine.Last().Path != before {
				t.Errorf("%s: %s, estimate %v, after %v, asked %s", what, text, estimate, time.Since(began), box.engine.Last().Path)
			}
		}
		exactly("the owner", ann)
		about("a stranger", bob, "m")
		if status, _, text := w.countAt(ann, "none"); status != http.StatusNotFound || !strings.Contains(text, `"code":"model_not_found"`) {
			t.Errorf("a model that nothing serves: %d %s", status, text)
		}
		w.share(ann, bob)
		exactly("shared with", bob)
		w.pause(box, true)
		synctest.Wait()
		about("paused", bob, "m")
		about("paused, its owner", ann, "m")
		w.pause(box, false)
		synctest.Wait()
		exactly("resumed", bob)

		box.engine.Set(enginetest.Behaviour{Fault: enginetest.Hang, After: 1})
		running := w.begin(ask{by: ann, model: "m", stream: true})
		w.begun(running)
		about("busy", bob, "m")
		running.quit()
		<-running.over
		synctest.Wait()

		box.engine.Set(enginetest.Behaviour{Fault: enginetest.Hang})
		began := time.Now()
		if text, estimate := w.tokens(bob, "m"); !estimate || time.Since(began) > 4*time.Second {
			t.Errorf("no answer: %s after %v", text, time.Since(began))
		}
		box.engine.Set(enginetest.Behaviour{})
		exactly("after all", bob)
		if counts := box.engine.Counts(); counts.Runs != 1 || box.Status().Routed != 0 {
			t.Errorf("%+v, %d routed", counts, box.Status().Routed)
		}
	})
}

// No machine that is reached through a group only is asked to count; those that
// were asked are named, whether or not they counted.
func TestCountAsksNoGroup(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob, eve := w.addMember("ann"), w.addMember("bob"), w.addMember("eve")
		trap := w.addMachine(eve, "trap", 1, "m")
		w.together(ann, bob, eve)
		status, header, _ := w.countAt(ann, "m")
		if status != http.StatusOK || header.Get("X-Kith-Estimate") != "true" || header.Get("X-Kith-Route") != "" {
			t.Errorf("by a group: %d %v", status, header)
		}
		failing, box := w.addMachine(ann, "failing", 1, "m"), w.addMachine(bob, "box", 1, "m")
		failing.engine.Set(enginetest.Behaviour{Status: http.StatusInternalServerError})
		w.share(bob, ann)
		time.Sleep(2 * time.Second) // it is taken in
		status, header, text := w.countAt(ann, "m")
		if route := header.Get("X-Kith-Route"); status != http.StatusOK || text != `{"input_tokens":5}` || route != "own; machine=failing; owner=ann, shared; machine=box; owner=bob" {
			t.Errorf("by a share: %d %s, route %q", status, text, route)
		}
		box.engine.Set(enginetest.Behaviour{Status: http.StatusInternalServerError})
		if _, header, _ := w.countAt(ann, "m"); header.Get("X-Kith-Estimate") != "true" || !strings.HasSuffix(header.Get("X-Kith-Route"), "machine=box; owner=bob") {
			t.Errorf("none counted: %v", header)
		}
		assert.Equal(t, trap.engine.Last().Path, "", "the group's machine was asked")
	})
}

// A count is sent to no more machines than a call may try: a prompt of megabytes
// does not visit all machines of a group.
func TestCountAsksFewMachines(t *testing.T) {
	inBubble(t, func(w *world) {
		ann := w.addMember("ann")
		var boxes []*machine
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			box := w.addMachine(ann, name, 1, "m")
			box.engine.Set(enginetest.Behaviour{Status: http.StatusInternalServerError})
			boxes = append(boxes, box)
		}
		if text, estimate := w.tokens(ann, "m"); !estimate {
			t.Errorf("%s", text)
		}
		asked := 0
		for _, box := range boxes {
			if box.engine.Last().Path != "" {
				asked++
			}
		}
		assert.Equal(t, asked, 3, "machines were asked")
	})
}

// A prompt over 64 KiB follows the head of its count, also to a machine at another node.
func TestALongCountFollowsItsHead(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, eve := w.addMember("ann"), w.addMember("eve")
		x := w.addTrap(eve, "trap", refuseWith(http.StatusNotImplemented, "", false))
		defer x.end()
		w.share(eve, ann)
		time.Sleep(time.Minute) // the other node has taken it in
		for i, via := range seats {
			client := clientOf(func() *network { return via.Load().net })
			status, header, _ := w.countOf(client, ann, "m", "tag-long "+strings.Repeat("word ", 20_000))
			if known := x.knows(&answer{tag: "long"}); status != http.StatusOK || header.Get("X-Kith-Route") != "" || x.asked() != i+1 || known {
				t.Errorf("node %d: %d %v, %d calls, the trap has the prompt: %v", i, status, header, x.asked(), known)
			}
		}
	})
}

// The home of a machine passes no count on to it that only a group leads to there: an
// entry may not know yet that a share has ended.
func TestPeersCountAsksNoGroup(t *testing.T) {
	inCluster(t, 2, func(w *world, seats []*seat) {
		ann, bob, box := w.addShared(1)
		w.together(ann, bob)
		box.moveTo(seats[1])
		if text, estimate := w.tokens(bob, "m"); estimate {
			t.Errorf("while shared: %s", text)
		}
		w.down.Store(true) // the entry cannot read what changes
		w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
		time.Sleep(1100 * time.Millisecond)
		if text, estimate := w.tokens(bob, "m"); !estimate {
			t.Errorf("after the share: %s", text)
		}
		w.down.Store(false)
	})
}
