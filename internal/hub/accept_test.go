package hub

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// knock asks for a tunnel with that Authorization, without taking it over.
func (r *rig) knock(authorization string) reply {
	r.t.Helper()
	return send(r.t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if authorization != "" {
			q.Header.Set("Authorization", authorization)
		}
		r.Handler().ServeHTTP(w, q)
	}), "GET", "/tunnel", "")
}

func TestTunnelRefused(t *testing.T) {
	r := newRig(t, Config{Admissions: 1, Regions: map[string]*url.URL{"us": {Scheme: "https", Host: "us.example"}}})
	_, key := r.member("ann")
	machineID, good := r.machine("ann", "box")
	before := r.kept.lookups.Load()
	for name, authorization := range map[string]string{
		"nothing":            "",
		"another scheme":     "Basic " + good,
		"mistyped":           "Bearer " + mistyped(good),
		"an API key":         "Bearer " + key,
		"unknown (looks up)": "Bearer " + credential.Mint(credential.MachineKey, "home").Reveal(),
	} {
		a := r.knock(authorization)
		if a.Status != 401 || a.code() != "invalid_api_key" || a.Header.Get("X-Correlation-ID") == "" {
			t.Errorf("%s: %d %v", name, a.Status, a.Body)
		}
	}
	assert.Equal(t, r.kept.lookups.Load()-before, 1, "look-ups")

	for region, address := range map[string]string{"moon": "", "us": "https://us.example"} {
		a := r.knock("Bearer " + credential.Mint(credential.MachineKey, region).Reveal())
		message, _ := a.Body["error"].(map[string]any)["message"].(string)
		if a.Status != 421 || a.code() != "wrong_region" || a.Header.Get("Kith-Hub") != address || !strings.Contains(message, address) || !strings.Contains(message, region) {
			t.Errorf("of region %s: %d %v %v", region, a.Status, a.Body, a.Header)
		}
	}
	assert.Equal(t, r.kept.lookups.Load()-before, 1, "look-ups after those of other regions")

	soon := func(name string, a reply, code string) {
		t.Helper()
		if after, err := strconv.Atoi(a.Header.Get("Retry-After")); a.Status != 503 || a.code() != code || err != nil || after < 1 || after > 30 {
			t.Errorf("%s: %d %v, %v", name, a.Status, a.Body, a.Header)
		}
	}
	r.kept.down.Store(true)
	soon("database down", r.knock("Bearer "+good), "CASCADE_EXHAUSTED")
	r.kept.down.Store(false)
	r.ok("POST", "/machines/"+machineID+"/revoke", "")
	assert.Equal(t, r.knock("Bearer "+good).Status, 401, "revoked")
	select {
	case r.admitted <- struct{}{}:
	default:
		t.Error("a place at the gate is lost")
	}
}

// A machine waits at the gate for a place, and is sent away if none becomes free.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{Admissions: 1})
		r.admitted <- struct{}{} // another one is at the gate
		time.AfterFunc(gateWait-time.Millisecond, func() { <-r.admitted })
		if a := r.knock("Bearer wrong"); a.Status != 401 {
			t.Errorf("a place becomes free: %d %v", a.Status, a.Body)
		}
		r.admitted <- struct{}{}
		began := time.Now()
		a := r.knock("Bearer wrong")
		if after, err := strconv.Atoi(a.Header.Get("Retry-After")); a.Status != 503 || a.code() != "CAPACITY_FULL" || err != nil || after < 1 || after > 30 {
			t.Errorf("no place becomes free: %d %v, %v", a.Status, a.Body, a.Header)
		}
		assert.Equal(t, time.Since(began), gateWait, "waited")
	})
}

// Behind a trusted proxy a request for a tunnel is one of its client's until it is a tunnel or
// refused, so that one client cannot fill the gate.
func TestTunnelRequestsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := gateway.NewClients([]netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, 1, slog.New(slog.DiscardHandler))
		r := newRig(t, Config{Admissions: 1, Clients: clients})
		r.admitted <- struct{}{} // another one is at the gate
		knock := func(client string) *httptest.ResponseRecorder {
			w, q := httptest.NewRecorder(), httptest.NewRequest("GET", "/tunnel", nil) // from 192.0.2.1
			q.Header.Set("X-Forwarded-For", client)
			r.Handler().ServeHTTP(w, q)
			return w
		}
		first := make(chan *httptest.ResponseRecorder)
		go func() { first <- knock("203.0.113.1") }()
		synctest.Wait()
		began := time.Now()
		if w := knock("203.0.113.1"); w.Code != 429 || w.Header().Get("Retry-After") == "" || time.Since(began) != 0 {
			t.Errorf("a second one of the client: %d %v after %v", w.Code, w.Header(), time.Since(began))
		}
		if w := knock("203.0.113.2"); w.Code != 503 || time.Since(began) != gateWait {
			t.Errorf("one of another client: %d after %v", w.Code, time.Since(began))
		}
		if w := <-first; w.Code != 503 {
			t.Errorf("the first one: %d", w.Code)
		}
		<-r.admitted
		assert.Equal(t, knock("203.0.113.1").Code, 401, "the next one of the client")
	})
}

