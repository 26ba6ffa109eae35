package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fleet"
)

// way is an http.RoundTripper for a machine whose tunnel ends at another node. It sends
// requests to that node, the machine's home, which forwards them.
type way struct {
	cluster    *Cluster
	peer       *peer
	machine    fleet.MachineID
	generation int64
}

// RoundTrip sends a request to the machine through its home. If the home refuses, the
// error is dispatch.ErrRefused or ErrNotTaken. If the link or the machine's tunnel ends,
// it fails with dispatch.ErrLost, and so do reads of the response's body.
func (w *way) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	if r.Header == nil {
		r.Header = make(http.Header)
	}
	r.Header.Set(headerMachine, fmt.Sprintf("%s %d", w.machine, w.generation))
	response, err := w.peer.RoundTrip(r)
	if err != nil {
		w.cluster.forwards.add(endOf(r.Context(), err))
		return nil, lostBy(err)
	}
	if reason := end(response.Header.Get(headerRefused)); reason != "" {
		w.cluster.forwards.add(reason)
		response.Body.Close()
		return nil, w.ended(reason)
	}
	response.Body = &wayBody{ReadCloser: response.Body, response: response, way: w, ctx: r.Context()}
	return response, nil
}

// ended returns the error for an exchange that the home ended for the given reason.
func (w *way) ended(how end) error {
	if how == refusedGone || how == refusedMoved || how == endedLost {
		w.cluster.parts.Registry.LoseMachine(w.peer.node.Name, w.machine, w.generation)
	}
	return how.err()
}

// lostBy returns err, wrapped as dispatch.ErrLost if the link to the other node ended.
func lostBy(err error) error {
	if errors.Is(err, errLost) {
		return fmt.Errorf("%w: %w", dispatch.ErrLost, err)
	}
	return err
}

// wayBody is the body of a machine's answer that arrives through its home. It is complete
// only if the home reports that, because the end of the stream may also be the end of the
// node.
type wayBody struct {
	io.ReadCloser
	response *http.Response
	way      *way
	ctx      context.Context // of the request
	counted  sync.Once       // the end of the request
}

// Read implements io.Reader.
func (b *wayBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
		return n, nil
	case err != io.EOF:
		b.count(endOf(b.ctx, err))
		return n, lostBy(err)
	}
	switch ended := end(b.response.Trailer.Get(headerEnded)); ended {
	case endedComplete:
		b.count(ended)
		return n, io.EOF
	case "":
		b.count(linkLost)
		return n, dispatch.ErrLost
	default:
		b.count(ended)
		return n, b.way.ended(ended)
	}
}

// Close implements io.Closer. It cancels an answer that was not read completely.
func (b *wayBody) Close() error {
	b.count(cancelled)
	return b.ReadCloser.Close()
}

// count counts the end of the request, only once.
func (b *wayBody) count(how end) {
	b.counted.Do(func() { b.way.cluster.forwards.add(how) })
}

// The ends of forwarded requests in addition to those that a home reports.
const (
	cancelled end = "cancelled" // this node ended it
	linkLost  end = "link_lost" // the link to the home ended
	other     end = "other"
)

// ends lists all the ways for a forwarded request to end.
var ends = [...]end{
	endedComplete, refusedBusy, refusedGone, refusedMoved, refusedReach,
	refusedUnavailable, refusedRepeated, endedLost, endedBroken, endedReach,
	cancelled, linkLost, other,
}

// forwardCounts counts the ends of forwarded requests.
type forwardCounts [len(ends)]atomic.Uint64

func (c *forwardCounts) add(how end) {
	at := slices.Index(ends[:], how)
	if at < 0 {
		at = len(ends) - 1
	}
	c[at].Add(1)
}

func (c *forwardCounts) counts() map[string]uint64 {
	counts := make(map[string]uint64, len(ends))
	for i, how := range ends {
		counts[string(how)] = c[i].Load()
	}
	return counts
}

// endOf returns how a forwarded request ended that failed with err, unless the home
// refused it.
func endOf(ctx context.Context, err error) end {
	switch {
	case ctx.Err() != nil:
		return cancelled
	case errors.Is(err, errLost):
		return linkLost
	default:
		return other
	}
}
