package tunnel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// first reads one advertisement.
func first(ctx context.Context, client *Client) (Advertisement, error) {
	for ad, err := range client.Offers(ctx) {
		return ad, err
	}
	return Advertisement{}, errors.New("no offers and no error")
}

// call posts a body to a machine and returns the status and body of the response.
func call(ctx context.Context, client *Client, path, body string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	answer, err := client.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(b), err
}

func echo(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Path", r.URL.Path)
	io.Copy(w, r.Body)
}

// Offers come before the acknowledgement, and the acknowledgement comes before calls.
func TestFromDialToCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 1)
		var asked http.Header
		h := serveHub(t, func(w http.ResponseWriter, r *http.Request) {
			asked = r.Header.Clone()
			acceptTunnels(t, out)(w, r)
		})
		m := newMachine(h, echo)
		m.run(t)
		client := <-out
		assert.Equal(t, asked.Get("Authorization"), "Bearer kithm_test", "Authorization")
		assert.Equal(t, asked.Get(HeaderVersion), strconv.Itoa(Version), HeaderVersion)
		ad, err := first(t.Context(), client)
		assert.OK(t, err)
		if ad.Name != "laptop" || ad.Generation != client.Generation() || ad.Version != Version || len(ad.Models) != 1 {
			t.Errorf("advertisement = %+v", ad)
		}
		synctest.Wait()
		for _, want := range []Phase{Dialing, Connected} {
			if s := <-m.states; s.Phase != want {
				t.Errorf("phase = %q, want %q", s.Phase, want)
			}
		}
		if len(m.states) != 0 {
			t.Errorf("acknowledged before POST /ack: %+v", <-m.states)
		}
		assert.OK(t, client.Ack(t.Context()))
		m.until(t, Acked)
		status, body, err := call(t.Context(), client, "/v1/chat/completions", "hello")
		assert.That(t, status == 200 && body == "hello" && err == nil, "call", status, body, err)
	})
}

// Each change is sent as a complete state. Several quick changes are sent as one line,
// and a change of only the free slots is not sent.
func TestOffersFollowChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 1)
		m := newMachine(serveHub(t, acceptTunnels(t, out)), echo)
		m.run(t)
		client := <-out
		got := make(chan Advertisement, 100)
		go func() {
			for ad, err := range client.Offers(t.Context()) {
				if err == nil {
					got <- ad
				}
			}
			close(got)
		}()
		assert.OK(t, client.Ack(t.Context()))
		<-got
		m.change(func(a *Advertisement) { a.Paused = true })
		if ad := <-got; !ad.Paused {
			t.Errorf("paused is not sent: %+v", ad)
		}
		for i := range 100 {
			m.change(func(a *Advertisement) { a.Local = i })
		}
		synctest.Wait()
		time.Sleep(time.Second) // in the bubble: lets every line arrive
		synctest.Wait()
		n, last := len(got), Advertisement{}
		for range n {
			last = <-got
		}
		if n > 2 || last.Local != 99 {
			t.Errorf("100 changes at once came as %d lines, the last with local %d", n, last.Local)
		}
		m.change(func(a *Advertisement) { a.Free = 0; a.Models = []Model{{ID: "m", Families: []string{"chat"}, Free: 7}} })
		time.Sleep(time.Second)
		synctest.Wait()
		if len(got) != 0 {
			t.Errorf("free slots alone made a line: %+v", <-got)
		}
		client.Close()
		if _, open := <-got; open {
			t.Error("an advertisement after the line's end")
		}
	})
}

