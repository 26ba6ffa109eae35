package sim

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/tunnel"
)

// trap is a hostile machine: a tunnel and no daemon. It advertises whatever
// attracts calls, and knows every byte that came down its connection.
type trap struct {
	w      *world
	name   string
	owner  *member
	answer http.HandlerFunc
	end    func()

	mu    sync.Mutex
	heard bytes.Buffer
	calls int
}

// addTrap registers a hostile machine; it is routable on return.
func (w *world) addTrap(owner *member, name string, answer http.HandlerFunc) *trap {
	w.t.Helper()
	x := &trap{w: w, name: name, owner: owner, answer: answer}
	secret := credential.Mint(credential.MachineKey, region)
	w.must(w.db.CreateMachine(w.t.Context(), account.Machine{
		ID: w.newID("mch_"), OwnerID: owner.ID, Name: name, Region: region,
		Hash: secret.Hash(), LastFour: secret.LastFour(), Created: time.Now().UTC(),
	}))
	dialer := &tunnel.Dialer{
		Instance: rand.Text(),
		HubURL:   hubURL, Credential: secret.Reveal, Handler: http.HandlerFunc(x.serve), Log: w.logger(name),
		Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
			return tunnel.Advertisement{Name: name, Slots: 1000, Free: 1000, Models: []tunnel.Model{{
				ID: "m", Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, Slots: 1000, Free: 1000,
			}}}, nil
		},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := w.at.Load().dial(ctx)
			if err != nil {
				return nil, err
			}
			return &overheard{c, x}, nil
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- dialer.Run(ctx) }()
	x.end = func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			w.t.Errorf("%s: %v", name, err)
		}
	}
	synctest.Wait()
	return x
}

func (x *trap) serve(w http.ResponseWriter, r *http.Request) {
	x.mu.Lock()
	x.calls++
	x.mu.Unlock()
	x.answer(w, r)
}

// asked is how many calls came to the trap.
func (x *trap) asked() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.calls
}

// overheard is the trap's connection to the hub.
type overheard struct {
	net.Conn
	x *trap
}

func (c *overheard) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	c.x.heard.Write(p[:n])
	return n, err
}

// knows reports whether the prompt of the call came to the trap.
func (x *trap) knows(a *answer) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return bytes.Contains(x.heard.Bytes(), []byte("tag-"+a.tag+" "))
}

// names reports whether the caller can read that the machine has its prompt.
func (a *answer) names(machine string) bool {
	return strings.Contains(a.header.Get("X-Kith-Route")+strings.Join(a.comments, "\n"), "machine="+machine+";")
}

// addGroup makes a group of the members, the first of which is its admin.
func (w *world) addGroup(kind account.GroupKind, members ...*member) (id string) {
	w.t.Helper()
	id = w.newID("grp_")
	g := account.Group{ID: id, Name: "group-" + id[4:], Kind: kind, Created: time.Now().UTC()}
	for i, m := range members {
		g.Members = append(g.Members, account.GroupMember{MemberID: m.ID, Admin: i == 0})
	}
	w.must(w.db.CreateGroup(w.t.Context(), g))
	return id
}

// together makes an open group of the members.
func (w *world) together(members ...*member) {
	w.t.Helper()
	w.addGroup(account.GroupOpen, members...)
	w.live.Settle(w.t.Context())
	synctest.Wait()
}

// refuseWith is a handler that refuses every call with that word, or, without
// one, with that status as if an engine did.
func refuseWith(status int, word tunnel.Refusal, reads bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if reads {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		if word != "" {
			w.Header().Set(tunnel.HeaderRefused, string(word))
		}
		w.WriteHeader(status)
	}
}

var refusals = map[string]struct {
	status int
	word   tunnel.Refusal
}{
	"busy": {503, tunnel.RefusedBusy}, "paused": {503, tunnel.RefusedPaused}, "hours": {503, tunnel.RefusedHours},
	"spent": {503, tunnel.RefusedSpent}, "unknown model": {503, tunnel.RefusedUnknownModel}, "fenced": {503, tunnel.RefusedFenced},
	"stale key": {503, tunnel.RefusedStaleKey}, "repeated": {503, tunnel.RefusedRepeated},
	"404": {404, ""}, "429": {429, ""}, "503": {503, ""},
}

