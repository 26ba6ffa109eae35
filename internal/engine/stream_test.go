package engine

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// chunked returns one of its parts for each Read.
type chunked struct{ parts [][]byte }

func (c *chunked) Read(p []byte) (int, error) {
	if len(c.parts) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.parts[0])
	if c.parts[0] = c.parts[0][n:]; len(c.parts[0]) == 0 {
		c.parts = c.parts[1:]
	}
	return n, nil
}

func streamOf(src io.Reader, want wants) *stream {
	ctx, cancel := context.WithCancel(context.Background())
	norm := newNormalizer(&Request{Model: "m", Stream: true}, want)
	norm.now = func() time.Time { return time.Unix(1, 0) }
	made := 0
	norm.ids = func() string { made++; return fmt.Sprint("ours", made) }
	return &stream{ctx: ctx, src: io.NopCloser(src), cancel: cancel, normalizer: norm, trailer: http.Header{}}
}

func golden(t testing.TB) map[string]map[string]string {
	files, err := filepath.Glob("testdata/normalize/*.txtar")
	assert.Require(t, err == nil && len(files) != 0, "no golden files", err)
	out := map[string]map[string]string{}
	for _, file := range files {
		a := assert.Value(txtar.ParseFile(file))(t)
		parts := map[string]string{}
		for _, f := range a.Files {
			parts[f.Name] = string(f.Data)
		}
		parts["in"] = strings.TrimSuffix(parts["in"], "\n") + "\n"
		out[filepath.Base(file)] = parts
	}
	return out
}

// asked returns the wants of a golden file's "ask".
func asked(t testing.TB, ask string) wants {
	e := &Engine{kind: kinds[0], models: []Model{chatModel("m", 0)}}
	_, want, err := e.request(&Request{Model: "m", Stream: true, Body: chatBody(strings.TrimSpace(ask))}, &e.models[0])
	assert.OK(t, err)
	return want
}

var update = flag.Bool("update", false, "write the golden files again")

// Each golden stream gives the same result cut at every byte, in one piece, in
// single bytes, and with other line ends.
func TestMendedStreams(t *testing.T) {
	for name, g := range golden(t) {
		t.Run(name, func(t *testing.T) {
			want, in := asked(t, g["ask"]), []byte(g["in"])
			if *update {
				got, _ := io.ReadAll(streamOf(bytes.NewReader(in), want))
				file := filepath.Join("testdata/normalize", name)
				a := assert.Value(txtar.ParseFile(file))(t)
				for i := range a.Files {
					if a.Files[i].Name == "out" {
						a.Files[i].Data = got
					}
				}
				assert.OK(t, os.WriteFile(file, txtar.Format(a), 0o644))
				return
			}
			check := func(how string, src io.Reader, small bool) {
				t.Helper()
				s := streamOf(src, want)
				var r io.Reader = s
				if small {
					r = iotest.OneByteReader(s)
				}
				got, err := io.ReadAll(r)
				assert.OK(t, err, how)
				if diff := cmp.Diff(g["out"], string(got)); diff != "" {
					t.Fatalf("%s: -want +got\n%s", how, diff)
				}
				if usage := s.trailer.Get(dialect.UsageTrailer); usage != strings.TrimSpace(g["usage"]) {
					t.Fatalf("%s: usage %q", how, usage)
				}
				s.Close()
			}
			check("whole", bytes.NewReader(in), false)
			check("single bytes", iotest.OneByteReader(bytes.NewReader(in)), true)
			check("end with the bytes", iotest.DataErrReader(bytes.NewReader(in)), false)
			for i := range in {
				check(fmt.Sprintf("cut at %d", i), &chunked{[][]byte{in[:i:i], in[i:]}}, false)
			}
		})
	}
}

