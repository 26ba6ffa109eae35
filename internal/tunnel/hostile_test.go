package tunnel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"

	"github.com/kith/kith/internal/assert"
)

// hostile upgrades a connection whose daemon is an arbitrary HTTP/2 handler on the
// standard library's server, like daemons up to version 5.
func hostile(t *testing.T, h *http.HTTP2Config, handler http.HandlerFunc) *Client {
	t.Helper()
	n, plain := newNetwork(), new(http.Protocols)
	plain.SetUnencryptedHTTP2(true)
	server, served := &http.Server{Handler: handler, Protocols: plain, HTTP2: h}, make(chan struct{})
	go func() { defer close(served); server.Serve(n) }()
	ours := assert.Value(n.Dial(t.Context(), "", ""))(t)
	client := clientOn(t, ours)
	t.Cleanup(func() { client.Close(); server.Close(); n.Close(); <-served })
	return client
}

// If a daemon sends nonsense as offers, there is an error soon, without using much
// memory.
func TestHostileOffers(t *testing.T) {
	write := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, text)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		want    string
	}{
		"silence":        {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "sent no offers in 10s"},
		"head, no line":  {write(""), "sent no offers in 10s"},
		"half a line":    {write(`{"name":`), "sent no offers in 10s"},
		"no JSON":        {write("hello\n"), "is invalid"},
		"empty line":     {write("\n"), "is invalid"},
		"wrong shape":    {write(`{"slots":"many"}` + "\n"), "is invalid"},
		"duplicate name": {write(`{"slots":1,"slots":2}` + "\n"), "is invalid"},
		"bad UTF-8":      {write("{\"name\":\"\xff\"}\n"), "is invalid"},
		"deep":           {write(strings.Repeat("[", 100000) + "\n"), "is invalid"},
		"number too big": {write(`{"slots":99999999999999999999999}` + "\n"), "is invalid"},
		"many models":    {write(`{"models":[{}` + strings.Repeat(",{}", maxOfferObjects) + "]}\n"), "objects"},
		"404":            {http.NotFound, "404"},
		"the end":        {func(http.ResponseWriter, *http.Request) {}, "unexpected EOF"},
		"endless line": {func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
					return
				}
			}
		}, "longer than"},
		"huge header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 2*maxHeader))
		}, "offers"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := hostile(t, nil, test.handler)
				start := time.Now()
				_, err := first(t.Context(), client)
				assert.Fails(t, err, test.want, "error")
				if took := time.Since(start); took > firstOfferTimeout {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// If lines arrive faster than allowed, they are read at the allowed rate, and the newest
// is among them.
func TestOffersFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const last = 100_000
		client := hostile(t, nil, func(w http.ResponseWriter, r *http.Request) {
			for i := range last {
				if _, err := fmt.Fprintf(w, `{"slots":%d}`+"\n", i+1); err != nil {
					return
				}
			}
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		client.offerRate = rate.NewLimiter(1, 5)
		start, taken := time.Now(), 0
		for ad, err := range client.Offers(t.Context()) {
			assert.OK(t, err)
			taken++
			if most := 5 + int(time.Since(start).Round(time.Millisecond).Seconds()); taken > most {
				t.Fatalf("%d advertisements were taken in %v", taken, time.Since(start))
			}
			if ad.Slots == last {
				break
			}
		}
		if took := time.Since(start); took > 3*time.Minute {
			t.Errorf("the newest state was taken after %v", took)
		}
	})
}

// If a daemon grants few streams, no call waits for one.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := hostile(t, &http.HTTP2Config{MaxConcurrentStreams: 1}, func(w http.ResponseWriter, r *http.Request) {
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		synctest.Wait() // its settings have arrived
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://machine/v1/chat/completions", nil)
		assert.Value(client.RoundTrip(r))(t)
		assert.Is(t, assert.Err(call(ctx, client, "/v1/chat/completions", "")), ErrFull, "second call")
	})
}

// A daemon that writes but never reads is disconnected when a write stalls.
func TestNeverReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		gone := make(chan struct{})
		go func() { // it reads the preface and nothing else, but keeps sending pings
			defer close(gone)
			io.ReadFull(theirs, make([]byte, len(http2.ClientPreface)))
			io.ReadFull(theirs, make([]byte, 9+6*3+9+4))
			f := http2.NewFramer(theirs, nil)
			f.WriteSettings()
			io.ReadFull(theirs, make([]byte, 9)) // the hub's acknowledgement
			for f.WritePing(true, [8]byte{}) == nil {
				time.Sleep(time.Second) // in the bubble
			}
		}()
		client := clientOn(t, ours)
		defer client.Close()
		// A goroutine that waits for a mutex stops the bubble's clock, so the settings
		// are exchanged before the write stalls.
		synctest.Wait()
		start := time.Now()
		if _, _, err := call(t.Context(), client, "/v1/chat/completions", "x"); err == nil {
			t.Error("a call that was not read was answered")
		}
		<-client.Done()
		if took := time.Since(start); took > writeTimeout {
			t.Errorf("given up after %v", took)
		}
		<-gone
	})
}

