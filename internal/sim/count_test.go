package sim

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/enginetest"
)

// tokens asks how long a prompt is, and whether that is an estimate.
func (w *world) tokens(by *member, model string) (text string, estimate bool) {
	w.t.Helper()
	body := `{"model":"` + model + `","messages":[{"role":"user","content":"one two three"}]}`
	r, err := http.NewRequest(http.MethodPost, hubURL+"/v1/messages/count_tokens", strings.NewReader(body))
	w.must(err)
	r.Header.Set("X-Api-Key", by.secret)
	r.Header.Set("Anthropic-Version", "2023-06-01")
	r.Header.Set("Content-Type", "application/json")
	response, err := w.client.Do(r)
	w.must(err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	w.must(err)
	if response.StatusCode != http.StatusOK {
		w.t.Fatalf("%d %s", response.StatusCode, answer)
	}
	// Whose machine has seen the prompt is told, if one has.
	estimate = response.Header.Get("X-Kith-Estimate") == "true"
	if route := response.Header.Get("X-Kith-Route"); (route == "") != estimate || !estimate && !strings.HasSuffix(route, "; machine=box; owner=ann") {
		w.t.Errorf("route %q, estimate %v", route, estimate)
	}
	return string(answer), estimate
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
			box.engine.Set(enginetest.Behaviour{Answer: `{"tokens":[1,2]}`}) // whoever asks it is told wrong
			defer box.engine.Set(enginetest.Behaviour{})
			if text, estimate := w.tokens(by, model); !estimate || text != `{"input_tokens":8}` || time.Since(began) > time.Second || box.engine.Last().Path != before {
				t.Errorf("%s: %s, estimate %v, after %v, asked %s", what, text, estimate, time.Since(began), box.engine.Last().Path)
			}
		}
		exactly("the owner", ann)
		about("a stranger", bob, "m")
		about("a model nobody has", ann, "none")
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

// A count is sent to no more machines than a call may try: a prompt of megabytes
// does not walk a whole circle.
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
		if asked != 3 {
			t.Errorf("%d machines were asked", asked)
		}
	})
}