// The line ends of the standard, comments, a byte order mark and unknown fields
// change nothing.
func TestOtherLineEnds(t *testing.T) {
	const in = "data: {\"id\":\"c\",\"created\":1,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n: hi\n\nretry: 3\nid: 7\nevent: x\ndata: {\"choices\":[\ndata: {\"index\":0,\"delta\":{\"content\":\"b\"}}]}\n\ndata:\n\ndata\n\ndata: \n\ndata:[DONE] \n\n"
	want, err := io.ReadAll(streamOf(strings.NewReader(in), wants{}))
	if err != nil || !bytes.Contains(want, []byte(`"content":"b"`)) || !bytes.HasSuffix(want, []byte("data: [DONE]\n\n")) {
		t.Fatalf("%s %v", want, err)
	}
	for _, end := range []string{"\n", "\r\n", "\r"} {
		in := "\ufeff" + strings.ReplaceAll(in, "\n", end)
		for i := range in {
			got, err := io.ReadAll(streamOf(&chunked{[][]byte{[]byte(in[:i]), []byte(in[i:])}}, wants{}))
			assert.Require(t, err == nil && bytes.Equal(got, want), end, "cut at", i, got, err)
		}
	}
}

// A stream gives the same complete frames wherever it is cut.
func FuzzStream(f *testing.F) {
	for _, g := range golden(f) {
		f.Add([]byte(g["in"]), uint16(100), true)
	}
	f.Fuzz(func(t *testing.T, in []byte, cut uint16, usage bool) {
		at := int(cut) % (len(in) + 1)
		whole, err1 := io.ReadAll(streamOf(bytes.NewReader(in), wants{usage: usage}))
		parts, err2 := io.ReadAll(streamOf(&chunked{[][]byte{in[:at:at], in[at:]}}, wants{usage: usage}))
		if fmt.Sprint(err1) != fmt.Sprint(err2) || !bytes.Equal(whole, parts) {
			t.Fatalf("cut at %d: %q %v, else %q %v", at, parts, err2, whole, err1)
		}
		if len(whole) > 0 && !bytes.HasSuffix(whole, []byte("\n\n")) {
			t.Fatalf("ends in the middle of a frame: %q", whole)
		}
	})
}

// A frame over the limit ends the stream with an error that names the limit and
// that the hub passes on.
func TestFrameTooLarge(t *testing.T) {
	good := `data: {"id":"chatcmpl-1","model":"test-model","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}` + "\n\n"
	endless := io.MultiReader(strings.NewReader(good+"data: {\""), &chunked{[][]byte{bytes.Repeat([]byte("x"), maxFrame)}})
	text, err := io.ReadAll(streamOf(endless, wants{}))
	assert.OK(t, err)
	var check dialect.Stream
	n, err := check.Take(text)
	if f := fault.Of(err); n != bytes.Index(text, []byte(`data: {"error"`)) || f == nil || f.Code != fault.EngineError || !strings.Contains(f.Message, "a frame of more than 256 KiB") || check.Ended() {
		t.Errorf("took %d of %d, %v", n, len(text), err)
	}
}

// do runs one call against a double with this behaviour.
func do(t *testing.T, ctx context.Context, double *enginetest.Engine, stream bool) (*http.Response, error) {
	t.Helper()
	f := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport()})
	return f.Engines()[0].Do(ctx, Request{Model: "test-model", Stream: stream, Body: []byte(`{"messages":[{"role":"user","content":"say it again"}]}`)})
}

func double(b enginetest.Behaviour) *enginetest.Engine {
	return enginetest.New(enginetest.VLLM, enginetest.Options{Behaviour: b})
}

