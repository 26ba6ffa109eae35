package sim

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// notTwice fails the test if a call began on a machine while it ran on another one.
func (w *world) notTwice(what string, a *answer) {
	w.t.Helper()
	got := w.runs.of(a.tag)
	for i, r := range got {
		if i > 0 && r.at.Before(got[i-1].left) {
			w.t.Errorf("%s: it ran on %s until %s, and on %s from %s: %s", what, got[i-1].machine.name, got[i-1].left.Sub(a.began), r.machine.name, r.at.Sub(a.began), a)
		}
	}
}

// A machine is asked for the end of a call on a tunnel that is kept for it: while a node
// drains, the machine may have no other.
func TestKeptTunnelIsAsked(t *testing.T) {
	for via := range 2 {
		inCluster(t, 2, func(w *world, seats []*seat) {
			ann, bob := w.addMember("ann"), w.addMember("bob")
			box := w.addMachine(ann, "box", 1, "m")
			box.stop()
			var stays atomic.Bool
			box.config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
				if stays.Load() {
					return nil, errors.New("no way to the hub")
				}
				return box.dial(ctx, network, address)
			}
			box.start()
			box.moveTo(seats[1])
			box.lingers = time.Second
			w.share(ann, bob)
			time.Sleep(2 * time.Second)
			box.engine.Set(slow(time.Minute))
			a := w.begin(ask{by: bob, model: "m", via: seats[via]})
			w.begun(a)
			w.addMachine(bob, "bobs", 1, "m")
			stays.Store(true)
			cut, cancel := context.WithCancel(w.t.Context())
			cancel() // the machine does not answer that it moves
			seats[1].Load().live.Move(cut)
			time.Sleep(2 * time.Second)
			w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
			<-a.over
			time.Sleep(10 * time.Second)
			w.wantServed(a, 2)
			w.notTwice(fmt.Sprint("via ", via), a)
		})
	}
}

// A tunnel that is kept for its calls ends with the machine, or its owner.
func TestKeptTunnelEndsWithItsMachine(t *testing.T) {
	for via := range 2 {
		for _, kind := range []string{"machine revoked", "owner disabled"} {
			inCluster(t, 2, func(w *world, seats []*seat) {
				ann, bob, box := w.addShared(1)
				box.moveTo(seats[1])
				time.Sleep(2 * time.Second)
				box.engine.Set(paced(time.Second))
				a := w.begin(ask{by: bob, model: "m", via: seats[via], stream: true, words: 100})
				w.begun(a)
				box.at.Store(seats[0])
				seats[1].Load().live.Move(context.Background())
				time.Sleep(5 * time.Second)
				ended := time.Now()
				w.must(revocations[kind](w, ann, bob))
				<-a.over
				if took := a.ended.Sub(ended); took > bound || a.done {
					t.Errorf("%s, via %d: it went on for %s: %s", kind, via, took, a)
				}
			})
		}
	}
}

// A share that ends while a call waits for the end of an attempt whose link was lost does
// not let the call begin elsewhere before that.
func TestPeersShareEndsAsALinkIsLost(t *testing.T) {
	for lingers, runs := range map[time.Duration]int{2500 * time.Millisecond: 2, 4 * time.Second: 1} {
		for _, stream := range []bool{true, false} {
			inCluster(t, 2, func(w *world, seats []*seat) {
				ann, bob, box := w.addShared(1)
				box.moveTo(seats[1])
				box.lingers = lingers
				time.Sleep(2 * time.Second)
				box.engine.Set(slow(time.Minute))
				time.Sleep(17 * time.Millisecond) // no ping is sent now
				a := w.begin(ask{by: bob, model: "m", stream: stream})
				w.begun(a)
				w.addMachine(bob, "bobs", 1, "m")
				for _, l := range w.cluster.links(seats[0], seats[1]) {
					if l.used.Load() == a.began.UnixNano() {
						l.lost.Store(true)
					}
				}
				time.Sleep(6 * time.Second)
				w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
				for _, n := range w.nodes() {
					n.live.Settle(w.t.Context())
				}
				<-a.over
				time.Sleep(10 * time.Second)
				w.notTwice(lingers.String(), a)
				assert.Equal(t, len(w.runs.of(a.tag)), runs, lingers, a)
			})
		}
	}
}

// A stream ends for the reason that ended it, also where the machine's node knows first.
func TestPeersHomeKnowsFirstWhy(t *testing.T) {
	for kind, code := range map[string]string{"key revoked": "invalid_api_key", "share ended": "NOT_IN_CIRCLE"} {
		inCluster(t, 2, func(w *world, seats []*seat) {
			ann, bob, box := w.addShared(1)
			box.moveTo(seats[1])
			time.Sleep(2 * time.Second)
			w.set(paced(time.Second))
			a := w.begin(ask{by: bob, model: "m", stream: true, words: 100})
			w.begun(a)
			time.Sleep(5*time.Second + 50*time.Millisecond)
			// The home is told at once, and the entry reads the change later.
			w.slow.Store(int64(300 * time.Millisecond))
			w.must(revocations[kind](w, ann, bob))
			seats[1].Load().live.Settle(w.t.Context())
			<-a.over
			w.slow.Store(0)
			w.wantCode(a, code, "")
			assert.That(t, a.framed && a.text != "", a)
		})
	}
}

// A caller that does not read gets nothing more of an answer that ended meanwhile, on
// whichever node the machine is.
func TestPeersSlowReader(t *testing.T) {
	for at := range 2 {
		inCluster(t, 2, func(w *world, seats []*seat) {
			ann, bob := w.addMember("ann"), w.addMember("bob")
			w.addMachine(ann, "box", 1, "m").moveTo(seats[at])
			w.share(ann, bob)
			time.Sleep(2 * time.Second)
			body := fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":"tag-slow %s"}]}`, strings.Repeat("word ", 1500))
			r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, hubURL+"/v1/chat/completions", strings.NewReader(body))
			w.must(err)
			r.Header.Set("Authorization", "Bearer "+bob.secret)
			r.Header.Set("Content-Type", "application/json")
			response, err := w.client.Do(r)
			w.must(err)
			defer response.Body.Close()
			in := bufio.NewReader(response.Body)
			_, err = in.ReadString('\n')
			w.must(err)
			w.must(w.db.RemoveShare(w.t.Context(), ann.ID, bob.ID))
			time.Sleep(bound)
			if rest, _ := io.ReadAll(in); len(rest) > 64<<10 || bytes.Contains(rest, []byte("[DONE]")) {
				t.Errorf("machine at node %d: %d bytes after the end of the share", at, len(rest))
			}
		})
	}
}