// Faults 31, 32: if a link loses everything, both ends notice it within 15 s.
func TestBlackHoleIsFound(t *testing.T) {
	eitherWay(t, func(t *testing.T, pass passage) {
		synctest.Test(t, func(t *testing.T) {
			out := make(chan *Client, 1)
			h := serveHub(t, pass(acceptTunnels(t, out)))
			m := newMachine(h, func(w http.ResponseWriter, r *http.Request) {
				io.WriteString(w, "begun")
				http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			m.run(t)
			client := <-out
			assert.OK(t, client.Ack(t.Context()))
			m.until(t, Acked)
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://machine/v1/chat/completions", nil)
			answer := assert.Value(client.RoundTrip(r))(t)
			io.ReadFull(answer.Body, make([]byte, len("begun")))
			time.Sleep(7 * time.Second)
			h.blackHole()
			start := time.Now()
			if _, err := answer.Body.Read(make([]byte, 1)); err == nil {
				t.Error("the body goes on in a black hole")
			}
			<-client.Done()
			if took := time.Since(start); took > 15*time.Second || client.Err() == nil {
				t.Errorf("hub: found after %v: %v", took, client.Err())
			}
			lost := m.until(t, Lost)
			if took := time.Since(start); took > 15*time.Second || lost.Err == nil {
				t.Errorf("daemon: found after %v: %v", took, lost.Err)
			}
			(<-out).Close() // it reconnected by itself
		})
	})
}

// An idle tunnel stays open, however long it is idle.
func TestIdleTunnelStays(t *testing.T) {
	eitherWay(t, func(t *testing.T, pass passage) {
		synctest.Test(t, func(t *testing.T) {
			out := make(chan *Client, 1)
			m := newMachine(serveHub(t, pass(acceptTunnels(t, out))), echo)
			m.run(t)
			client := <-out
			assert.OK(t, client.Ack(t.Context()))
			time.Sleep(24 * time.Hour)
			if _, _, err := call(t.Context(), client, "/v1/embeddings", "x"); err != nil {
				t.Errorf("after a day: %v", err)
			}
		})
	})
}

// The older of two daemons is notified and reports it, and its calls end. It retries
// slowly, and does not replace another daemon.
func TestFence(t *testing.T) {
	eitherWay(t, func(t *testing.T, pass passage) {
		synctest.Test(t, func(t *testing.T) {
			out := make(chan *Client, 1)
			accept := acceptTunnels(t, out)
			var taken, yielded atomic.Bool
			m := newMachine(serveHub(t, pass(func(w http.ResponseWriter, r *http.Request) {
				yielded.Store(r.Header.Get(HeaderYields) != "")
				if taken.Load() && yielded.Load() {
					w.WriteHeader(http.StatusConflict)
					return
				}
				accept(w, r)
			})), func(w http.ResponseWriter, r *http.Request) {
				http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			m.run(t)
			client := <-out
			assert.OK(t, client.Ack(t.Context()))
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://machine/v1/chat/completions", nil)
			answer := assert.Value(client.RoundTrip(r))(t)
			m.until(t, Acked)
			taken.Store(true)
			start := time.Now()
			client.Fence(t.Context())
			if _, err := io.ReadAll(answer.Body); err == nil {
				t.Error("the call of a fenced tunnel ended well")
			}
			<-client.Done()
			assert.Is(t, client.Err(), errFenced, "Err")
			if took := time.Since(start); took > time.Second {
				t.Errorf("fencing took %v", took)
			}
			if _, _, err := call(t.Context(), client, "/v1/embeddings", ""); err == nil {
				t.Error("a call on a fenced line went through")
			}
			m.wantSlowRetries(t, ErrFenced)
			taken.Store(false) // the other daemon has ended
			client = <-out
			if err := client.Ack(t.Context()); err != nil || !yielded.Load() {
				t.Fatal(err, yielded.Load())
			}
			m.until(t, Acked)
			client.Close()
			if (<-out).Close(); yielded.Load() {
				t.Error("a daemon that was taken in again yields")
			}
		})
	})
}

// wantSlowRetries checks the pauses after five consecutive failures.
func (m *machine) wantSlowRetries(t *testing.T, want error) {
	t.Helper()
	for i, pause := range []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, 15 * time.Minute, 15 * time.Minute} {
		s := m.until(t, Lost)
		if !errors.Is(s.Err, want) || s.Retry < pause || s.Retry > pause*3/2 {
			t.Errorf("failure %d: %v, tries again after %v, not %v", i, s.Err, s.Retry, pause)
		}
	}
}

// If the hub asks a machine to move, it gets a second tunnel from the same instance. The
// calls of the first tunnel finish, and the second reports the slots that they use.
func TestMove(t *testing.T) {
	eitherWay(t, func(t *testing.T, pass passage) {
		synctest.Test(t, func(t *testing.T) {
			out := make(chan *Client, 1)
			end := make(chan struct{})
			m := newMachine(serveHub(t, pass(acceptTunnels(t, out))), func(w http.ResponseWriter, r *http.Request) {
				http.NewResponseController(w).Flush()
				<-end
				io.WriteString(w, "all of it")
			})
			m.Instance = "one"
			m.run(t)
			older := <-out
			assert.OK(t, older.Ack(t.Context()))
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://machine/v1/chat/completions", nil)
			r.Header = http.Header{HeaderCorrelation: {"req_1"}, HeaderAttempt: {"1 1"}, HeaderModel: {"m"}}
			answer := assert.Value(older.RoundTrip(r))(t)
			if err := older.Move(t.Context()); err != nil || older.Calls() != 1 {
				t.Fatal(err, older.Calls())
			}
			newer := <-out
			if newer.Instance() != "one" || older.Instance() != "one" || newer.Generation() <= older.Generation() {
				t.Errorf("instances %q and %q", older.Instance(), newer.Instance())
			}
			local := make(chan int, 10)
			go func() {
				for ad, err := range newer.Offers(t.Context()) {
					if err == nil {
						local <- ad.Local*10 + ad.Models[0].Local
					}
				}
			}()
			assert.Equal(t, <-local, 11, "the second tunnel reports")
			if s := m.until(t, Moving); s.Err != nil {
				t.Error(s)
			}
			assert.OK(t, newer.Ack(t.Context()))
			m.until(t, Acked)
			ended := make(chan error, 1)
			go func() { // asked on the second tunnel, for a call of the first
				ask, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://machine"+PathEnded, nil)
				ask.Header = r.Header.Clone()
				_, err := newer.RoundTrip(ask)
				ended <- err
			}()
			synctest.Wait()
			assert.Equal(t, len(ended), 0, "a call that runs was reported as ended")
			close(end)
			assert.Equal(t, string(assert.Value(io.ReadAll(answer.Body))(t)), "all of it")
			answer.Body.Close()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if n := <-local; n != 0 || older.Calls() != 0 {
				t.Errorf("after the call's end the second tunnel reports %d", n)
			}
			older.Close()
			synctest.Wait()
			assert.That(t, len(out) == 0 && newer.Err() == nil, "the end of the first tunnel disturbed the second")
		})
	})
}

// A hub cannot make a daemon open an unlimited number of tunnels.
func TestMovesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 100)
		m := newMachine(serveHub(t, acceptTunnels(t, out)), echo)
		m.run(t)
		open := 0
		for range 2 * maxTunnels {
			synctest.Wait()
			if len(out) == 0 {
				break
			}
			client := <-out
			defer client.Close()
			open++
			assert.OK(t, errors.Join(client.Ack(t.Context()), client.Move(t.Context())))
		}
		assert.Equal(t, open, maxTunnels, "tunnels are open")
	})
}

