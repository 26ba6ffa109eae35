package cli

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestTop: what runs and what waits is listed with its member, model and machine, and
// nothing of what is said.
func TestTop(t *testing.T) {
	t.Parallel()
	r := emptyRig(t)
	r.open()
	// One slot, and an answer that outlasts the test.
	r.serve("ada", enginetest.Options{Slots: 1, Behaviour: enginetest.Behaviour{Chunks: 100_000, Interval: 100 * time.Millisecond}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r.until("the machine offers its model", func() error {
		var top api.Top
		if err := r.admin(&top, "top", "--once"); err != nil || top.Online != 1 || top.Machines[0].Models != 1 {
			return fmt.Errorf("%+v, %w", top, err)
		}
		return nil
	})
	for range 2 {
		body := `{"model":"test-model","stream":true,"messages":[{"role":"user","content":"a secret text"}]}`
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+"/v1/chat/completions", strings.NewReader(body))
		assert.OK(t, err)
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+r.key)
		go func() {
			if res, err := http.DefaultClient.Do(req); err == nil {
				<-ctx.Done()
				res.Body.Close()
			}
		}()
	}
	var top api.Top
	r.until("one call runs and one waits", func() error {
		top = api.Top{}
		if err := r.admin(&top, "top", "--once"); err != nil || top.Running != 1 || top.Waiting != 1 {
			return fmt.Errorf("%+v, %w", top, err)
		}
		return nil
	})
	runs, waits := top.Calls[0], top.Calls[1]
	if runs.State != "running" || runs.Member != "ada" || runs.Owner != "ada" || runs.Machine == "" || runs.Model != "test-model" || runs.Since.IsZero() {
		t.Errorf("the call that runs is %+v", runs)
	}
	if waits.State != "waiting" || waits.Member != "ada" || waits.Machine != "" || waits.Model != "test-model" {
		t.Errorf("the call that waits is %+v", waits)
	}
	if len(top.Queues) != 1 || top.Queues[0].Waiting != 1 || top.Queues[0].Model != "test-model" {
		t.Errorf("the queues are %+v", top.Queues)
	}
	if len(top.Machines) != 1 || top.Machines[0].Running != 1 || top.Machines[0].Queued != 1 || top.Machines[0].Slots != 1 {
		t.Errorf("the machines are %+v", top.Machines)
	}
	got := kith(t, "", "admin", "top", "--data", r.dir) // no terminal: once
	for _, want := range []string{"1 call running, 1 waiting, 1 machine online", "MEMBER", "QUEUE", "MACHINE", "1/1"} {
		assert.Contains(t, got.out, want, "no", got)
	}
	assert.That(t, !strings.Contains(got.out, "secret") && !strings.Contains(got.out, "\x1b"), "printed", got.out)
}

// TestMemberEnable: a disabled member gets no token, key or link, and the refusal says
// why; enabled again, the key of before works.
func TestMemberEnable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	assert.OK(t, r.admin(new(any), "member", "disable", "ada"))
	for _, args := range [][]string{
		{"machine", "token", "--member", "ada"}, {"key", "create", "--member", "ada"}, {"member", "link", "ada"},
		{"group", "create", "lab", "--kind", "org", "--admin", "ada"},
	} {
		if err := r.admin(new(any), args...); err == nil || !strings.Contains(err.Error(), "ada is disabled") || !strings.Contains(err.Error(), "kith admin member enable ada") {
			t.Errorf("%v for a disabled member: %v", args, err)
		}
	}
	r.answered(r.key, http.StatusUnauthorized, "invalid_api_key")
	assert.OK(t, r.admin(new(any), "member", "enable", "ada"))
	if err := r.admin(new(any), "machine", "token", "--member", "ada"); err != nil {
		t.Error(err)
	}
	r.until("the daemon tries again", func() error {
		_, err := control(r.home).call(t.Context(), "reload", request{http.MethodPost, "/reload", nil}, nil)
		return err
	})
	r.answered(r.key, http.StatusOK, "")
}