// Writing the response to an upgrade takes at most writeTimeout.
func TestAnswerIsNotRead(t *testing.T) {
	for name, protocol := range map[string]string{"plain": Protocol, "WebSocket": webSocket} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			var took time.Duration
			h := serveHub(t, func(w http.ResponseWriter, r *http.Request) {
				client, err := Upgrade(w, r, UpgradeConfig{Generation: 1})
				if took = time.Since(began); err == nil {
					client.Close()
				}
			})
			c := assert.Value(h.Dial(t.Context(), "tcp", "hub:80"))(t)
			defer c.Close()
			r := httptest.NewRequest(http.MethodGet, "/tunnel", nil)
			askForWebSocket(r.Header)
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", protocol)
			r.Header.Set(HeaderVersion, "1")
			r.Header.Set(HeaderInstance, "one")
			assert.OK(t, r.Write(c))
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Equal(t, took, writeTimeout, name, "the upgrade took")
		})
	}
}

// A request that is not for a tunnel gets a response and is not hijacked.
func TestUpgradeRefuses(t *testing.T) {
	good := func() *http.Request {
		r := httptest.NewRequest(http.MethodGet, "/tunnel", nil)
		r.Header.Set("Connection", "keep-alive, Upgrade")
		r.Header.Set("Upgrade", Protocol)
		r.Header.Set(HeaderVersion, "1")
		r.Header.Set(HeaderInstance, "one")
		return r
	}
	assert.OK(t, checkUpgrade(good()), "the good one")
	for name, spoil := range map[string]func(*http.Request){
		"POST":          func(r *http.Request) { r.Method = http.MethodPost },
		"HTTP/2":        func(r *http.Request) { r.ProtoMajor = 2 },
		"no connection": func(r *http.Request) { r.Header.Del("Connection") },
		"no upgrade":    func(r *http.Request) { r.Header.Del("Upgrade") },
		"other upgrade": func(r *http.Request) { r.Header.Set("Upgrade", "h2c") },
		"no version":    func(r *http.Request) { r.Header.Del(HeaderVersion) },
		"bad version":   func(r *http.Request) { r.Header.Set(HeaderVersion, "one") },
		"version 0":     func(r *http.Request) { r.Header.Set(HeaderVersion, "0") },
		"no instance":   func(r *http.Request) { r.Header.Del(HeaderInstance) },
		"long instance": func(r *http.Request) { r.Header.Set(HeaderInstance, strings.Repeat("x", maxInstance+1)) },
	} {
		r, w := good(), httptest.NewRecorder()
		spoil(r)
		if _, err := Upgrade(w, r, UpgradeConfig{}); err == nil || w.Code != http.StatusUpgradeRequired || w.Header().Get("Upgrade") != Protocol {
			t.Errorf("%s: %d, %v", name, w.Code, err)
		}
	}
}

// If the hub's response to the upgrade is malformed, the error names the defect.
func TestOddHub(t *testing.T) {
	for name, test := range map[string]struct{ answer, want string }{
		"other protocol": {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n", "h2c"},
		"no generation":  {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " + Protocol + "\r\n\r\n", HeaderGeneration},
		"later protocol": {"HTTP/1.1 426 Upgrade Required\r\nUpgrade: kith-tunnel/2\r\n\r\n", "update kith"},
		"200":            {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 OK"},
		"503, no hint":   {"HTTP/1.1 503 Service Unavailable\r\n\r\n", "503"},
		"nonsense":       {"SSH-2.0-OpenSSH\r\n\r\n", "cannot read"},
		"endless header": {"HTTP/1.1 101 Switching Protocols\r\nX: " + strings.Repeat("x", 2*maxHeader), "cannot read"},
		"silence":        {"", "did not answer within 10s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newMachine(nil, echo).Dialer
				d.Dial = func(context.Context, string, string) (net.Conn, error) {
					a, b := net.Pipe()
					go func() {
						http.ReadRequest(bufio.NewReader(b))
						io.WriteString(b, test.answer)
						io.Copy(io.Discard, b)
					}()
					return a, nil
				}
				target, err := parseHub(d.HubURL)
				assert.OK(t, err)
				_, err = d.upgrade(t.Context(), target, false)
				assert.Fails(t, err, test.want, "error")
			})
		})
	}
}