// Fencing a machine that is gone takes 2 s, not longer.
func TestFenceOfTheDead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 1)
		h := serveHub(t, acceptTunnels(t, out))
		m := newMachine(h, echo)
		m.run(t)
		client := <-out
		h.blackHole()
		start := time.Now()
		client.Fence(t.Context())
		if took := time.Since(start); took > fenceTimeout {
			t.Errorf("took %v", took)
		}
		<-client.Done()
	})
}

// Fault 39: a daemon that is never acknowledged dials again.
func TestNoAckRedials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 10)
		m := newMachine(serveHub(t, acceptTunnels(t, out)), echo)
		m.run(t)
		start := time.Now()
		<-out
		if s := m.until(t, Lost); !errors.Is(s.Err, errNoAck) || time.Since(start) != ackTimeout {
			t.Errorf("lost after %v: %v", time.Since(start), s.Err)
		}
		<-out
	})
}

// After a 401 the daemon retries slowly. It reconnects by itself when the hub knows its
// credential again.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var known atomic.Bool
		out := make(chan *Client, 1)
		accept := acceptTunnels(t, out)
		m := newMachine(serveHub(t, func(w http.ResponseWriter, r *http.Request) {
			if !known.Load() {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			accept(w, r)
		}), echo)
		m.run(t)
		m.wantSlowRetries(t, ErrRefused)
		known.Store(true)
		client := <-out
		assert.OK(t, client.Ack(t.Context()))
		m.until(t, Acked)
		known.Store(false)
		client.Close()
		m.until(t, Lost)
		if s := m.until(t, Lost); s.Retry > 3*time.Minute/2 {
			t.Errorf("after a tunnel the first pause is %v", s.Retry)
		}
	})
}

