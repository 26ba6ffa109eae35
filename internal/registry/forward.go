package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/peer"
)

// Headers of a forwarded request (spec/peers.md#headers). The home removes those of an
// answer that a machine set itself.
const (
	headerMachine = "Kith-Machine"      // "ID GENERATION" of the machine
	headerRefused = "Kith-Home-Refused" // on a 503 of the home: a Refusal
	headerEnded   = "Kith-Home-Ended"   // trailer: how the machine's answer ended
)

// Refusal is why the home of a machine did not serve a forwarded request, or how the
// request ended.
type Refusal string

// The refusals, and the ends that the home reports (spec/peers.md#refusals).
const (
	RefusedBusy        Refusal = "busy"        // no free slot
	RefusedGone        Refusal = "gone"        // the machine has no tunnel of that generation here
	RefusedMoved       Refusal = "moved"       // the machine has a newer tunnel at another node
	RefusedReach       Refusal = "no_reach"    // the caller does not reach the machine, or that cannot be confirmed
	RefusedUnavailable Refusal = "unavailable" // paused, outside its hours, or its owner's limits are used up
	RefusedRepeated    Refusal = "repeated"    // this attempt of the call was here before

	EndedLost   Refusal = "lost"    // the machine's tunnel ended
	EndedBroken Refusal = "broken"  // the engine broke off
	EndedReach  Refusal = "revoked" // the caller does not reach the machine any more

	endedComplete Refusal = "complete"
)

var (
	// ErrRefused is the error of a request that the machine's home refused by its own
	// snapshot: the machine takes no call of the caller now. This node's snapshot follows
	// (spec/peers.md#news). The machine did not get the request.
	ErrRefused = errors.New("the machine takes no call of the caller now, says the hub node that it is connected to")
	// ErrNotTaken is the error of a request that the machine's home refused for another
	// reason. The machine did not get it.
	ErrNotTaken = errors.New("the hub node that the machine is connected to did not pass the request on")
	// ErrLost is the error of a request whose machine, or the node it is connected to,
	// is gone.
	ErrLost = errors.New("the machine's tunnel, or the hub node that it is connected to, is gone")
	// ErrUnreached is the error of a request that the home ended because the caller does
	// not reach the machine any more.
	ErrUnreached = errors.New("the machine is out of the caller's reach, says the hub node that it is connected to")
)

func (r Refusal) err() error {
	switch r {
	case RefusedBusy, RefusedGone, RefusedMoved, RefusedReach, RefusedUnavailable:
		return fmt.Errorf("%w: %s", ErrRefused, string(r))
	case EndedLost:
		return ErrLost
	case EndedReach:
		return ErrUnreached
	case EndedBroken:
		return errors.New("the machine broke the exchange off")
	default:
		return fmt.Errorf("%w: %s", ErrNotTaken, string(r))
	}
}

// lostBy returns err, as ErrLost if the link to the other node ended.
func lostBy(err error) error {
	if errors.Is(err, peer.ErrLost) {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

// forwardedBody is the body of a machine's answer by way of its home. It is complete
// only if the home says so: the end of a stream alone may be that of the node.
type forwardedBody struct {
	io.ReadCloser
	response *http.Response
	line     *remoteLine
	ctx      context.Context // of the request
	counted  sync.Once       // how it ended
}

// Read implements io.Reader.
func (b *forwardedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case err == nil:
		return n, nil
	case err != io.EOF:
		b.count(forwardError(b.ctx, err))
		return n, lostBy(err)
	}
	switch ended := Refusal(b.response.Trailer.Get(headerEnded)); ended {
	case endedComplete:
		b.count(ended)
		return n, io.EOF
	case "":
		b.count(forwardLinkLost)
		return n, ErrLost
	default:
		b.count(ended)
		return n, b.line.ended(ended)
	}
}

// Close implements io.Closer. It cancels an answer that was not read to its end.
func (b *forwardedBody) Close() error {
	b.count(forwardCancelled)
	return b.ReadCloser.Close()
}

// count counts the end of the request, once.
func (b *forwardedBody) count(end Refusal) {
	b.counted.Do(func() { b.line.registry.forwards.add(end) })
}

// Forwarded returns the machine, and the generation of its tunnel, that a request of
// another node is for.
func Forwarded(r *http.Request) (id fleet.MachineID, generation int64, err error) {
	name, number, _ := strings.Cut(r.Header.Get(headerMachine), " ")
	generation, err = strconv.ParseInt(number, 10, 64)
	if err != nil || name == "" {
		return "", 0, fmt.Errorf("%s does not name a machine: %q", headerMachine, r.Header.Get(headerMachine))
	}
	return fleet.MachineID(name), generation, nil
}

// RefusalOfAbsent returns why a request for a tunnel of that generation, which is not
// here, is refused.
func RefusalOfAbsent(m *fleet.Machine, generation int64) Refusal {
	if m != nil && m.Online && m.Generation > generation {
		return RefusedMoved
	}
	return RefusedGone
}

// Refuse refuses a request of another node.
func Refuse(w http.ResponseWriter, reason Refusal) {
	w.Header().Set(headerRefused, string(reason))
	w.WriteHeader(http.StatusServiceUnavailable)
}

// Relay passes a machine's answer on to the node that forwarded the request. ended
// returns how an answer whose body broke off ended.
func Relay(w http.ResponseWriter, response *http.Response, ended func(error) Refusal) {
	header := w.Header()
	for name, values := range response.Header {
		switch name {
		case headerRefused, headerEnded, "Trailer", "Connection":
		default:
			header[name] = values
		}
	}
	header.Set("Trailer", headerEnded)
	w.WriteHeader(response.StatusCode)
	controller := http.NewResponseController(w)
	buffer := make([]byte, 16<<10)
	how := endedComplete
	for {
		n, err := response.Body.Read(buffer)
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return // the other node is gone, or ended the call
			}
			if err := controller.Flush(); err != nil {
				return
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			how = ended(err)
			break
		}
	}
	header.Set(headerEnded, string(how))
}

// RelayedRequest returns a request of another node as the machine gets it: without what
// is meant for its home.
func RelayedRequest(r *http.Request, remove ...string) *http.Request {
	out := r.WithContext(r.Context())
	url := *r.URL
	url.Scheme, url.Host, url.RawQuery = "http", "machine", ""
	out.URL, out.Host, out.RequestURI, out.TLS = &url, "", "", nil
	out.Header = r.Header.Clone()
	for _, name := range append(remove, headerMachine) {
		out.Header.Del(name)
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "")
	}
	return out
}
