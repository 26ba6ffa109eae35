package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// target is one way to the engine under measurement.
type target struct {
	name string
	base string // up to and including /v1
	key  string
	cas  *x509.CertPool
	pids []int // the processes whose CPU counts
	// admin is where its hub can be profiled; empty: nowhere.
	admin string
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

// ask is one kind of request: where it goes, its body, and what ends its stream.
type ask struct {
	path string
	body []byte
	done string
}

// chat is a request in the dialect that engines speak themselves.
func chat(payload []byte) ask { return ask{"/chat/completions", payload, "[DONE]"} }

// messages and responses ask for what chat(paced()) does, in other dialects.
func messages() ask { return ask{"/messages", paced(), `{"type":"message_stop"}`} }

func responses() ask {
	asked := bytes.Replace(paced(), []byte(`"messages"`), []byte(`"store":false,"input"`), 1)
	return ask{"/responses", bytes.Replace(asked, []byte(`"max_tokens"`), []byte(`"max_output_tokens"`), 1), "[DONE]"}
}

func (t *target) post(ctx context.Context, c *http.Client, a ask) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, t.base+a.path, bytes.NewReader(a.body))
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

// figure is what one round of one workload on one target gave.
type figure struct {
	cpu   float64 // µs of the target's processes, an operation
	first float64 // of these, its first process's: kith's hub
	rate  float64 // operations a second
	p50   time.Duration
	p99   time.Duration
	count int
	// broken is how many operations failed on the way. Go's ReverseProxy cuts
	// about one request in a hundred (golang/go#40747); all others must have none.
	broken int
}

// unary runs a closed loop: connections workers, each one request at a time.
func unary(ctx context.Context, t *target, connections int, d time.Duration) (figure, error) {
	c := t.client(connections)
	defer c.CloseIdleConnections()
	payload := chat(body(false))
	run := func(d time.Duration) (times []time.Duration, broken int, last error) {
		ctx, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		var mu sync.Mutex
		var wait sync.WaitGroup
		for range connections {
			wait.Go(func() {
				var mine []time.Duration
				for ctx.Err() == nil {
					began := time.Now()
					err := once(ctx, t, c, payload)
					switch {
					case err == nil:
						mine = append(mine, time.Since(began))
					case ctx.Err() == nil:
						mu.Lock()
						broken, last = broken+1, err
						mu.Unlock()
					}
				}
				mu.Lock()
				times = append(times, mine...)
				mu.Unlock()
			})
		}
		wait.Wait()
		return times, broken, last
	}
	run(300 * time.Millisecond) // warm
	before, began := cpu(t.pids), time.Now()
	times, broken, last := run(d)
	if len(times) < 20*broken {
		return figure{}, fmt.Errorf("%d of %d failed, the last with %w", broken, broken+len(times), last)
	}
	f := summarize(len(times), times, t.pids, before, time.Since(began))
	f.broken = broken
	return f, nil
}

func once(ctx context.Context, t *target, c *http.Client, payload ask) error {
	response, err := t.post(ctx, c, payload)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// open sends rate requests a second whatever comes back, and returns the latencies.
func open(ctx context.Context, t *target, rate int, d time.Duration) (figure, error) {
	c := t.client(64)
	defer c.CloseIdleConnections()
	payload := chat(body(false))
	if err := once(ctx, t, c, payload); err != nil {
		return figure{}, err
	}
	var mu sync.Mutex
	var all []time.Duration
	var broken int
	var last error
	var wait sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	before, began := cpu(t.pids), time.Now()
	for time.Since(began) < d {
		<-tick.C
		wait.Go(func() {
			start := time.Now()
			err := once(ctx, t, c, payload)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				broken, last = broken+1, err
				return
			}
			all = append(all, time.Since(start))
		})
	}
	wait.Wait()
	if len(all) < 20*broken {
		return figure{}, fmt.Errorf("%d of %d failed, the last with %w", broken, broken+len(all), last)
	}
	f := summarize(len(all), all, t.pids, before, time.Since(began))
	f.broken = broken
	return f, nil
}

// streams runs n streams at once, rounds times, and counts their chunks.
func streams(ctx context.Context, t *target, payload ask, n, rounds int) (figure, error) {
	c := t.client(n)
	defer c.CloseIdleConnections()
	var chunks, broken atomic.Int64
	before, began := cpu(t.pids), time.Now()
	var wait sync.WaitGroup
	for range n {
		wait.Go(func() {
			for range rounds {
				got, err := stream(ctx, t, c, payload)
				chunks.Add(int64(got))
				if err != nil {
					broken.Add(1)
				}
			}
		})
	}
	wait.Wait()
	if int(broken.Load())*20 > n*rounds {
		return figure{}, fmt.Errorf("%d of %d streams broke", broken.Load(), n*rounds)
	}
	f := summarize(int(chunks.Load()), nil, t.pids, before, time.Since(began))
	f.broken = int(broken.Load())
	return f, ctx.Err()
}

// stream reads one stream to its end mark and counts its frames.
func stream(ctx context.Context, t *target, c *http.Client, payload ask) (int, error) {
	response, err := t.post(ctx, c, payload)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	n, done := 0, false
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: ")); ok {
			done = string(data) == payload.done
			n++
		}
	}
	if !done {
		return n, fmt.Errorf("%s: a stream of %d frames ended without its end mark: %v", t.name, n, lines.Err())
	}
	return n, lines.Err()
}

// summarize returns what n operations cost since the processes had used before.
func summarize(n int, times []time.Duration, pids []int, before []time.Duration, wall time.Duration) figure {
	f := figure{count: n}
	if n == 0 {
		return f
	}
	for i, used := range cpu(pids) {
		each := float64((used - before[i]).Microseconds()) / float64(n)
		if i == 0 {
			f.first = each
		}
		f.cpu += each
	}
	f.rate = float64(n) / wall.Seconds()
	if len(times) > 0 {
		slices.Sort(times)
		f.p50, f.p99 = times[len(times)/2], times[len(times)*99/100]
	}
	return f
}