func TestAnswers(t *testing.T) {
	const whole = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795219200,"model":"test-model","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}`
	for name, test := range map[string]struct {
		b      enginetest.Behaviour
		stream bool
		has    []string
		hasNot string
		err    fault.Code // of the body
	}{
		"unary":         {enginetest.Behaviour{}, false, []string{`"content":"say it again"`, `"prompt_tokens":3`}, "[DONE]", ""},
		"stream":        {enginetest.Behaviour{}, true, []string{whole, `{"content":"again"}`, "data: [DONE]\n\n"}, "usage", ""},
		"no end mark":   {enginetest.Behaviour{Fault: enginetest.Unmarked}, true, []string{`{"content":"again"}`}, "[DONE]", ""},
		"cut":           {enginetest.Behaviour{Fault: enginetest.Cut, After: 2}, true, []string{`{"content":"it "}`}, "again", ""},
		"dies":          {enginetest.Behaviour{Fault: enginetest.Die, After: 2}, true, []string{`{"content":"it "}`}, "again", fault.EngineError},
		"garbage":       {enginetest.Behaviour{Fault: enginetest.Garbage, After: 1}, true, []string{`data: {"error":{"message":"the engine sent a part of its answer that is not chat: {\"choices\":[{]}"}}`}, "[DONE]", ""},
		"zipped":        {enginetest.Behaviour{Fault: enginetest.Zipped}, true, []string{`{"content":"again"}`, "[DONE]"}, "", ""},
		"zipped unary":  {enginetest.Behaviour{Fault: enginetest.Zipped}, false, []string{`"content":"say it again"`}, "", ""},
		"not streamed":  {enginetest.Behaviour{Fault: enginetest.Unstreamed, Reasoning: "hm"}, true, []string{`"delta":{"role":"assistant","content":"say it again","reasoning_content":"hm","reasoning":"hm"}`, `"finish_reason":"stop"`, "[DONE]"}, `"choices":[]`, ""},
		"other model":   {enginetest.Behaviour{Answer: `{"id":"x","model":"/models/a.gguf","choices":[{"message":{"content":"a"}}]}`}, false, []string{`"model":"test-model"`}, "gguf", ""},
		"no model":      {enginetest.Behaviour{Answer: `{"id":"x","choices":[{"message":{"content":"a"}}]}`}, false, []string{`"model":"test-model"`}, "", ""},
		"no id":         {enginetest.Behaviour{Answer: `{"model":"test-model","choices":[{"message":{"content":"a"}}]}`}, false, []string{`"id":"chatcmpl-`}, "", ""},
		"empty id":      {enginetest.Behaviour{Answer: `{"id":"","model":"test-model","choices":[{"message":{"content":"a"}}]}`}, false, []string{`"id":"chatcmpl-`}, `"id":""`, ""},
		"tools, unary":  {enginetest.Behaviour{Answer: `{"model":"test-model","choices":[{"finish_reason":"stop","message":{"tool_calls":[{"id":"a","function":{"name":"f","arguments":{"a":1}}}]}}]}`}, false, []string{`"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},"finish_reason":"tool_calls"`}, `"stop"`, ""},
		"half an emoji": {enginetest.Behaviour{Answer: `{"id":"x","model":"test-model","choices":[{"message":{"content":"a\ud83d"}}]}`}, false, []string{`"content":"a\ufffd"`}, `\ud83d`, ""},
		"error, unary":  {enginetest.Behaviour{Answer: `{"error":{"message":"x","code":429}}`}, false, []string{`"message":"x"`}, "", ""},
		"its own error": {enginetest.Behaviour{Status: 429}, true, []string{`an error that was asked for`}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				resp, err := do(t, t.Context(), double(test.b), test.stream)
				assert.OK(t, err)
				want := max(test.b.Status, 200)
				if name == "error, unary" {
					want = 429
				}
				assert.Equal(t, resp.StatusCode, want, "status")
				got, err := io.ReadAll(resp.Body)
				if f, _ := errors.AsType[*fault.Fault](err); (f == nil) != (test.err == "") || f != nil && f.Code != test.err {
					t.Errorf("body broke with %v", err)
				}
				for _, has := range test.has {
					assert.Contains(t, string(got), has, "is not in", got)
				}
				if test.hasNot != "" && strings.Contains(string(got), test.hasNot) {
					t.Errorf("%s is in\n%s", test.hasNot, got)
				}
				if test.stream && test.has[0] == whole && resp.Trailer.Get(dialect.UsageTrailer) != "3 3" {
					t.Errorf("usage %q", resp.Trailer)
				}
				resp.Body.Close()
			})
		})
	}
}