// Retry-After is respected, with jitter and up to a limit.
func TestAdmissionGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var retry atomic.Value
		retry.Store("7")
		h := serveHub(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", retry.Load().(string))
			w.WriteHeader(http.StatusServiceUnavailable)
		})
		m := newMachine(h, echo)
		m.run(t)
		seen := make(map[time.Duration]bool)
		for range 20 {
			before := time.Now()
			s := m.until(t, Lost)
			seen[s.Retry] = true
			if s.Retry < 7*time.Second || s.Retry > 10500*time.Millisecond {
				t.Errorf("Retry-After: 7 gives a pause of %v", s.Retry)
			}
			m.until(t, Dialing)
			if took := time.Since(before); took < s.Retry {
				t.Errorf("dialled after %v, said %v", took, s.Retry)
			}
		}
		assert.That(t, len(seen) >= 10, "20 pauses", len(seen), "different: no jitter")
		retry.Store(time.Now().Add(time.Hour).UTC().Format(http.TimeFormat))
		m.until(t, Lost)
		m.until(t, Dialing)
		if s := m.until(t, Lost); s.Retry < maxRetryAfter || s.Retry > maxRetryAfter*3/2 {
			t.Errorf("a Retry-After in an hour gives a pause of %v", s.Retry)
		}
		retry.Store("99999999999")
		m.until(t, Lost)
		m.until(t, Dialing)
		if s := m.until(t, Lost); s.Retry > maxRetryAfter*3/2 {
			t.Errorf("an absurd Retry-After gives a pause of %v", s.Retry)
		}
	})
}

// The pauses are random up to a ceiling that doubles. It is reset after a tunnel was
// acknowledged.
func TestBackoff(t *testing.T) {
	d := new(Dialer)
	ceilings := pauseCeilings()
	for failures := range 40 {
		ceiling := min(minPause<<min(failures, 20), maxPause)
		next := ceilings.NextBackOff()
		var largest, sum time.Duration
		for range 2000 {
			p := d.pause(next, io.EOF)
			largest, sum = max(largest, p), sum+p
		}
		if largest > ceiling || largest < ceiling*9/10 {
			t.Errorf("after %d failures the largest pause is %v, ceiling %v", failures, largest, ceiling)
		}
		if mean := sum / 2000; mean < ceiling*4/10 || mean > ceiling*6/10 {
			t.Errorf("after %d failures the mean pause is %v, ceiling %v", failures, mean, ceiling)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 1)
		h := serveHub(t, acceptTunnels(t, out))
		m := newMachine(h, echo)
		var broken atomic.Bool
		broken.Store(true)
		m.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if broken.Load() {
				return nil, io.ErrUnexpectedEOF
			}
			return h.Dial(ctx, network, address)
		}
		m.run(t)
		for range 15 {
			m.until(t, Lost)
		}
		broken.Store(false)
		client := <-out
		assert.OK(t, client.Ack(t.Context()))
		m.until(t, Acked)
		client.Close()
		if s := m.until(t, Lost); s.Retry > minPause {
			t.Errorf("after an acknowledged tunnel the pause is %v", s.Retry)
		}
		(<-out).Close()
	})
}

// The credential is never sent unencrypted over a network.
func TestHubAddress(t *testing.T) {
	for raw, want := range map[string]string{
		"https://hub.example":         "hub.example:443",
		"https://hub.example:8443/":   "hub.example:8443",
		"http://localhost:8080":       "localhost:8080",
		"http://127.0.0.1":            "127.0.0.1:80",
		"http://[::1]:9":              "[::1]:9",
		"http://hub.example":          "",
		"http://192.168.1.5:8080":     "",
		"http://127.0.0.1.evil.test":  "",
		"http://0.0.0.0":              "",
		"ws://localhost":              "",
		"hub.example":                 "",
		"https://":                    "",
		"https://u:p@hub.example":     "",
		"https://hub.example/?a=b":    "",
		"https://hub.example/#a":      "",
		"https://hub.example:8443/eu": "hub.example:8443",
	} {
		got, err := parseHub(raw)
		if got.address != want || (err == nil) != (want != "") {
			t.Errorf("parseHub(%q) = %q, %v; want %q", raw, got.address, err, want)
		}
	}
	err := (&Dialer{HubURL: "http://hub.example"}).Run(t.Context())
	assert.Fails(t, err, "TLS", "Run without TLS")
}

