package dispatch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/tunnel"
)

// If a tunnel ends a moment after its streams broke, the machine disconnected; if the
// tunnel continues, the engine failed.
func TestClassifyBreak(t *testing.T) {
	left := errors.New("the caller left")
	for name, c := range map[string]struct {
		stream bool
		err    error
		ends   time.Duration // of the line; 0: never
		leaves bool
		want   outcome
		cause  error
	}{
		"machine gone, unary":    {false, io.ErrUnexpectedEOF, 100 * time.Millisecond, false, vanished, nil},
		"machine gone, streamed": {true, io.ErrUnexpectedEOF, 100 * time.Millisecond, false, notTaken, nil},
		"engine broke off":       {true, io.ErrUnexpectedEOF, 0, false, failed, fault.New(fault.EngineError, "")},
		"too late to be one":     {false, io.ErrUnexpectedEOF, time.Second, false, failed, fault.New(fault.EngineError, "")},
		"no stream left":         {false, tunnel.ErrFull, 0, false, busy, nil},
		"tunnel ended before":    {false, tunnel.ErrEnded, 100 * time.Millisecond, false, unsent, nil},
		"refused by the home":    {false, ErrRefused, 0, false, busy, nil},
		"not taken by the home":  {false, ErrNotTaken, 0, false, notTaken, nil},
		"out of reach there":     {false, ErrUnreached, 0, false, revoked, nil},
		"a fault":                {false, fault.New(fault.InvalidRequest, ""), 0, false, failed, fault.New(fault.InvalidRequest, "")},
		"caller left":            {true, context.Canceled, 100 * time.Millisecond, true, failed, left},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				if c.leaves {
					cancel(left)
				}
				gone := make(chan struct{})
				if c.ends > 0 {
					time.AfterFunc(c.ends, func() { close(gone) })
				}
				got, err := classifyBreak(ctx, &gateway.Call{Stream: c.stream}, registry.Line{Gone: gone}, c.err)
				if got != c.want || (err == nil) != (c.cause == nil) || err != nil && fault.Of(err).Code != fault.Of(c.cause).Code {
					t.Errorf("%d, %v", got, err)
				}
				cancel(nil)
				time.Sleep(2 * time.Second)
			})
		})
	}
}

// A hub whose process was suspended for so long that it cannot confirm a call does not
// pass on what had arrived from the machine before.
func TestAnswerUnconfirmed(t *testing.T) {
	confirmed := true
	body := &answerBody{in: strings.NewReader("one two"), ctx: t.Context(), mayRun: func() bool { return confirmed }}
	part := make([]byte, 3)
	if n, err := body.Read(part); n != 3 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	confirmed = false
	if n, err := body.Read(part); n != 0 || err != error(errUnconfirmed) {
		t.Errorf("%d, %v", n, err)
	}
}

// unreached looks up why the home node ended an answer, but only until the caller
// disconnects.
func TestUnreachedCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Dispatcher{cfg: Config{
			Registry: registry.New(registry.Config{}),
			Revoked: func(ctx context.Context, _ fleet.Caller) (*fault.Fault, error) {
				<-ctx.Done() // the database does not answer
				return nil, ctx.Err()
			},
		}}
		gone, began := errors.New("the caller left"), time.Now()
		ctx, leave := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Millisecond, func() { leave(gone) })
		body := &answerBody{
			in: iotest.ErrReader(ErrUnreached), ctx: ctx, mayRun: func() bool { return true },
			unreached: func(ctx context.Context) error { return d.unreached(ctx, new(gateway.Call)) },
		}
		if _, err := body.Read(make([]byte, 1)); err != gone || time.Since(began) != time.Millisecond {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// The hub's clock decides, but a machine may refuse a call if its own clock is outside
// its hours. The call moves on to the next machine (docs/faults.md#38).
func TestFault38MachineDeclines(t *testing.T) {
	for _, reason := range []tunnel.Refusal{tunnel.RefusedHours, tunnel.RefusedPaused, tunnel.RefusedUnknownModel, "\u009b31m words of its own"} {
		response := &http.Response{
			StatusCode: http.StatusServiceUnavailable, Body: http.NoBody,
			Header: http.Header{tunnel.HeaderRefused: {string(reason)}},
		}
		if got, err := readNon200(response, false); got != notTaken || err != nil {
			t.Errorf("%s: %d, %v", reason, got, err)
		}
		if words := (&attempt{daemonReason: tunnel.RefusalIn(response.Header)}).describe(notTaken); strings.Contains(words, "of its own") {
			t.Errorf("a machine's own words: %q", words)
		}
	}
}
