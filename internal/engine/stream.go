package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/dialect"
)

// maxFrame bounds one frame of a stream (spec/api.md#limit-frame).
const maxFrame = 256 << 10

// drainTimeout is how long Close waits for the end of a complete stream, so that
// its connection can be reused.
const drainTimeout = 200 * time.Millisecond

// stream is the body of a streamed answer. It normalizes frame by frame while it
// is read: a Read returns what one read from the engine completed. Canonical
// frames are not copied.
type stream struct {
	ctx        context.Context
	src        io.ReadCloser
	cancel     context.CancelFunc
	normalizer *normalizer
	trailer    http.Header

	partial []byte // an incomplete frame
	ready   []byte // normalized, to be read next
	sent    int    // of ready
	err     error  // after ready
	ended   bool   // after the engine's end mark or error nothing follows
}

// Read satisfies io.Reader. It returns io.EOF at the end of the engine's bytes,
// also if the end mark is missing.
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

// untouched returns the length of the canonical frames at the start of b.
func (s *stream) untouched(b []byte) int {
	kept := 0
	for {
		n := frameEnd(b[kept:])
		if n == 0 || !s.normalizer.canonical(b[kept:kept+n]) {
			return kept
		}
		kept += n
	}
}

// feed adds bytes and makes the frames ready that they complete.
func (s *stream) feed(b []byte) {
	if s.ended || len(b) == 0 {
		return
	}
	from := max(len(s.partial)-3, 0) // a blank line may be split over two reads
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
		// Written as an error of the engine, which is passed on.
		s.ready = append(s.ready, fmt.Sprintf("data: {\"error\":{\"message\":\"the engine sent a frame of more than %d KiB\"}}\n\n", maxFrame>>10)...)
		s.stop(io.EOF)
	}
}

// frame normalizes a complete frame and makes it ready.
func (s *stream) frame(frame []byte) {
	var last bool
	s.ready, last = s.normalizer.frame(s.ready, frame)
	if last {
		s.stop(io.EOF)
	}
}

// finish handles the end of the engine's bytes. The last frame may lack its blank
// line.
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
		s.ready = s.normalizer.appendChunks(s.ready, s.normalizer.surrogates.rest())
	}
	s.stop(io.EOF)
}

// stop ends the stream with err after all that is ready.
func (s *stream) stop(err error) {
	if s.err == nil {
		s.err = err
	}
	s.ended, s.partial = true, nil
	if usage := s.normalizer.usage; usage.Reported {
		s.trailer.Set(dialect.UsageTrailer, usage.Trailer())
		s.trailer.Set(dialect.CachedTrailer, strconv.FormatInt(usage.Cached, 10))
	}
}

// Close ends the call at the engine. After a complete answer it reads on to the
// end, so that the connection is reused.
func (s *stream) Close() error {
	if s.ended && errors.Is(s.err, io.EOF) {
		late := time.AfterFunc(drainTimeout, s.cancel)
		_, _ = io.CopyN(io.Discard, s.src, maxFrame)
		late.Stop()
	}
	s.cancel()
	return s.src.Close()
}

// frameEnd returns the length of the frame at the start of b with its blank line,
// or 0 if it is incomplete.
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

var (
	errNoObject = errors.New("a JSON object was expected")
	errNoAnswer = errors.New("it is no complete chat answer")
)

// streamFrames returns a complete chat answer as a stream: each message in one
// chunk, its finish reason in another, the token counts, the end mark. The result
// is then normalized as any stream.
func streamFrames(body []byte) ([]byte, error) {
	var answer struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		Choices []struct {
			Index    int            `json:"index"`
			Message  jsontext.Value `json:"message"`
			Logprobs jsontext.Value `json:"logprobs"`
			Finish   jsontext.Value `json:"finish_reason"`
		} `json:"choices"`
		Usage jsontext.Value `json:"usage"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, err
	}
	if answer.Object != "chat.completion" || len(answer.Choices) == 0 {
		return nil, errNoAnswer
	}
	type choice struct {
		Index    int            `json:"index"`
		Delta    jsontext.Value `json:"delta"`
		Logprobs jsontext.Value `json:"logprobs,omitzero"`
		Finish   jsontext.Value `json:"finish_reason"`
	}
	var out bytes.Buffer
	frame := func(usage jsontext.Value, choices ...choice) error {
		out.WriteString("data: ")
		err := json.MarshalWrite(&out, struct {
			ID      string         `json:"id"`
			Object  string         `json:"object"`
			Created int64          `json:"created"`
			Choices []choice       `json:"choices"`
			Usage   jsontext.Value `json:"usage,omitzero"`
		}{answer.ID, "chat.completion.chunk", answer.Created, choices, usage})
		out.WriteString("\n\n")
		return err
	}
	null, empty := jsontext.Value("null"), jsontext.Value("{}")
	for _, c := range answer.Choices {
		if c.Message.Kind() != '{' || c.Finish.Kind() != '"' {
			return nil, errNoAnswer
		}
		if c.Logprobs.Kind() != '{' {
			c.Logprobs = null
		}
		if err := frame(nil, choice{c.Index, c.Message, c.Logprobs, null}); err != nil {
			return nil, err
		}
		if err := frame(nil, choice{Index: c.Index, Delta: empty, Finish: c.Finish}); err != nil {
			return nil, err
		}
	}
	if answer.Usage.Kind() == '{' {
		if err := frame(answer.Usage); err != nil {
			return nil, err
		}
	}
	out.WriteString("data: [DONE]\n\n")
	return out.Bytes(), nil
}