// The errors of calls without an answer.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		code := func(err error) fault.Code {
			if f, ok := errors.AsType[*fault.Fault](err); ok {
				return f.Code
			}
			return ""
		}
		for name, b := range map[string]enginetest.Behaviour{
			"dies before the first byte": {Fault: enginetest.Die},
			"status that is no answer":   {Status: http.StatusTemporaryRedirect},
		} {
			if _, err := do(t, t.Context(), double(b), true); code(err) != fault.EngineError {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := do(t, t.Context(), double(enginetest.Behaviour{Fault: enginetest.Garbage, After: 3}), false); code(err) != fault.EngineError {
			t.Error(err)
		}
		for _, answer := range []string{`<html>`, `{"object":"chat.completion","choices":[]}`, `{"object":"chat.completion","choices":[{"message":null}]}`, `{}`, `[]`, ` `} {
			b := enginetest.Behaviour{Fault: enginetest.Unstreamed, Answer: answer}
			if _, err := do(t, t.Context(), double(b), false); code(err) != fault.EngineError {
				t.Errorf("%s: %v", answer, err)
			}
			resp := assert.Value(do(t, t.Context(), double(b), true))(t)
			var check dialect.Stream
			got, _ := io.ReadAll(resp.Body)
			if _, err := check.Take(got); code(err) != fault.EngineError {
				t.Errorf("%s instead of a stream: %v", answer, err)
			}
		}
		gone := Builtin("gone", atPorts{}, BuiltinState{Models: []Model{chatModel("m", 0)}})
		assert.Is(t, assert.Err(gone.Do(t.Context(), Request{Model: "m", Body: chatBody("")})), ErrUnreachable)
		for _, r := range []Request{{Model: "M"}, {Model: "m", Endpoint: fleet.EmbeddingsEndpoint}, {Model: "m", Endpoint: fleet.Messages}} {
			if _, err := gone.Do(t.Context(), r); code(err) != fault.ModelNotFound {
				t.Errorf("%v: %v", r, err)
			}
		}
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("the wait is over"))
		defer cancel()
		if _, err := do(t, ctx, double(enginetest.Behaviour{Fault: enginetest.Hang}), true); err == nil || err.Error() != "the wait is over" {
			t.Error(err)
		}
	})
}

// A frame can be read as soon as the engine has sent it.
func TestFramesComeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		resp, err := do(t, t.Context(), double(enginetest.Behaviour{Chunks: 10, First: time.Minute, Interval: time.Second}), true)
		assert.OK(t, err)
		defer resp.Body.Close()
		buf := make([]byte, 4096)
		for i := range 11 {
			n, err := resp.Body.Read(buf)
			assert.Require(t, err == nil && bytes.Count(buf[:n], []byte("\n\n")) == 1, buf[:n], err)
			if took, want := time.Since(begun), time.Minute+time.Duration(max(i-1, 0))*time.Second; took != want {
				t.Errorf("frame %d after %v, want %v", i, took, want)
			}
		}
	})
}

// Real sockets: a caller that leaves ends the call at the engine, in each way. A
// complete answer keeps its connection.
func TestCancelReachesTheEngine(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	assert.OK(t, e.Start())
	defer e.Close()
	f := finder(t, Config{Endpoints: []string{e.URL()}})
	call := func(ctx context.Context, stream bool) (*http.Response, error) {
		return f.Engines()[0].Do(ctx, Request{Model: "test-model", Stream: stream, Body: chatBody("")})
	}
	cancelled := func(n int) {
		t.Helper()
		assert.OK(t, e.Wait(ctx, func(c enginetest.Counts) bool { return c.Cancelled == n && c.Running == 0 }))
	}
	e.Set(enginetest.Behaviour{Fault: enginetest.Endless, Text: "on and on "})
	resp, err := call(ctx, true)
	assert.OK(t, err)
	assert.Value(io.ReadFull(resp.Body, make([]byte, 1000)))(t)
	resp.Body.Close()
	cancelled(1)

	leaving, leave := context.WithCancel(ctx)
	if resp, err = call(leaving, true); err != nil {
		t.Fatal(err)
	}
	leave()
	assert.Is(t, assert.Err(io.Copy(io.Discard, resp.Body)), context.Canceled)
	resp.Body.Close()
	cancelled(2)

	for i, stream := range []bool{false, true} {
		e.Set(enginetest.Behaviour{Fault: enginetest.Hang})
		leaving, leave = context.WithCancel(ctx)
		ended := make(chan error)
		go func() {
			_, err := call(leaving, stream)
			ended <- err
		}()
		assert.OK(t, e.Wait(ctx, func(c enginetest.Counts) bool { return c.Running == 1 }))
		leave()
		assert.Is(t, <-ended, context.Canceled)
		cancelled(3 + i)
	}

	// A stream of llama.cpp's server is the last answer of its connection.
	e.Set(enginetest.Behaviour{Text: "hi"})
	if resp, err = call(ctx, true); err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	assert.Equal(t, e.Last().Header.Get("Connection"), "close", "Connection")
}

