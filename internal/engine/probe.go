package engine

import (
	"bytes"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/outbound"
)

// Timeouts for one request of a probe.
const (
	nearWait = 300 * time.Millisecond // on this machine
	farWait  = 2 * time.Second        // on another machine
)

// Timeouts for all requests of a probe.
const (
	nearProbe = 2 * time.Second
	farProbe  = 10 * time.Second
)

// maxPage limits a page of a probe, in bytes.
const maxPage = 2 << 20

// probe reads the pages at one address. Each page is fetched only once, even if several
// kinds read it.
type probe struct {
	ctx   context.Context
	rt    http.RoundTripper
	base  string
	wait  time.Duration
	pages map[string]page
	known map[string]Model // details of models, kept between probes
	// accepted reports that the engine accepted a connection or has an idle one.
	accepted atomic.Bool

	// retried reports that the previous probe timed out. After a first timeout the engine
	// is not taken for another kind, nor a model for one with a single slot and without
	// tools: the next probe decides.
	retried bool
}

// identify finds out the kind of the engine and its models. It returns the kind even if
// listing the models fails.
func (p *probe) identify(configured bool) (*kind, []Model, error) {
	first := p.get("/v1/models")
	if first.err != nil {
		return nil, nil, first.err
	}
	for _, k := range kinds {
		if k.detect(p) {
			models, err := k.list(p)
			if late := p.late(); late != nil && !p.retried {
				return k, nil, late
			}
			return k, models, err
		}
	}
	if err := p.late(); err != nil && !p.retried {
		return nil, nil, err
	}
	if !configured {
		return nil, nil, errNotEngine
	}
	models, err := genericList(p)
	if err != nil {
		return nil, nil, err
	}
	return &generic, models, nil
}

// late returns the error of a page that timed out, or nil.
func (p *probe) late() error {
	for _, got := range p.pages {
		if errors.Is(got.err, errSlow) {
			return got.err
		}
	}
	return nil
}

// page is the response to a request of a probe, or its error.
type page struct {
	status int
	header http.Header
	body   []byte
	err    error
}

func (p *probe) get(path string) page { return p.fetch(http.MethodGet, path, "") }

func (p *probe) post(path, body string) page { return p.fetch(http.MethodPost, path, body) }

// fetch returns the page for a request. It sends equal requests only once.
func (p *probe) fetch(method, path, body string) page {
	key := method + " " + path + " " + body
	if got, ok := p.pages[key]; ok {
		return got
	}
	got := p.request(method, path, body)
	p.pages[key] = got
	return got
}

func (p *probe) request(method, path, body string) page {
	ctx, cancel := context.WithTimeout(p.ctx, p.wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, strings.NewReader(body))
	if err != nil {
		return page{err: err}
	}
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { p.accepted.Store(true) },
	}))
	req.Header.Set("User-Agent", "kith")
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := p.rt.RoundTrip(req)
	if err != nil {
		return page{err: p.why(err)}
	}
	defer resp.Body.Close()
	if e := resp.Header.Get("Content-Encoding"); e != "" && e != "identity" {
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

// NothingListens is the problem of an address that refuses connections.
const NothingListens = "nothing listens there"

// errSlow reports that an engine did not respond in time.
var errSlow = errors.New("it did not answer")

// errLocked reports that an engine requires a key.
var errLocked = errors.New("it asks for a key; name it as an [[upstream]] with that key instead")

// errNotEngine reports that the server at an address is not an engine.
var errNotEngine = errors.New("the server there is not an engine that kith knows; if it serves /v1/models, add its address to endpoints")

// why describes a failed request to the owner.
func (p *probe) why(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("%w within %v", errSlow, p.wait)
	case outbound.IsRefused(err):
		return errors.New(NothingListens)
	default:
		return fmt.Errorf("it cannot be asked: %w", err)
	}
}

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

// value returns the value in the JSON object of a page that the names lead to, one in the
// other, or nil.
func (p *probe) value(path string, names ...string) jsontext.Value {
	var value jsontext.Value
	if p.get(path).into(&value) != nil {
		return nil
	}
	for _, name := range names {
		var object map[string]jsontext.Value
		if json.Unmarshal(value, &object, jsontext.AllowDuplicateNames(true)) != nil {
			return nil
		}
		value = object[name]
	}
	return value
}

// gauges returns the sum of the gauges at /metrics over all labels; known reports that
// the first gauge exists.
func (p *probe) gauges(names ...string) (sum int, known bool) {
	metrics := p.get("/metrics")
	if metrics.err != nil || metrics.status != http.StatusOK {
		return 0, false
	}
	for line := range bytes.Lines(metrics.body) {
		for i, name := range names {
			rest, ok := strings.CutPrefix(string(line), name)
			if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
				continue
			}
			fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
			if len(fields) == 0 {
				continue
			}
			value, err := strconv.ParseFloat(fields[0], 64)
			if err == nil && value >= 0 && value < 1e6 {
				sum += int(value)
				known = known || i == 0
			}
		}
	}
	return sum, known
}

// loopback reports whether the address names this machine.
func loopback(base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	ip := net.ParseIP(u.Hostname())
	return u.Hostname() == "localhost" || ip != nil && ip.IsLoopback()
}

// atoi returns the integer in a JSON value, or 0.
func atoi(v jsontext.Value) int {
	n, err := strconv.Atoi(string(v))
	if err != nil {
		return 0
	}
	return n
}