// A machine of a group that refuses everything gets no prompt, however it refuses
// and whatever it claims, and costs its callers nothing where an honest one serves.
func TestFault52TrapThatRefusesSeesNothing(t *testing.T) {
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, stream bool) {
				ann, bob, eve := w.addMember("ann"), w.addMember("bob"), w.addMember("eve")
				x := w.addTrap(eve, "trap", refuseWith(c.status, c.word, false))
				defer x.end()
				w.together(ann, bob, eve)
				check := func(a *answer) {
					w.t.Helper()
					if x.knows(a) || a.names("trap") {
						w.t.Errorf("the trap has the prompt: %v, named: %v; %s", x.knows(a), a.names("trap"), a)
					}
				}
				for range 15 {
					a := w.do(ask{by: ann, model: "m", stream: stream, prefer: "wait=1"})
					w.wantCode(a, "CAPACITY_FULL", a.reason)
					check(a)
				}
				w.addMachine(bob, "honest", 2, "m")
				for range 15 {
					a := w.do(ask{by: ann, model: "m", stream: stream, prefer: "wait=1"})
					w.wantServed(a, 1)
					check(a)
				}
				assert.That(w.t, x.asked() != 0, "the trap was never asked")
			})
		})
	}
}

// A machine that takes the prompt before it refuses is named to each caller whose
// prompt it has, and left out: in 30 s it is asked twice, or once if it says that it
// does not have the model.
func TestFault52TrapThatReadsIsNamed(t *testing.T) {
	for name, c := range refusals {
		t.Run(name, func(t *testing.T) {
			both(t, func(w *world, stream bool) {
				ann, eve := w.addMember("ann"), w.addMember("eve")
				x := w.addTrap(eve, "trap", refuseWith(c.status, c.word, true))
				defer x.end()
				w.together(ann, eve)
				known := 0
				for range 30 {
					a := w.do(ask{by: ann, model: "m", stream: stream, prefer: "wait=1"})
					w.wantCode(a, "CAPACITY_FULL", a.reason)
					assert.Equal(w.t, x.knows(a), a.names("trap"), "the trap has the prompt", a)
					if x.knows(a) {
						known++
						s, _ := w.why(ann, a)
						if n := len(s.Tries); n == 0 || !s.Tries[n-1].Prompt || s.Tries[n-1].Owner != "eve" {
							w.t.Errorf("the caller reads %+v", s)
						}
					}
				}
				want := 2
				if c.word == tunnel.RefusedUnknownModel {
					want = 1
				}
				if n := x.asked(); known == 0 || n != want {
					w.t.Errorf("the trap was asked %d times, want %d, and got %d prompts of 30", n, want, known)
				}
			})
		})
	}
}

// A machine of a group that serves has the prompts of those calls whose callers
// can read its name, and no other.
func TestATrapThatServesIsNamed(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, bob, eve := w.addMember("ann"), w.addMember("bob"), w.addMember("eve")
		w.addMachine(bob, "honest", 1, "m")
		x := w.addTrap(eve, "trap", echo)
		defer x.end()
		w.together(ann, bob, eve)
		w.set(slow(time.Second))
		known := 0
		for range 15 {
			all := []*answer{w.begin(ask{by: ann, model: "m", stream: stream}), w.begin(ask{by: bob, model: "m", stream: stream})}
			for _, a := range all {
				<-a.over
				if !a.served() || x.knows(a) != a.names("trap") {
					w.t.Errorf("the trap has the prompt: %v, named: %v; %s", x.knows(a), a.names("trap"), a)
				}
				if x.knows(a) {
					known++
				}
			}
		}
		assert.That(w.t, known != 0 && known != 30, "the trap", known, "prompts of 30")
	})
}

