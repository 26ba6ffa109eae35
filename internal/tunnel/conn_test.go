package tunnel

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

// What is pending at Close is sent to a peer that reads it. A peer that reads very slowly
// does not delay Close.
func TestCloseSendsTheRest(t *testing.T) {
	const pending = 3*blockingWrite - 3
	for name, pause := range map[string]time.Duration{"at once": 0, "by drops": closeTimeout / 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				c, sent := newConn(ours, hubFrames), make(chan struct{})
				for range 3 {
					if n, err := c.Write(make([]byte, blockingWrite-1)); n != blockingWrite-1 || err != nil {
						t.Fatal(n, err)
					}
				}
				go func() { defer close(sent); c.writeLoop() }()
				synctest.Wait() // it writes, but the peer does not read
				got := make(chan int)
				go func() {
					all, buffer := 0, make([]byte, 64<<10)
					if pause > 0 {
						buffer = buffer[:1]
					}
					for {
						n, err := theirs.Read(buffer)
						if all += n; err != nil {
							got <- all
							return
						}
						time.Sleep(pause) // in the bubble
					}
				}()
				began := time.Now()
				c.Close()
				<-sent
				if took := time.Since(began); took > closeTimeout {
					t.Errorf("it took %v", took)
				}
				if n := <-got; n > pending || pause == 0 && n != pending {
					t.Errorf("%d bytes of %d", n, pending)
				}
				if n, err := c.Write([]byte("late")); n != 0 || err == nil {
					t.Errorf("a write after Close: %d, %v", n, err)
				}
			})
		})
	}
}

// Writes wait while too much is pending, and fail when the connection is closed.
func TestWritesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c, sent := newConn(ours, hubFrames), make(chan struct{})
		go func() { defer close(sent); c.writeLoop() }()
		ended := make(chan error)
		for range 20 {
			go func() {
				for {
					if _, err := c.Write(make([]byte, blockingWrite-1)); err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		synctest.Wait() // all of them wait
		c.mu.Lock()
		if n := len(c.pending); n < maxPending || n >= maxPending+blockingWrite {
			t.Errorf("%d bytes are pending, the bound is %d", n, maxPending)
		}
		c.mu.Unlock()
		c.setCause(io.ErrClosedPipe)
		c.Close()
		for range 20 {
			assert.Equal(t, <-ended, io.ErrClosedPipe, "a write ended with")
		}
		<-sent
	})
}

// A slow peer stays connected as long as each part of a write is sent in time. A peer
// that reads nothing is disconnected after writeTimeout.
func TestSlowWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		c, sent := newConn(ours, hubFrames), make(chan struct{})
		go func() { defer close(sent); c.writeLoop() }()
		began := time.Now()
		go c.Write(make([]byte, 4*maxFrame))
		for range 4 {
			time.Sleep(writeTimeout - time.Second) // in the bubble
			if _, err := io.ReadFull(theirs, make([]byte, maxFrame)); err != nil {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
		}
		began = time.Now()
		c.Write(make([]byte, 1))
		<-c.done
		assert.Equal(t, time.Since(began), writeTimeout, "a peer that takes nothing was given up after")
		<-sent
	})
}

// Small frames are counted no matter how the bytes are split.
func TestFrameCounter(t *testing.T) {
	frame := func(size int) []byte {
		return append([]byte{0, byte(size >> 8), byte(size), 0, 0, 0, 0, 0, 1}, make([]byte, size)...)
	}
	text := make([]byte, 24) // the preface
	for _, size := range []int{0, 0, 8, smallFrame - 1, smallFrame, 5000, 0} {
		text = append(text, frame(size)...)
	}
	for piece := 1; piece <= len(text); piece++ {
		f, small := frameCounter{skip: 24, types: daemonFrames}, 0
		for rest := text; len(rest) > 0; rest = rest[min(piece, len(rest)):] {
			n, ok := f.count(rest[:min(piece, len(rest))])
			if small += n; !ok {
				t.Fatalf("in pieces of %d bytes: a type is not ok", piece)
			}
		}
		assert.Require(t, small == 5, "in pieces of", piece, "bytes", small, "small frames")
	}
}
