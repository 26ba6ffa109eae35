package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// homeNode is a node to which ann's machine is connected, with one slot for model m and a
// share to bob. Other nodes are a function.
type homeNode struct {
	*Cluster
	t     *testing.T
	db    *store.DB
	asked chan struct{} // the machine got a request
	// activity is called when a slot is reserved or released.
	activity func()
	line     *tunnel.Client            // of the machine
	serve    func(http.ResponseWriter) // serves a call on the machine

	mu      sync.Mutex
	answer  int     // the status of each answer to a grant
	offered []grant // to other nodes
}

// atHome runs a test with such a node, in a bubble.
func atHome(t *testing.T, test func(*homeNode)) {
	file := storetest.SQLite(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h, log := &homeNode{t: t, asked: make(chan struct{}, 99), activity: func() {}, serve: func(w http.ResponseWriter) { _, _ = io.WriteString(w, "data: [DONE]\n\n") }, answer: http.StatusNoContent}, slog.New(slog.DiscardHandler)
		db, err := store.Open(ctx, store.Config{Path: file})
		h.must(err)
		h.db = db
		now := time.Now().UTC()
		for _, name := range []string{"ann", "bob"} {
			h.must(db.CreateMember(ctx, account.Member{ID: name, Name: name, Created: now}))
		}
		h.must(db.AddShare(ctx, account.Share{ID: "share", OwnerID: "ann", MemberID: "bob", Created: now, Limits: account.Limits{PerDay: 9}}))
		h.must(db.CreateLoginToken(ctx, account.LoginToken{ID: "token", MemberID: "ann", Created: now, Expires: now.Add(time.Hour)}))
		_, _, err = db.RedeemLoginToken(ctx, [32]byte{}, account.Machine{ID: "box", Name: "box", Region: "home", Created: now}, now)
		h.must(err)

		live := registry.New(registry.Config{Node: "home", Region: "home", Facts: db.Facts("home"), Log: log})
		calls := dispatch.New(dispatch.Config{
			Limits:   dispatch.Limits{Wait: time.Minute, WaitStream: time.Minute, FirstByte: time.Minute, Stream: time.Minute},
			Registry: live, Ledger: ledger.New(db, nil, log), Traces: ledger.NewTraces(db, log),
			SaveSpeeds: db.SaveSpeeds, Speeds: db.Speeds, PrefixKey: db.PrefixKey, Activity: func() { h.activity() }, Log: log,
			Revoked: func(context.Context, fleet.Caller) (*fault.Fault, error) { return nil, nil },
		})
		live.Observe(registry.Observer{Machine: calls.OnMachine})
		bodies, _ := spool.Open("", spool.Limits{}) // without a folder nothing fails
		h.Cluster, err = New(Config{Log: log})
		h.must(err)
		h.send = func(_ context.Context, _ string, g grant) int {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.offered = append(h.offered, g)
			return h.answer
		}
		h.Join(Parts{Registry: live, Dispatch: calls, Edge: gateway.New(gateway.Config{Backend: calls, Spool: bodies, Log: log}), Calls: func() int { return 0 }})

		n, running := newPipes(), new(sync.WaitGroup)
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			<-live.Ready()
			if line, err := tunnel.Upgrade(w, r, tunnel.UpgradeConfig{Generation: 1}); err == nil {
				h.line = line
				_ = live.Serve(ctx, account.Machine{ID: "box", OwnerID: "ann", OwnerName: "ann", Name: "box", Generation: 1}, line)
			}
		})}
		dialer := tunnel.Dialer{
			Instance: rand.Text(),
			HubURL:   "http://127.0.0.1", Credential: func() string { return "secret" },
			Dial: func(ctx context.Context, _, address string) (net.Conn, error) { return n.dial(ctx, address) },
			Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				h.asked <- struct{}{}
				h.serve(w)
			}),
			Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
				return tunnel.Advertisement{Name: "box", Slots: 1, Free: 1, Models: []tunnel.Model{{
					ID: "m", Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, Slots: 1, Free: 1,
				}}}, nil
			},
		}
		running.Go(func() { _ = server.Serve(n) })
		running.Go(func() { h.must(live.Run(ctx)) })
		running.Go(func() { _ = dialer.Run(ctx) })
		time.Sleep(time.Second)
		synctest.Wait()
		test(h)
		cancel()
		server.Close()
		n.Close()
		n.cut(true)
		running.Wait()
		h.must(db.Close())
	})
}

