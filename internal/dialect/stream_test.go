package dialect

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

const (
	chunk    = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}` + "\n\n"
	opening  = `data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}` + "\n\n"
	usage    = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}` + "\n\n"
	done     = "data: [DONE]\n\n"
	goodText = opening + chunk + ": note\n\n" + chunk + usage + done
)

// feed passes s the text in pieces of that many bytes and returns what s passed on.
func feed(s *Stream, text string, size int) (passed string, err error) {
	var pending, out []byte
	for len(text) > 0 && err == nil {
		n := min(size, len(text))
		pending = append(pending, text[:n]...)
		text = text[n:]
		var whole int
		whole, err = s.Take(pending)
		out = append(out, pending[:whole]...)
		pending = append([]byte(nil), pending[whole:]...)
	}
	return string(out), err
}

func TestStreamPassesWholeFramesUntouched(t *testing.T) {
	crlf := strings.ReplaceAll(goodText, "\n", "\r\n")
	for _, text := range []string{goodText, crlf, "\n\n" + goodText, strings.ReplaceAll(goodText, "data: ", "data:")} {
		for size := 1; size <= len(text); size += stride() {
			s := Stream{Trusted: true}
			passed, err := feed(&s, text, size)
			if err != nil || passed != text || !s.Ended() {
				t.Fatalf("in pieces of %d: passed %q, %v, ended %v", size, passed, err, s.Ended())
			}
			if got := s.Usage(); got != (Usage{In: 7, Out: 3, Reported: true}) || s.Frames() != 5 {
				t.Fatalf("in pieces of %d: usage %+v, %d frames", size, got, s.Frames())
			}
		}
	}
}

func TestStreamCountsContentWithoutUsage(t *testing.T) {
	var s Stream
	text := opening + chunk +
		`data: {"choices":[{"delta":{"reasoning_content":"x"}}]}` + "\n\n" +
		`data: {"choices":[{"delta":{"tool_calls":[{"index":0}]}}],"usage":null}` + "\n\n" +
		`data: {"choices":[{"delta":{"tool_calls":[],"content":null},"finish_reason":"stop"}],"usage":{"prompt_tokens":-1}}` + "\n\n" + done
	assert.Value(feed(&s, text, 7))(t)
	assert.Equal(t, s.Usage(), (Usage{Out: 3}), "usage")
}

// A machine cannot imitate the hub: its comments lose their text.
func TestStreamBlanksStrangersComments(t *testing.T) {
	var s Stream
	passed, err := feed(&s, ": own; machine=mine\n"+chunk, 5)
	if want := ":" + strings.Repeat(" ", len(" own; machine=mine")) + "\n" + chunk; err != nil || passed != want {
		t.Errorf("passed %q, %v", passed, err)
	}
}

func TestStreamRefuses(t *testing.T) {
	big := func(n int) string { return `data: {"x":"` + strings.Repeat("y", n) + `"}` + "\n\n" }
	for name, c := range map[string]struct{ bad, passed string }{
		"broken JSON":         {`data: {"a":}` + "\n\n", chunk},
		"cut JSON":            {`data: {"a":1` + "\n\n", chunk},
		"two documents":       {`data: {} {}` + "\n\n", chunk},
		"not an object":       {`data: 1` + "\n\n", chunk},
		"empty data":          {"data:\n\n", chunk},
		"HTML":                {"<html>\n\n", chunk},
		"event line":          {"event: ping\ndata: {}\n\n", chunk},
		"two data lines":      {"data: {\ndata: }\n\n", chunk},
		"two whole lines":     {"data: {}\ndata: {}\n\n", chunk},
		"invalid UTF-8":       {"data: {\"a\":\"\xff\"}\n\n", chunk},
		"lone surrogate":      {`data: {"a":"\ud800"}` + "\n\n", chunk},
		"duplicate name":      {`data: {"a":1,"a":1}` + "\n\n", chunk},
		"bare CR":             {"data: {\"a\":\r1}\n\n", chunk},
		"frame too big":       {big(MaxFrame), chunk},
		"endless line":        {"data: " + strings.Repeat("y", MaxFrame), chunk},
		"second end":          {done + done, chunk},
		"data after the end":  {done + chunk, chunk},
		"bytes after the end": {done + "x", chunk},
		"error frame":         {`data: {"error":{"code":"invalid_api_key","message":"boom"}}` + "\n\n", chunk},
		"escaped error frame": {`data: {"err\u006fr":{"message":"boom"}}` + "\n\n", chunk},
		"error string":        {`data: {"error":"boom"}` + "\n\n", chunk},
	} {
		t.Run(name, func(t *testing.T) {
			var s Stream
			passed, err := feed(&s, chunk+c.bad, len(chunk+c.bad))
			var f *fault.Fault
			if !errors.As(err, &f) || f.Code != fault.EngineError || passed != c.passed {
				t.Errorf("passed %.300q, %v", passed, err)
			}
			if strings.Contains(name, "error") && !strings.Contains(f.Message, "boom") {
				t.Errorf("the engine's own words are lost: %s", f.Message)
			}
			if (name == "frame too big" || name == "endless line") && !strings.Contains(f.Message, "a frame of more than 256 KiB") {
				t.Errorf("the limit is not named: %s", f.Message)
			}
		})
	}
	t.Run("after the end, later", func(t *testing.T) {
		var s Stream
		if _, err := feed(&s, done, 100); err != nil || !s.Ended() {
			t.Fatal(err)
		}
		if n, err := s.Take([]byte(chunk)); err == nil || n != 0 {
			t.Errorf("took %d, %v", n, err)
		}
	})
}

