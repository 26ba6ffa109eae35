package registry

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fleet"
)

// Headers of a forwarded request (spec/peers.md#headers). The home removes those of an
// answer that a machine set itself.
const (
	HeaderMachine = "Kith-Machine"      // "ID GENERATION" of the machine
	HeaderRefused = "Kith-Home-Refused" // on a 503 of the home: a Refusal
	HeaderEnded   = "Kith-Home-Ended"   // trailer: how the machine's answer ended
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

	EndedComplete Refusal = "complete"
)

// Err returns the error of a request that ended so, for the node that sent it.
func (r Refusal) Err() error {
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

// Forwarded returns the machine, and the generation of its tunnel, that a request of
// another node is for.
func Forwarded(r *http.Request) (id fleet.MachineID, generation int64, err error) {
	name, number, _ := strings.Cut(r.Header.Get(HeaderMachine), " ")
	generation, err = strconv.ParseInt(number, 10, 64)
	if err != nil || name == "" {
		return "", 0, fmt.Errorf("%s does not name a machine: %q", HeaderMachine, r.Header.Get(HeaderMachine))
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
	w.Header().Set(HeaderRefused, string(reason))
	w.WriteHeader(http.StatusServiceUnavailable)
}

// Relay passes a machine's answer on to the node that forwarded the request. ended
// returns how an answer ended whose body broke off after so many bytes.
func Relay(w http.ResponseWriter, response *http.Response, ended func(relayed int64) Refusal) {
	header := w.Header()
	for name, values := range response.Header {
		switch name {
		case HeaderRefused, HeaderEnded, "Trailer", "Connection":
		default:
			header[name] = values
		}
	}
	header.Set("Trailer", HeaderEnded)
	w.WriteHeader(response.StatusCode)
	controller := http.NewResponseController(w)
	buffer := make([]byte, 16<<10)
	how, relayed := EndedComplete, int64(0)
	for {
		n, err := response.Body.Read(buffer)
		if relayed += int64(n); n > 0 {
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
			how = ended(relayed)
			break
		}
	}
	header.Set(HeaderEnded, string(how))
}

// RelayedRequest returns a request of another node as the machine gets it: without what
// is meant for its home.
func RelayedRequest(r *http.Request, remove ...string) *http.Request {
	out := r.WithContext(r.Context())
	url := *r.URL
	url.Scheme, url.Host, url.RawQuery = "http", "machine", ""
	out.URL, out.Host, out.RequestURI, out.TLS = &url, "", "", nil
	out.Header = r.Header.Clone()
	for _, name := range append(remove, HeaderMachine) {
		out.Header.Del(name)
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "")
	}
	return out
}
