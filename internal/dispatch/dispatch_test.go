package dispatch_test

import (
	"context"
	"crypto/rand"
	"encoding/json/v2"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/ledger"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
	"github.com/kith/kith/internal/tunnel"
)

// sharedMachine is a dispatcher and a machine of ann that is shared with bob and offers
// the model m.
type sharedMachine struct {
	*dispatch.Dispatcher
	t       *testing.T
	db      *store.DB
	live    *registry.Registry
	spool   *spool.Spool
	id      fleet.MachineID
	changed chan struct{}         // the snapshot contains a change of the store
	asked   chan struct{}         // the machine received a request
	tunnels chan *tunnel.Client   // one for each connection of the machine
	mayDial sync.Mutex            // while locked, the machine does not reconnect
	read    chan struct{}         // the stored speeds were read
	serves  chan http.HandlerFunc // serves the machine's next call, instead of an end mark
}

// speeds implements Config.Speeds.
func (m *sharedMachine) speeds(ctx context.Context, since time.Time) ([]account.Speed, error) {
	defer func() { m.read <- struct{}{} }()
	return m.db.Speeds(ctx, since)
}

// revoked implements Config.Revoked.
func (m *sharedMachine) revoked(ctx context.Context, caller fleet.Caller) (*fault.Fault, error) {
	member, err := m.db.Member(ctx, string(caller.Member))
	if err != nil || !member.Disabled {
		return nil, err
	}
	return fault.New(fault.InvalidAPIKey, "the key is revoked"), nil
}

// newSharedMachine returns a sharedMachine that is connected. activity is called like
// Config.Activity.
func newSharedMachine(t *testing.T, activity func(*sharedMachine)) *sharedMachine {
	t.Helper()
	m := &sharedMachine{t: t, changed: make(chan struct{}, 99), asked: make(chan struct{}, 99), read: make(chan struct{}, 99), tunnels: make(chan *tunnel.Client, 99), serves: make(chan http.HandlerFunc, 99)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	must := func(err error) {
		t.Helper()
		assert.OK(t, err)
	}
	var err error
	m.db, err = store.Open(ctx, store.Config{Path: storetest.SQLite(t)})
	must(err)
	t.Cleanup(func() { m.db.Close() })
	now := time.Now().UTC()
	for _, name := range []string{"ann", "bob"} {
		must(m.db.CreateMember(ctx, account.Member{ID: name, Name: name, Created: now}))
	}
	must(m.db.AddShare(ctx, account.Share{ID: "share", OwnerID: "ann", MemberID: "bob", Created: now}))
	must(m.db.CreateLoginToken(ctx, account.LoginToken{ID: "token", MemberID: "ann", Created: now, Expires: now.Add(time.Hour)}))
	machine, _, err := m.db.RedeemLoginToken(ctx, [32]byte{}, account.Machine{ID: "box", Name: "box", Region: "home", Created: now}, now)
	must(err)
	m.id = fleet.MachineID(machine.ID)

	log := slog.New(slog.DiscardHandler)
	connected := make(chan struct{}, 99)
	m.live = registry.New(registry.Config{Node: "hub", Region: "home", Facts: m.db.Facts("home"), Log: log})
	m.live.Observe(registry.Observer{
		Committed: func(changes []fleet.Change) { m.OnCommitted(changes) },
		Store: func(_ []fleet.Change, affected fleet.Affected) {
			m.OnChange(affected)
			m.changed <- struct{}{}
		},
		Machine: func(id fleet.MachineID) {
			m.OnMachine(id)
			connected <- struct{}{}
		},
	})
	m.spool, _ = spool.Open("", spool.Limits{})
	m.Dispatcher = dispatch.New(dispatch.Config{
		Limits:   dispatch.Limits{Wait: time.Minute, WaitStream: time.Minute, FirstByte: time.Minute, Stream: time.Minute},
		Registry: m.live, Ledger: ledger.New(m.db, nil, log), Traces: ledger.NewTraces(m.db, log), Spool: m.spool,
		SaveSpeeds: m.db.SaveSpeeds, Speeds: m.speeds, PrefixKey: m.db.PrefixKey,
		Revoked: m.revoked, Activity: func() { activity(m) }, Log: log,
	})
	var served sync.WaitGroup
	var generation atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		defer served.Done()
		number := generation.Add(1)
		line, err := tunnel.Upgrade(w, r, tunnel.UpgradeConfig{Generation: number})
		if err == nil {
			m.tunnels <- line
			err = m.live.Serve(ctx, account.Machine{ID: string(m.id), OwnerID: "ann", OwnerName: "ann", Name: "box", Generation: number}, line)
		}
		if !errors.Is(err, context.Canceled) {
			t.Log("the tunnel ended:", err)
		}
	}))
	ended := make(chan struct{}, 2)
	go func() { _ = m.live.Run(ctx); ended <- struct{}{} }()
	<-m.live.Ready()
	dialer := tunnel.Dialer{
		Instance: rand.Text(),
		HubURL:   server.URL, Credential: func() string { m.mayDial.Lock(); defer m.mayDial.Unlock(); return "secret" },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			m.asked <- struct{}{}
			select {
			case serve := <-m.serves:
				serve(w, r)
			default:
				_, _ = io.WriteString(w, "data: [DONE]\n\n")
			}
		}),
		Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
			return tunnel.Advertisement{Name: "box", Slots: 1, Free: 1, Models: []tunnel.Model{{
				ID: "m", Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, Slots: 1, Free: 1,
			}}}, nil
		},
	}
	go func() { _ = dialer.Run(ctx); ended <- struct{}{} }()
	t.Cleanup(func() {
		cancel()
		<-ended
		<-ended
		server.Close() // each request has reached its tunnel, or ended
		served.Wait()
	})
	for machine := m.live.Snapshot().Machine(m.id); machine == nil || !machine.Online; machine = m.live.Snapshot().Machine(m.id) {
		<-connected
	}
	return m
}

