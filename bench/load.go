package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/enginetest"
)

// target is one way to the engine under measurement.
type target struct {
	name   string
	engine string // of the direct rig: the engine's address
	base   string // up to and including /v1
	key    string
	cas    *x509.CertPool
	pids   []int // the processes whose CPU counts
}

func (t *target) client(connections int) *http.Client {
	return &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections,
		TLSClientConfig: &tls.Config{RootCAs: t.cas}, DisableCompression: true,
		// HTTP/1.1 only, as the vendors' SDKs speak it.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}}
}

// body is a 600-byte chat request.
func body(stream bool) []byte {
	text := strings.Repeat("Tell me about the sea and the ships on it. ", 11)
	return fmt.Appendf(nil, `{"model":%q,"stream":%t,"messages":[{"role":"user","content":%q}],"max_tokens":200}`, model, stream, text)
}

// ask is one kind of request: its path, its body, and the mark that ends its stream;
// empty for an answer that is no stream.
type ask struct {
	path string
	body []byte
	done string
}

// chat is a request in the dialect that engines speak themselves.
func chat() ask { return ask{"/chat/completions", body(false), ""} }

// longPrompt is a request of promptMB megabytes: a conversation about source text, with
// the escapes that such a text needs.
func longPrompt() ask {
	text := strings.Repeat("if err != nil {\n\treturn fmt.Errorf(\"cannot open the file %q: %w\", name, err)\n}\n", 128)
	var messages []map[string]string
	for size := 0; size < promptMB*1e6; size += len(text) * 11 / 10 {
		messages = append(messages, map[string]string{"role": "user", "content": text})
	}
	body, _ := json.Marshal(map[string]any{"model": model, "messages": messages, "max_tokens": 200}) // plain values
	return ask{"/chat/completions", body, ""}
}

// promptMB is the size of a long prompt.
const promptMB = 2

// streamed is chat for a stream.
func streamed(payload []byte) ask { return ask{"/chat/completions", payload, "[DONE]"} }

// messages and responses ask for what streamed(paced()) does, in other dialects.
func messages() ask { return ask{"/messages", paced(), `{"type":"message_stop"}`} }

func responses() ask {
	asked := bytes.Replace(paced(), []byte(`"messages"`), []byte(`"store":false,"input"`), 1)
	return ask{"/responses", bytes.Replace(asked, []byte(`"max_tokens"`), []byte(`"max_output_tokens"`), 1), "[DONE]"}
}

func (t *target) send(ctx context.Context, c *http.Client, method string, a ask) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, t.base+a.path, bytes.NewReader(a.body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Anthropic-Version", "2023-06-01") // only messages reads it
	r.Header.Set("Authorization", "Bearer "+t.key)
	response, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		response.Body.Close()
		return nil, fmt.Errorf("%s answered %d: %s", t.name, response.StatusCode, text)
	}
	return response, nil
}

// workload is one way to load a target: by workers that make one request after
// another, or at a rate, whatever comes back.
type workload struct {
	name        string
	ask         ask
	connections int           // at most; as many workers
	rounds      int           // requests of each worker, or
	length      time.Duration // how long
	rate        int           // requests a second; 0: workers
	alone       bool          // only kith can serve it
}

// figure is what one round of one workload on one target gave.
type figure struct {
	cpu  float64   // µs of the target's processes for an answer or a chunk
	each []float64 // of these, each process's; the first is kith's hub
	rate float64   // answers or chunks a second
	p50  time.Duration
	p99  time.Duration
	// broken is how many requests failed. Go's ReverseProxy cuts about one in a
	// hundred (golang/go#40747); all others must have none.
	broken int
}

