//go:build linux

package cluster_test

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

const model = "test-model"

// machines are light daemons, with an engine double that counts what runs. All are in
// this process, each with a tunnel of its own.
type machines struct {
	up      atomic.Int64 // whose tunnels are acknowledged
	fenced  atomic.Int64 // how often one was
	running sync.WaitGroup

	mu   sync.Mutex
	runs map[string][]*run // by call
	last fleet.Control     // the change that a machine got last
}

// run is one run of a call on a machine.
type run struct {
	member, attempt string
	began, ended    time.Time // ended is zero while it runs
	cancelled       bool      // by a node, before its end
}

const (
	chunkEvery  = 20 * time.Millisecond
	chunks      = 20   // of a streamed answer
	manyChunks  = 3000 // of an endless one
	answerAfter = 20 * time.Millisecond
)

// connect keeps a machine of so many slots connected until ctx ends.
func (m *machines) connect(ctx context.Context, hub, secret string, slots int) {
	up := false
	dialer := &tunnel.Dialer{
		HubURL: hub, Credential: func() string { return secret }, Handler: m, Instance: rand.Text(),
		Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
			return tunnel.Advertisement{Timezone: "UTC", Slots: slots, Free: slots, Models: []tunnel.Model{{
				ID: model, Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, Slots: slots, Free: slots,
			}}}, nil
		},
		Control: func(_ context.Context, change fleet.Control) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.last = change
			return nil
		},
		OnState: func(s tunnel.State) {
			if errors.Is(s.Err, tunnel.ErrFenced) {
				m.fenced.Add(1)
			}
			if is := s.Phase == tunnel.Acked; is != up {
				up = is
				m.up.Add(map[bool]int64{true: 1, false: -1}[is])
			}
		},
	}
	m.running.Go(func() {
		for ctx.Err() == nil && dialer.Run(ctx) != nil { // it was fenced
			time.Sleep(time.Second)
		}
	})
}

// ServeHTTP runs a call: streamed in chunks, or at once.
func (m *machines) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	_, member, _ := strings.Cut(r.Header.Get(tunnel.HeaderCaller), " ")
	attempt, _, _ := strings.Cut(r.Header.Get(tunnel.HeaderAttempt), " ")
	is := &run{member: member, attempt: attempt, began: time.Now()}
	m.mu.Lock()
	call := r.Header.Get(tunnel.HeaderCorrelation)
	m.runs[call] = append(m.runs[call], is)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		is.ended, is.cancelled = time.Now(), r.Context().Err() != nil
	}()
	const usage = `"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`
	if !strings.Contains(string(body), `"stream":true`) {
		select {
		case <-time.After(answerAfter):
		case <-r.Context().Done():
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],%s`, model, usage)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	chunk := func(choices, rest string) {
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":%q,\"choices\":[%s]%s\n\n", model, choices, rest)
		_ = http.NewResponseController(w).Flush()
	}
	n := chunks
	if strings.Contains(string(body), endless) {
		n = manyChunks
	}
	for range n {
		chunk(`{"index":0,"delta":{"content":"a "},"finish_reason":null}`, "}")
		select {
		case <-time.After(chunkEvery):
		case <-r.Context().Done():
			return
		}
	}
	chunk(`{"index":0,"delta":{},"finish_reason":"stop"}`, "}")
	chunk("", ","+usage)
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// lastStart returns when the last run of a member's call began. A run that was cancelled
// at once does not count: the network held the request back, and behind it the
// cancellation.
func (m *machines) lastStart(member string) (last time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, runs := range m.runs {
		for _, r := range runs {
			atOnce := r.cancelled && r.ended.Sub(r.began) < time.Second
			if r.member == member && r.began.After(last) && !atOnce {
				last = r.began
			}
		}
	}
	return last
}

// confirmedWithin is how long a hub waits for the end of an attempt that it cancelled
// (spec/routing.md#one-attempt).
const confirmedWithin = 2 * time.Second

// repeated returns how many calls ran twice: the same attempt again, and two attempts at
// the same time. Where a node dies, its machines and the other nodes learn of it each for
// itself: two attempts of which one was cancelled may be together for as long as a hub
// waits for a cancelled one to end, others for as long as a short answer takes.
func (m *machines) repeated() (again, together int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	for call, runs := range m.runs {
		for i, a := range runs {
			for _, b := range runs[:i] {
				overlap := earlier(cmp.Or(a.ended, now), cmp.Or(b.ended, now)).Sub(a.began)
				switch {
				case a.attempt == b.attempt:
					again++
				case overlap > confirmedWithin, overlap > 5*answerAfter && !a.cancelled && !b.cancelled:
					together++
				default:
					continue
				}
				fmt.Printf("%s's call %s ran twice: attempt %s from %s, cancelled %t; attempt %s from %s, cancelled %t; for %v at a time\n", a.member, call,
					b.attempt, b.began.Format(time.StampMicro), b.cancelled, a.attempt, a.began.Format(time.StampMicro), a.cancelled, overlap)
			}
		}
	}
	return again, together
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// began returns when a call first ran.
func (m *machines) began(call string) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if runs := m.runs[call]; len(runs) > 0 {
		return runs[0].began
	}
	return time.Time{}
}

// pausedUntil returns when the pause ends that a machine was last asked for.
func (m *machines) pausedUntil() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last.Until == nil {
		return time.Time{}
	}
	return *m.last.Until
}
