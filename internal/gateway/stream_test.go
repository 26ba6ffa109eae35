package gateway

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

const (
	streamRequest = `{"model":"m","stream":true}`
	frame         = `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	done          = "data: [DONE]\n\n"
)

// tape is a ResponseWriter that records the time of each write and flush, in seconds
// since its creation.
type tape struct {
	header http.Header
	began  time.Time

	mu     sync.Mutex
	status int
	notes  []string
	text   strings.Builder
}

func newTape() *tape { return &tape{header: http.Header{}, began: time.Now()} }

func (w *tape) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.notes = append(w.notes, fmt.Sprintf("%g ", time.Since(w.began).Seconds())+fmt.Sprintf(format, args...))
}

func (w *tape) Header() http.Header { return w.header }
func (w *tape) WriteHeader(status int) {
	w.status = status
	w.note("status %d", status)
}
func (w *tape) Write(p []byte) (int, error) {
	w.text.Write(p)
	w.note("%s", p)
	return len(p), nil
}
func (w *tape) Flush() { w.note("flush") }

// play serves a streamed call on the hosted edge and returns the tape.
func play(t *testing.T, c Config) (w *tape, aborted bool) {
	t.Helper()
	w = newTape()
	return w, serveTo(New(c), w, ask("POST", "/v1/chat/completions", streamRequest))
}

// script is a body that returns its lines at their times and fails when its context ends.
type script struct {
	ctx    context.Context
	lines  []line
	closed chan struct{}
	once   sync.Once
}

type line struct {
	after time.Duration
	text  string
	err   error
}

func (s *script) Read(p []byte) (int, error) {
	if len(s.lines) == 0 {
		return 0, io.EOF
	}
	next := s.lines[0]
	select {
	case <-time.After(next.after):
	case <-s.ctx.Done():
		return 0, s.ctx.Err()
	}
	s.lines = s.lines[1:]
	return copy(p, next.text), next.err
}

func (s *script) Close() error {
	s.once.Do(func() {
		if s.closed != nil {
			close(s.closed)
		}
	})
	return nil
}

// sends returns a Backend that waits, then answers with the lines.
func sends(wait time.Duration, lines ...line) *backend {
	return &backend{do: func(ctx context.Context, call *Call) (*Answer, error) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		call.Trace.Route = "shared; machine=box; owner=ann"
		return answer(&script{ctx: ctx, lines: lines}), nil
	}}
}

func TestStreamIsPassedOnUntouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := []line{{time.Second, frame + frame, nil}, {time.Second, frame[:10], nil}, {time.Second, frame[10:] + frame[:3], nil}, {time.Second, frame[3:] + done, io.EOF}}
		w, aborted := play(t, hostedConfig(sends(0, lines...)))
		want := []string{
			"1 status 200", "1 " + frame + frame, "1 flush",
			"3 " + frame, "3 flush",
			"4 " + frame + done, "4 flush",
		}
		if aborted || strings.Join(w.notes, "|") != strings.Join(want, "|") {
			t.Errorf("aborted %v\n%q", aborted, w.notes)
		}
		h := w.header
		if h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-cache" || h.Get("X-Accel-Buffering") != "no" ||
			h.Get("X-Kith-Route") != "shared; machine=box; owner=ann" || h.Get("Content-Length") != "" || h.Get("X-Correlation-ID") == "" {
			t.Errorf("%v", h)
		}
	})
}

// Heartbeats are sent after 5 s and then every 10 s, with the position in the queue. Once
// they have begun, the route is in a comment.
func TestHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &backend{do: func(ctx context.Context, call *Call) (*Answer, error) {
			call.Waiting(2, 46*time.Second)
			time.Sleep(12 * time.Second)
			call.Waiting(1, 34*time.Second)
			time.Sleep(6 * time.Second)
			call.Waiting(-1, 0)
			time.Sleep(9 * time.Second)
			call.Trace.Route = "own; machine=box\n\nevent: x"
			return answer(&script{ctx: ctx, lines: []line{{12 * time.Second, frame, nil}, {14 * time.Second, done, nil}}}), nil
		}}
		w, aborted := play(t, hostedConfig(b))
		want := []string{
			"5 status 200", "5 : waiting 2 ahead, 41 s left\n\n", "5 flush",
			"15 : waiting 1 ahead, 31 s left\n\n", "15 flush",
			"25 : working\n\n", "25 flush",
			"35 : working\n\n", "35 flush",
			"39 : own; machine=box  event: x\n\n" + frame, "39 flush",
			"49 : working\n\n", "49 flush",
			"53 " + done, "53 flush",
		}
		if aborted || strings.Join(w.notes, "|") != strings.Join(want, "|") {
			t.Errorf("aborted %v\n%q", aborted, w.notes)
		}
		assert.Equal(t, w.header.Get("X-Kith-Route"), "", "a header after the headers")
	})
}

// A failure within 5 s has its real status. A later one is a frame without an end mark,
// and the connection is aborted.
func TestFailuresBeforeAndAfterTheFirstByte(t *testing.T) {
	gone := fault.New(fault.MachineOffline, "the machine went away")
	waited := fault.New(fault.CapacityFull, "busy").AfterWait()
	refusesAfter := func(wait time.Duration, err error) *backend {
		return &backend{do: func(context.Context, *Call) (*Answer, error) { time.Sleep(wait); return nil, err }}
	}
	panics := func(wait time.Duration) *backend {
		return &backend{do: func(context.Context, *Call) (*Answer, error) { time.Sleep(wait); panic("inside") }}
	}
	for name, c := range map[string]struct {
		b      *backend
		status int
		code   fault.Code
		at     float64
	}{
		"refused at once":       {refusesAfter(0, waited), 503, fault.CapacityFull, 0},
		"refused before 5 s":    {refusesAfter(4999*time.Millisecond, waited), 503, fault.CapacityFull, 4.999},
		"refused after 5 s":     {refusesAfter(180*time.Second, waited), 200, fault.CapacityFull, 180},
		"defect before 5 s":     {panics(time.Second), 500, fault.InternalError, 1},
		"defect after 5 s":      {panics(6 * time.Second), 200, fault.InternalError, 6},
		"broken before a frame": {sends(0, line{time.Second, "", gone}), 503, fault.MachineOffline, 1},
		"broken after a frame":  {sends(0, line{time.Second, frame, nil}, line{time.Second, "", gone}), 200, fault.MachineOffline, 2},
		"broken with a frame":   {sends(0, line{time.Second, frame, gone}), 200, fault.MachineOffline, 1},
		"broken, cause unknown": {sends(0, line{0, frame, nil}, line{time.Second, "", io.ErrUnexpectedEOF}), 200, fault.EngineError, 1},
		"no end mark":           {sends(0, line{0, frame, io.EOF}), 200, fault.EngineError, 0},
		"nothing at all":        {sends(0), 502, fault.EngineError, 0},
		"half an end mark":      {sends(0, line{0, frame + "data: [DONE]", io.EOF}), 200, fault.EngineError, 0},
		"nonsense first":        {sends(0, line{0, "<html>\n", nil}), 502, fault.EngineError, 0},
		"nonsense later":        {sends(0, line{0, frame + "data: {\n\n", nil}), 200, fault.EngineError, 0},
		"after the end":         {sends(0, line{0, frame + done + frame, nil}), 200, fault.EngineError, 0},
		"silent from the start": {sends(time.Second), 502, fault.EngineError, 1},
		"first byte too late":   {sends(0, line{time.Hour, frame, nil}), 200, fault.EngineTimeout, 600},
		"idle":                  {sends(0, line{time.Second, frame, nil}, line{time.Hour, frame, nil}), 200, fault.EngineTimeout, 121},
		"idle but for comments": {sends(0, line{0, frame, nil}, line{100 * time.Second, ":\n\n", nil}, line{time.Hour, "", nil}), 200, fault.EngineTimeout, 120},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out Outcome
				config := hostedConfig(c.b)
				config.Finished = func(_ *Call, o Outcome) { out = o }
				w, aborted := play(t, config)
				checkEnd(t, w, aborted, c.status, c.code)
				if out.Duration.Seconds() != c.at || out.Status != c.status || out.Code != string(c.code) {
					t.Errorf("%+v, want the end at %g s", out, c.at)
				}
			})
		})
	}
}

// brokenStreams are ways in which a streamed call of a translated dialect fails, with what
// its caller gets.
func brokenStreams() map[string]struct {
	b    *backend
	kind string
	code fault.Code
} {
	gone := fault.New(fault.MachineOffline, "the machine went away")
	return map[string]struct {
		b    *backend
		kind string
		code fault.Code
	}{
		"machine gone": {sends(0, line{0, frame, nil}, line{time.Second, "", gone}), "api_error", fault.MachineOffline},
		"no end mark":  {sends(0, line{0, frame, io.EOF}), "api_error", fault.EngineError},
		"error frame":  {sends(0, line{0, frame + `data: {"error":{"message":"boom"}}` + "\n\n", nil}), "api_error", fault.EngineError},
		"nonsense":     {sends(0, line{0, frame + "data: {\n\n", nil}), "api_error", fault.EngineError},
		"silence":      {sends(0, line{0, frame, nil}, line{time.Hour, "", nil}), "timeout_error", fault.EngineTimeout},
		"refused, late": {&backend{do: func(context.Context, *Call) (*Answer, error) {
			time.Sleep(9 * time.Second)
			return nil, fault.New(fault.CapacityFull, "busy").AfterWait()
		}}, "overloaded_error", fault.CapacityFull},
		"broken tool": {sends(0, line{0, frame + `data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"x"}}]}}]}` + "\n\n" + done, nil}), "api_error", fault.EngineError},
	}
}

// checkEnd checks how a failed streamed call ended.
func checkEnd(t *testing.T, w *tape, aborted bool, status int, code fault.Code) {
	t.Helper()
	text := w.text.String()
	if w.status != status || aborted != (status == 200) || strings.Contains(text, "[DONE]") {
		t.Errorf("status %d, aborted %v, %q", w.status, aborted, text)
	}
	if status == 200 {
		frames := strings.Split(strings.TrimSuffix(text, "\n\n"), "\n\n")
		text = strings.TrimPrefix(frames[len(frames)-1], "data: ")
		if w.notes[len(w.notes)-1][len(w.notes[len(w.notes)-1])-5:] != "flush" {
			t.Error("the last frame was not flushed")
		}
	}
	var got told
	assert.OK(t, json.Unmarshal([]byte(text), &got), text)
	reason := got.Error.Reason
	if status == 200 {
		reason = got.Error.Details.Reason
	}
	if got.Error.Code != string(code) || got.Error.CorrelationID != w.header.Get("X-Correlation-ID") || (reason == fault.WaitElapsed) != (code == fault.CapacityFull) {
		t.Errorf("%s", text)
	}
}

func TestStreamTotal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines []line
		for range 100 {
			lines = append(lines, line{61 * time.Second, frame, nil})
		}
		var out Outcome
		c := hostedConfig(sends(100*time.Second, lines...))
		c.Finished = func(_ *Call, o Outcome) { out = o }
		w, aborted := play(t, c)
		checkEnd(t, w, aborted, 200, fault.EngineTimeout)
		if out.Duration != 100*time.Second+30*time.Minute || out.FirstByte != 161*time.Second || out.TokensOut != 29 || out.Reported {
			t.Errorf("%+v, want 30 min from the moment a machine took it", out)
		}
	})
}

func TestUnaryTotal(t *testing.T) {
	for name, b := range map[string]*backend{
		"no answer":    sends(time.Hour),
		"no end of it": sends(time.Second, line{time.Hour, chatAnswer, nil}),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				w, _ := do(New(hostedConfig(b)), ask("POST", "/v1/chat/completions", chatRequest))
				checkFault(t, w, 504, fault.EngineTimeout)
				if took := time.Since(began); took != 590*time.Second || w.Header().Get("X-Should-Retry") != "false" {
					t.Errorf("after %v, %v", took, w.Header())
				}
			})
		})
	}
}

// A hub's answer is trusted: its comments are passed on and keep the call alive, and its
// codes stay.
func TestStreamOfAHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waiting := ": waiting 1 ahead, 9 s left\n\n"
		refusal := `data: {"error":{"code":"CAPACITY_FULL","message":"busy","details":{"reason":"wait_elapsed"}}}` + "\n\n"
		b := &backend{do: func(ctx context.Context, _ *Call) (*Answer, error) {
			a := answer(&script{ctx: ctx, lines: []line{{0, waiting, nil}, {9 * time.Minute, waiting, nil}, {9 * time.Minute, refusal, nil}}})
			a.FromHub = true
			return a, nil
		}}
		w, aborted := play(t, hostedConfig(b))
		checkEnd(t, w, aborted, 200, fault.CapacityFull)
		assert.Equal(t, strings.Count(w.text.String(), waiting), 2, w.text.String())
	})
}

// noted is a body that records on the tape when it is closed.
type noted struct {
	io.ReadCloser
	tape *tape
}

func (b noted) Close() error {
	b.tape.note("closed")
	return b.ReadCloser.Close()
}

// The body of an answer is closed before its caller gets the last frame, once it has
// ended. If it ends late, the caller waits at most endLimit, and the usage in the trailer
// is still read. If it does not end, it is closed after closeLimit.
func TestMachineIsFreeAtTheEnd(t *testing.T) {
	for name, c := range map[string]struct {
		ends           time.Duration
		passed, closed string
		reported       bool
	}{
		"with the frame":     {0, "1", "1", true},
		"soon":               {100 * time.Millisecond, "1.1", "1.1", true},
		"on a busy computer": {5 * time.Second, "1.25", "6", true},
		"never":              {time.Hour, "1.25", "11", false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTape()
				var out Outcome
				config := hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) {
					r, body := io.Pipe()
					a := answer(noted{r, w})
					a.Trailer = http.Header{}
					go func() {
						time.Sleep(time.Second)
						_, _ = io.WriteString(body, frame+done)
						time.Sleep(c.ends)
						if c.reported {
							a.Trailer.Set(dialect.UsageTrailer, dialect.Usage{In: 7, Out: 1}.Trailer())
						}
						body.Close()
					}()
					return a, nil
				}})
				config.Finished = func(_ *Call, o Outcome) { out = o }
				New(config).ServeHTTP(w, ask("POST", "/v1/chat/completions", streamRequest))
				want := []string{c.passed + " status 200", c.passed + " " + frame + done, c.passed + " flush"}
				if c.closed == c.passed {
					want = append([]string{c.closed + " closed"}, want...)
				} else {
					want = append(want, c.closed+" closed")
				}
				assert.Equal(t, strings.Join(w.notes, "|"), strings.Join(want, "|"), w.notes)
				assert.That(t, out.Reported == c.reported && (!c.reported || out.TokensIn == 7), out)
				time.Sleep(time.Hour)
			})
		})
	}
}

// If the answer of a translated call ends late, its last events are sent once and in
// order.
func TestTranslatedAnswerEndsLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTape()
		New(hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) {
			r, body := io.Pipe()
			go func() {
				_, _ = io.WriteString(body, frame+done)
				time.Sleep(5 * time.Second)
				body.Close()
			}()
			a := answer(r)
			a.Endpoint = fleet.ChatCompletions
			return a, nil
		}})).ServeHTTP(w, ask("POST", "/v1/responses", `{"model":"m","input":"x","stream":true}`))
		all := w.text.String()
		delta, completed := strings.Index(all, "event: response.output_text.delta"), strings.Index(all, "event: response.completed")
		if delta < 0 || completed < delta || strings.Count(all, "event: response.completed") != 1 || !strings.HasSuffix(all, done) {
			t.Errorf("%q", all)
		}
		if last := w.notes[len(w.notes)-1]; last != "0.25 flush" || time.Since(w.began) != 5*time.Second {
			t.Errorf("%s at the end, after %s", last, time.Since(w.began))
		}
	})
}

// If the caller disconnects while the call waits or is being answered, nothing more is
// written, the Backend's context ends and its body is closed.
func TestCallerLeaves(t *testing.T) {
	for name, after := range map[string]time.Duration{"waiting": time.Second, "answering": 10 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				closed := make(chan struct{})
				var out Outcome
				c := hostedConfig(&backend{do: func(ctx context.Context, _ *Call) (*Answer, error) {
					select {
					case <-time.After(2 * time.Second):
					case <-ctx.Done():
						close(closed)
						return nil, ctx.Err()
					}
					return answer(&script{ctx: ctx, closed: closed, lines: []line{{0, frame, nil}, {time.Hour, frame, nil}}}), nil
				}})
				c.Finished = func(_ *Call, o Outcome) { out = o }
				ctx, leave := context.WithTimeout(context.Background(), after)
				defer leave()
				w := newTape()
				aborted := serveTo(New(c), w, ask("POST", "/v1/chat/completions", streamRequest).WithContext(ctx))
				<-closed
				if !aborted || out.Code != Cancelled || strings.Contains(w.text.String(), "error") || time.Since(w.began) != after {
					t.Errorf("aborted %v, %+v, %q", aborted, out, w.text.String())
				}
				if want := map[bool]int{true: 499, false: 200}[after < 2*time.Second]; out.Status != want {
					t.Errorf("status %d, want %d", out.Status, want)
				}
			})
		})
	}
}

// The server of a request may end it with a fault; the caller gets this fault.
func TestServedUntilEnded(t *testing.T) {
	for name, after := range map[string]time.Duration{"waiting": time.Second, "answering": 3 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := hostedConfig(sends(2*time.Second, line{0, frame, nil}, line{time.Hour, frame, nil}))
				ctx, end := context.WithCancelCause(context.Background())
				time.AfterFunc(after, func() { end(fault.New(fault.InvalidAPIKey, "you are signed out")) })
				w, aborted := newTape(), false
				func() {
					defer func() { aborted = recover() == http.ErrAbortHandler }()
					New(c).ServeAs(w, ask("POST", "/v1/chat/completions", streamRequest).WithContext(ctx), fleet.Caller{Member: "ann"})
				}()
				assert.Equal(t, time.Since(w.began), after, "it ended after")
				status := map[bool]int{true: 200, false: 401}[after > 2*time.Second]
				checkEnd(t, w, aborted, status, fault.InvalidAPIKey)
			})
		})
	}
}

// slow is a caller that does not read.
type slow struct{ *tape }

func (w slow) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestCallerTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := make(chan struct{})
		var out Outcome
		c := hostedConfig(&backend{do: func(ctx context.Context, _ *Call) (*Answer, error) {
			<-ctx.Done() // the heartbeat's failure ends the wait
			close(closed)
			return nil, ctx.Err()
		}})
		c.Finished = func(_ *Call, o Outcome) { out = o }
		serveTo(New(c), slow{newTape()}, ask("POST", "/v1/chat/completions", streamRequest))
		<-closed
		assert.That(t, out.Code == Cancelled && out.Duration == 5*time.Second, out)
	})
}
