package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/kith/kith/internal/dialect"
)

// maxFrame bounds one frame of a stream (decisions 5).
const maxFrame = 256 << 10

// linger is how long a whole stream's connection may take to end, so that it
// can be used again.
const linger = 200 * time.Millisecond

// stream is the body of a streamed answer, made canonical frame by frame as it
// is read: a Read gives what one read of the engine's bytes completed, and
// frames that need no mending are never copied.
type stream struct {
	ctx     context.Context
	src     io.ReadCloser
	cancel  context.CancelFunc
	mend    *mender
	trailer http.Header

	partial []byte // of a frame whose end has not come
	ready   []byte // mended, to be read next
	sent    int    // of ready
	err     error  // after ready
	ended   bool   // the engine's own end mark came, or its error: nothing may follow
}

// Read satisfies io.Reader. After the engine's own end it is io.EOF; whether
// the end mark came is for who reads to see, nothing invents one.
func (s *stream) Read(p []byte) (int, error) {
	for {
		if s.sent < len(s.ready) {
			n := copy(p, s.ready[s.sent:])
			s.sent += n
			return n, nil
		}
		s.ready, s.sent = s.ready[:0], 0
		if s.err != nil {
			return 0, s.err
		}
		if len(p) == 0 {
			return 0, nil
		}
		n, err := s.src.Read(p)
		kept := 0
		if len(s.partial) == 0 {
			kept = s.untouched(p[:n])
		}
		s.feed(p[kept:n])
		if err != nil && s.err == nil {
			s.finish(err)
		}
		if kept > 0 {
			return kept, nil
		}
	}
}

// untouched is the length of the whole frames at the start of b that may pass
// as they are.
func (s *stream) untouched(b []byte) int {
	kept := 0
	for {
		n := frameEnd(b[kept:])
		if n == 0 || !s.mend.canonical(b[kept:kept+n]) {
			return kept
		}
		kept += n
	}
}

// feed takes bytes that were not passed on and makes ready every frame they
// complete.
func (s *stream) feed(b []byte) {
	if s.ended || len(b) == 0 {
		return
	}
	from := max(len(s.partial)-3, 0) // the end of a frame may lie across two reads
	s.partial = append(s.partial, b...)
	done := 0
	for !s.ended {
		n := frameEnd(s.partial[from:])
		if n == 0 {
			break
		}
		s.frame(s.partial[done : from+n])
		done = from + n
		from = done
	}
	if s.ended {
		return
	}
	s.partial = s.partial[:copy(s.partial, s.partial[done:])]
	if len(s.partial) > maxFrame {
		// As the engine's own error: that is passed on, and a break is not.
		s.ready = append(s.ready, fmt.Sprintf("data: {\"error\":{\"message\":\"the engine sent a frame of more than %d KiB\"}}\n\n", maxFrame>>10)...)
		s.stop(io.EOF)
	}
}

// frame makes one whole frame ready, mended.
func (s *stream) frame(frame []byte) {
	var last bool
	s.ready, last = s.mend.frame(s.ready, frame)
	if last {
		s.stop(io.EOF)
	}
}

// finish takes the end of the engine's bytes. A last frame without its blank
// line is a frame all the same.
func (s *stream) finish(err error) {
	if !errors.Is(err, io.EOF) {
		if cause := context.Cause(s.ctx); cause != nil {
			err = cause
		} else {
			err = brokeOff(err)
		}
		s.stop(err)
		return
	}
	if last := bytes.TrimSpace(s.partial); len(last) > 0 {
		s.frame(append(bytes.Clone(last), "\n\n"...))
	}
	if !s.ended {
		s.ready = s.mend.lost(s.ready, s.mend.halves.rest())
	}
	s.stop(io.EOF)
}

// stop ends the stream with err once all that is ready was read.
func (s *stream) stop(err error) {
	if s.err == nil {
		s.err = err
	}
	s.ended, s.partial = true, nil
	if s.mend.counted {
		s.trailer.Set(dialect.UsageTrailer, dialect.Usage{In: s.mend.prompt, Out: s.mend.completion}.Trailer())
	}
}

// Close ends the call at the engine. Where the answer was whole its connection
// is let run out, which takes an engine microseconds, and kept.
func (s *stream) Close() error {
	if s.ended && errors.Is(s.err, io.EOF) {
		late := time.AfterFunc(linger, s.cancel)
		_, _ = io.CopyN(io.Discard, s.src, maxFrame)
		late.Stop()
	}
	s.cancel()
	return s.src.Close()
}

// frameEnd is the length of the frame at the start of b, its blank line
// included; 0: it is not whole.
func frameEnd(b []byte) int {
	for i := 0; ; i++ {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return 0
		}
		i += n
		switch rest := b[i+1:]; {
		case len(rest) > 0 && rest[0] == '\n':
			return i + 2
		case len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n':
			return i + 3
		}
	}
}
