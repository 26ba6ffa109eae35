package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// farKey is a key of region "us", and lostKey one of an unknown region.
const (
	farKey  = "kith_us_good"
	lostKey = "kith_moon_good"
)

// byRegion is an Identify of region "eu".
func byRegion(ctx context.Context, secret string) (fleet.Caller, error) {
	region, _, _ := strings.Cut(strings.TrimPrefix(secret, "kith_"), "_")
	if region == "test" {
		return keys(ctx, secret)
	}
	return fleet.Caller{}, fault.New(fault.InvalidAPIKey, "the API key is of region %q", region).Because(OtherRegion(region))
}

// edgeTo returns the edge of region "eu" with region "us" at address. It serves and
// records no calls itself.
func edgeTo(t *testing.T, address string, set func(*Config)) *Edge {
	t.Helper()
	at := assert.Value(url.Parse(address))(t)
	c := hostedConfig(refuses(errors.New("a call of another region ran here")))
	c.Identify, c.Region, c.Regions = byRegion, "eu", map[string]*url.URL{"us": at}
	c.Finished = func(*Call, Outcome) { t.Error("a call of another region was recorded") }
	c.Refused = func(call *Call, _ Outcome) {
		assert.Equal(t, call.Caller, (fleet.Caller{}), "the caller of another region")
	}
	if set != nil {
		set(&c)
	}
	return New(c)
}

