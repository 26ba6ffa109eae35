package sealed

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json/v2"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/dispatch/prefix"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/seal"
	"github.com/kith/kith/internal/tunnel"
)

// The values of gateway.Trace.Sealed (spec/sealed.md#x-kith-sealed).
const (
	Here     = "here"                // served on this machine
	Yes      = "yes"                 // sealed from this machine to another one
	NotSent  = "no; reason=not_sent" // nothing of the call left this machine
	NoKey    = "no; reason=no_key"   // no machine that it may run on has a key
	NoList   = "no; reason=no_list"  // the hub has no sealed calls
	Audio    = "no; reason=audio"    // clips are not sealed
	Upstream = "no; reason=upstream" // a service elsewhere served it
)

const (
	maxTries = 3 // a call is sealed again twice
	// maxError is how much of an error is read, in bytes.
	maxError = 64 << 10
	// hubSilence is how long the hub may send nothing while a streamed call waits; it sends a
	// comment every 10 s.
	hubSilence = 2 * time.Minute
)

// Caller makes the calls of this machine's programs to other machines: it seals them, or
// refuses them, or sends them in clear, as the mode and the keys of the machines require.
type Caller struct {
	Hub  string // its base URL, without /v1
	Keys *Keyring
	Mode func() Mode
	// Reach returns what a call can reach, given the call's own limit.
	Reach func(fleet.KeyReach) fleet.KeyReach
	// Send sends a request to the hub with the machine's credential. Its errors are faults.
	Send func(*http.Request) (*http.Response, error)
	// Refusal returns the fault of a response of the hub with another status than 200.
	Refusal func(resp *http.Response, document []byte) *fault.Fault
	// Clear sends a call without a seal, to no machine outside the reach.
	Clear func(context.Context, *gateway.Call, fleet.KeyReach) (*gateway.Answer, error)
	// Report shows an error to the owner. It contains nothing of a call.
	Report func(format string, args ...any)

	lists lists

	mu      sync.Mutex
	senders map[seal.KeyID]*seal.Sender
}

// Do makes a call. Every error is a fault. An answer was sealed by one of the machines
// that the call was sealed for, or the call was sent in clear, which Trace.Sealed shows.
func (c *Caller) Do(ctx context.Context, call *gateway.Call) (*gateway.Answer, error) {
	mode := c.Mode()
	if !mode.IsOn() {
		return c.Clear(ctx, call, fleet.Everything)
	}
	call.Trace.Sealed = NotSent
	if call.Form != nil {
		if mode == Require {
			return nil, errAudio
		}
		return c.clear(ctx, call, Audio, fleet.Everything)
	}
	endpoint, body, err := call.ForEngine(false)
	if err != nil {
		return nil, err
	}
	out := outgoing{Caller: c, call: call, mode: mode, endpoint: endpoint, view: body.View, began: time.Now()}
	for range maxTries {
		answer, err := out.try(ctx)
		if f := fault.Of(err); f == nil || f.Code != fault.StaleSeal {
			return answer, err
		}
		c.lists.drop(out.listKey())
	}
	return nil, fault.New(codeForNow(call.Endpoint.Family()), "the machines that serve %q change faster than the call can be sealed for them; try again",
		call.Model)
}

// clear sends a call without a seal.
func (c *Caller) clear(ctx context.Context, call *gateway.Call, reason string, reach fleet.KeyReach) (*gateway.Answer, error) {
	call.Trace.Sealed = reason
	return c.Clear(ctx, call, reach)
}

// codeForNow returns the code of a call that may be served if it is sent again.
func codeForNow(of fleet.Family) fault.Code {
	if of == fleet.Chat {
		return fault.CapacityFull
	}
	return fault.CascadeExhausted
}

// refuse returns the fault of a call if nothing of it was sent.
func refuse(format string, args ...any) *fault.Fault {
	return fault.New(fault.CascadeExhausted, format, args...).WithNoRetry()
}

var errAudio = refuse(`audio cannot be sealed: set [privacy] sealed = "prefer" to send it to another machine`)

