package registry

import (
	"errors"
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// held returns a machine's handler whose calls last until end is closed.
func held(end <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).Flush()
		select {
		case <-end:
			io.WriteString(w, "all of it")
		case <-r.Context().Done():
		}
	}
}

// call begins a call on the machine's current tunnel.
func (n *node) call(t *testing.T, id fleet.MachineID) (*http.Response, Line) {
	t.Helper()
	line, ok := n.Line(id)
	assert.Require(t, ok, "no way to the machine")
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://machine/v1/chat/completions", nil)
	response := assert.Value(line.RoundTrip(r))(t)
	return response, line
}

// A daemon that dials again replaces its own older tunnel, which ends without being
// fenced.
func TestSameDaemonIsNotFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		end := make(chan struct{})
		first := n.connectInstance(t, "m", offering("llama"), "one", held(end))
		synctest.Wait()
		answer, line := n.call(t, "m")
		n.connectInstance(t, "m", offering("qwen"), "one", held(end))
		if err := <-first.lost; errors.Is(err, tunnel.ErrFenced) {
			t.Error("it was fenced")
		}
		first.stop()
		if _, err := io.ReadAll(answer.Body); err == nil {
			t.Error("a call on a tunnel that is dead ended well")
		}
		<-line.Gone
		synctest.Wait()
		if m := n.machine("m"); !m.Online {
			t.Errorf("%+v", m)
		}
	})
}

// A machine that moves is used by its new tunnel from the acknowledgement on, and the
// calls on the older tunnel finish.
func TestMoveKeepsCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		end := make(chan struct{})
		d := n.connectInstance(t, "m", offering("llama"), "one", held(end))
		synctest.Wait()
		answer, older := n.call(t, "m")
		n.Move(t.Context())
		synctest.Wait()
		if m := n.machine("m"); m.Generation != 2 || !m.Online || n.MachinesHere() != 1 {
			t.Fatalf("after the move: %+v", m)
		}
		time.Sleep(time.Minute + idleCheck/2) // the call ends between two checks
		select {
		case <-older.Gone:
			t.Error("the older tunnel ended under its call")
		default:
		}
		close(end)
		assert.Equal(t, string(assert.Value(io.ReadAll(answer.Body))(t)), "all of it")
		answer.Body.Close()
		began := time.Now()
		<-older.Gone
		if took := time.Since(began); took < idleFor || took > idleFor+2*idleCheck {
			t.Errorf("the older tunnel ended %v after its last call", took)
		}
		if answer, _ := n.call(t, "m"); answer.StatusCode != http.StatusOK {
			t.Error(answer.Status)
		}
		if len(d.lost) != 0 {
			t.Errorf("the daemon lost a tunnel: %v", <-d.lost)
		}
	})
}

// A daemon that refuses to move is disconnected after its calls.
func TestRefusedMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, newFacts("m"))
		end := make(chan struct{})
		offers := func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/offers":
				io.WriteString(w, `{"slots":1,"models":[{"id":"llama","families":["chat"],"endpoints":["/v1/chat/completions"]}]}`+"\n")
				http.NewResponseController(w).Flush()
				<-r.Context().Done()
			case "/ack":
			case tunnel.PathMove:
				http.NotFound(w, r)
			default:
				held(end)(w, r)
			}
		}
		n.rawDaemon(t, "m", offers)
		synctest.Wait()
		answer, line := n.call(t, "m")
		n.Move(t.Context())
		synctest.Wait()
		if m := n.machine("m"); m.Online || m.ReturningUntil.IsZero() || n.MachinesHere() != 0 {
			t.Errorf("%+v", m)
		}
		close(end)
		assert.Equal(t, string(assert.Value(io.ReadAll(answer.Body))(t)), "all of it")
		answer.Body.Close()
		<-line.Gone
	})
}

// others stands for other nodes that are alive and send nothing.
type others struct{}

func (others) Connected(*Announced)         {}
func (others) LoadChanged(fleet.MachineID)  {}
func (others) Disconnected(fleet.MachineID) {}
func (others) Polled()                      {}
func (others) Silent(time.Time) bool        { return true }

// A node that hears nothing from another one ends the tunnels that are older than those
// in the store, within a second of the poll (spec/peers.md#newest).
func TestNewerTunnelInTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts("m", "stays")
		n := newNode(t, f, others{})
		d := n.connect(t, "m", offering("llama"))
		n.connect(t, "stays", offering("qwen"))
		synctest.Wait()
		beat := func(by int64) {
			f.locked(func() {
				f.nodes = []account.Node{{Name: "b", Incarnation: "i", Region: "home", Pin: "p", Address: "a", Beat: by}}
			})
			time.Sleep(pollEvery)
		}
		beat(1)
		beat(2)
		if len(d.lost) != 0 {
			t.Fatalf("lost: %v", <-d.lost)
		}
		f.locked(func() { f.generations["m"] = 7 })
		beat(3)
		synctest.Wait()
		if len(d.lost) != 1 || errors.Is(<-d.lost, tunnel.ErrFenced) {
			t.Error("the older tunnel did not end, or was fenced")
		}
		if m := n.machine("stays"); !m.Online || m.Generation != 1 {
			t.Errorf("%+v", m)
		}
	})
}

// The channel of DrainAsked is closed when the node's own row has the state draining.
func TestDrainAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts()
		n := newNode(t, f)
		other := account.Node{Name: "b", Incarnation: "i", Region: "home", Pin: "p", Address: "a", State: account.NodeServing}
		for _, own := range []string{account.NodeServing, account.NodeDraining} {
			other.Beat++
			f.locked(func() { f.nodes = []account.Node{other, {Name: "hub-1", Region: "home", State: own}} })
			time.Sleep(pollEvery + pollGap)
			synctest.Wait()
			select {
			case <-n.DrainAsked():
				assert.That(t, own != account.NodeServing, "it drains without being asked")
			default:
				assert.That(t, own != account.NodeDraining, "it does not drain")
			}
		}
	})
}

// A node's successor is another node of its region that is alive and not draining.
func TestHasSuccessor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFacts()
		n := newNode(t, f)
		beat := int64(0)
		for _, c := range []struct {
			b                string // state of the other node of the region
			ofHub, ofB, ofIt bool   // whether hub-1, b, and the node of another region have a successor
		}{
			{account.NodeServing, true, true, false},
			{account.NodeDraining, false, true, false},
		} {
			for range 2 { // a node is alive after its beat changed
				beat++
				f.locked(func() {
					f.nodes = []account.Node{
						{Name: "hub-1", Region: "home", Pin: "p", Address: "a", State: account.NodeServing, Beat: beat},
						{Name: "b", Region: "home", Pin: "p", Address: "a", State: c.b, Beat: beat},
						{Name: "it", Region: "elsewhere", Pin: "p", Address: "a", State: account.NodeServing, Beat: beat},
						{Name: "dead", Region: "elsewhere", Pin: "p", Address: "a", State: account.NodeServing},
					}
				})
				time.Sleep(pollEvery + pollGap)
			}
			for name, want := range map[string]bool{"hub-1": c.ofHub, "b": c.ofB, "it": c.ofIt, "unknown": false} {
				assert.Equal(t, n.HasSuccessor(name, time.Now()), want, "b is", c.b, "a successor of", name)
			}
		}
	})
}
