package browser_test

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/chromedp"
	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/assert"
)

// attacks are pages, each under a line "# name". In them TARGET is the base URL
// of what is attacked, SOCKET the same for a WebSocket, PROMPT a call that they
// want run, HALF the name of a form's field that makes one, and ENCODED the call
// in base64.
//
//go:embed testdata/attacks.html
var attacks string

// page is one attack.
type page struct{ name, html string }

// pages are the attacks on one target; the call that a page wants run says its
// name.
func pages(t *testing.T, target string) []page {
	t.Helper()
	var all []page
	for part := range strings.SplitSeq("\n"+attacks, "\n# ") {
		name, html, ok := strings.Cut(part, "\n")
		if !ok || name == "" {
			continue
		}
		call := `{"model":"test-model","messages":[{"role":"user","content":"` + name + `"}]}`
		fill := strings.NewReplacer("TARGET", target, "SOCKET", strings.Replace(target, "http", "ws", 1), "PROMPT", call,
			"HALF", strings.TrimSuffix(call, "}")+`,"x":"`, "ENCODED", base64.StdEncoding.EncodeToString([]byte(call)))
		all = append(all, page{name, "<!doctype html><title>attack</title><body>" + fill.Replace(html)})
	}
	assert.Require(t, len(all) >= 30, len(all), "attack pages")
	return all
}

// lair serves the attacks on a target, by their numbers, at the port it returns.
func lair(t *testing.T, all []page, target string) (port string) {
	t.Helper()
	mux := http.NewServeMux()
	for i, p := range all {
		mux.HandleFunc(fmt.Sprintf("GET /%d", i), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			if strings.HasPrefix(p.name, "report") {
				w.Header().Set("Content-Security-Policy", "img-src 'none'; report-uri "+target+"/v1/chat/completions")
			}
			fmt.Fprint(w, p.html)
		})
	}
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		http.Redirect(w, r, target+"/v1/chat/completions", http.StatusTemporaryRedirect) // the body goes along
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	u := assert.Value(url.Parse(s.URL))(t)
	return u.Port()
}

// hostile is the browser's outfit: hostile names lead to this computer, and its
// own walls between the network and loopback are down, so that ours is tried.
func hostile() map[string]any {
	return map[string]any{
		"host-resolver-rules": "MAP *.example 127.0.0.1, MAP *.example. 127.0.0.1",
		"disable-features":    "LocalNetworkAccessChecks,LocalNetworkAccessChecksWebRTC,BlockInsecurePrivateNetworkRequests,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable",

		"disable-popup-blocking": true,
	}
}

// tabs is how many pages are open at once: most of them wait.
const tabs = 6

