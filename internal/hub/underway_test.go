package hub

import (
	"context"
	"testing"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/gateway"
)

// TestUnderwayTogether: a member whose machine lets calls wait, then run, then wait
// has no more underway than may run and wait together.
func TestUnderwayTogether(t *testing.T) {
	u := underway{maxRunning: 2, maxWaiting: 3}
	var ends []func()
	n := 0
	for range 20 {
		d := &dispatch{call: &gateway.Call{Caller: gateway.Caller{Member: "ann"}}}
		_, end := u.begin(t.Context(), d)
		if err := u.enter(d, waits); err != nil {
			if f := fault.Of(err); f.Code != fault.RateLimitExceeded {
				t.Fatal(err)
			}
			end()
			continue
		}
		n++
		ends = append(ends, end)
		if err := u.enter(d, runs); err != nil { // its machine made room
			t.Fatalf("one that waited is refused: %v", err)
		}
	}
	if n != 5 {
		t.Errorf("%d calls underway, want 5", n)
	}
	for _, end := range ends {
		end()
	}
	if len(u.calls) != 0 || len(u.of) != 0 {
		t.Errorf("%d calls of %d members are left", len(u.calls), len(u.of))
	}
}

// TestDefectInDo: a call that a defect ends is underway no more.
func TestDefectInDo(t *testing.T) {
	h := &Hub{} // no registry: the first decision is a defect
	func() {
		defer func() {
			if recover() == nil {
				t.Error("there was no defect")
			}
		}()
		_, _ = h.Do(t.Context(), &gateway.Call{Caller: gateway.Caller{Member: "ann"}, Arrived: time.Now()})
	}()
	if n := len(h.underway.all()); n != 0 {
		t.Errorf("%d calls are left underway", n)
	}
}

// TestKeyRevokedWhileTheBodyComes: a key that is revoked after its call was
// identified, and before the call is underway, serves it no more.
func TestKeyRevokedWhileTheBodyComes(t *testing.T) {
	r := newRig(t, Config{Region: "home"})
	id, secret := r.member("ann")
	arrived := time.Now()
	caller, err := r.Identify(t.Context(), secret)
	if err != nil {
		t.Fatal(err)
	}
	code := func() fault.Code {
		_, err := r.Do(context.Background(), &gateway.Call{Caller: caller, Model: "m", Arrived: arrived, Waiting: func(int, time.Duration) {}})
		return fault.Of(err).Code
	}
	if got := code(); got == fault.InvalidAPIKey {
		t.Fatalf("before it: %s", got)
	}
	r.ok("POST", "/keys/"+id+"/revoke", "")
	r.OnChange(nil, everybody)
	if got := code(); got != fault.InvalidAPIKey {
		t.Errorf("after it: %s, want %s", got, fault.InvalidAPIKey)
	}
	if n := len(r.underway.all()); n != 0 {
		t.Errorf("%d calls are left underway", n)
	}
}
