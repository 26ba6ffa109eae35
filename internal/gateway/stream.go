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

// A streamed call that has heard nothing for firstBeat is answered 200 and
// kept alive by a comment, and by another whenever nothing was written for
// nextBeat (spec/routing.md#heartbeat): proxies cut silent streams after a minute.
const (
	firstBeat = 5 * time.Second
	nextBeat  = 10 * time.Second
)

// After its end mark an answer's body ends at once. On a busy computer it may come late: the last frames wait for it for
// endLimit, and the call for closeLimit.
const (
	endLimit   = 250 * time.Millisecond
	closeLimit = 10 * time.Second
)

// stream is the streamed answer of an exchange. One timer serves its heartbeats and its limits on silence and total time;
// it has no goroutine of its own.
type stream struct {
	x      *exchange
	check  dialect.Stream
	cancel context.CancelCauseFunc
	// body is the body of the answer, nil until a machine took the call; closeBody closes it
	// once.
	body      io.Reader
	closeBody func()
	queue     atomic.Pointer[position] // nil: not waiting
	answer    *Answer                  // its trailer has the usage, where the caller did not ask for it

	timer *time.Timer

	// Under x.mu.
	stopped    bool
	lastWrite  time.Time     // when anything was last written; before that: arrival
	lastSign   time.Time     // last sign of life of the machine; zero: none took it
	maxSilence time.Duration // longest time without one
	end        time.Time     // the end of its total time
	frames     int           // with data, passed on
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
	s.timer = time.AfterFunc(time.Hour, s.watch) // watch reads s.timer, so it starts after this
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

// waiting is Call.Waiting.
func (s *stream) waiting(ahead int, left time.Duration) {
	if ahead < 0 {
		s.queue.Store(nil)
		return
	}
	s.queue.Store(&position{ahead: ahead, until: time.Now().Add(left)})
}

// took notes that a machine took the call: from now its limits count.
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

// events are those that a chat stream is turned into.
func (x *exchange) events() *dialect.Events {
	switch {
	case x.response != nil:
		return x.response.Events()
	case x.forms != nil:
		return x.forms.Events()
	}
	return dialect.NewMessageEvents(x.messageID(), x.call.Model)
}

// stop ends the watch; whatever is written after it comes from the handler.
func (s *stream) stop() {
	s.x.mu.Lock()
	defer s.x.mu.Unlock()
	s.stopped = true
	s.timer.Stop()
	s.x.usage = s.usage()
}

// usage is what the engine reported so far, in the stream or behind it.
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

// copy passes on the complete frames of the answer, with one write and one flush a read. The answer is good only if its
// end mark was seen. The call has ended at its machine before its caller gets the last frame: the next call of a
// conversation, which may follow at once, finds the machine free that has its prompt (spec/routing.md#slot).
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
		if err == nil && s.check.Ended() { // what comes after it is ignored
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

// finish passes on the last frames of an answer and closes its body. Each waits for the body's own end: so closing cancels
// nothing, and the usage in the trailer is known. The timer only writes: a panic in its goroutine would end the process.
func (s *stream) finish(frames []byte, readErr error) error {
	var last, mark []byte
	if s.x.response != nil {
		frames = slices.Clone(frames) // their buffer takes the last ones
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
	if fresh || s.check.Trusted { // a machine's comments are no sign of its engine
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
	if len(frames) == 0 { // these frames have no translation
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

// write sends bytes at once, after the headers if they have not gone yet.
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

// beginStream sends status and headers of a streamed answer.
func (x *exchange) beginStream() {
	h := x.w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = []string{"no-cache"}
	h["X-Accel-Buffering"] = []string{"no"}
	x.begin(http.StatusOK)
}

// watch is called by the timer: it ends what took too long, sends the heartbeat that
// is due, and sets the timer for what comes next.
func (s *stream) watch() {
	x := s.x
	if !x.mu.TryLock() { // a write is underway
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

// beat is when the next heartbeat is due.
func (s *stream) beat() time.Time {
	if !s.x.began {
		return s.x.arrived.Add(firstBeat)
	}
	return s.lastWrite.Add(nextBeat)
}

// next is when the watch has something to do.
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

// heartbeat is a comment with the position in the queue; in the messages
// dialect an event, which also sets back the watchdogs of its clients.
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