// far starts a hub of region "us" that serves with a function.
func far(t *testing.T, serve http.HandlerFunc) (address string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Correlation-Id", "req_far")
		serve(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// farRequest returns a request with a key of region "us" to an edge that listens.
func farRequest(t *testing.T, edge, method, target string, body io.Reader) *http.Request {
	t.Helper()
	r := assert.Value(http.NewRequestWithContext(t.Context(), method, "http://"+edge+target, body))(t)
	r.Header.Set("Authorization", "Bearer "+farKey)
	return r
}

func send(t *testing.T, r *http.Request) *http.Response {
	t.Helper()
	res := assert.Value(http.DefaultClient.Do(r))(t)
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// A request with a key of another region arrives there unchanged, and so does its answer
// here, except what belongs to one connection or one site.
func TestForwardedWhole(t *testing.T) {
	body := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
	var got *http.Request
	var gotBody []byte
	address := far(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		gotBody, _ = io.ReadAll(r.Body)
		h := w.Header()
		h.Set("X-Kith-Route", "own; machine=box")
		h.Set("Set-Cookie", "a=b")
		h.Set("Access-Control-Allow-Origin", "https://far.example")
		h.Add("Vary", "Origin")
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(gotBody)
	})
	edge := listen(t, edgeTo(t, address, func(c *Config) { c.Origins = []string{"https://app.example"} }))
	r := farRequest(t, edge, "POST", "/v1/audio/transcriptions?a=1&a=2", bytes.NewReader(body))
	for name, value := range map[string]string{
		"Content-Type": "multipart/form-data; boundary=x", "Prefer": "wait=1", "User-Agent": "app/1", "Accept-Encoding": "br", "X-Api-Key": farKey,
		"Cookie": "session=1", "Origin": "https://app.example", "X-Forwarded-For": "10.9.9.9", "Keep-Alive": "x", "Connection": "X-Mine", "X-Mine": "1", "Upgrade": "x",
	} {
		r.Header.Set(name, value)
	}
	res := send(t, r)
	answer, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusTeapot || !bytes.Equal(answer, body) || !bytes.Equal(gotBody, body) {
		t.Fatalf("status %d, %d bytes there and %d back, %v", res.StatusCode, len(gotBody), len(answer), err)
	}
	if got.Method != "POST" || got.RequestURI != "/v1/audio/transcriptions?a=1&a=2" || "http://"+got.Host != address || got.ContentLength != int64(len(body)) {
		t.Errorf("it arrived as %s %s of %s with %d bytes", got.Method, got.RequestURI, got.Host, got.ContentLength)
	}
	for name, want := range map[string]string{
		"Authorization": "Bearer " + farKey, "X-Api-Key": farKey, "Content-Type": "multipart/form-data; boundary=x", "Prefer": "wait=1", "User-Agent": "app/1",
		"Accept-Encoding": "br", "X-Forwarded-For": "127.0.0.1", "Kith-Forwarded-From": "eu",
		"Cookie": "", "Origin": "", "Keep-Alive": "", "X-Mine": "", "Upgrade": "", "Connection": "",
	} {
		assert.Equal(t, strings.Join(got.Header[name], "|"), want, name, "arrived as")
	}
	for name, want := range map[string]string{
		"X-Correlation-Id": "req_far", "X-Kith-Route": "own; machine=box", "Set-Cookie": "", "Request-Id": "",
		"Access-Control-Allow-Origin": "https://app.example", "Vary": "Origin",
	} {
		assert.Equal(t, strings.Join(res.Header[name], "|"), want, name, "came back as")
	}
}

// Each part of a streamed answer reaches the caller before the next one is written, and
// the region is notified when the caller disconnects.
func TestForwardedStream(t *testing.T) {
	seen, left := make(chan struct{}), make(chan struct{})
	address := far(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 3 {
			_, _ = io.WriteString(w, "data: {}\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-seen:
			case <-r.Context().Done():
				return
			}
		}
		<-r.Context().Done()
		close(left)
	})
	ctx, cancel := context.WithCancel(t.Context())
	r := farRequest(t, listen(t, edgeTo(t, address, nil)), "POST", "/v1/chat/completions", strings.NewReader(chatRequest))
	res := send(t, r.WithContext(ctx))
	for range 3 {
		frame := make([]byte, len("data: {}\n\n"))
		assert.Value(io.ReadFull(res.Body, frame))(t)
		seen <- struct{}{}
	}
	cancel()
	<-left
}

// A forwarded body is not read past its end, since net/http may have closed it: the
// region may answer before the transport reads again.
func TestForwardedBodyEnds(t *testing.T) {
	body := io.MultiReader(strings.NewReader("abc"), iotest.ErrReader(http.ErrBodyReadAfterClose))
	r := httptest.NewRequest("POST", "/v1/chat/completions", body)
	r.ContentLength = 3
	b := &requestBody{r: r, src: body, control: http.NewResponseController(httptest.NewRecorder())}
	if got, err := io.ReadAll(b); string(got) != "abc" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// If an answer breaks off in the other region, it breaks off here.
func TestForwardedAnswerBreaksOff(t *testing.T) {
	for name, length := range map[string]string{"streamed": "", "unary": "1000"} {
		t.Run(name, func(t *testing.T) {
			address := far(t, func(w http.ResponseWriter, _ *http.Request) {
				if length != "" {
					w.Header().Set("Content-Length", length)
				}
				_, _ = io.WriteString(w, "data: {}\n\n")
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			})
			res, err := http.DefaultClient.Do(farRequest(t, listen(t, edgeTo(t, address, nil)), "POST", "/v1/chat/completions", strings.NewReader(chatRequest)))
			var text []byte
			if err == nil { // otherwise the connection ended before the status was sent
				text, err = io.ReadAll(res.Body)
				res.Body.Close()
			}
			assert.That(t, err != nil, text, "is complete")
		})
	}
}

// A region may refuse a body before it has arrived.
func TestForwardedBodyRefusedEarly(t *testing.T) {
	address := far(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	edge := listen(t, edgeTo(t, address, nil))
	answer := raw(t, edge, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "+farKey+"\r\nContent-Length: 1000000\r\n\r\n{")
	if !strings.HasPrefix(answer, "HTTP/1.1 413 ") || !strings.Contains(answer, "\r\nConnection: close\r\n") || strings.Count(answer, "HTTP/1.1") != 1 {
		t.Errorf("%q", answer)
	}
}

// If a region cannot be reached, or no hub answers at its address, the caller gets a
// refusal in its dialect that can be retried.
func TestRegionUnreachable(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	noHub := httptest.NewServer(http.NotFoundHandler())
	defer noHub.Close()
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "welcome") }))
	defer page.Close()
	moved := far(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://elsewhere.example/", http.StatusFound)
	})
	for name, address := range map[string]string{"nothing there": gone.URL, "no hub": noHub.URL, "a page": page.URL, "moved": moved} {
		t.Run(name, func(t *testing.T) {
			edge := edgeTo(t, address, nil)
			for _, path := range []string{"/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/audio/transcriptions", "/v1/models"} {
				method := "POST"
				if path == "/v1/models" {
					method = "GET"
				}
				w, _ := do(edge, ask(method, path, chatRequest, "Authorization", "", "Authorization", "Bearer "+farKey))
				got := checkFault(t, w, 503, fault.CascadeExhausted)
				if !strings.Contains(got.Error.Message, `region "us"`) || w.Header().Get("Retry-After") == "" || w.Header().Get("Location") != "" {
					t.Errorf("%s: %v %v", path, got, w.Header())
				}
			}
			w, _ := do(edge, ask("POST", "/v1/messages", chatRequest, "Authorization", "", "X-Api-Key", farKey, "Anthropic-Version", "2023-06-01"))
			if w.Code != 503 || !strings.HasPrefix(w.Body.String(), `{"type":"error"`) || w.Header().Get("X-Correlation-Id") == "" {
				t.Errorf("messages: %d %s", w.Code, w.Body)
			}
		})
	}
}