// The windows are announced as spec/tunnel.md#windows requires: the library accepts a
// connection window over 4 MiB.
func TestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		m := newMachine(nil, echo)
		ended := make(chan struct{})
		go func() { defer close(ended); newSession(m.Dialer, upgraded{Conn: b, generation: 1}).run(t.Context()) }()
		go io.WriteString(a, http2.ClientPreface)
		f := http2.NewFramer(io.Discard, a)
		var stream, connection uint32
		for connection == 0 {
			frame := assert.Value(f.ReadFrame())(t)
			switch frame := frame.(type) {
			case *http2.SettingsFrame:
				stream, _ = frame.Value(http2.SettingInitialWindowSize)
			case *http2.WindowUpdateFrame:
				connection = frame.Increment + 65535
			}
		}
		a.Close()
		<-ended
		if stream != 512<<10 || connection != 1<<30 {
			t.Errorf("the daemon grants %d a stream and %d a connection", stream, connection)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer b.Close()
		client := clientOn(t, a)
		defer client.Close()
		io.ReadFull(b, make([]byte, len(http2.ClientPreface)))
		frame := assert.Value(http2.NewFramer(io.Discard, b).ReadFrame())(t)
		if got, _ := frame.(*http2.SettingsFrame).Value(http2.SettingInitialWindowSize); got != 512<<10 {
			t.Errorf("the hub grants %d a stream", got)
		}
		a.Close()
	})
}

// Three stalled uploads of 8 MiB delay no other call. The test uses a real connection
// with TLS.
func TestStalledUploads(t *testing.T) {
	eitherWay(t, func(t *testing.T, pass passage) {
		release := make(chan struct{})
		client := overTLS(t, pass, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/stalled" {
				w.WriteHeader(http.StatusOK)
				http.NewResponseController(w).Flush()
				select {
				case <-release:
				case <-r.Context().Done():
				}
				return
			}
			echo(w, r)
		})
		defer close(release)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		const stalled = 3
		for range stalled {
			body, writer := io.Pipe()
			wrote := make(chan struct{})
			go func() {
				defer close(wrote)
				// It sends what the stream's window allows, then stalls.
				writer.Write(make([]byte, streamWindow))
				go writer.Write(make([]byte, 8<<20))
			}()
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://machine/v1/stalled", body)
			answer := assert.Value(client.RoundTrip(r))(t)
			defer answer.Body.Close()
			select {
			case <-wrote:
			case <-ctx.Done():
				t.Fatal("a stalled upload holds up another")
			}
		}
		payload := strings.Repeat("x", 1<<20)
		for i := range 30 {
			status, body, err := call(ctx, client, "/v1/chat/completions", payload)
			if err != nil || status != 200 || len(body) != len(payload) {
				t.Fatalf("call %d beside %d stalled uploads: %d, %d bytes, %v", i, stalled, status, len(body), err)
			}
		}
	})
}

// A stalled reader uses up one stream's window, and the other streams continue.
func TestStalledReader(t *testing.T) {
	eitherWay(t, func(t *testing.T, pass passage) {
		client := overTLS(t, pass, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/endless" {
				for {
					if _, err := w.Write(make([]byte, 32<<10)); err != nil {
						return
					}
				}
			}
			echo(w, r)
		})
		for range 20 {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://machine/v1/endless", nil)
			answer := assert.Value(client.RoundTrip(r))(t)
			defer answer.Body.Close()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		for range 10 {
			if _, _, err := call(ctx, client, "/v1/chat/completions", "x"); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TLS below 1.3 and unknown certificates are refused.
func TestTLSOnly13(t *testing.T) {
	cert, pool := certificate(t)
	for name, test := range map[string]struct {
		server func() (net.Listener, error)
		want   string
	}{
		"TLS 1.2": {func() (net.Listener, error) {
			return listenTLS(cert, "1.2")
		}, "TLS 1.3 is off there, and tunnels need it"},
		"foreign": {func() (net.Listener, error) {
			other, _ := certificate(t)
			return listenTLS(other, "1.3")
		}, "certificate"},
	} {
		listener := assert.Value(test.server())(t)
		server := &http.Server{ErrorLog: quiet()}
		go server.Serve(listener)
		m := newMachine(nil, echo)
		m.HubURL = fmt.Sprintf("https://%s", listener.Addr())
		m.TLS = clientTLS(pool)
		target := assert.Value(parseHub(m.HubURL))(t)
		assert.Fails(t, assert.Err(m.upgrade(t.Context(), target, false)), test.want, name)
		server.Close()
	}
}