// A machine dials five times at once and once a second; then it is sent away,
// and no other with it.
func TestRedialsAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, Config{})
		r.member("ann")
		_, secret := r.machine("ann", "box")
		_, other := r.machine("ann", "den")
		dial := func(what, secret string, want int) {
			t.Helper()
			w, q := httptest.NewRecorder(), httptest.NewRequest("GET", "/tunnel", nil)
			q.Header.Set("Authorization", "Bearer "+secret)
			r.Handler().ServeHTTP(w, q)
			assert.Equal(t, w.Code, want, what, w.Body)
			if after, err := strconv.Atoi(w.Header().Get("Retry-After")); want == 503 && (err != nil || after < 1) {
				t.Errorf("%s: Retry-After %q", what, w.Header().Get("Retry-After"))
			}
		}
		const through = 426 // it asks for no tunnel
		for range 5 {
			dial("at once", secret, through)
		}
		dial("a sixth", secret, 503)
		dial("another machine", other, through)
		time.Sleep(time.Second)
		dial("a second later", secret, through)
		dial("and again", secret, 503)
	})
	var p paces
	now := time.Now()
	const machines = 20_000
	for i := range machines {
		p.of(strconv.Itoa(i), now).dials.AllowN(now, 1)
		now = now.Add(time.Millisecond)
	}
	if n := p.by.Len(); n > machines/4 {
		t.Errorf("%d machines are remembered", n)
	}
}

// A machine's advertisements take from its own allowance, which all its tunnels have
// together.
func TestAdvertisementsAreLimited(t *testing.T) {
	r := newRig(t, Config{})
	r.member("ann")
	id, secret := r.machine("ann", "box")
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	states := 0
	dialer := tunnel.Dialer{
		Instance: rand.Text(),
		HubURL:   server.URL, Credential: func() string { return secret }, Handler: http.NotFoundHandler(),
		Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
			changed := make(chan struct{})
			close(changed)
			states++
			return tunnel.Advertisement{Slots: states}, changed
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- dialer.Run(ctx) }()
	for late := time.Now().Add(time.Minute); r.paces.of(id, time.Now()).offers.Tokens() >= 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(late) {
			t.Error("a machine advertises without end, and its allowance is not used up")
			break
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The connected machines of one member are limited; another member has a limit of its
// own, and each that disconnects makes room.
func TestTunnelsOfOneMember(t *testing.T) {
	r := newRig(t, Config{Machines: 2})
	r.member("ann")
	r.member("bob")
	_, anns := r.machine("ann", "box")
	_, bobs := r.machine("bob", "box")
	owner := assert.Value(r.kept.MemberByName(t.Context(), "ann"))(t)
	first, ok := r.tunnels.take(owner.ID, "a")
	if _, second := r.tunnels.take(owner.ID, "b"); !ok || !second {
		t.Fatal("no two machines of two")
	}
	if again, ok := r.tunnels.take(owner.ID, "b"); !ok {
		t.Fatal("a machine cannot come again")
	} else {
		again()
	}
	if a := r.knock("Bearer " + anns); a.Status != 503 || a.code() != "CAPACITY_FULL" {
		t.Errorf("a third: %d %v", a.Status, a.Body)
	}
	passes := func(what, secret string) {
		q, w := httptest.NewRequest("GET", "/tunnel", nil), httptest.NewRecorder()
		q.Header.Set("Authorization", "Bearer "+secret)
		if r.Handler().ServeHTTP(w, q); w.Code != http.StatusUpgradeRequired { // all that is missing
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	passes("another member's", bobs)
	first()
	passes("after one ended", anns)
	passes("after a refused upgrade", anns)
}

// openTunnel asks for a tunnel, and returns the connection and the hub's answer.
func openTunnel(t *testing.T, server *httptest.Server, secret string) (net.Conn, *http.Response) {
	t.Helper()
	c := assert.Value(net.Dial("tcp", server.Listener.Addr().String()))(t)
	t.Cleanup(func() { c.Close() })
	q, _ := http.NewRequest("GET", server.URL+"/tunnel", nil)
	q.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {tunnel.Protocol}, "Authorization": {"Bearer " + secret}, tunnel.HeaderVersion: {"1"}, tunnel.HeaderInstance: {"one"},
	}
	assert.OK(t, q.Write(c))
	answer := assert.Value(http.ReadResponse(bufio.NewReader(c), q))(t)
	return c, answer
}

// A machine counts until its tunnel ends.
func TestOpenTunnelsCount(t *testing.T) {
	r := newRig(t, Config{Machines: 1})
	r.member("ann")
	_, box := r.machine("ann", "box")
	_, den := r.machine("ann", "den")
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	c, first := openTunnel(t, server, box)
	_, second := openTunnel(t, server, den)
	if first.StatusCode != 101 || second.StatusCode != 503 {
		t.Errorf("the first machine gets %d, the second %d", first.StatusCode, second.StatusCode)
	}
	c.Close()
	for late := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		r.tunnels.mu.Lock()
		left := len(r.tunnels.of)
		r.tunnels.mu.Unlock()
		if left == 0 {
			break
		}
		assert.Require(t, !time.Now().After(late), "the first machine's end is not counted")
	}
	if _, second = openTunnel(t, server, den); second.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("after the first one's end the second gets %d", second.StatusCode)
	}
}

// Each tunnel of a machine has a greater generation, and its handshake ends once it is
// open.
func TestTunnelGenerations(t *testing.T) {
	r := newRig(t, Config{Admissions: 1})
	r.member("ann")
	_, secret := r.machine("ann", "box")
	var handlers sync.WaitGroup
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		r.Handler().ServeHTTP(w, q)
	}))
	defer handlers.Wait()
	defer server.Close()
	last := time.Now().UnixMilli() - 1
	for range 3 {
		_, answer := openTunnel(t, server, secret)
		got, err := strconv.ParseInt(answer.Header.Get(tunnel.HeaderGeneration), 10, 64)
		if answer.StatusCode != 101 || err != nil || got <= last {
			t.Errorf("%d, generation %d after %d: %v", answer.StatusCode, got, last, err)
		}
		last = got
		r.admitted <- struct{}{} // comes through once the place is free
		<-r.admitted
	}
}