// outgoing is one call on its way.
type outgoing struct {
	*Caller
	call     *gateway.Call
	mode     Mode
	endpoint fleet.Endpoint // as machines are asked
	view     func(ctx context.Context, use func(body []byte) error) error
	began    time.Time
}

func (o *outgoing) listKey() listKey {
	return listKey{o.call.Model, o.endpoint.Family(), o.Reach(o.call.Caller.Reach)}
}

// try seals the call once and sends it, or decides that it is sent in clear or not at all.
func (o *outgoing) try(ctx context.Context) (*gateway.Answer, error) {
	now := time.Now()
	p, err := o.way(ctx, o.listKey(), o.mode)
	switch {
	case err != nil:
		return nil, err
	case p.clear && p.noList:
		return o.clear(ctx, o.call, NoList, p.reach)
	case p.clear:
		return o.clear(ctx, o.call, NoKey, p.reach)
	}
	sealed, err := o.seal(ctx, p, now)
	if err != nil {
		return nil, err
	}
	return o.send(ctx, sealed)
}

// way decides the way of a call by the hub's list. A list from before the call refuses
// nothing and sends nothing in clear. The error is a fault if nothing may be sent.
func (c *Caller) way(ctx context.Context, key listKey, mode Mode) (plan, error) {
	for now := time.Now(); ; c.lists.drop(key) { // a newer list may allow more
		l, err := c.lists.get(ctx, key, c.fetch)
		if err != nil {
			return plan{}, err
		}
		p := c.planBy(l, question{mode, key.model, key.family, now, now.Add(l.skew)})
		switch {
		case len(p.to) == 0 && l.fetched.Before(now):
		case p.refusal != nil:
			return p, p.refusal
		default:
			return p, nil
		}
	}
}

// planBy decides the way of a call by a list, or without one if the hub has no lists.
func (c *Caller) planBy(l *list, q question) plan {
	switch {
	case !l.missing:
		p, err := c.Keys.plan(q, l.machines)
		if err != nil {
			c.Report("cannot keep the keys of others: %v", err)
		}
		return p
	case q.mode == Require:
		return plan{refusal: refuse(`the hub at %s has no sealed calls (its kith is too old): set [privacy] sealed = "prefer"`, c.Hub)}
	case c.Keys.knowsKeys():
		return plan{refusal: refuse("this machine knows keys and the hub at %s shows none: if it went back to an older kith, "+
			`set [privacy] sealed = "off"`, c.Hub)}
	}
	return plan{clear: true, noList: true}
}

// Refused returns the fault of a call for a model, if nothing of it could be sent now.
func (c *Caller) Refused(ctx context.Context, model fleet.ModelID, family fleet.Family) error {
	switch mode := c.Mode(); {
	case !mode.IsOn(), mode == Prefer && family == fleet.Audio:
		return nil
	case family == fleet.Audio:
		return errAudio
	default:
		_, err := c.way(ctx, listKey{model, family, c.Reach(fleet.Everything)}, mode)
		return err
	}
}

// seal seals the call for the machines of a plan.
func (o *outgoing) seal(ctx context.Context, p plan, now time.Time) (sealed *seal.Call, err error) {
	routing := gateway.Routing{Declined: p.declined}
	var to []judgement
	var senders []*seal.Sender
	twice := map[seal.KeyID]bool{}
	body, own := seal.Body{}, o.Keys.owner()
	for _, j := range p.to {
		s, err := o.sender(j.statement)
		if id := j.statement.KeyID; err != nil || twice[id] { // its owner made it so
			routing.Declined = append(routing.Declined, j.ID)
			continue
		}
		twice[j.statement.KeyID] = true
		to, senders = append(to, j), append(senders, s)
		routing.To = append(routing.To, fleet.Recipient{Machine: j.ID, Key: fleet.SealKey(j.statement.KeyID)})
		if j.statement.Account == own.Key() {
			body.Owner = own
		}
	}
	if len(to) == 0 {
		return nil, refuse("the keys of the machines that serve %q are not valid; run kith trust", o.call.Model)
	}
	switch err := o.Keys.sealed(to, now); {
	case err == errTrust:
		return nil, err
	case err != nil: // it is in effect until the daemon ends
		o.Report("cannot keep the keys of others: %v", err)
	}
	cache := o.Keys.secret("cache", now)
	copy(body.Cache[:], cache[:])
	head := seal.Head{
		Endpoint: o.endpoint.Path(), Model: string(o.call.Model), Stream: o.call.Stream, Choices: max(o.call.Choices, 1),
	}
	rand.Read(head.Call[:])
	err = o.view(ctx, func(text []byte) error {
		if o.endpoint == fleet.ChatCompletions {
			key := prefix.Key(o.Keys.secret("marks", now))
			prompt := prefix.Read(&key, string(o.call.Model), text)
			routing.Prompt, routing.Marks = seal.PaddedSize(prompt.Bytes), marks(prompt.Marks)
		}
		advice, err := json.Marshal(routing)
		if err != nil {
			return err
		}
		body.Text = text
		sealed, err = seal.Seal(head, advice, senders, body)
		return err
	})
	return sealed, err
}

