package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// How long a place may take for one answer.
const (
	nearWait = 300 * time.Millisecond // on this machine
	farWait  = 2 * time.Second        // a configured place elsewhere
)

// How long a look at one place may take in all.
const (
	nearLook = 2 * time.Second
	farLook  = 10 * time.Second
)

// maxPage bounds what is read of one answer to a probe.
const maxPage = 2 << 20

// A place is an address under examination, in one look: each page is fetched
// once, whichever kinds ask for it.
type place struct {
	ctx   context.Context
	rt    http.RoundTripper
	base  string
	wait  time.Duration
	pages map[string]page
	known map[string]Model // details of models, kept from look to look
}

// A page is an answer to a probe, or why there is none.
type page struct {
	status int
	header http.Header
	body   []byte
	err    error
}

// get is the page at path.
func (p *place) get(path string) page { return p.fetch(http.MethodGet, path, "") }

// post is what the JSON body gets at path.
func (p *place) post(path, body string) page { return p.fetch(http.MethodPost, path, body) }

func (p *place) fetch(method, path, body string) page {
	key := method + " " + path + " " + body
	if got, ok := p.pages[key]; ok {
		return got
	}
	got := p.ask(method, path, body)
	p.pages[key] = got
	return got
}

func (p *place) ask(method, path, body string) page {
	ctx, cancel := context.WithTimeout(p.ctx, p.wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, strings.NewReader(body))
	if err != nil {
		return page{err: err}
	}
	req.Header.Set("User-Agent", "kith")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := p.rt.RoundTrip(req)
	if err != nil {
		return page{err: p.why(err)}
	}
	defer resp.Body.Close()
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" { // nobody asked for it: nothing is unpacked
		return page{err: fmt.Errorf("its answer at %s is compressed, unasked", path)}
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxPage+1))
	switch {
	case err != nil:
		return page{err: p.why(err)}
	case len(text) > maxPage:
		return page{err: fmt.Errorf("its answer at %s is larger than %d MiB", path, maxPage>>20)}
	}
	return page{status: resp.StatusCode, header: resp.Header, body: text}
}

// NothingListens is why there is no engine where nobody is at home.
const NothingListens = "nothing listens there"

// errSlow marks a place that is there and did not answer in time.
var errSlow = errors.New("it did not answer")

// why puts a failed probe in words an owner can act on.
func (p *place) why(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w within %v", errSlow, p.wait)
	case errors.Is(err, syscall.ECONNREFUSED):
		return errors.New(NothingListens)
	default:
		return fmt.Errorf("it cannot be asked: %w", err)
	}
}

// into reads the page into v.
func (g page) into(v any) error {
	switch {
	case g.err != nil:
		return g.err
	case g.status == http.StatusUnauthorized, g.status == http.StatusForbidden:
		return errLocked
	case g.status == http.StatusServiceUnavailable:
		return errors.New("it is not ready yet (status 503), perhaps still loading its model")
	case g.status != http.StatusOK:
		return fmt.Errorf("it answered with status %d", g.status)
	}
	if err := json.Unmarshal(bytes.TrimSpace(g.body), v, jsontext.AllowDuplicateNames(true)); err != nil {
		return errors.New("its answer is not the JSON that was expected")
	}
	return nil
}

// recall is what find said of a model, asked once while key stays the same and
// find succeeded.
func (p *place) recall(key string, find func() (Model, error)) (Model, error) {
	if m, ok := p.known[key]; ok {
		return m, nil
	}
	m, err := find()
	if err == nil {
		p.known[key] = m
	}
	return m, err
}

// loopback reports whether the address is on this machine by its own words.
func loopback(base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// atoi is the whole number of a JSON value, 0 if it is none.
func atoi(v jsontext.Value) int {
	n, err := strconv.Atoi(string(v))
	if err != nil {
		return 0
	}
	return n
}
