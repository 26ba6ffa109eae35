package hub

import (
	"context"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/gateway"
)

// TestKeyRevokedWhileTheBodyComes: a key that is revoked after its call was
// identified, and before the call is active, no longer serves it.
func TestKeyRevokedWhileTheBodyComes(t *testing.T) {
	r := newRig(t, Config{Region: "home"})
	id, secret := r.member("ann")
	arrived := time.Now()
	caller := assert.Value(r.Identify(t.Context(), secret))(t)
	code := func() fault.Code {
		_, err := r.calls.Do(context.Background(), &gateway.Call{Caller: caller, Model: "m", Arrived: arrived, Waiting: func(int, time.Duration) {}})
		return fault.Of(err).Code
	}
	if got := code(); got == fault.InvalidAPIKey {
		t.Fatalf("before it: %s", got)
	}
	r.ok("POST", "/keys/"+id+"/revoke", "")
	r.onCommitted(nil)
	assert.Equal(t, code(), fault.InvalidAPIKey, "after it")
	assert.Equal(t, len(r.calls.Running()), 0, "calls are still active")
}

// A call at a machine's daemon is recorded with the machine and the command of kith; a
// member's key, and a name that kith does not have, can add nothing to the usage.
func TestProgramIsRecorded(t *testing.T) {
	r := newRig(t, Config{})
	keyID, key := r.member("ann")
	machineID, machine := r.machine("ann", "desk")
	member := assert.Value(r.kept.MemberByName(t.Context(), "ann"))(t)
	for _, c := range []struct{ secret, program, want string }{
		{machine, "run", "machine " + machineID + " run"}, {machine, "launch", "machine " + machineID + " launch"},
		{machine, "", "machine " + machineID}, {machine, "made up", "machine " + machineID}, {key, "run", keyID},
	} {
		q := httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(`{"model":"m","messages":[{"role":"user","content":"x"}]}`))
		q.Header.Set("Authorization", "Bearer "+c.secret)
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("Kith-Program", c.program)
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, q)
		s := assert.Value(r.traces.Get(t.Context(), w.Header().Get("X-Correlation-ID"), member.ID))(t)
		assert.Equal(t, s.KeyID, c.want, c.program)
	}
}

// A refusal before the routing leaves a trace for its caller and a record of usage, without
// content; a wrong key identifies no caller, and calls over the rate leave none.
func TestRefusedBeforeRoutingIsRecorded(t *testing.T) {
	r := newRig(t, Config{Edge: gateway.Config{Rate: gateway.Rate{PerSecond: 1e-9, Burst: 3}}})
	_, secret := r.member("bob")
	member := assert.Value(r.kept.MemberByName(t.Context(), "bob"))(t)
	const path = "/v1/chat/completions"
	for i, c := range []struct {
		secret, body, model, code string
		kept                      bool
	}{
		{secret, `{"model":"m","messages":[],"messages":["hush"]}`, "", "invalid_request", true},
		{secret, `{"messages":["hush"]}`, "", "invalid_request", true},
		{secret, `{"model":"no \u0000 name","messages":["hush"]}`, "", "model_not_found", true},
		{secret, `{"model":"m","messages":["hush"]}`, "", "rate_limit_exceeded", false},
		{mistyped(secret), `{"model":"m"}`, "", "invalid_api_key", false},
	} {
		q := httptest.NewRequest("POST", path, strings.NewReader(c.body))
		q.Header.Set("Authorization", "Bearer "+c.secret)
		q.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, q)
		assert.Require(t, strings.Contains(w.Body.String(), `"code":"`+c.code+`"`), i, w.Code, w.Body)
		s, err := r.traces.Get(t.Context(), w.Header().Get("X-Correlation-ID"), member.ID)
		assert.Equal(t, c.kept, (err == nil), i, s, err)
		if c.kept && (!s.Mine || s.Code != c.code || s.Status != w.Code || s.Endpoint != path || s.Model != c.model || s.Decisions != nil || strings.Contains(fmt.Sprintf("%+v", s), "hush")) {
			t.Errorf("%d: %+v", i, s)
		}
	}
	assert.OK(t, r.ledger.Flush(t.Context()))
	var codes []string
	for _, u := range assert.Value(r.kept.Usage(t.Context()))(t) {
		assert.That(t, u.MemberID == member.ID && u.MachineID == "" && u.Model == "", u)
		codes = append(codes, u.Code)
	}
	slices.Sort(codes)
	assert.Same(t, codes, []string{"invalid_request", "invalid_request", "model_not_found"})
}