// A machine has left the gate when it is answered: one that does not read holds no place.
func TestGateIsLeftBeforeTheAnswer(t *testing.T) {
	r := newRig(t, Config{})
	r.member("ann")
	_, secret := r.machine("ann", "box")
	q := httptest.NewRequest("GET", "/tunnel", nil)
	q.Header = http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {tunnel.Protocol}, "Authorization": {"Bearer " + secret}, tunnel.HeaderVersion: {"1"}, tunnel.HeaderInstance: {"one"},
	}
	places := -1
	r.Handler().ServeHTTP(hijacked{httptest.NewRecorder(), func() { places = len(r.admitted) }}, q)
	assert.Equal(t, places, 0, "places are taken at the answer")
}

// hijacked calls a function when its connection is to be taken over, and has none.
type hijacked struct {
	http.ResponseWriter
	call func()
}

// Hijack implements http.Hijacker.
func (h hijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h.call()
	return nil, nil, errors.New("there is no connection")
}

func TestLogin(t *testing.T) {
	r := newRig(t, Config{})
	r.member("ann")
	token := r.ok("POST", "/machines/token", `{"member":"ann","name":"box"}`).Body["token"].(string)
	login := func(body string) reply {
		t.Helper()
		return send(t, r.Handler(), "POST", "/login", body)
	}
	for name, c := range map[string]struct {
		body   string
		status int
	}{
		"no JSON":           {`{`, 400},
		"an unknown member": {`{"token":"` + token + `","admin":true}`, 400},
		"no token":          {`{}`, 401},
		"mistyped":          {`{"token":"` + mistyped(token) + `"}`, 401},
		"another region's":  {`{"token":"` + elsewhere(credential.LoginToken) + `"}`, 401},
		"unknown":           {`{"token":"` + credential.Mint(credential.LoginToken, "home").Reveal() + `"}`, 401},
	} {
		if a := login(c.body); a.Status != c.status || a.Header.Get("X-Correlation-ID") == "" {
			t.Errorf("%s: %d %v", name, a.Status, a.Body)
		}
	}
	a := login(`{"token":"` + token + `"}`)
	secret, _ := a.Body["secret"].(string)
	if s, err := credential.Parse(secret); a.Status != 200 || err != nil || s.Kind() != credential.MachineKey || a.Body["name"] != "box" || a.Body["member"] != "ann" || a.Body["region"] != "home" {
		t.Fatalf("%d %v", a.Status, a.Body)
	}
	assert.Equal(t, login(`{"token":"`+token+`"}`).Status, 401, "used")
	// A name that is taken leaves the token good for when it is not.
	again := r.ok("POST", "/machines/token", `{"member":"ann","name":"box"}`).Body["token"].(string)
	if b := login(`{"token":"` + again + `"}`); b.Status != 400 || b.code() != "invalid_request" {
		t.Errorf("taken: %d %v", b.Status, b.Body)
	}
	r.ok("POST", "/machines/"+a.Body["machine"].(string)+"/revoke", "")
	if b := login(`{"token":"` + again + `"}`); b.Status != 200 {
		t.Errorf("free again: %d %v", b.Status, b.Body)
	}
	// A machine gives itself no name that a member could not give it.
	unnamed := r.ok("POST", "/machines/token", `{"member":"ann"}`).Body["token"].(string)
	if b := login(`{"token":"` + unnamed + `","name":"bоx"}`); b.Status != 200 || b.Body["name"] != "machine" { // a Cyrillic о
		t.Errorf("of two scripts: %d %v", b.Status, b.Body)
	}
	// After a day it is over.
	synctest.Test(t, func(t *testing.T) {
		old := r.ok("POST", "/machines/token", `{"member":"ann"}`).Body["token"].(string)
		time.Sleep(24*time.Hour + time.Second)
		assert.Equal(t, login(`{"token":"`+old+`"}`).Status, 401, "expired")
	})
}
