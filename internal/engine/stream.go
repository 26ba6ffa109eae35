package engine

import (
	"context"
	"encoding/json/jsontext"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// drainTimeout is how long drain waits for the end of a complete stream, to be able to
// reuse the connection.
const drainTimeout = 200 * time.Millisecond

// stream is the body of a streamed answer. It normalizes while it is read: each Read
// returns what became complete with one read from the engine.
type stream struct {
	ctx        context.Context
	src        io.ReadCloser
	cancel     context.CancelFunc
	normalizer *normalizer
	trailer    http.Header

	sent int   // bytes of normalizer.out that were read
	err  error // returned after those
}

// Read implements io.Reader. It returns io.EOF at the end of the engine's bytes, even if
// the end marker is missing.
func (s *stream) Read(p []byte) (int, error) {
	m := s.normalizer
	for len(p) > 0 {
		if s.sent < len(m.out) {
			n := copy(p, m.out[s.sent:])
			s.sent += n
			return n, nil
		}
		m.out, s.sent = m.out[:0], 0
		if s.err != nil {
			return 0, s.err
		}
		n, err := s.src.Read(p)
		failed := m.read(p[:n])
		if failed == nil && err == io.EOF {
			failed = m.finish()
		}
		switch {
		case failed != nil:
			m.out = append(append(append(m.out, "data: "...), errorFrame(failed)...), "\n\n"...)
			m.ended = true
			s.stop(io.EOF)
		case m.ended || err == io.EOF:
			s.stop(io.EOF)
		case err != nil:
			s.stop(brokeOff(s.ctx, err))
		}
	}
	return 0, nil
}

// errorFrame returns an error as the data of the last frame of a stream.
func errorFrame(err error) []byte {
	if sent, ok := errors.AsType[*sentError](err); ok {
		document := jsontext.Value(clean(sent.document))
		if document.Compact() == nil { // one line
			return document
		}
	}
	return []byte(`{"error":{"message":` + quoted(fault.Of(err).Message) + `}}`)
}

// stop ends the stream with err, after everything that is ready.
func (s *stream) stop(err error) {
	s.err = err
	if usage := s.normalizer.usage; usage.Reported {
		s.trailer.Set(dialect.UsageTrailer, usage.Trailer())
		s.trailer.Set(dialect.CachedTrailer, strconv.FormatInt(usage.Cached, 10))
	}
}

// Close ends the call at the engine. After a complete answer it reads to the end, so that
// the connection can be reused.
func (s *stream) Close() error {
	if s.normalizer.ended && errors.Is(s.err, io.EOF) {
		drain(s.src, s.cancel)
	}
	s.cancel()
	return s.src.Close()
}

// drain reads what follows a complete answer.
func drain(src io.Reader, cancel context.CancelFunc) {
	late := time.AfterFunc(drainTimeout, cancel)
	_, _ = io.CopyN(io.Discard, src, maxFrame)
	late.Stop()
}
