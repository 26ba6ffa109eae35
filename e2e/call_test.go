package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/enginetest"
)

// double is an engine double of a script's.
type double struct{ engine *enginetest.Engine }

// double NAME KIND [key=KEY] [embeds=MODEL] [MODEL...] starts an engine double; $NAME is
// its URL.
func startDouble(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 2, "double NAME KIND [key=KEY] [embeds=MODEL] [MODEL...]")
	var o enginetest.Options
	for _, arg := range args[2:] {
		if key, ok := strings.CutPrefix(arg, "key="); ok {
			o.Key = key
			continue
		}
		id, embeds := strings.CutPrefix(arg, "embeds=")
		o.Models = append(o.Models, enginetest.Model{ID: id, Embeddings: embeds})
	}
	e := enginetest.New(enginetest.Kind(args[1]), o)
	ts.Check(e.Start())
	of(ts).doubles[args[0]] = double{e}
	ts.Setenv(args[0], e.URL())
}

// behave NAME KEY=VALUE... sets how a double answers from now on: text, chunks, tool
// (its arguments), answer, first and interval (durations), status, fault (die, cut, hang, garbage), after.
func behave(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 1, "behave NAME KEY=VALUE...")
	var b enginetest.Behaviour
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		var err error
		switch key {
		case "text":
			b.Text = value
		case "answer":
			b.Answer = value
		case "tool":
			b.Tool = &enginetest.ToolCall{ID: "call_1", Name: "read", Input: value}
		case "chunks":
			b.Chunks, err = strconv.Atoi(value)
		case "first":
			b.First, err = time.ParseDuration(value)
		case "interval":
			b.Interval, err = time.ParseDuration(value)
		case "status":
			b.Status, err = strconv.Atoi(value)
		case "after":
			b.After, err = strconv.Atoi(value)
		case "fault":
			b.Fault = map[string]enginetest.Fault{"die": enginetest.Die, "cut": enginetest.Cut, "hang": enginetest.Hang, "garbage": enginetest.Garbage}[value]
		default:
			ts.Fatalf("behave: unknown key %q", key)
		}
		ts.Check(err)
	}
	of(ts).doubles[args[0]].engine.Set(b)
}

// counts NAME FIELD=N... waits until the double's counts are those.
func counts(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 2, "counts NAME runs|running|completed|cancelled=N...")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e := of(ts).doubles[args[0]].engine
	err := e.Wait(ctx, func(c enginetest.Counts) bool {
		for _, arg := range args[1:] {
			name, want, _ := strings.Cut(arg, "=")
			got := map[string]int{"runs": c.Runs, "running": c.Running, "completed": c.Completed, "cancelled": c.Cancelled}[name]
			if strconv.Itoa(got) != want {
				return false
			}
		}
		return true
	})
	if err != nil {
		ts.Fatalf("the double's counts are %+v, not %v", e.Counts(), args[1:])
	}
}

// request builds what call and stream send: METHOD URL [NAME:VALUE]... [@FILE].
func request(ts *testscript.TestScript, ctx context.Context, args []string) *http.Request {
	var payload []byte
	if last := args[len(args)-1]; strings.HasPrefix(last, "@") {
		var err error
		payload, err = os.ReadFile(ts.MkAbs(last[1:]))
		ts.Check(err)
		args = args[:len(args)-1]
	}
	r, err := http.NewRequestWithContext(ctx, args[0], args[1], bytes.NewReader(payload))
	ts.Check(err)
	if payload != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, header := range args[2:] {
		name, value, _ := strings.Cut(header, ":")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Set(name, strings.TrimSpace(value))
	}
	return r
}

// call STATUS CODE METHOD URL [NAME:VALUE]... [@FILE] makes a request and checks
// status, error code ("-" for none) and that the correlation id is in all
// three headers and, in an error, in the body. The body goes to the log.
func call(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 4, "call STATUS CODE METHOD URL [NAME:VALUE]... [@FILE]")
	ts.Check(tryCall(ts, args))
}