// If a share ends after a machine was chosen, but before the call is sent, the machine
// does not get the prompt.
func TestShareEndsBeforeTheAttempt(t *testing.T) {
	reserved := false
	m := newSharedMachine(t, func(m *sharedMachine) {
		if reserved {
			return
		}
		reserved = true
		if err := m.db.RemoveShare(m.t.Context(), "ann", "bob"); err != nil {
			m.t.Error(err)
		}
		m.live.Settle(m.t.Context())
		<-m.changed
	})
	call := &gateway.Call{Stream: true, Waiting: func(int, time.Duration) { t.Error("it waits") }}
	_, err := m.do(t, call)
	if f := fault.Of(err); f.Code != fault.NotInCircle || len(call.Trace.Tries) != 1 || call.Trace.Tries[0].Prompt ||
		call.Trace.Tries[0].Outcome != "was no longer available to the caller" {
		t.Errorf("%v; tries %+v", err, call.Trace.Tries)
	}
	assert.That(t, reserved && len(m.asked) == 0, "the machine was asked")
	assert.Equal(t, m.live.Snapshot().Machine(m.id).Load.InFlight(), 0, "slots are reserved")
}

// A waiting call whose member is disabled gets the fault of its key, even if it was also
// refused because its reach ended, before it continued (spec/routing.md#wait-end).
func TestDisabledAndOutOfReach(t *testing.T) {
	m := newSharedMachine(t, func(*sharedMachine) {})
	busy := m.answer(t, &gateway.Call{Caller: fleet.Caller{Member: "ann", Name: "ann"}, Stream: true})
	defer busy.Close()
	disable := func(disabled bool) {
		if err := m.db.SetMemberDisabled(t.Context(), "bob", disabled); err != nil {
			t.Error(err)
		}
		m.live.Settle(m.t.Context())
		<-m.changed
	}
	for range 20 { // it selects one of the two ends at random
		ended := sync.OnceFunc(func() { disable(true) })
		_, err := m.do(t, &gateway.Call{Waiting: func(ahead int, _ time.Duration) {
			if ahead >= 0 {
				ended()
			}
		}})
		assert.Equal(t, fault.Of(err).Code, fault.InvalidAPIKey, "refused with", err)
		disable(false)
	}
}