func (h *homeNode) must(err error) {
	assert.That(h.t, err == nil || errors.Is(err, context.Canceled), err)
}

// forwarded returns the answer to a request of another node for a call of bob: its status,
// and why it was refused. hold names the slot that was offered to the call.
func (h *homeNode) forwarded(path, attempt, hold string) (status int, refused string) {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{"model":"m"}`))
	r.Header = http.Header{
		headerMachine:            {fmt.Sprint("box ", h.parts.Registry.Snapshot().Machine("box").Generation)},
		headerAsk:                {"member=bob&name=bob&narrow=0&model=m&endpoint=/v1/chat/completions&stream=true&choices=1"},
		headerHold:               {hold},
		tunnel.HeaderCorrelation: {"req_1"}, tunnel.HeaderAttempt: {attempt},
	}
	w := httptest.NewRecorder()
	h.ServeForwarded(w, r)
	return w.Code, w.Header().Get(headerRefused)
}

// waits announces that calls of bob wait at a node.
func (h *homeNode) waits(node string, numbers ...int64) {
	w := waiting{ID: 1, Member: "bob", Model: "m", Family: fleet.Chat}
	for _, number := range numbers {
		w.Calls = append(w.Calls, waitingCall{Number: number, Age: 1000 - number})
	}
	h.applyWaiting(node, false, []waiting{w})
	synctest.Wait()
}

// calls returns the numbers of the calls that were offered a slot, in order.
func (h *homeNode) calls() (numbers []int64) {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.offered {
		numbers = append(numbers, g.Call)
	}
	return numbers
}

func (h *homeNode) want(what string, numbers ...int64) {
	h.t.Helper()
	if got := h.calls(); !slices.Equal(got, numbers) {
		h.t.Fatalf("%s: offered to %v, not to %v", what, got, numbers)
	}
}

// An attempt of another node that arrives after the question whether it has ended does not
// begin: that node may run the call elsewhere by then (spec/peers.md#asked). No attempt
// begins twice.
func TestEndedOvertakesTheAttempt(t *testing.T) {
	atHome(t, func(h *homeNode) {
		h.forwarded(tunnel.PathEnded, "1 1", "")
		if code, refused := h.forwarded("/v1/chat/completions", "1 1", ""); code != 503 || refused != "repeated" || len(h.asked) != 0 {
			t.Errorf("%d, refused as %q", code, refused)
		}
		if code, refused := h.forwarded("/v1/chat/completions", "2 1", ""); code != 200 || len(h.asked) != 1 {
			t.Errorf("another attempt: %d, refused as %q", code, refused)
		}
		if code, refused := h.forwarded("/v1/chat/completions", "2 1", ""); code != 503 || refused != "repeated" || len(h.asked) != 1 {
			t.Errorf("the same again: %d, refused as %q", code, refused)
		}
	})
}

// A call of another node whose machine disconnects before the call is sent on is refused as
// gone, so that it is no attempt there either (spec/peers.md#refusals).
func TestMachineLeavesBeforeAForwardedCall(t *testing.T) {
	atHome(t, func(h *homeNode) {
		load := h.parts.Registry.Snapshot().Machine("box").Load
		h.activity = func() { h.line.Close() }
		if code, refused := h.forwarded("/v1/chat/completions", "1 1", ""); code != 503 || refused != "gone" || len(h.asked) != 0 {
			t.Errorf("%d, refused as %q; the machine was asked %d times", code, refused, len(h.asked))
		}
		assert.Equal(t, load.InFlight(), 0, "slots are reserved")
	})
}

// A streamed call of another node whose machine is gone before the first byte goes to another
// machine there, so it does not count for the day of the share here. One that began does.
func TestDayOfALostCall(t *testing.T) {
	for text, want := range map[string]int{"": 0, "data: x": 1} {
		atHome(t, func(h *homeNode) {
			limits := &h.parts.Registry.Snapshot().ShareOf("bob", "share").Limits
			h.serve = func(w http.ResponseWriter) {
				_, _ = io.WriteString(w, text)
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Second)
				h.line.Close()
				time.Sleep(time.Second) // the end of the answer must not overtake the loss
			}
			h.forwarded("/v1/chat/completions", "1 1", "")
			if n := limits.Load.Started(h.parts.Registry.Now()); n != want {
				t.Errorf("after %q: %d calls count for the day, not %d", text, n, want)
			}
			time.Sleep(time.Second) // the machine's handler ends
		})
	}
}

// A slot that is held belongs to the request that names its hold, once. One whose request
// does not come within a second is free again.
func TestHolds(t *testing.T) {
	atHome(t, func(h *homeNode) {
		h.waits("away", 7, 8)
		h.want("a slot is free", 7)
		if _, refused := h.forwarded("/v1/chat/completions", "1 1", "another"); refused != "busy" {
			t.Errorf("without its hold: refused as %q", refused)
		}
		if code, refused := h.forwarded("/v1/chat/completions", "2 1", h.offered[0].Hold); code != 200 {
			t.Errorf("with its hold: %d, refused as %q", code, refused)
		}
		h.want("its call is done", 7, 8)
		if _, refused := h.forwarded("/v1/chat/completions", "3 1", h.offered[0].Hold); refused != "busy" {
			t.Errorf("with its hold again: refused as %q", refused)
		}
		time.Sleep(holdFor - time.Millisecond)
		if synctest.Wait(); h.Grants().Expired != 0 {
			t.Error("the hold of a call whose request may come has ended")
		}
		time.Sleep(2 * time.Millisecond)
		if synctest.Wait(); h.Grants() != (Grants{Offered: 2, Taken: 2, Expired: 1}) {
			t.Errorf("%+v", h.Grants())
		}
		if code, refused := h.forwarded("/v1/chat/completions", "4 1", ""); code != 200 {
			t.Errorf("the slot is lost: %d, %q", code, refused)
		}
	})
}

// A call that waits no longer costs a round trip: the next one gets the slot.
func TestGrantIsTooLate(t *testing.T) {
	atHome(t, func(h *homeNode) {
		h.answer = http.StatusGone
		h.waits("away", 7, 8)
		h.want("both are gone", 7, 8)
		if code, refused := h.forwarded("/v1/chat/completions", "1 1", ""); code != 200 {
			t.Errorf("the slot is lost: %d, %q", code, refused)
		}
	})
}

// A node that declines, or does not answer, is not offered the machine for a second; its
// call keeps its place.
func TestGrantIsDeclined(t *testing.T) {
	for _, status := range []int{http.StatusConflict, 0, http.StatusInternalServerError} {
		atHome(t, func(h *homeNode) {
			h.answer = status
			h.waits("away", 7, 8)
			h.want("the first is declined", 7)
			h.answer = http.StatusNoContent
			h.waits("other", 3)
			h.want("another node has it", 7, 3)
			h.forwarded("/v1/chat/completions", "1 1", h.offered[1].Hold)
			time.Sleep(backOffFor)
			h.want("after a second", 7, 3, 7)
			h.applyWaiting("away", true, nil)
			h.applyWaiting("other", true, nil)
			time.Sleep(2 * holdFor)
			synctest.Wait()
		})
	}
}
