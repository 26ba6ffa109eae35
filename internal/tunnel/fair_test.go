package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

// uplink is a machine's end of a connection whose upload has a rate and a latency, like a
// home connection. Write returns when the last byte is sent, and the bytes arrive after
// the latency.
type uplink struct {
	net.Conn
	way    chan parcel
	closed chan struct{}
	once   sync.Once
}

const (
	uplinkRate  = 5 << 20 // bytes a second
	uplinkLag   = 10 * time.Millisecond
	uplinkPiece = 2 << 10 // bytes that arrive together
)

type parcel struct {
	due  time.Time
	data []byte
}

func newUplink(c net.Conn) *uplink {
	l := &uplink{Conn: c, way: make(chan parcel, 1000), closed: make(chan struct{})}
	go func() {
		for {
			select {
			case p := <-l.way:
				l.pause(time.Until(p.due))
				if _, err := l.Conn.Write(p.data); err != nil {
					return
				}
			case <-l.closed:
				return
			}
		}
	}()
	return l
}

func (l *uplink) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-l.closed:
	}
}

func (l *uplink) Write(p []byte) (int, error) {
	for piece := range slices.Chunk(p, uplinkPiece) {
		l.pause(time.Duration(len(piece)) * time.Second / uplinkRate)
		select {
		case l.way <- parcel{time.Now().Add(uplinkLag), bytes.Clone(piece)}:
		case <-l.closed:
			return 0, net.ErrClosed
		}
	}
	return len(p), nil
}

func (l *uplink) SetWriteDeadline(time.Time) error { return nil }

func (l *uplink) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Conn.Close()
}

// TestFault33OneSlowStream checks the delay that one stream of a tunnel causes if it is
// not read, is read slowly, or uses all the bandwidth. The p99 of the other streams'
// chunks, in false time, is at most twice as high as without it, because each waits for
// at most one frame.
func TestFault33OneSlowStream(t *testing.T) {
	alone := chunks(t, nil)
	t.Logf("alone: p50 %s, p99 %s", alone[len(alone)/2], p99(alone))
	for name, read := range map[string]func(io.Reader){
		"stands still": func(io.Reader) {},
		"is read slowly": func(r io.Reader) {
			for {
				if _, err := io.ReadFull(r, make([]byte, 10<<10)); err != nil {
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		},
		"takes all": func(r io.Reader) { io.Copy(io.Discard, r) },
	} {
		t.Run(name, func(t *testing.T) {
			beside := chunks(t, read)
			t.Logf("p50 %s, p99 %s", beside[len(beside)/2], p99(beside))
			assert.That(t, p99(beside) <= 2*p99(alone), "p99", p99(beside), "alone", p99(alone))
		})
	}
}

func p99(sorted []time.Duration) time.Duration { return sorted[len(sorted)*99/100] }

// chunks returns how long the chunks of ten answers took from the machine to the hub,
// sorted. If read is not nil, an endless response is read with it at the same time.
func chunks(t *testing.T, read func(io.Reader)) (took []time.Duration) {
	const streams, each = 10, 200
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 1)
		h := serveHub(t, acceptTunnels(t, out))
		m := newMachine(h, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/endless" {
				for {
					if _, err := w.Write(make([]byte, 32<<10)); err != nil {
						return
					}
				}
			}
			flush := http.NewResponseController(w).Flush
			for range each {
				fmt.Fprintf(w, "%0200d\n", time.Now().UnixNano())
				flush()
				time.Sleep(time.Duration(20+rand.IntN(60)) * time.Millisecond) // not synchronized with frames
			}
		})
		m.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := h.Dial(ctx, network, address)
			return newUplink(c), err
		}
		m.run(t)
		client := <-out
		defer client.Close()
		assert.OK(t, client.Ack(t.Context()))
		open := func(path string) io.ReadCloser {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://machine"+path, nil)
			answer := assert.Value(client.RoundTrip(r))(t)
			return answer.Body
		}
		if read != nil {
			endless := open("/v1/endless")
			var reader sync.WaitGroup
			reader.Go(func() { read(endless) })
			defer reader.Wait()
			defer endless.Close()
		}
		var mu sync.Mutex
		var reading sync.WaitGroup
		for range streams {
			body := open("/v1/chat/completions")
			reading.Go(func() {
				defer body.Close()
				chunks := bufio.NewScanner(body)
				for chunks.Scan() {
					sent, _ := strconv.ParseInt(chunks.Text(), 10, 64)
					mu.Lock()
					took = append(took, time.Since(time.Unix(0, sent)))
					mu.Unlock()
				}
			})
		}
		reading.Wait()
		assert.Equal(t, len(took), streams*each, "chunks")
	})
	slices.Sort(took)
	return took
}