// echo serves a call as an engine does, with words of its own.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	said := "tag-" + tagIn(body) + " word word word"
	if !bytes.Contains(body, []byte(`"stream":true`)) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}]}`, said)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	const chunk = `data: {"id":"x","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":%q},"finish_reason":%s}]}` + "\n\n"
	fmt.Fprintf(w, chunk+chunk+"data: [DONE]\n\n", said, "null", "", `"stop"`)
}

// A machine that takes the prompt, refuses, and leaves the call to another is named
// before the one that answers.
func TestEachMachineThatGotThePromptIsNamed(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, bob, eve := w.addMember("ann"), w.addMember("bob"), w.addMember("eve")
		x := w.addTrap(eve, "trap", refuseWith(503, "", true))
		defer x.end()
		w.share(eve, ann)
		w.together(ann, bob, eve)
		w.addMachine(bob, "honest", 1, "m")
		time.Sleep(2 * time.Second) // share and group are taken in
		a := w.do(ask{by: ann, model: "m", stream: stream})
		w.wantServed(a, 1)
		if route := a.header.Get("X-Kith-Route"); route != "shared; machine=trap; owner=eve, group; machine=honest; owner=bob" {
			w.t.Errorf("route %q", route)
		}
	})
}

// A machine that takes the prompt and breaks off before it answers is named, too.
func TestATrapThatBreaksOffIsNamed(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, eve := w.addMember("ann"), w.addMember("eve")
		x := w.addTrap(eve, "trap", func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			panic(http.ErrAbortHandler)
		})
		defer x.end()
		w.together(ann, eve)
		a := w.do(ask{by: ann, model: "m", stream: stream})
		w.wantCode(a, "engine_error", "")
		why, _ := w.why(ann, a)
		if !x.knows(a) || !a.names("trap") || !why.Tries[0].Prompt {
			w.t.Errorf("the trap has the prompt: %v, named: %v; %+v", x.knows(a), a.names("trap"), why.Tries)
		}
	})
}

// A machine of a group that claims a thousand slots and answers at once runs one
// call at once until it has served one.
func TestClaimsInAGroupAttractOneCall(t *testing.T) {
	inBubble(t, func(w *world) {
		ann, bob, eve := w.addMember("ann"), w.addMember("bob"), w.addMember("eve")
		honest := w.addMachine(bob, "honest", 2, "m")
		w.together(ann, bob, eve)
		w.wantServed(w.do(ask{by: ann, model: "m", stream: true}), 1)
		x := w.addTrap(eve, "trap", func(rw http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			rw.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(rw, ": at once\n\n")
			_ = http.NewResponseController(rw).Flush()
			<-r.Context().Done()
		})
		defer x.end()
		for range 10 { // the one that has served goes first
			w.wantServed(w.do(ask{by: ann, model: "m", stream: true}), 1)
		}
		assert.Equal(w.t, x.asked(), 0, "the trap was asked", "times before a machine that has served")
		honest.engine.Set(enginetest.Behaviour{First: time.Minute})
		var all []*answer
		for range 10 {
			all = append(all, w.begin(ask{by: ann, model: "m", stream: true}))
			synctest.Wait()
		}
		assert.Equal(w.t, x.asked(), 1, "the trap runs", "calls at once")
		for _, a := range all {
			a.quit()
			<-a.over
		}
		synctest.Wait()
	})
}

// A machine that answers before it reads the prompt took the call: its answer may take
// longer than a machine has to admit a call.
func TestAnAnswerBeforeTheBody(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, eve := w.addMember("ann"), w.addMember("eve")
		x := w.addTrap(eve, "trap", func(rw http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(rw).Flush()
			select {
			case <-time.After(30 * time.Second):
			case <-r.Context().Done():
			}
			body := fmt.Sprintf(`{"stream":%t}`, stream)
			echo(rw, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
		})
		defer x.end()
		w.together(ann, eve)
		a := w.do(ask{by: ann, model: "m", stream: stream})
		assert.That(w.t, a.served() && !x.knows(a), a)
	})
}

// A machine of a group that neither takes a call nor refuses it costs the caller
// ten seconds, and gets no prompt.
func TestASilentTrapGetsNothing(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, bob, eve := w.addMember("ann"), w.addMember("bob"), w.addMember("eve")
		x := w.addTrap(eve, "trap", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		defer x.end()
		w.together(ann, bob, eve)
		a := w.begin(ask{by: ann, model: "m", stream: stream})
		synctest.Wait()
		w.addMachine(bob, "honest", 1, "m")
		<-a.over
		w.wantServed(a, 1)
		if why, _ := w.why(ann, a); why.Tries[0].Outcome != "did not take it: no reply in time" {
			w.t.Errorf("%+v", why.Tries)
		}
		w.within("moved on", a.took(), 10*time.Second)
		if x.knows(a) || a.names("trap") || x.asked() != 1 {
			w.t.Errorf("%d calls; the trap has the prompt: %v, named: %v", x.asked(), x.knows(a), a.names("trap"))
		}
	})
}

// It is left out as one that refuses: of three calls it gets two.
func TestASilentTrapIsLeftOut(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, eve := w.addMember("ann"), w.addMember("eve")
		x := w.addTrap(eve, "trap", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		defer x.end()
		w.together(ann, eve)
		for range 3 {
			a := w.do(ask{by: ann, model: "m", stream: stream, prefer: "wait=1"})
			w.wantCode(a, "CAPACITY_FULL", a.reason)
		}
		assert.Equal(w.t, x.asked(), 2, "the trap was asked")
	})
}

// A body over 64 KiB follows its head to any machine, the caller's own too. A
// shorter one goes with it, to a machine that reads before it refuses.
func TestALongPromptFollowsItsHead(t *testing.T) {
	both(t, func(w *world, stream bool) {
		ann, eve := w.addMember("ann"), w.addMember("eve")
		x := w.addTrap(eve, "trap", func(rw http.ResponseWriter, r *http.Request) {
			refuseWith(503, tunnel.RefusedPaused, r.ContentLength <= 64<<10)(rw, r)
		})
		defer x.end()
		w.share(eve, ann)
		time.Sleep(2 * time.Second)
		for words, want := range map[int]bool{10: true, 13_100: false} { // of 5 bytes: just over 64 KiB
			a := w.do(ask{by: ann, model: "m", stream: stream, words: words})
			w.wantCode(a, "CAPACITY_FULL", "")
			if x.knows(a) != want || a.names("trap") != want {
				w.t.Errorf("%d words: the trap has the prompt: %v, named: %v", words, x.knows(a), a.names("trap"))
			}
			time.Sleep(time.Hour)
		}
	})
}

// By way of another node it is the same: a machine of a group gets the prompt only once it
// asks for it, and is then named.
func TestPeersTrapGetsWhatItAsksFor(t *testing.T) {
	for _, reads := range []bool{false, true} {
		for _, stream := range []bool{false, true} {
			inCluster(t, 2, func(w *world, seats []*seat) {
				ann, eve := w.addMember("ann"), w.addMember("eve")
				x := w.addTrap(eve, "trap", func(rw http.ResponseWriter, r *http.Request) {
					time.Sleep(5 * time.Second) // no node takes its silence for an answer
					refuseWith(503, tunnel.RefusedPaused, reads)(rw, r)
				})
				defer x.end()
				w.together(ann, eve)
				time.Sleep(time.Minute) // the other node has taken it in
				a := w.do(ask{by: ann, model: "m", stream: stream, via: seats[1]})
				w.wantCode(a, "CAPACITY_FULL", "")
				if x.asked() != 1 || x.knows(a) != reads || a.names("trap") != reads {
					w.t.Errorf("%d calls; the trap has the prompt: %v, named: %v", x.asked(), x.knows(a), a.names("trap"))
				}
			})
		}
	}
}