// The connection of an answer is used again.
func TestConnectionsAreKept(t *testing.T) {
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	e := enginetest.New(enginetest.VLLM, enginetest.Options{})
	assert.OK(t, e.Start())
	defer e.Close()
	f := finder(t, Config{Endpoints: []string{e.URL()}})
	call := func(ctx context.Context, stream bool) (*http.Response, error) {
		return f.Engines()[0].Do(ctx, Request{Model: "test-model", Stream: stream, Body: chatBody("")})
	}
	// The connection ends a little after the answer; if a busy computer needs drainTimeout
	// for that, the next call takes another one.
	e.Set(enginetest.Behaviour{Raw: []string{chunk(`{"content":"a"}`, `"stop"`) + doneMark, ": bye\n\n"}, Interval: time.Millisecond})
	last := "" // the connection of the call before, if it was kept
	for calls, kept := 0, 0; kept < 10; calls++ {
		resp := assert.Value(call(ctx, calls%2 == 0))(t)
		assert.Value(io.Copy(io.Discard, resp.Body))(t)
		began := time.Now()
		resp.Body.Close()
		inTime := time.Since(began) < drainTimeout
		from := e.Last().From
		assert.That(t, last == "" || from == last, "call", calls, "came from", from, last)
		if last = ""; inTime {
			last, kept = from, kept+1
		}
		assert.Require(t, calls != 100, kept, "of 100 calls ended in time")
	}
}

// A request on a connection that was used before and ends without a byte of the answer
// is sent again on a new one, once; one on a new connection is not, since the engine may
// have crashed on it.
func TestDeadConnections(t *testing.T) {
	for name, test := range map[string]struct {
		deaths   map[int]bool // requests after which the connection ends, counted from 0
		requests int          // in all, of two calls
		fails    bool         // the second call
	}{
		"none":          {nil, 2, false},
		"the used one":  {map[int]bool{1: true}, 3, false},
		"both":          {map[int]bool{1: true, 2: true}, 3, true},
		"the first one": {map[int]bool{0: true}, 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if test.deaths[int(requests.Add(1))-1] {
					panic(http.ErrAbortHandler)
				}
				io.WriteString(w, `{"choices":[{"message":{"content":"a"}}]}`)
			}))
			defer server.Close()
			u, err := NewUpstream(UpstreamConfig{Name: "s", URL: server.URL + "/v1", Dialect: "chat", Models: []fleet.ModelID{"m"}, Key: "k"})
			assert.OK(t, err)
			for i := range 2 {
				answer, err := u.Engine().Do(t.Context(), Request{Endpoint: fleet.ChatCompletions, Model: "m", Body: chatBody("")})
				if fails := i == 0 && test.deaths[0] || i == 1 && test.fails; (err != nil) != fails {
					t.Fatalf("call %d: %v", i, err)
				}
				if err == nil {
					answer.Body.Close()
				}
			}
			if n := requests.Load(); int(n) != test.requests {
				t.Errorf("%d requests", n)
			}
		})
	}
}

// Close waits drainTimeout for the end of a complete stream, and ends the call at the
// engine only then.
func TestDrain(t *testing.T) {
	for ends, want := range map[time.Duration]time.Duration{drainTimeout - 1: drainTimeout - 1, time.Hour: drainTimeout} {
		synctest.Test(t, func(t *testing.T) {
			in, out := io.Pipe()
			s := streamOf(in, wants{})
			context.AfterFunc(s.ctx, func() { out.CloseWithError(context.Canceled) })
			go func() {
				io.WriteString(out, "data: [DONE]\n\n")
				select {
				case <-time.After(ends):
					out.Close()
				case <-s.ctx.Done():
				}
			}()
			assert.Value(io.Copy(io.Discard, s))(t)
			began := time.Now()
			s.Close()
			assert.Equal(t, time.Since(began), want, "an end after", ends, "it waits")
		})
	}
}

