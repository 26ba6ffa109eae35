package tunnel

import (
	"bytes"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/kith/kith/internal/assert"
)

// frames returns a batch of frames, about 4 KiB, to be sent repeatedly.
func frames(t *testing.T, write func(f *http2.Framer) error) []byte {
	t.Helper()
	var batch bytes.Buffer
	f := http2.NewFramer(&batch, nil)
	f.AllowIllegalWrites = true
	for batch.Len() < 4000 {
		assert.OK(t, write(f))
	}
	return batch.Bytes()
}

// flood sends begin and then a batch of frames repeatedly for 50 ms of false time, and
// checks how many were read.
func flood(t *testing.T, c net.Conn, begin, batch []byte, frame int) {
	t.Helper()
	c.Write(begin)
	synctest.Wait()
	const lasts = 50 * time.Millisecond
	until := time.Now().Add(lasts)
	c.SetWriteDeadline(until)
	sent := 0
	for {
		n, err := c.Write(batch)
		sent += n
		if err != nil {
			break
		}
	}
	took := lasts - time.Until(until)
	if got, most := sent/frame, int(smallFramesPerSecond*(1+took.Seconds()))+4096/9; got > most {
		t.Errorf("%d frames were read in %v, want %d at most", got, took, most)
	} else if took == lasts && got < smallFramesPerSecond {
		t.Errorf("%d frames were read in %v: fewer than an engine may send", got, took)
	}
}

// A daemon that sends frames without content is read no faster than the fastest engine
// sends, or is disconnected. net/http has no limit for most of these frames.
func TestFloodsOfADaemon(t *testing.T) {
	for name, write := range map[string]func(f *http2.Framer) error{
		"pings":               func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) },
		"answers to no pings": func(f *http2.Framer) error { return f.WritePing(true, [8]byte{}) },
		"settings":            func(f *http2.Framer) error { return f.WriteSettings() },
		"windows":             func(f *http2.Framer) error { return f.WriteWindowUpdate(0, 1) },
		"empty data":          func(f *http2.Framer) error { return f.WriteData(1, false, nil) },
		"resets":              func(f *http2.Framer) error { return f.WriteRSTStream(1, http2.ErrCodeCancel) },
		"empty continuations": func(f *http2.Framer) error { return f.WriteContinuation(1, false, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, daemon := connectRaw(t, 1<<20)
				go client.RoundTrip(upload(t.Context(), 0))
				daemon.reads()
				synctest.Wait()
				batch := frames(t, write)
				var begin []byte
				if name == "empty continuations" {
					begin = append([]byte{0, 0, 1, 1, 0, 0, 0, 0, 1}, 0x88) // HEADERS, :status 200, without END_HEADERS
				}
				frame := 9 + int(batch[0])<<16 + int(batch[1])<<8 + int(batch[2])
				flood(t, daemon.Conn, begin, batch, frame)
				client.Close()
			})
		})
	}
}

// A daemon is disconnected at the first frame that the hub's process would log.
func TestOddFrames(t *testing.T) {
	for name, write := range map[string]func(f *http2.Framer) error{
		"unknown":    func(f *http2.Framer) error { return f.WriteRawFrame(0xfa, 0, 0, nil) },
		"extension":  func(f *http2.Framer) error { return f.WriteRawFrame(0x0a, 0, 0, nil) },
		"priorities": func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logged bytes.Buffer
				log.SetOutput(&logged)
				defer log.SetOutput(os.Stderr)
				client, daemon := connectRaw(t, 1<<20)
				daemon.Conn.Write(frames(t, write))
				<-client.Done()
				assert.Is(t, client.Err(), errUnexpectedFrame, "the line ended with")
				assert.That(t, logged.Len() == 0, "the process's log", logged.String())
			})
		})
	}
}

// A response header that never ends is given up, because pings after it are not answered.
func TestEndlessHeadIsCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, daemon := connectRaw(t, 1<<20)
		daemon.reads()
		go client.RoundTrip(upload(t.Context(), 0))
		synctest.Wait()
		start := time.Now()
		daemon.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}})
		for daemon.WriteContinuation(1, false, nil) == nil {
			time.Sleep(time.Millisecond) // in the bubble
		}
		<-client.Done()
		if took := time.Since(start); took > pingEvery+pingWait+time.Second {
			t.Errorf("given up after %v", took)
		}
	})
}

// The machine's end limits its hub in the same way.
func TestFloodsOfAHub(t *testing.T) {
	var block bytes.Buffer
	head := hpack.NewEncoder(&block)
	for _, f := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "m"}, {Name: ":path", Value: "/v1/x"}} {
		head.WriteField(f)
	}
	for name, write := range map[string]func(f *http2.Framer) error{
		"pings":               func(f *http2.Framer) error { return f.WritePing(false, [8]byte{}) },
		"unknown frames":      func(f *http2.Framer) error { return f.WriteRawFrame(0xfa, 0, 0, nil) },
		"priorities":          func(f *http2.Framer) error { return f.WritePriority(1, http2.PriorityParam{}) },
		"empty continuations": func(f *http2.Framer) error { return f.WriteContinuation(1, false, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				m := newMachine(nil, func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
				ended := make(chan struct{})
				go func() { defer close(ended); newSession(m.Dialer, upgraded{Conn: b, generation: 1}).run(t.Context()) }()
				var begin bytes.Buffer
				begin.WriteString(http2.ClientPreface)
				f := http2.NewFramer(&begin, nil)
				f.WriteSettings()
				f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: name != "empty continuations"})
				batch := frames(t, write)
				frame := 9 + int(batch[0])<<16 + int(batch[1])<<8 + int(batch[2])
				go io.Copy(io.Discard, a)
				flood(t, a, begin.Bytes(), batch, frame)
				a.Close()
				<-ended
			})
		})
	}
}
