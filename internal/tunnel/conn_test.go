package tunnel

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// What is unsent at Close goes, to a peer that takes it; one that takes a byte
// now and then holds the connection no longer than any other.
func TestCloseSendsTheRest(t *testing.T) {
	const unsent = 3*bulk - 3
	for name, pause := range map[string]time.Duration{"at once": 0, "by drops": lastWrite / 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				c, sent := newConn(ours), make(chan struct{})
				for range 3 {
					if n, err := c.Write(make([]byte, bulk-1)); n != bulk-1 || err != nil {
						t.Fatal(n, err)
					}
				}
				go func() { defer close(sent); c.send() }()
				synctest.Wait() // it writes, and nobody reads
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
				if took := time.Since(began); took > lastWrite {
					t.Errorf("it took %v", took)
				}
				if n := <-got; n > unsent || pause == 0 && n != unsent {
					t.Errorf("%d bytes of %d", n, unsent)
				}
				if n, err := c.Write([]byte("late")); n != 0 || err == nil {
					t.Errorf("a write after Close: %d, %v", n, err)
				}
			})
		})
	}
}

// The streams' writes wait while much is unsent, and end with the connection.
func TestWritesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c, sent := newConn(ours), make(chan struct{})
		go func() { defer close(sent); c.send() }()
		ended := make(chan error)
		for range 20 {
			go func() {
				for {
					if _, err := c.Write(make([]byte, bulk-1)); err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		synctest.Wait() // all of them wait
		c.mu.Lock()
		if n := len(c.unsent); n < mostUnsent || n >= mostUnsent+bulk {
			t.Errorf("%d bytes are unsent, the bound is %d", n, mostUnsent)
		}
		c.mu.Unlock()
		c.because(io.ErrClosedPipe)
		c.Close()
		for range 20 {
			if err := <-ended; err != io.ErrClosedPipe {
				t.Errorf("a write ended with %v", err)
			}
		}
		<-sent
	})
}

// A ping from between is answered also where nothing was written for long.
func TestPingAfterSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		c, sent := newConn(newFrames(ours, false)), make(chan struct{})
		go func() { defer close(sent); c.send() }()
		read := make(chan error)
		go func() {
			_, err := c.Read(make([]byte, 1))
			read <- err
		}()
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		frame := make([]byte, 3)
		if _, err := io.ReadFull(theirs, frame); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * writeWithin) // in the bubble
		go theirs.Write([]byte{bitFinal | opPing, bitMasked, 0, 0, 0, 0})
		if _, err := io.ReadFull(theirs, frame[:2]); err != nil || frame[0] != bitFinal|opPong {
			t.Errorf("no pong but %x, %v", frame[:2], err)
		}
		c.Close()
		<-sent
		<-read
	})
}
