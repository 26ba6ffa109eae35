package gateway

import (
	"context"
	"fmt"
	"io"
	"slices"
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

// stream is the streamed answer to a call. One timer drives its heartbeats and its limits
// on silence and total time; it has no goroutine.
type stream struct {
	*request
	check  dialect.Stream
	cancel context.CancelCauseFunc
	timer  *time.Timer
	queue  atomic.Pointer[position] // nil: not waiting
	// answer is nil until a machine accepts the call. Its trailer has the usage if the
	// caller did not request it in the stream. closeAnswer closes it once.
	answer      *Answer
	closeAnswer func()

	// Protected by reply.mu.
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

func (r *request) stream() error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	s := &stream{request: r, cancel: cancel, lastWrite: r.arrived}
	r.call.Waiting = s.waiting
	s.timer = time.AfterFunc(time.Hour, s.watch) // watch reads s.timer, so set it before watch can run
	s.timer.Reset(firstBeat - time.Since(r.arrived))
	defer s.stop()
	answer, err := r.serveCall(ctx)
	if err != nil {
		return r.faultOf(ctx, r.inOwnTerms(err))
	}
	s.closeAnswer = sync.OnceFunc(func() { answer.Body.Close() })
	defer s.closeAnswer()
	s.took(answer)
	if err = s.copy(); err != nil {
		return r.faultOf(ctx, err)
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

// took begins the answer of a machine and starts its timers.
func (s *stream) took(answer *Answer) {
	s.answer = answer
	s.call.answered()
	if s.check.MaxBytes = s.tuning.Streamed; s.call.Sealed != nil {
		s.check.MaxBytes *= 2 // padded, and in base64
	}
	s.check.Trusted = answer.FromHub
	s.check.Speech, s.check.Sealed = s.call.Form != nil, s.call.Sealed != nil
	if s.check.Passthrough = dialect.PassesThrough(answer.Endpoint); answer.Endpoint == fleet.Responses {
		s.reply.passed = &s.check
	}
	if s.call.translated(answer) {
		s.check.Events = s.call.events()
	}
	s.queue.Store(nil)
	s.reply.mu.Lock()
	defer s.reply.mu.Unlock()
	now := time.Now()
	s.lastSign, s.maxSilence, s.end = now, s.tuning.FirstByte, now.Add(s.tuning.Stream)
	s.timer.Reset(s.next().Sub(now))
}

// stop stops the timer; after it only the handler writes.
func (s *stream) stop() {
	s.reply.mu.Lock()
	defer s.reply.mu.Unlock()
	s.stopped = true
	s.timer.Stop()
	s.reply.usage = s.usage()
}

// usage returns what the engine has reported so far, in the stream or in its trailer.
func (s *stream) usage() dialect.Usage {
	usage := s.check.Usage()
	if s.answer == nil || usage.Reported {
		return usage
	}
	trailer := s.answer.Trailer
	reported, ok := dialect.ParseTrailer(trailer.Get(dialect.UsageTrailer), trailer.Get(dialect.CachedTrailer))
	if ok {
		return reported
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
		n, readErr := s.answer.Body.Read(buffer[held:])
		held += n
		complete, err := s.check.Take(buffer[:held])
		frames := buffer[:complete]
		if complete > 0 && s.check.Events != nil {
			frames = s.check.Events.Next()
		}
		if err == nil && s.check.Ended() { // anything after it is ignored
			return s.last(frames, readErr)
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
			return fault.New(fault.EngineError, "the answer ended without its end mark and is incomplete")
		case readErr != nil:
			return broken(readErr)
		}
	}
}

// last passes on the last frames of an answer and closes its body. Both first wait for
// the end of the body, so that closing it cancels nothing and the usage in the trailer is
// known. The timer only writes: a panic in its goroutine would end the process.
func (s *stream) last(frames []byte, readErr error) error {
	var end, mark []byte
	if s.call.response != nil {
		frames = slices.Clone(frames) // their buffer is reused for the end
		end = s.finishResponse()
	}
	pass := sync.OnceValue(func() error {
		err := s.pass(frames)
		if err == nil && end != nil {
			err = s.pass(end)
		}
		return err
	})
	if readErr == nil {
		passing := time.AfterFunc(endLimit, func() { _ = pass() })
		closing := time.AfterFunc(closeLimit, s.closeAnswer)
		after := make([]byte, 512)
		n, _ := s.answer.Body.Read(after)
		if waits := passing.Stop(); waits {
			if cut := s.call.truncation(s.usage()); cut != "" {
				frames = append([]byte(": "+cut+"\n\n"), frames...)
			}
		}
		closing.Stop()
		if s.check.Passthrough && dialect.IsEndMark(after[:n]) {
			mark = after[:n]
		}
	}
	s.closeAnswer()
	err := pass()
	if err == nil && mark != nil {
		err = s.pass(mark)
	}
	return err
}

// pass writes complete frames, or their translation, and flushes them.
func (s *stream) pass(frames []byte) error {
	w := &s.reply
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	since := now.Sub(s.arrived)
	fresh, first := s.check.Frames() > s.frames, s.frames == 0
	s.frames = s.check.Frames()
	if fresh || s.check.Trusted { // comments of a machine do not prove that its engine is alive
		s.lastSign = now
	}
	if fresh && first {
		w.outcome.FirstByte = since
		s.maxSilence = s.tuning.Idle
		s.timer.Reset(s.next().Sub(now))
	}
	if content := s.check.Content(); content > w.outcome.Frames {
		if w.outcome.LastToken = since; w.outcome.Frames == 0 {
			w.outcome.FirstToken = since
		}
		w.outcome.Frames = content
	}
	if len(frames) == 0 { // no translation
		return nil
	}
	if !w.began {
		w.setRoute(s.call)
		w.routeSent = true
	}
	w.written += int64(len(frames))
	if comment := w.routeComment(s.call); comment != nil { // too late for the header
		frames = append(comment, frames...)
	}
	err := s.write(frames, now)
	w.outcome.Blocked += time.Since(now)
	return err
}

// write sends p at once, after the headers if they are not sent yet.
func (s *stream) write(p []byte, now time.Time) error {
	if !s.reply.began {
		s.reply.beginStream()
	}
	s.lastWrite = now
	if _, err := s.reply.Write(p); err != nil {
		return err
	}
	if err := s.reply.control.Flush(); err != nil {
		return errGone
	}
	return nil
}

// watch runs when the timer fires. It ends an answer that takes too long, sends the
// heartbeat that is due, and sets the timer again.
func (s *stream) watch() {
	if !s.reply.mu.TryLock() { // another write is in progress
		s.timer.Reset(time.Second)
		return
	}
	defer s.reply.mu.Unlock()
	if s.stopped {
		return
	}
	now := time.Now()
	if !s.lastSign.IsZero() {
		if !now.Before(s.end) {
			s.cancel(fault.New(fault.EngineTimeout, "the answer took longer than %s in all: ask for less",
				s.tuning.Stream))
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
	if !s.reply.began {
		return s.arrived.Add(firstBeat)
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
	if s.envelope == dialect.Messages {
		return []byte(dialect.PingEvent)
	}
	at := s.queue.Load()
	if at == nil {
		return []byte(": working\n\n")
	}
	left := max(0, (at.until.Sub(now)+time.Second/2)/time.Second)
	return fmt.Appendf(nil, ": waiting %d ahead, %d s left\n\n", at.ahead, left)
}
