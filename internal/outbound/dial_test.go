package outbound

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
)

// fakeNetwork is a host's addresses and what each does: "dead" gives no answer, "refused"
// refuses at once, "late" connects after 600 ms, and others connect.
type fakeNetwork struct {
	racer
	addresses []string
	does      map[string]string
	tried     []string
	open      map[string]net.Conn // the other ends of connections
}

func newFakeNetwork(does ...string) *fakeNetwork {
	f := &fakeNetwork{does: map[string]string{}, open: map[string]net.Conn{}}
	for i := 0; i < len(does); i += 2 {
		f.addresses = append(f.addresses, does[i])
		f.does[does[i]] = does[i+1]
	}
	var lock sync.Mutex
	f.lookup = func(_ context.Context, network, host string) (all []netip.Addr, err error) {
		if network != "ip" || host != "hub.test" {
			return nil, errors.New("unexpected look-up")
		}
		for _, a := range f.addresses {
			all = append(all, netip.MustParseAddr(a))
		}
		return all, nil
	}
	f.one = func(ctx context.Context, _, address string) (net.Conn, error) {
		host, _, _ := net.SplitHostPort(address)
		lock.Lock()
		f.tried = append(f.tried, host)
		lock.Unlock()
		switch f.does[host] {
		case "dead":
			<-ctx.Done()
			return nil, ctx.Err()
		case "refused":
			return nil, errors.New("refused by " + host)
		case "late":
			time.Sleep(600 * time.Millisecond)
		}
		near, far := net.Pipe()
		lock.Lock()
		f.open[host] = far
		lock.Unlock()
		return near, nil
	}
	return f
}

// TestAddresses: each address has its time, whatever those before it do.
func TestAddresses(t *testing.T) {
	for name, c := range map[string]struct {
		does  []string
		tried string
		after time.Duration
		err   string // empty: connected to the last one of tried
	}{
		"one": {[]string{"10.0.0.1", "up"}, "10.0.0.1", 0, ""},
		"three dead of four": {
			[]string{"10.0.0.1", "dead", "10.0.0.2", "dead", "10.0.0.3", "dead", "10.0.0.4", "up"},
			"10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4", 750 * time.Millisecond, "",
		},
		"families in turn": {
			[]string{"2001:db8::1", "dead", "2001:db8::2", "dead", "10.0.0.1", "up", "10.0.0.2", "up"},
			"2001:db8::1 10.0.0.1", 250 * time.Millisecond, "",
		},
		"refused at once": {
			[]string{"10.0.0.1", "refused", "10.0.0.2", "refused", "10.0.0.3", "up"},
			"10.0.0.1 10.0.0.2 10.0.0.3", 0, "",
		},
		"dead and refused": {
			[]string{"10.0.0.1", "dead", "10.0.0.2", "refused", "10.0.0.3", "up"},
			"10.0.0.1 10.0.0.2 10.0.0.3", 250 * time.Millisecond, "",
		},
		"all refused": {[]string{"10.0.0.1", "refused", "::1", "refused"}, "10.0.0.1 ::1", 0, "refused by 10.0.0.1"},
		"all dead": {
			[]string{"10.0.0.1", "dead", "10.0.0.2", "dead"},
			"10.0.0.1 10.0.0.2", attemptTimeout + 250*time.Millisecond, "deadline exceeded",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeNetwork(c.does...)
				begun := time.Now()
				conn, err := f.dial(t.Context(), "tcp", "hub.test:443")
				assert.Equal(t, time.Since(begun), c.after, "after")
				synctest.Wait()
				assert.Equal(t, strings.Join(f.tried, " "), c.tried, "tried")
				switch {
				case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
					t.Errorf("error %v", err)
				case c.err == "" && err != nil:
					t.Error(err)
				case err == nil:
					conn.Close()
				}
			})
		})
	}
}

// TestLosersAreClosed: a connection that comes too late is closed.
func TestLosersAreClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNetwork("10.0.0.1", "late", "10.0.0.2", "up")
		conn := assert.Value(f.dial(t.Context(), "tcp", "hub.test:443"))(t)
		defer conn.Close()
		time.Sleep(time.Second)
		synctest.Wait()
		if _, err := f.open["10.0.0.1"].Read(make([]byte, 1)); err == nil || !slices.Equal(f.tried, f.addresses) {
			t.Errorf("the late connection is open: %v; tried %v", err, f.tried)
		}
	})
}

// TestDialEndsWithItsContext also while no address answers.
func TestDialEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		begun := time.Now()
		_, err := newFakeNetwork("10.0.0.1", "dead", "10.0.0.2", "dead").dial(ctx, "tcp", "hub.test:443")
		if took := time.Since(begun); took != 300*time.Millisecond || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// TestDialPublic connects to no address of this computer or its network, whatever name it has.
func TestDialPublic(t *testing.T) {
	l := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for _, host := range []string{"127.0.0.1", "localhost"} {
		c, err := DialPublic(t.Context(), "tcp", net.JoinHostPort(host, port))
		if err == nil {
			c.Close()
		}
		assert.Is(t, err, ErrNotPublic, host)
	}
	for text, want := range map[string]bool{
		"1.1.1.1": true, "2606:4700::1111": true, "64:ff9b::101:101": true, "2001:4860:4860::8888": true,
		"10.1.2.3": false, "172.16.0.1": false, "192.168.1.1": false, "100.64.0.1": false, "169.254.169.254": false,
		"0.0.0.0": false, "255.255.255.255": false, "224.0.0.1": false, "240.0.0.1": false, "198.18.0.1": false,
		"::1": false, "::": false, "fe80::1%eth0": false, "fd00::1": false, "fc00::1": false, "ff02::1": false,
		"::ffff:10.0.0.1": false, "::10.0.0.1": false, "64:ff9b::a00:1": false, "2002:a00:1::": false, "2001::1": false, "2001:db8::1": false,
	} {
		assert.Equal(t, IsPublic(netip.MustParseAddr(text)), want, text)
	}
}