func TestStreamLimits(t *testing.T) {
	t.Run("frames", func(t *testing.T) {
		var s Stream
		const many = 100_000 // tokens of a long answer
		long := strings.Repeat("data: {}\n\n", many)
		if passed, err := feed(&s, long, 1<<20); err != nil || passed != long || s.Frames() != many {
			t.Errorf("passed %d bytes, %d frames, %v", len(passed), s.Frames(), err)
		}
	})
	t.Run("bytes", func(t *testing.T) {
		var s Stream
		const most = 64 << 20
		frame := `data: {"x":"` + strings.Repeat("y", 200_000) + `"}` + "\n\n"
		// The pieces, and what is not yet passed on, share one buffer: filling that much
		// memory takes long under the race detector.
		var pending []byte
		var err error
		passed, n := 0, 0
		for at := 0; at < most+len(frame) && err == nil; {
			for piece := 1 << 18; piece > 0; {
				part := frame[at%len(frame):]
				part = part[:min(len(part), piece)]
				pending = append(pending, part...)
				at, piece = at+len(part), piece-len(part)
			}
			n, err = s.Take(pending)
			passed += n
			pending = pending[:copy(pending, pending[n:])]
		}
		assert.That(t, err != nil && passed == most/len(frame)*len(frame), "passed", passed, "bytes", err)
	})
	t.Run("a frame of exactly the limit", func(t *testing.T) {
		var s Stream
		frame := `data: {"x":"` + strings.Repeat("y", MaxFrame-16) + `"}` + "\n\n"
		assert.Require(t, len(frame) == MaxFrame, len(frame), "bytes")
		if passed, err := feed(&s, frame, 10_000); err != nil || passed != frame {
			t.Errorf("passed %d bytes, %v", len(passed), err)
		}
	})
}

func TestStreamTrustedKeepsCodes(t *testing.T) {
	s := Stream{Trusted: true}
	frame := FaultFrame(Chat, fault.New(fault.MachineOffline, "gone"), "id")
	_, err := s.Take(frame)
	if f := fault.Of(err); f.Code != fault.MachineOffline || f.Message != "gone" {
		t.Errorf("%v", err)
	}
}

func TestCheckUnary(t *testing.T) {
	got, err := CheckUnary(strings.NewReader(`{"object":"list","data":[],"usage":{"prompt_tokens":4,"total_tokens":4}}`))
	assert.That(t, err == nil && got == (Usage{In: 4, Reported: true}), got, err)
	for _, bad := range []string{``, `[]`, `{"a":1}{}`, `{"a":1,"a":2}`, "{\"a\":\"\xff\"}", `{"error":{"message":"x"}}`, `data: {}`} {
		if _, err := CheckUnary(strings.NewReader(bad)); err == nil || fault.Of(err).Code != fault.EngineError {
			t.Errorf("CheckUnary(%q): %v", bad, err)
		}
	}
	if _, err := CheckUnary(strings.NewReader(`{"error":null}`)); err != nil {
		t.Error(err)
	}
}

// FuzzStream checks that the places of the splits change nothing, and that the bytes
// passed on are a prefix of the input that ends with a frame.
func FuzzStream(f *testing.F) {
	f.Add([]byte(goodText), byte(3))
	f.Add([]byte(chunk+"data: {\r\n\r\n"), byte(1))
	f.Add([]byte(done+"\n"+done), byte(200))
	f.Fuzz(func(t *testing.T, text []byte, size byte) {
		whole, pieces := Stream{Trusted: true}, Stream{Trusted: true}
		a, errA := feed(&whole, string(text), max(len(text), 1))
		b, errB := feed(&pieces, string(text), int(size)+1)
		if !bytes.HasPrefix(text, []byte(a)) || !bytes.HasPrefix(text, []byte(b)) {
			t.Fatal("changed what it passed")
		}
		assert.Require(t, a == "" || strings.HasSuffix(a, "\n"), "passed a part of a frame", a)
		if strings.Contains(string(text), "[DONE]") {
			return // bytes after the end are seen sooner or later
		}
		if (errA == nil) != (errB == nil) || a != b || whole.Usage() != pieces.Usage() {
			t.Fatalf("whole: %q, %v; in pieces: %q, %v", a, errA, b, errB)
		}
	})
}

func BenchmarkStreamChunk(b *testing.B) {
	var s Stream
	frame := []byte(chunk)
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for b.Loop() {
		assert.Equal(b, assert.Value(s.Take(frame))(b), len(frame))
		s.frames, s.bytes = 0, 0
	}
}
