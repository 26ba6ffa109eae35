package tunnel

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
)

// BenchmarkUnary measures a small call through a tunnel over TLS on loopback, including
// both the hub's and the daemon's end.
func BenchmarkUnary(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchUnary(b, everything) })
	b.Run("WebSocket", func(b *testing.B) { benchUnary(b, onlyWebSocket) })
}

func benchUnary(b *testing.B, pass passage) {
	answer := strings.Repeat("a", 1024)
	client := overTLS(b, pass, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, answer)
	})
	body := strings.Repeat("q", 600)
	var calls atomic.Int64
	once := func() error {
		r, err := http.NewRequest(http.MethodPost, "http://machine/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set(HeaderCorrelation, fmt.Sprintf("req_01932f5e-7c1b-7000-8000-%012d", calls.Add(1)))
		r.Header.Set(HeaderAttempt, "1 7")
		r.Header.Set(HeaderCaller, "shared anna")
		r.Header.Set(HeaderDeadline, "2026-11-21T12:00:00Z")
		response, err := client.RoundTrip(r)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return err
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := once(); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkChunk measures one flushed chunk of a stream, written after the previous one
// was read.
func BenchmarkChunk(b *testing.B) {
	b.Run("plain", func(b *testing.B) { benchChunk(b, everything) })
	b.Run("WebSocket", func(b *testing.B) { benchChunk(b, onlyWebSocket) })
}

func benchChunk(b *testing.B, pass passage) {
	next := make(chan struct{})
	chunk := []byte(`data: {"choices":[{"delta":{"content":"word"}}]}` + "\n\n")
	client := overTLS(b, pass, func(w http.ResponseWriter, r *http.Request) {
		flush := http.NewResponseController(w).Flush
		flush()
		for range next {
			w.Write(chunk)
			flush()
		}
	})
	r, err := http.NewRequest(http.MethodPost, "http://machine/v1/chat/completions", nil)
	if err != nil {
		b.Fatal(err)
	}
	answer, err := client.RoundTrip(r)
	if err != nil {
		b.Fatal(err)
	}
	defer answer.Body.Close()
	defer close(next)
	got := make([]byte, len(chunk))
	b.ReportAllocs()
	for b.Loop() {
		next <- struct{}{}
		if _, err := io.ReadFull(answer.Body, got); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIdle reports the memory of an idle tunnel: both ends, with GET /offers open,
// over plain loopback connections. TLS would add to it.
func BenchmarkIdle(b *testing.B) {
	const machines = 1000
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	out := make(chan *Client)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if client, err := Upgrade(w, r, UpgradeConfig{Generation: 1}); err == nil {
			out <- client
			for range client.Offers(context.Background()) {
				if client.Ack(context.Background()) == nil {
					out <- client
				}
			}
		}
	})}
	go server.Serve(listener)
	defer server.Close()
	for b.Loop() {
		before := inUse()
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error)
		for range machines {
			m := newMachine(nil, echo)
			m.states, m.OnState = nil, nil
			m.HubURL = "http://" + listener.Addr().String()
			go func() { ended <- m.Run(ctx) }()
			<-out
			defer (<-out).Close()
		}
		b.ReportMetric(float64(inUse()-before)/machines/1024, "KB/line")
		cancel()
		for range machines {
			<-ended
		}
	}
}

// inUse returns the size of heap and stacks after a collection.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