// visit opens the pages below base, each in a tab of its own, until each says
// that it is done or has left for somewhere else. With planted, nothing of a
// page itself is asked of the address.
func visit(t *testing.T, browser context.Context, base string, all []page, planted bool) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(tabs)
	for i, p := range all {
		group.Go(func() error {
			if err := open(browser, fmt.Sprintf("%s/%d", base, i), p, planted); err != nil {
				return fmt.Errorf("%q of %s: %w", p.name, base, err)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func open(browser context.Context, address string, p page, planted bool) error {
	tab, leave := chromedp.NewContext(browser)
	defer leave()
	if err := chromedp.Do(tab); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(tab, patience)
	defer cancel()
	if planted {
		if err := plant(ctx, address, p.html); err != nil {
			return err
		}
	}
	if err := chromedp.Do(ctx, chromedp.Navigate(address)); err != nil && !strings.Contains(err.Error(), "ERR_ABORTED") {
		return err
	}
	for {
		over, err := chromedp.Run(ctx, chromedp.Evaluate[bool](fmt.Sprintf("document.title === 'done' || location.href !== %q", address)))
		if err == nil && over {
			return nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("it is never done: %w", ctx.Err())
		}
	}
}

// plant answers a tab's request for the address with the document.
func plant(tab context.Context, address, document string) error {
	asked := chromedp.Events(tab, fetch.RequestPaused)
	patterns := fetch.EnableParams{Patterns: []*fetch.RequestPattern{{URLPattern: address}}}
	if _, err := chromedp.Call(tab, fetch.Enable, patterns); err != nil {
		return err
	}
	go func() {
		for request, err := range asked {
			if err != nil {
				return // the tab is closed
			}
			_, _ = chromedp.Call(tab, fetch.FulfillRequest, fetch.FulfillRequestParams{
				RequestID: request.RequestID, ResponseCode: http.StatusOK, Body: []byte(document),
				ResponseHeaders: []*fetch.HeaderEntry{{Name: "Content-Type", Value: "text/html; charset=utf-8"}},
			}) // a tab that is closed needs no page
		}
	}()
	return nil
}

// Pages make an unguarded engine run, and the daemon never, whatever their
// origin and by whichever name they call it (spec/security.md#local-guard).
func TestAttackPages(t *testing.T) {
	t.Parallel()
	browser := chromium(t, hostile())

	bare := double(t)
	all := pages(t, bare.URL())
	visit(t, browser, "http://evil.example:"+lair(t, all, bare.URL()), all, false)
	if runs := bare.Counts().Runs; runs < 15 {
		t.Errorf("an unguarded engine ran %d calls of %d pages: do the others attack at all?", runs, len(all))
	}

	d := serve(t, "")
	for _, c := range []struct{ origin, target string }{
		{"evil.example", "127.0.0.1"}, {"localhost", "localhost"}, {"127.0.0.1", "127.0.0.1"},
	} {
		target := "http://" + c.target + ":" + d.port
		all := pages(t, target)
		refused := d.refused()
		visit(t, browser, "http://"+c.origin+":"+lair(t, all, target), all, false)
		d.ranNothing(t, c.origin)
		if n := d.refused() - refused; n < len(all)*3/4 {
			t.Errorf("%d requests of %d pages of %s were refused: the browser kept the others, and the guard was not tried", n, len(all), c.origin)
		}
	}
}

// A page whose name has come to mean this computer, on the daemon's own port, is
// of the daemon's own origin to the browser: only the Host differs (spec/security.md#dns-rebinding).
func TestRebinding(t *testing.T) {
	t.Parallel()
	browser := chromium(t, hostile())
	d := serve(t, "")
	for _, host := range []string{"rebound.example", "rebound.example."} {
		base := "http://" + host + ":" + d.port
		all := pages(t, base)
		refused := d.refused()
		// A page is from where its name led before; its requests go to where the
		// name leads now.
		visit(t, browser, base, all, true)
		d.ranNothing(t, host)
		if n := d.refused() - refused; n < len(all)*3/4 {
			t.Errorf("%d requests of %d pages of %s were refused: the guard was not tried", n, len(all), host)
		}
	}
}

// ranNothing fails the test if a page made the daemon's engine run.
func (d *daemon) ranNothing(t *testing.T, origin string) {
	t.Helper()
	if runs := d.engine.Counts().Runs; runs != 0 {
		t.Errorf("pages of %s made the engine run %d times, the last time %q", origin, runs, d.engine.Last().Input)
	}
}

// Of hundreds of ways to write a Host, the daemon answers to three (spec/security.md#dns-rebinding).
func TestHostForms(t *testing.T) {
	t.Parallel()
	d := serve(t, "[ratelimit]\nenabled = false\n")
	names := strings.Fields(`localhost LOCALHOST Localhost localhost. localhost.localdomain localhost.evil.example evil.localhost
		xn--lcalhst-6fgb user@localhost localhost@evil.example 127.0.0.1 127.0.0.1. 127.0.0.1.nip.io 127.0.0.2 127.1 127.0.1
		127.000.000.001 0127.0.0.1 0x7f.0.0.1 0x7f.1 0x7f000001 2130706433 017700000001 0 0.0.0.0 127.0.0.1/ 127.0.0.1,evil.example
		[::1] ::1 [::01] [0:0:0:0:0:0:0:1] [::0001] [::] [::ffff:127.0.0.1] [::ffff:7f00:1] [::127.0.0.1] [::1%lo] [::1%25lo] [::1 ::1]
		[[::1]] evil.example 192.168.1.4 10.0.0.1 host.docker.internal kith.local * null . - %6cocalhost`)
	var passed []string
	tried := 0
	for _, name := range names {
		for _, after := range []string{":" + d.port, "", ":", ":80", ":0" + d.port, ":" + d.port + ":" + d.port} {
			tried++
			if d.answers(t, name+after) {
				passed = append(passed, name+after)
			}
		}
	}
	want := fmt.Sprintf("localhost:%[1]s 127.0.0.1:%[1]s [::1]:%[1]s", d.port)
	if got := strings.Join(passed, " "); got != want || tried < 200 {
		t.Errorf("of %d forms passed %q, want %q", tried, got, want)
	}
}

// answers reports whether the daemon lists its models to that Host.
func (d *daemon) answers(t *testing.T, host string) bool {
	t.Helper()
	c, err := net.Dial("tcp", "127.0.0.1:"+d.port)
	assert.OK(t, err)
	defer c.Close()
	fmt.Fprintf(c, "GET /v1/models HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	assert.OK(t, err, "Host", host)
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusBadRequest {
		t.Errorf("Host %q: status %d", host, resp.StatusCode)
	}
	return resp.StatusCode == http.StatusOK
}