// marks encodes prefixes of a prompt as in gateway.Routing.
func marks(all []prefix.Mark) (out []byte) {
	if len(all) > gateway.MaxMarks {
		all = append([]prefix.Mark{all[0]}, all[len(all)-gateway.MaxMarks+1:]...)
	}
	for _, m := range all {
		out = binary.BigEndian.AppendUint64(out, m.Sum)
		steps := seal.PaddedSize(m.Bytes) / gateway.MarkStep // as coarse as what the hub sees of the body
		out = binary.BigEndian.AppendUint16(out, uint16(min(steps, math.MaxUint16)))
	}
	return out
}

// sender returns the sender for the prekey of a statement.
func (c *Caller) sender(s *seal.Statement) (*seal.Sender, error) {
	c.mu.Lock()
	known := c.senders[s.KeyID]
	c.mu.Unlock()
	if known != nil && known.IsFor(s) {
		return known, nil
	}
	made, err := seal.NewSender(s)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.senders == nil || len(c.senders) >= maxContexts {
		c.senders = map[seal.KeyID]*seal.Sender{} // the next call for each makes it again
	}
	c.senders[s.KeyID] = made
	return made, nil
}

// send sends the sealed call and opens the answer.
func (o *outgoing) send(ctx context.Context, sealed *seal.Call) (*gateway.Answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, o.Hub+tunnel.PathSealed, bytes.NewReader(sealed.Request))
	if err != nil {
		cancel(nil)
		return nil, err
	}
	req.Header.Set("Content-Type", "application/octet-stream")
	setReach(req, o.listKey().reach)
	if o.call.Caller.Program != "" {
		req.Header.Set(gateway.HeaderProgram, string(o.call.Caller.Program))
	}
	if o.call.Wait >= 0 { // what is left of it
		left := max(o.call.Wait-time.Since(o.began), 0)
		req.Header.Set("Prefer", "wait="+strconv.FormatInt(int64(left.Round(time.Second)/time.Second), 10))
	}
	o.call.Trace.Sealed = Yes
	resp, err := o.Send(req)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	o.call.Trace.FromHub(resp.Header)
	o.call.Trace.Route, _ = routeOf(o.call.Trace.Route)
	in := &incoming{outgoing: o, sealed: sealed, resp: resp, cancel: cancel}
	answer, err := in.answer()
	if err != nil {
		in.Close()
	}
	return answer, err
}

func setReach(req *http.Request, reach fleet.KeyReach) {
	if reach != fleet.Everything {
		req.Header.Set(gateway.HeaderReach, reach.String())
	}
}

// The faults of an answer that the hub changed.
var (
	errNotSealed = fault.New(fault.EngineError,
		"the hub passed on an answer that the machine did not seal; it was thrown away")
	errChanged = fault.New(fault.EngineError, "the sealed answer was changed on its way")
	errCut     = fault.New(fault.EngineError, "the sealed answer ended before its end")
)

// lied reports a fault of the hub to the owner.
func (c *Caller) lied(f *fault.Fault) *fault.Fault {
	c.Report("%s", f.Message)
	return f
}