// Control reaches the daemon. If the daemon refuses, its text is returned.
func TestControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 1)
		m := newMachine(serveHub(t, acceptTunnels(t, out)), echo)
		var got fleet.Control
		m.Control = func(_ context.Context, c fleet.Control) error {
			got = c
			if c.Hours != nil {
				return errors.New("hours cannot be read")
			}
			return nil
		}
		m.run(t)
		client := <-out
		yes, hours := true, "whenever"
		if err := SendControl(t.Context(), client, fleet.Control{Paused: &yes}); err != nil || got.Paused == nil || !*got.Paused || got.Slots != nil {
			t.Errorf("Control = %v, arrived %+v", err, got)
		}
		err := SendControl(t.Context(), client, fleet.Control{Hours: &hours})
		assert.Fails(t, err, "hours cannot be read", "Control")
		// A large body is not a message from the hub.
		if status, _, _ := call(t.Context(), client, "/control", `{"hours":"`+strings.Repeat("x", maxControl)+`"}`); status/100 == 2 {
			t.Errorf("a huge control message: %d", status)
		}
	})
}

// TestFileAct: an act reaches the daemon, its answer and its refusals come back, and a daemon
// that takes none, or knows none, is recognized.
func TestFileAct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := make(chan *Client, 1)
		m := newMachine(serveHub(t, acceptTunnels(t, out)), echo)
		changed := false
		m.Control = func(context.Context, fleet.Control) error { changed = true; return nil }
		m.run(t)
		client := <-out
		act := fleet.FileAct{Act: fleet.ActLoad, Model: "words", By: "laptop"}
		_, err := SendFileAct(t.Context(), client, act)
		assert.Is(t, err, fleet.ErrFilesOff, "without Files")

		var got fleet.FileAct
		want := fleet.ModelFiles{Files: []fleet.ModelFile{{ID: "words", Size: 3, State: fleet.FileLoaded}}, DiskFree: 7}
		m.Files = func(_ context.Context, a fleet.FileAct) (fleet.ModelFiles, error) {
			if got = a; a.Act == fleet.ActUnload {
				return want, errors.New("a call runs\n\x1b[2J on it")
			}
			return want, nil
		}
		files := assert.Value(SendFileAct(t.Context(), client, act))(t)
		assert.Equal(t, got, act, "arrived")
		assert.Same(t, files.Files, want.Files)
		act.Act = fleet.ActUnload
		_, err = SendFileAct(t.Context(), client, act)
		refused, _ := errors.AsType[fleet.FileRefusal](err)
		assert.Equal(t, string(refused), "a call runs  [2J on it", "refused")
		assert.That(t, !changed, "an act was taken for a change of the settings")

		old := roundTrip(func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
		})
		_, err = SendFileAct(t.Context(), old, act)
		assert.Is(t, err, fleet.ErrFilesUnknown, "a daemon of version 1")
	})
}

// roundTrip is a function as an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Bytes that arrive together with the upgrade are not lost.
func TestEarlyBytes(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	go func() { b.Write([]byte("later")); b.Close() }()
	early := bufioWith(t, "early ")
	got, _ := io.ReadAll(withBuffer(a, early))
	assert.That(t, bytes.Equal(got, []byte("early later")), "read", got)
}

// TestCacheName checks that a cache's name depends on the member, the machine and the
// day, and contains none of them.
func TestCacheName(t *testing.T) {
	noon := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	name := CacheName("mem_1", "mch_1", noon)
	if evening := CacheName("mem_1", "mch_1", noon.Add(11*time.Hour)); name != evening {
		t.Errorf("%q, later on the same day %q", name, evening)
	}
	for _, other := range []string{CacheName("mem_2", "mch_1", noon), CacheName("mem_1", "mch_2", noon), CacheName("mem_1", "mch_1", noon.Add(12*time.Hour))} {
		assert.That(t, other != name, "the same name twice", name)
	}
	assert.That(t, len(name) == 22 && !strings.Contains(name, "mem"), "the name", name)
}

// TestHubThatDoesNotAnswer checks that a hub that accepts the connection and does not
// respond is reported as such, and counts as blocked.
func TestHubThatDoesNotAnswer(t *testing.T) {
	for name, inWebSocket := range map[string]bool{"plain": false, "in a WebSocket": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(nil, echo)
				m.Dial = func(context.Context, string, string) (net.Conn, error) {
					near, far := net.Pipe()
					go func() { _, _ = io.Copy(io.Discard, far) }()
					return near, nil
				}
				target, err := parseHub("http://127.0.0.1")
				assert.OK(t, err)
				_, err = m.upgrade(t.Context(), target, inWebSocket)
				if blocked := (*blockedError)(nil); !errors.As(err, &blocked) || err.Error() != "the hub at 127.0.0.1:80 did not answer within 10s" {
					t.Errorf("%T %[1]v", err)
				}
			})
		})
	}
}