// Not forwarded are: a key of a region that is not configured, a request that was already
// forwarded, a path without a route, and too many requests from one address.
func TestNotForwarded(t *testing.T) {
	calls := 0
	address := far(t, func(http.ResponseWriter, *http.Request) { calls++ })
	edge := edgeTo(t, address, nil)
	for name, test := range map[string]struct {
		key, path string
		header    []string
		status    int
		code      fault.Code
		names     string
	}{
		"an unknown region": {lostKey, "/v1/models", nil, 401, fault.InvalidAPIKey, "moon"},
		"a circle":          {farKey, "/v1/models", []string{"Kith-Forwarded-From", "us"}, 401, fault.InvalidAPIKey, "us"},
		"no route":          {farKey, "/v1/nothing", nil, 404, fault.RouteNotFound, ""},
		"a method":          {farKey, "/v1/chat/completions", nil, 405, fault.MethodNotAllowed, ""},
		"two keys":          {farKey, "/v1/models", []string{"X-Api-Key", goodKey}, 401, fault.InvalidAPIKey, ""},
	} {
		r := ask("GET", test.path, "", append([]string{"Authorization", "", "Authorization", "Bearer " + test.key}, test.header...)...)
		w, _ := do(edge, r)
		if got := checkFault(t, w, test.status, test.code); !strings.Contains(got.Error.Message, test.names) || strings.Contains(got.Error.Message, test.key) {
			t.Errorf("%s: %q", name, got.Error.Message)
		}
	}
	assert.Require(t, calls == 0, calls, "requests were forwarded")

	edge = edgeTo(t, address, func(c *Config) { c.Rate = Rate{PerSecond: 0.001, Burst: 3} })
	var statuses []int
	for _, from := range []string{"192.0.2.1:1", "192.0.2.1:2", "[2001:db8::1]:1", "192.0.2.1:3", "192.0.2.1:4", "[2001:db8::2]:1"} {
		r := ask("GET", "/v1/models", "", "Authorization", "", "Authorization", "Bearer "+farKey)
		r.RemoteAddr = from
		w, _ := do(edge, r)
		statuses = append(statuses, w.Code)
	}
	if want := []int{200, 200, 200, 200, 429, 200}; !slices.Equal(statuses, want) || calls != 5 {
		t.Errorf("%v and %d requests forwarded, want %v", statuses, calls, want)
	}
	if w, _ := do(edge, ask("GET", "/v1/models", "")); w.Code == 429 {
		t.Error("keys of this region share the rate")
	}
}

// The time limit for a region's answer follows the limits in force, not those at the
// start. A reload of other settings keeps the connections to it. No other copy exists of
// what Reconfigure replaces.
func TestReconfiguredRegions(t *testing.T) {
	c := hostedConfig(refuses(errors.New("no call")))
	c.Limits.Unary, c.Rate, c.Origins = time.Minute, Rate{PerSecond: 1, Burst: 1}, []string{"https://app.example"}
	edge := New(c)
	if cfg := edge.cfg; cfg.Limits != (Limits{}) || cfg.Rate != (Rate{}) || cfg.Origins != nil {
		t.Errorf("the edge keeps %+v, %+v and %v of its start", cfg.Limits, cfg.Rate, cfg.Origins)
	}
	first := edge.tuning.Load().transport
	c.Origins, c.Rate = nil, Rate{}
	edge.Reconfigure(c)
	if edge.tuning.Load().transport != first || first.ResponseHeaderTimeout != 70*time.Second {
		t.Errorf("the transport was replaced, or waits %s for an answer", first.ResponseHeaderTimeout)
	}
	c.Limits.Unary = 2 * time.Minute
	edge.Reconfigure(c)
	if wait := edge.tuning.Load().transport.ResponseHeaderTimeout; wait != 130*time.Second {
		t.Errorf("after a reload with a limit of 2 min a region has %s to answer", wait)
	}
}
