package tunnel

import (
	"fmt"
	"io"
	"net/http"
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