func tryCall(ts *testscript.TestScript, args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	response, err := http.DefaultTransport.RoundTrip(request(ts, ctx, args[2:]))
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	fmt.Fprintf(ts.Stdout(), "%d\n", response.StatusCode)
	for _, name := range []string{"X-Correlation-Id", "Retry-After", "X-Should-Retry", "Allow", "X-Kith-Route"} {
		if value := response.Header.Get(name); value != "" {
			fmt.Fprintf(ts.Stdout(), "%s: %s\n", name, value)
		}
	}
	fmt.Fprintf(ts.Stdout(), "%s\n", text)
	if got := strconv.Itoa(response.StatusCode); got != args[0] {
		return fmt.Errorf("status %s, want %s: %s", got, args[0], text)
	}
	id := response.Header.Get("X-Correlation-Id")
	if id == "" || id != response.Header.Get("Request-Id") || id != response.Header.Get("X-Request-Id") {
		return fmt.Errorf("the correlation id is not in all three headers: %v", response.Header)
	}
	if args[1] == "-" {
		return nil
	}
	var told struct {
		Error struct {
			Code          string `json:"code"`
			CorrelationID string `json:"correlation_id"`
		} `json:"error"`
	}
	if err := json.Unmarshal(text, &told); err != nil {
		return err
	}
	if told.Error.Code != args[1] || told.Error.CorrelationID != id {
		return fmt.Errorf("code %q with id %q, want %q with %q: %s", told.Error.Code, told.Error.CorrelationID, args[1], id, text)
	}
	return nil
}

// streamed is a stream that a script listens to.
type streamed struct {
	cancel context.CancelFunc
	first  chan struct{} // closed at the first frame with content
	done   chan struct{}
	mu     sync.Mutex
	text   strings.Builder
	err    error
	status int
}

// stream NAME METHOD URL [NAME:VALUE]... [@FILE] begins a request and listens.
func stream(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) >= 3, "stream NAME METHOD URL [NAME:VALUE]... [@FILE]")
	ctx, cancel := context.WithCancel(context.Background())
	s := &streamed{cancel: cancel, first: make(chan struct{}), done: make(chan struct{})}
	of(ts).streams[args[0]] = s
	r := request(ts, ctx, args[1:])
	go func() {
		defer close(s.done)
		response, err := (&http.Transport{}).RoundTrip(r)
		if err != nil {
			s.err = err
			return
		}
		defer response.Body.Close()
		s.status = response.StatusCode
		s.read(response.Body)
	}()
}

func (s *streamed) read(body io.Reader) {
	var seen bool
	lines := bufio.NewReader(body)
	for {
		line, err := lines.ReadString('\n')
		s.mu.Lock()
		s.text.WriteString(line)
		s.mu.Unlock()
		if !seen && strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`) {
			seen = true
			close(s.first)
		}
		if err != nil {
			if err != io.EOF {
				s.err = err
			}
			return
		}
	}
}

// first NAME waits for the first frame with content.
func first(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1, "first NAME")
	s := of(ts).streams[args[0]]
	select {
	case <-s.first:
	case <-s.done:
		ts.Fatalf("the stream ended before any content: %v\n%s", s.err, s.text.String())
	case <-time.After(patience):
		ts.Fatalf("no content within %v", patience)
	}
}

// ended NAME [broken] waits for the end of a stream, which must have come clean
// (or, with "broken", uncleanly), and puts what came on standard output.
func ended(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1 || len(args) == 2 && args[1] == "broken", "ended NAME [broken]")
	s := of(ts).streams[args[0]]
	select {
	case <-s.done:
	case <-time.After(patience):
		ts.Fatalf("the stream did not end within %v", patience)
	}
	fmt.Fprint(ts.Stdout(), s.text.String())
	if broken := s.err != nil; broken != (len(args) == 2) {
		ts.Fatalf("the stream's end: %v\n%s", s.err, s.text.String())
	}
}

// hangup NAME leaves a stream in the middle.
func hangup(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1, "hangup NAME")
	of(ts).streams[args[0]].cancel()
}
