package sim

import (
	"testing"
	"time"

	"github.com/kith/kith/internal/enginetest"
)

// A machine whose engine refuses again and again is left out as if it were busy,
// for 30 s and doubling; those who wait for it are served when that is over, and
// one call that it serves ends all of it.
func TestLeftOut(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, _ := w.addBox(1)
		served := func(what string, within time.Duration) {
			w.t.Helper()
			a := w.do(ask{by: ann, model: "m", stream: stream})
			w.wantServed(a, 1)
			w.within(what, a.took(), within)
		}
		refused := func(after time.Duration) {
			w.t.Helper()
			w.set(enginetest.Behaviour{Status: 503})
			a := w.do(ask{by: ann, model: "m", stream: stream})
			w.wantCode(a, "CAPACITY_FULL", "")
			w.within("refused", a.took(), after)
			w.set(enginetest.Behaviour{})
		}
		refused(0)
		served("the first refusal is forgiven", 200*time.Millisecond)
		refused(0)
		refused(200 * time.Millisecond)
		served("a second one in a row", 30*time.Second)
		refused(0)
		refused(200 * time.Millisecond)
		refused(30 * time.Second)
		w.wantCode(w.do(ask{by: ann, model: "m", stream: stream, prefer: "wait=50"}), "CAPACITY_FULL", "wait_elapsed")
		served("a third one", 10*time.Second)
		refused(0)
		served("after a call that was served", 200*time.Millisecond)
	})
}

// A stream that breaks is no call served: it ends no backoff.
func TestABrokenAnswerIsNotServed(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, _ := w.addBox(1)
		w.set(enginetest.Behaviour{Status: 503})
		w.wantCode(w.do(ask{by: ann, model: "m", stream: true}), "CAPACITY_FULL", "")
		w.set(enginetest.Behaviour{Fault: enginetest.Unmarked})
		broken := w.do(ask{by: ann, model: "m", stream: true})
		w.wantCode(broken, "engine_error", "")
		s, _ := w.why(ann, broken)
		if n := len(s.Tries); n != 1 || s.Tries[0].Outcome != "began to answer and did not finish: engine_error" || !s.Tries[0].Prompt {
			w.t.Errorf("the caller reads %+v", s.Tries)
		}
		w.set(enginetest.Behaviour{Status: 503})
		w.wantCode(w.do(ask{by: ann, model: "m", stream: true}), "CAPACITY_FULL", "")
		w.set(enginetest.Behaviour{})
		a := w.do(ask{by: ann, model: "m", stream: true})
		w.wantServed(a, 1)
		w.within("the second refusal in a row", a.took(), 30*time.Second)
	})
}