// run loads the target and returns what that cost.
func (w workload) run(ctx context.Context, t *target) (figure, error) {
	c := t.client(w.connections)
	defer c.CloseIdleConnections()
	if w.length > 0 {
		w.load(ctx, t, c, 300*time.Millisecond) // warm
	}
	before, began := cpu(t.pids), time.Now()
	got := w.load(ctx, t, c, w.length)
	wall, after := time.Since(began), cpu(t.pids)
	if err := ctx.Err(); err != nil {
		return figure{}, err
	}
	if len(got.times) < max(1, 20*got.broken) {
		return figure{}, fmt.Errorf("%d of %d failed, the last with %w", got.broken, got.broken+len(got.times), got.last)
	}
	slices.Sort(got.times)
	f := figure{
		rate: float64(got.units) / wall.Seconds(), broken: got.broken,
		p50: got.times[len(got.times)/2], p99: got.times[len(got.times)*99/100],
	}
	for i := range after {
		f.each = append(f.each, float64((after[i]-before[i]).Microseconds())/float64(got.units))
		f.cpu += f.each[i]
	}
	return f, nil
}

// tally holds the results of requests.
type tally struct {
	mu     sync.Mutex
	times  []time.Duration // of those that succeeded
	units  int             // answers, or chunks of streams
	broken int
	last   error
}

// load makes the requests of the workload.
func (w workload) load(ctx context.Context, t *target, c *http.Client, length time.Duration) *tally {
	got := new(tally)
	var running sync.WaitGroup
	began := time.Now()
	one := func() {
		began := time.Now()
		units, err := t.exchange(ctx, c, w.ask)
		got.mu.Lock()
		defer got.mu.Unlock()
		got.units += units
		if err != nil {
			got.broken, got.last = got.broken+1, err
			return
		}
		got.times = append(got.times, time.Since(began))
	}
	if w.rate > 0 {
		tick := time.NewTicker(time.Second / time.Duration(w.rate))
		defer tick.Stop()
		for time.Since(began) < length {
			<-tick.C
			running.Go(one)
		}
	} else {
		for range w.connections {
			running.Go(func() {
				for i := 0; ctx.Err() == nil && (i < w.rounds || time.Since(began) < length); i++ {
					one()
				}
			})
		}
	}
	running.Wait()
	return got
}

// exchange makes one request and reads its answer, a stream to its end mark. units
// are the chunks, or 1 for an answer that is no stream.
func (t *target) exchange(ctx context.Context, c *http.Client, a ask) (units int, err error) {
	response, err := t.send(ctx, c, http.MethodPost, a)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	if a.done == "" {
		_, err = io.Copy(io.Discard, response.Body)
		return 1, err
	}
	done := false
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			done = string(data) == a.done
			units++
		}
	}
	if !done {
		return units, fmt.Errorf("%s: a stream of %d frames ended without its end mark: %v", t.name, units, lines.Err())
	}
	return units, lines.Err()
}

// pacedMark in a request asks the engine for real time: a chunk every 10 ms.
const pacedMark = "at your own pace"

// engine is the double that every rig ends in: 50 chunks a stream, 1 KB an
// unary answer. It is one that keeps its connections: llama.cpp's server closes them after
// each stream, on which plain proxies fail.
func engine(listen string) {
	double := enginetest.New(enginetest.VLLM, enginetest.Options{
		Models: []enginetest.Model{{ID: model, ContextLength: 32768}}, Slots: 512,
	})
	kilobyte := strings.TrimSpace(strings.Repeat("The ship went out on the tide. ", 26))
	double.Script(func(call enginetest.Call) enginetest.Behaviour {
		switch {
		case !call.Stream:
			return enginetest.Behaviour{Text: kilobyte}
		case strings.Contains(call.Input, pacedMark):
			return enginetest.Behaviour{Text: kilobyte, Chunks: 50, Interval: 10 * time.Millisecond}
		default:
			return enginetest.Behaviour{Text: kilobyte, Chunks: 50}
		}
	})
	check(double.Listen(listen))
	select {} // until the bench ends it
}

// paced is the payload of a stream whose chunks come as real tokens do.
func paced() []byte {
	return bytes.Replace(body(true), []byte("Tell me"), []byte("Tell me "+pacedMark), 1)
}