// answer opens what the hub responded. The answer to a stream begins with its first chunk:
// before, comments of the hub are what Call.Waiting is for.
func (in *incoming) answer() (*gateway.Answer, error) {
	resp := in.resp
	opened := &gateway.Answer{
		Response: &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: -1}, Endpoint: in.endpoint,
	}
	switch {
	case resp.StatusCode != http.StatusOK:
		document, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // if it does not parse, there is no code
		return nil, in.failure(in.refusal(resp, document))
	case in.call.Stream:
		if err := in.begin(); err != nil {
			return nil, err
		}
		in.trailer = http.Header{}
		opened.Body, opened.Trailer = in, in.trailer
		return opened, nil
	}
	text, err := in.unary()
	if err != nil {
		return nil, err
	}
	opened.Body, opened.ContentLength = &unaryBody{bytes.NewReader(text), in}, int64(len(text))
	return opened, nil
}

// unaryBody is an opened answer.
type unaryBody struct {
	*bytes.Reader
	io.Closer
}

// unary opens an answer that is not streamed.
func (in *incoming) unary() ([]byte, error) {
	resp := in.resp
	limit := dialect.MaxAnswer(in.endpoint) + Room
	all, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	switch {
	case err != nil:
		return nil, in.broken(err)
	case resp.Header.Get("Content-Type") != "application/octet-stream":
		return nil, in.lied(errNotSealed)
	case int64(len(all)) > limit:
		return nil, fault.New(fault.EngineError, "the answer is longer than %d MiB: ask for less in one request", limit>>20)
	}
	text, err := in.openAll(all)
	if err != nil {
		return nil, in.lied(errChanged)
	}
	return text, nil
}

// openAll opens an answer of one chunk.
func (in *incoming) openAll(all []byte) ([]byte, error) {
	size := min(len(all), seal.AnswerHeadSize)
	opener, err := in.sealed.Answer(all[:size])
	if err != nil {
		return nil, err
	}
	text, err := opener.Chunk(all[size:])
	if err == nil { // it is not the last one
		return nil, seal.ErrOpen
	}
	if err == io.EOF {
		err = nil
	}
	return text, err
}

// maxHubText is the most bytes of the hub's own text that a caller gets: of an error or a
// route.
const maxHubText = 2 << 10

// refusal returns the fault of a response of the hub with another status than 200.
func (c *Caller) refusal(resp *http.Response, document []byte) *fault.Fault {
	f := *c.Refusal(resp, document)
	f.Message, f.Param = printable(f.Message, maxHubText), printable(f.Param, maxNameText)
	return &f
}

// routeOf returns the hub's text about the machines that received the prompt. It reports
// false if it is none.
func routeOf(text string) (string, bool) {
	switch class, _, _ := strings.Cut(text, "; machine="); class {
	case fleet.Own.String(), fleet.Shared.String(), fleet.Grouped.String():
		return printable(text, maxHubText), true
	}
	return "", false
}

// failure returns the fault of a call that the hub refused or that its machine refused. The
// machine's own words were sealed.
func (in *incoming) failure(f *fault.Fault) error {
	if f.Sealed == "" {
		return f
	}
	document, err := in.openText(f.Sealed)
	if err != nil {
		return in.lied(errChanged)
	}
	return machineFault(document)
}

// maxFaultText is the most bytes of a machine's error message that a caller gets.
const maxFaultText = 512

// machineFault returns the fault that a machine sealed. Its code is one that an engine can
// cause.
func machineFault(document []byte) *fault.Fault {
	f, ok := dialect.ParseFault(document)
	if !ok {
		return fault.New(fault.EngineError, "the machine refused the request and its error cannot be read")
	}
	f = f.WithSealed("")
	switch f.Code {
	case fault.InvalidRequest, fault.ContextLengthExceeded, fault.RequestTooLarge, fault.EngineError:
	default:
		f.Code = fault.EngineError
	}
	f.Reason, f.Message = "", printable(f.Message, maxFaultText)
	return f
}