// If the machine of a call disconnects after it was chosen, but before the call is sent,
// the call waits for it like any other call: the machine does not count as tried.
func TestMachineLeavesBeforeTheAttempt(t *testing.T) {
	for _, stream := range []bool{true, false} {
		left := false
		m := newSharedMachine(t, func(m *sharedMachine) {
			if left {
				return
			}
			left = true
			m.mayDial.Lock()
			(<-m.tunnels).Close()
			for m.live.Snapshot().Machine(m.id).Online {
				time.Sleep(time.Millisecond)
			}
		})
		back := sync.OnceFunc(m.mayDial.Unlock)
		defer func() {
			if left {
				back()
			}
		}()
		call := &gateway.Call{Stream: stream, Wait: -1, Waiting: func(int, time.Duration) { back() }}
		m.answer(t, call).Close()
		tries := call.Trace.Tries
		if len(tries) != 2 || tries[0].Prompt || tries[0].Outcome != "had disconnected before it was asked" || !tries[1].Began {
			t.Errorf("stream %v: tries %+v", stream, tries)
		}
		assert.Equal(t, len(m.asked), 1, "stream", stream, "the machine was asked")
	}
}

// A streamed call whose tunnel ends before the first byte goes to another machine, so it
// does not count for the day of the share. A call whose answer has begun counts, and so
// does a unary one, which the machine may have run.
func TestDayOfALostCall(t *testing.T) {
	streamed := func(m *sharedMachine, t *testing.T) {
		answer, err := m.do(t, &gateway.Call{Stream: true, Waiting: func(int, time.Duration) {}})
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Close()
	}
	unary := func(m *sharedMachine, t *testing.T) {
		_, _ = m.do(t, &gateway.Call{Waiting: func(int, time.Duration) {}})
	}
	for name, c := range map[string]struct {
		send func(*sharedMachine, *testing.T)
		text string // sent before the tunnel ends
		want int
	}{
		"streamed": {streamed, "", 0},
		"begun":    {streamed, "data: x", 1},
		"unary":    {unary, "", 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := newSharedMachine(t, func(*sharedMachine) {})
			must := func(err error) {
				assert.OK(t, err)
			}
			must(m.db.RemoveShare(t.Context(), "ann", "bob"))
			must(m.db.AddShare(t.Context(), account.Share{
				ID: "day", OwnerID: "ann", MemberID: "bob", Created: time.Now().UTC(), Limits: account.Limits{PerDay: 9},
			}))
			m.live.Settle(t.Context())
			m.mayDial.Lock() // or the call might go to the same machine again
			defer m.mayDial.Unlock()
			line := <-m.tunnels
			m.serves <- func(w http.ResponseWriter, r *http.Request) {
				w.WriteHeader(http.StatusOK)
				_, _ = io.WriteString(w, c.text)
				_ = http.NewResponseController(w).Flush()
				go func() {
					defer line.Close()
					// Everything sent before this answer has then arrived.
					response, err := line.RoundTrip(httptest.NewRequest(http.MethodPost, "http://machine/v1/embeddings", nil))
					if err != nil {
						t.Error(err)
						return
					}
					response.Body.Close()
				}()
				<-r.Context().Done()
			}
			c.send(m, t)
			if n := m.live.Snapshot().ShareOf("bob", "day").Limits.Load.Started(m.live.Now()); n != c.want {
				t.Errorf("%d calls count for the day, not %d", n, c.want)
			}
		})
	}
}

