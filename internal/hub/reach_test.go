package hub

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/tunnel"
)

// TestShareEndsBeforeTheAttempt: a share that ends when a machine was chosen, and
// before the call is noted as running there, gives the machine no prompt.
func TestShareEndsBeforeTheAttempt(t *testing.T) {
	r := newRig(t, Config{})
	r.member("ann")
	_, key := r.member("bob")
	_, secret := r.machine("ann", "box")
	r.ok("POST", "/shares", `{"owner":"ann","with":"bob"}`)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	defer func() { cancel(); <-ended; <-ended }()
	go func() { _ = r.live.Run(ctx); ended <- struct{}{} }()
	<-r.live.Ready()
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	asked := make(chan struct{}, 9)
	machine := tunnel.Dialer{
		HubURL: server.URL, Credential: func() string { return secret },
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- struct{}{} }),
		Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
			return tunnel.Advertisement{Name: "box", Slots: 1, Free: 1, Models: []tunnel.Model{{
				ID: "m", Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, Slots: 1, Free: 1,
			}}}, nil
		},
	}
	go func() { _ = machine.Run(ctx); ended <- struct{}{} }()

	caller, err := r.Identify(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	call := &gateway.Call{Endpoint: fleet.ChatCompletions, Model: "m", Caller: caller, Arrived: time.Now(), Stream: true}
	room, _ := spool.Open("", spool.Limits{})
	if call.Body, err = room.Keep(spool.Holder{}, []byte(`{"model":"m"}`)); err != nil {
		t.Fatal(err)
	}
	ask := askOf(call)
	decision := decides(t, r, &ask, fleet.Try)
	held := r.room.take(decision.Candidates, "m", ask.Now)
	r.ok("DELETE", "/shares?owner=ann&with=bob", "")
	decides(t, r, &ask, fleet.Refuse)
	if _, out, err := r.try(ctx, call, held); out != movedOn || err != nil {
		t.Errorf("outcome %d, %v; want %d", out, err, movedOn)
	}
	if len(asked) != 0 {
		t.Error("the machine was asked")
	}
	if n := held.Machine.Load.InFlight(); n != 0 {
		t.Errorf("%d slots are held", n)
	}
}

// decides waits for the first decision of that kind.
func decides(t *testing.T, r *rig, ask *fleet.Query, want fleet.Verdict) fleet.Decision {
	t.Helper()
	for {
		if d := r.route(ask); d.Verdict == want {
			return d
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("it never came")
		}
	}
}
