package sim

import (
	"encoding/json/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
)

// why returns what the member sees of a call; false: nothing.
func (w *world) why(m *member, a *answer) (account.Trace, bool) {
	w.t.Helper()
	synctest.Wait() // the hub records a call after its last byte
	r, err := http.NewRequest("GET", hubURL+"/api/why/"+a.header.Get("X-Correlation-ID"), nil)
	w.must(err)
	r.Header.Set("Authorization", "Bearer "+m.secret)
	response, err := w.client.Do(r)
	w.must(err)
	defer response.Body.Close()
	var s account.Trace
	if response.StatusCode == 200 {
		w.must(json.UnmarshalRead(response.Body, &s))
	}
	return s, response.StatusCode == 200
}

// A call moves from one owner's machine to another's: its caller knows all of
// it, each owner what happened on the owner's machines, and no one else anything; at
// once, and after it was written.
func TestWhy(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob, cy, eve := w.addMember("ann"), w.addMember("bob"), w.addMember("cy"), w.addMember("eve")
		w.addMachine(ann, "anns", 1, "m")
		w.addMachine(bob, "bobs", 1, "m")
		w.addMachine(eve, "eves", 1, "m")
		w.share(ann, cy)
		w.share(bob, cy)
		time.Sleep(2 * time.Second) // both shares are taken in
		w.set(slow(3 * time.Second))
		a := w.begin(ask{by: cy, model: "m"})
		lost := w.on(a)
		lost.stop()
		<-a.over
		w.wantServed(a, 2)
		second := w.on(a)
		for range 2 {
			s, _ := w.why(cy, a)
			if len(s.Tries) != 2 || !s.Mine || s.Status != 200 || s.Code != "" || s.Decisions == nil ||
				s.Tries[0].Machine != lost.name || s.Tries[0].Outcome != "disconnected during the answer" ||
				s.Tries[1].Machine != second.name || s.Tries[1].Owner != second.owner.Name || s.Tries[1].Outcome != "answered" {
				w.t.Errorf("the caller is told %+v", s)
			}
			for _, m := range []*machine{lost, second} {
				s, _ := w.why(m.owner, a)
				status := 0
				if m == second {
					status = 200
				}
				if s.Mine || s.Caller != "cy" || s.Model != "m" || s.Decisions != nil || s.Status != status || s.WaitedMS != 0 ||
					len(s.Tries) != 1 || s.Tries[0].Machine != m.name {
					w.t.Errorf("%s is told %+v", m.owner.Name, s)
				}
			}
			if s, ok := w.why(eve, a); ok {
				w.t.Errorf("a stranger is told %+v", s)
			}
			time.Sleep(2 * time.Second) // it is written now
		}
	})
}

// A refusal is shown with the decision that ended the wait.
func TestWhyRefused(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, box := w.addBox(1)
		w.set(slow(time.Hour))
		first := w.begin(ask{by: ann, model: "m", stream: true})
		w.begun(first)
		full := w.do(ask{by: ann, model: "m", prefer: "wait=3"})
		w.wantCode(full, "CAPACITY_FULL", "wait_elapsed")
		box.stop()
		<-first.over
		gone := w.do(ask{by: ann, model: "m"})
		w.wantCode(gone, "machine_offline", "")
		for _, c := range []struct {
			*answer
			rows   [2]int
			waited int64
		}{{full, [2]int{4, 11}, 3000}, {gone, [2]int{4, 8}, 10_000}} {
			s, _ := w.why(ann, c.answer)
			if j := s.Decisions; len(j) != 2 || j[0].Row != c.rows[0] || j[1].Row != c.rows[1] || j[1].Verdict != "refuse" || len(j[1].Seen) != 1 {
				w.t.Errorf("decided %+v", j)
			}
			if s.Code != c.code || s.Place != 1 || s.WaitedMS < c.waited-500 || s.WaitedMS > c.waited+500 {
				w.t.Errorf("told %+v", s)
			}
		}
	})
}