// do makes a chat call, for bob unless it has a caller.
func (m *sharedMachine) do(t *testing.T, call *gateway.Call) (*gateway.Answer, error) {
	t.Helper()
	body := assert.Value(m.spool.Keep(spool.Holder{}, []byte(`{"model":"m"}`)))(t)
	call.ID, call.Endpoint, call.Model, call.Body, call.Arrived = "req_1", fleet.ChatCompletions, "m", body, time.Now()
	if call.Caller.Member == "" {
		call.Caller = fleet.Caller{Member: "bob", Name: "bob"}
	}
	return m.Do(t.Context(), call)
}

// answer returns the machine's answer to a chat call.
func (m *sharedMachine) answer(t *testing.T, call *gateway.Call) *gateway.Answer {
	t.Helper()
	answer := assert.Value(m.do(t, call))(t)
	return answer
}

// A machine runs a unary call until its answer is complete, not until the caller has read
// it.
func TestUnaryAnswerRunsNoMore(t *testing.T) {
	m := newSharedMachine(t, func(*sharedMachine) {})
	answer := m.answer(t, &gateway.Call{})
	defer answer.Close()
	assert.Equal(t, m.live.Snapshot().Machine(m.id).Load.InFlight(), 0, "slots are reserved")
	if running := m.Running(); len(running) != 0 {
		t.Errorf("a machine runs %+v", running)
	}
}

// A streamed call for several answers holds a slot for each until it is closed.
func TestChoicesHoldSlots(t *testing.T) {
	m := newSharedMachine(t, func(*sharedMachine) {})
	answer := m.answer(t, &gateway.Call{Stream: true, Choices: 3})
	load := m.live.Snapshot().Machine(m.id).Load
	assert.Equal(t, load.InFlight(), 3, "slots are reserved for 3 answers")
	answer.Close()
	assert.Equal(t, load.InFlight(), 0, "afterwards", "slots are reserved")
}

// Measured speeds survive a restart of the hub, and measurements of other nodes are used.
func TestSpeedsAreKept(t *testing.T) {
	m := newSharedMachine(t, func(*sharedMachine) {})
	load := m.live.Snapshot().Machine(m.id).Offer("m").Load
	run := func() {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- m.RunSpeeds(ctx) }()
		<-m.read
		cancel()
		assert.OK(t, <-ended)
	}
	var other fleet.Load // measured by another node
	other.Measure(fleet.Circle{}, fleet.Measurement{At: time.Now(), FirstToken: 3 * time.Second})
	proofs, _ := other.Proofs()
	samples, err := json.Marshal(proofs)
	assert.OK(t, err)
	rows := []account.Speed{
		{MachineID: string(m.id), Model: "m", Measured: time.Now(), Samples: string(samples)},
		{MachineID: string(m.id), Model: "not offered", Measured: time.Now(), Samples: "{}"},
	}
	assert.OK(t, m.db.SaveSpeeds(t.Context(), rows, time.Now()))
	if run(); load.LatestSpeed() == nil || load.LatestSpeed().FirstToken != 3 {
		t.Fatalf("after reading: %+v", load.LatestSpeed())
	}
	call := &gateway.Call{ID: "req_1", Model: "m", Stream: true, Arrived: time.Now(), Trace: gateway.Trace{Tries: []gateway.Attempt{
		{Machine: m.live.Snapshot().Machine(m.id), Began: true, Running: 1},
	}}}
	m.Finished(call, gateway.Outcome{Status: 200, FirstByte: time.Second})
	run()
	stored, err := m.db.Speeds(t.Context(), time.Time{})
	assert.Require(t, err == nil && len(stored) == 2, stored, "are stored", err)
	var kept map[fleet.Circle]fleet.Proof
	if err := json.Unmarshal([]byte(stored[0].Samples), &kept); err != nil || len(kept[fleet.Circle{}].Prompts) != 2 {
		t.Errorf("%+v are stored, %v", kept, err)
	}
}
