package gateway

import (
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// If a streamed call has no frame after firstBeat, it is answered with status 200 and a
// comment. Another comment follows whenever nothing was written for nextBeat
// (spec/routing.md#heartbeat), because proxies cut silent streams after a minute.
const (
	firstBeat = 5 * time.Second
	nextBeat  = 10 * time.Second
)

// After its end mark the body of an answer should end at once; on a busy computer that
// may take longer. The last frames wait endLimit for it, and the call waits closeLimit.
const (
	endLimit   = 250 * time.Millisecond
	closeLimit = 10 * time.Second
)

// stream is the streamed answer of an exchange. One timer drives its heartbeats and its
// limits on silence and total time; it has no goroutine.
type stream struct {
	x      *exchange
	check  dialect.Stream
	cancel context.CancelCauseFunc
	// body is the body of the answer, nil until a machine accepts the call; closeBody
	// closes it once.
	body      io.Reader
	closeBody func()
	queue     atomic.Pointer[position] // nil: not waiting
	answer    *Answer                  // the trailer has the usage if the caller did not request it in the stream

	timer *time.Timer

	// Protected by x.mu.
	stopped    bool
	lastWrite  time.Time     // the arrival until the first write
	lastSign   time.Time     // last sign of life from the machine; zero: none has accepted the call
	maxSilence time.Duration // longest allowed time without one
	end        time.Time     // when the total time is over
	frames     int           // passed on with data
}

type position struct {
	ahead int
	until time.Time
}

func (x *exchange) stream() error {
	ctx, cancel := context.WithCancelCause(x.r.Context())
	defer cancel(nil)
	s := &stream{x: x, cancel: cancel, lastWrite: x.arrived}
	x.call.Waiting = s.waiting
	s.timer = time.AfterFunc(time.Hour, s.watch) // watch reads s.timer, so set it before watch can run
	s.timer.Reset(firstBeat - time.Since(x.arrived))
	defer s.stop()
	answer, err := x.serveCall(ctx)
	if err != nil {
		return x.faultOf(ctx, x.inOwnTerms(err))
	}
	s.body, s.closeBody = answer.Body, sync.OnceFunc(func() { answer.Body.Close() })
	defer s.closeBody()
	x.call.answered(x.response != nil)
	s.took(answer)
	s.answer = answer
	if err = s.copy(); err != nil {
		return x.faultOf(ctx, err)
	}
	return nil
}

// waiting implements Call.Waiting.
func (s *stream) waiting(ahead int, left time.Duration) {
	if ahead < 0 {
		s.queue.Store(nil)
		return
	}
	s.queue.Store(&position{ahead: ahead, until: time.Now().Add(left)})
}

// took starts the answer's timers.
func (s *stream) took(answer *Answer) {
	s.check.MaxBytes = s.x.tuning.Streamed
	s.check.Trusted = answer.FromHub
	s.check.Speech = s.x.call.Form != nil
	if s.check.Passthrough = dialect.PassesThrough(answer.Endpoint); answer.Endpoint == fleet.Responses {
		s.x.passed = &s.check
	}
	if s.x.call.translated(answer) {
		s.check.Events = s.x.events()
	}
	s.queue.Store(nil)
	x := s.x
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	s.lastSign, s.maxSilence, s.end = now, x.tuning.FirstByte, now.Add(x.tuning.Stream)
	s.timer.Reset(s.next().Sub(now))
}

// events returns the translator for a chat stream.
func (x *exchange) events() *dialect.Events {
	switch {
	case x.response != nil:
		return x.response.Events()
	case x.forms != nil:
		return x.forms.Events()
	}
	return dialect.NewMessageEvents(x.messageID(), x.call.Model)
}

// stop stops the timer; after it only the handler writes.
func (s *stream) stop() {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	s.stopped = true
	s.timer.Stop()
	s.x.usage = s.usage()
}

// usage returns what the engine has reported so far, in the stream or in its trailer.
func (s *stream) usage() dialect.Usage {
	usage := s.check.Usage()
	if s.answer == nil || usage.Reported {
		return usage
	}
	if trailer, ok := dialect.ParseTrailer(s.answer.Trailer.Get(dialect.UsageTrailer), s.answer.Trailer.Get(dialect.CachedTrailer)); ok {
		return trailer
	}
	return usage
}

// copy passes on the complete frames of the answer, with one write and one flush for each
// read. The answer is valid only if it has its end mark. The call ends at its machine
// before the caller gets the last frame: the conversation's next call may follow at once,
// and it should find the machine that has its prompt free (spec/routing.md#slot).
func (s *stream) copy() error {
	pooled := buffers.Get().(*[]byte)
	defer release(pooled)
	buffer, held := (*pooled)[:cap(*pooled)], 0
	defer func() { *pooled = buffer }()
	for {
		if held == len(buffer) {
			buffer = append(buffer, make([]byte, len(buffer))...)
		}
		n, readErr := s.body.Read(buffer[held:])
		held += n
		complete, err := s.check.Take(buffer[:held])
		frames := buffer[:complete]
		if complete > 0 && s.check.Events != nil {
			frames = s.check.Events.Next()
		}
		if err == nil && s.check.Ended() { // anything after it is ignored
			return s.finish(frames, readErr)
		}
		if complete > 0 {
			if err := s.pass(frames); err != nil {
				return err
			}
			held = copy(buffer, buffer[complete:held])
		}
		switch {
		case err != nil:
			return err
		case readErr == io.EOF:
			return fault.New(fault.EngineError, "the answer ended without its end mark: it is not complete")
		case readErr != nil:
			return broken(readErr)
		}
	}
}

// finish passes on the last frames of an answer and closes its body. Both first wait for
// the end of the body, so that closing it cancels nothing and the usage in the trailer is
// known. The timer only writes: a panic in its goroutine would end the process.
func (s *stream) finish(frames []byte, readErr error) error {
	var last, mark []byte
	if s.x.response != nil {
		frames = slices.Clone(frames) // their buffer is reused for the last frames
		last = s.x.finishResponse()
	}
	pass := sync.OnceValue(func() error {
		err := s.pass(frames)
		if err == nil && last != nil {
			err = s.pass(last)
		}
		return err
	})
	if readErr == nil {
		passing := time.AfterFunc(endLimit, func() { _ = pass() })
		closing := time.AfterFunc(closeLimit, s.closeBody)
		after := make([]byte, 512)
		n, _ := s.body.Read(after)
		if waits := passing.Stop(); waits {
			if cut := s.x.truncation(s.usage()); cut != "" {
				frames = append([]byte(": "+cut+"\n\n"), frames...)
			}
		}
		closing.Stop()
		if s.check.Passthrough && dialect.IsEndMark(after[:n]) {
			mark = after[:n]
		}
	}
	s.closeBody()
	err := pass()
	if err == nil && mark != nil {
		err = s.pass(mark)
	}
	return err
}

// pass writes complete frames, or their translation, and flushes them.
func (s *stream) pass(frames []byte) error {
	x := s.x
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	fresh, first := s.check.Frames() > s.frames, s.frames == 0
	s.frames = s.check.Frames()
	if fresh || s.check.Trusted { // comments of a machine do not prove that its engine is alive
		s.lastSign = now
	}
	if fresh && first {
		x.firstByte = now.Sub(x.arrived)
		s.maxSilence = x.tuning.Idle
		s.timer.Reset(s.next().Sub(now))
	}
	if content := s.check.Content(); content > x.frames {
		if x.lastToken = now.Sub(x.arrived); x.frames == 0 {
			x.firstToken = x.lastToken
		}
		x.frames = content
	}
	if len(frames) == 0 { // no translation
		return nil
	}
	if !x.began {
		setRoute(x.w.Header(), x.call)
		x.routeSent = true
	}
	x.written += int64(len(frames))
	if comment := x.routeComment(); comment != nil { // too late for the header
		frames = append(comment, frames...)
	}
	err := s.write(frames, now)
	x.blocked += time.Since(now)
	return err
}

// write sends p at once, after the headers if they are not sent yet.
func (s *stream) write(p []byte, now time.Time) error {
	x := s.x
	x.arm(now)
	if !x.began {
		x.beginStream()
	}
	s.lastWrite = now
	if _, err := x.w.Write(p); err != nil {
		return errGone
	}
	if err := x.control.Flush(); err != nil {
		return errGone
	}
	return nil
}

// beginStream sends the status and headers of a streamed answer.
func (x *exchange) beginStream() {
	h := x.w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	x.begin(http.StatusOK)
}

// watch runs when the timer fires. It ends an answer that takes too long, sends the
// heartbeat that is due, and sets the timer again.
func (s *stream) watch() {
	x := s.x
	if !x.mu.TryLock() { // another write is in progress
		s.timer.Reset(time.Second)
		return
	}
	defer x.mu.Unlock()
	if s.stopped {
		return
	}
	now := time.Now()
	if !s.lastSign.IsZero() {
		if !now.Before(s.end) {
			s.cancel(fault.New(fault.EngineTimeout, "the answer took longer than %s in all: ask for less", x.tuning.Stream))
			return
		}
		if now.Sub(s.lastSign) >= s.maxSilence {
			s.cancel(fault.New(fault.EngineTimeout, "the machine's engine sent nothing for %s", s.maxSilence))
			return
		}
	}
	if !now.Before(s.beat()) {
		if err := s.write(s.heartbeat(now), now); err != nil {
			s.cancel(err)
			return
		}
	}
	s.timer.Reset(s.next().Sub(now))
}

// beat returns when the next heartbeat is due.
func (s *stream) beat() time.Time {
	if !s.x.began {
		return s.x.arrived.Add(firstBeat)
	}
	return s.lastWrite.Add(nextBeat)
}

// next returns when watch must run again.
func (s *stream) next() time.Time {
	next := s.beat()
	if !s.lastSign.IsZero() {
		for _, limit := range [...]time.Time{s.lastSign.Add(s.maxSilence), s.end} {
			if limit.Before(next) {
				next = limit
			}
		}
	}
	return next
}

// heartbeat returns a comment with the position in the queue. In the messages dialect it
// is an event, which also resets the idle timers of its clients.
func (s *stream) heartbeat(now time.Time) []byte {
	if s.x.envelope == dialect.Messages {
		return []byte(dialect.PingEvent)
	}
	at := s.queue.Load()
	if at == nil {
		return []byte(": working\n\n")
	}
	left := max(0, (at.until.Sub(now)+time.Second/2)/time.Second)
	line := strconv.AppendInt([]byte(": waiting "), int64(at.ahead), 10)
	line = append(line, " ahead, "...)
	line = strconv.AppendInt(line, int64(left), 10)
	return append(line, " s left\n\n"...)
}