// LM Studio has no base64, so kith encodes it.
func TestBase64Embeddings(t *testing.T) {
	var answers []string
	for _, kind := range []enginetest.Kind{enginetest.LMStudio, enginetest.VLLM} {
		synctest.Test(t, func(t *testing.T) {
			double := enginetest.New(kind, enginetest.Options{Models: []enginetest.Model{{ID: "m", Embeddings: true}}})
			f := finder(t, Config{Endpoints: []string{"http://127.0.0.1:1"}, Transport: double.Transport()})
			resp, err := f.Engines()[0].Do(t.Context(), Request{Endpoint: fleet.EmbeddingsEndpoint, Model: "m", Body: []byte(`{"input":["a","b"],"encoding_format":"base64"}`)})
			assert.OK(t, err)
			got, err := io.ReadAll(resp.Body)
			assert.OK(t, err)
			answers = append(answers, string(got))
		})
	}
	if diff := cmp.Diff(answers[0], answers[1]); diff != "" || strings.Count(answers[0], `"embedding":"`) != 2 {
		t.Errorf("%s\n%s", diff, answers[0])
	}
}

// A complete answer that is longer than one of its endpoint may be is refused.
func TestAnswerTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := do(t, t.Context(), double(enginetest.Behaviour{Text: strings.Repeat("word ", 8<<20/5)}), false)
		if f := fault.Of(err); err == nil || f.Code != fault.EngineError || !strings.Contains(f.Message, "larger than 8 MiB") {
			t.Errorf("got %v", err)
		}
	})
}

// A call that finds the idle connection dead is sent on a new one. If the handshake of
// that fails, nothing of the call was sent either.
func TestHandshakeFailsAfterIdle(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, `{"choices":[{"message":{"content":"a"}}]}`)
	}))
	server.StartTLS()
	defer server.Close()
	conns := make(chan *brittleConn, 2)
	transport := newTransport()
	transport.TLSClientConfig = server.Client().Transport.(*http.Transport).TLSClientConfig
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &brittleConn{Conn: conn}
		c.broken.Store(len(conns) > 0) // of the second, the handshake fails
		conns <- c
		return c, nil
	}
	u, err := NewUpstream(UpstreamConfig{Name: "s", URL: server.URL + "/v1", Dialect: "chat", Models: []fleet.ModelID{"m"}, Transport: transport})
	assert.OK(t, err)
	call := Request{Endpoint: fleet.ChatCompletions, Model: "m", Body: chatBody("")}
	answer, err := u.Engine().Do(t.Context(), call)
	assert.OK(t, err)
	io.Copy(io.Discard, answer.Body)
	answer.Body.Close()
	first := <-conns
	conns <- first
	first.broken.Store(true)
	if _, err := u.Engine().Do(t.Context(), call); !errors.Is(err, ErrUnreachable) || len(conns) != 2 {
		t.Errorf("%v, after %d connections", err, len(conns))
	}
}

// brittleConn fails to write while it is broken.
type brittleConn struct {
	net.Conn
	broken atomic.Bool
}

func (c *brittleConn) Write(p []byte) (int, error) {
	if c.broken.Load() {
		return 0, errors.New("the connection is broken")
	}
	return c.Conn.Write(p)
}

// Of a call whose TLS handshake fails nothing was sent: it did not start, and another
// machine may serve it.
func TestHandshakeFails(t *testing.T) {
	for name, server := range map[string]func(net.Conn){
		"silent":  func(net.Conn) {},
		"ends":    func(c net.Conn) { c.Close() },
		"no TLS":  func(c net.Conn) { c.Read(make([]byte, 1<<10)); io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n") },
		"refuses": func(c net.Conn) { tls.Server(c, &tls.Config{}).Handshake() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				transport := newTransport()
				transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
					ours, theirs := net.Pipe()
					t.Cleanup(func() { ours.Close(); theirs.Close() })
					go server(theirs)
					return ours, nil
				}
				u, err := NewUpstream(UpstreamConfig{Name: "s", URL: "https://127.0.0.1/v1", Dialect: "chat", Models: []fleet.ModelID{"m"}, Transport: transport})
				assert.OK(t, err)
				if _, err := u.Engine().Do(t.Context(), Request{Model: "m", Body: chatBody("")}); !errors.Is(err, ErrUnreachable) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}
