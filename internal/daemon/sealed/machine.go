package sealed

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/seal"
	"github.com/kith/kith/internal/tunnel"
)

const (
	// turnAfter is how long a prekey is the newest one. A prekey that is older than twice
	// that is gone, and with it what was sealed for it.
	turnAfter = time.Hour
	// maxContexts is how many senders and receivers are kept.
	maxContexts = 1024
	// maxOpened is how many calls are opened with one prekey.
	maxOpened = 100_000

	// Room is how much larger a sealed body is than what it holds, at most.
	Room = 128 << 10
)

// Machine opens the calls that are sealed for this machine. It holds the prekeys, in
// memory only. It is safe for concurrent use.
type Machine struct {
	keys *Keyring
	id   string // of this machine at the hub

	mu      sync.Mutex
	prekeys []*prekey // the newest first, at most tunnel.MaxSeals
}

type prekey struct {
	*seal.Prekey
	made      time.Time
	receivers map[string]*seal.Receiver
	opened    map[[16]byte]struct{} // ids of calls
}

// NewMachine returns the end of a machine with this id. It opens nothing before Turn.
func NewMachine(keys *Keyring, id string) *Machine { return &Machine{keys: keys, id: id} }

// Turn drops prekeys that are too old and makes the one of this hour. It reports whether
// anything has changed. Prekeys age by the clock: timers stop while a computer sleeps.
func (m *Machine) Turn(now time.Time) (changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now = now.Round(0)
	before := len(m.prekeys)
	m.expire(now)
	if len(m.prekeys) > 0 {
		if newest := m.prekeys[0]; now.Sub(newest.made).Abs() < turnAfter && len(newest.opened) < maxOpened {
			return len(m.prekeys) < before, nil
		}
	}
	key, err := seal.NewPrekey()
	if err != nil {
		return len(m.prekeys) < before, fmt.Errorf("cannot make a key to seal for: %w", err)
	}
	next := &prekey{key, now, map[string]*seal.Receiver{}, map[[16]byte]struct{}{}}
	m.prekeys = slices.Insert(m.prekeys, 0, next)
	m.prekeys = m.prekeys[:min(len(m.prekeys), tunnel.MaxSeals)]
	return true, nil
}

// expire drops prekeys that are too old. mu is held.
func (m *Machine) expire(now time.Time) {
	m.prekeys = slices.DeleteFunc(m.prekeys, func(p *prekey) bool { return now.Round(0).Sub(p.made).Abs() >= 2*turnAfter })
}

// Seals returns the ids of the prekeys, the newest first.
func (m *Machine) Seals() (ids []fleet.SealKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.prekeys {
		ids = append(ids, fleet.SealKey(p.ID()))
	}
	return ids
}

// Seal returns what others need to seal for this machine.
func (m *Machine) Seal() (s fleet.Seal, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(time.Now())
	if len(m.prekeys) == 0 {
		return s, nil
	}
	newest := m.prekeys[0]
	if s.Statement, err = m.keys.statement(m.id, newest.Prekey, newest.made); err != nil {
		return s, err
	}
	_, s.Ask, err = m.keys.Ask(m.id)
	return s, err
}

// Received is a sealed call before its body is read.
type Received struct {
	Endpoint fleet.Endpoint

	head    seal.Head
	text    []byte // of the head
	prekey  *prekey
	sender  string
	wrapped []byte
}

// errHead is why a call is not admitted by its headers.
var errHead = errors.New("the head of the call is not one that a daemon sealed")

// Receive admits a sealed call by its headers. The refusal is stale_key for a key that this
// machine does not have, and repeated for a call that it has opened. An error means that the
// headers were changed.
func (m *Machine) Receive(h http.Header) (*Received, tunnel.Refusal, error) {
	text, err := base64.StdEncoding.DecodeString(h.Get(tunnel.HeaderSealed))
	if err != nil {
		return nil, "", errHead
	}
	c := &Received{text: text}
	if c.head, err = seal.ParseHead(text); err != nil { // its text, of any member, would be in this machine's log
		return nil, "", errHead
	}
	var known bool
	if c.Endpoint, known = fleet.ParseEndpoint(c.head.Endpoint); !known || !seals(c.Endpoint) {
		return nil, "", errHead
	}
	if c.head.Model != tunnel.CallModel(h) { // the hub routed it for another model
		return nil, "", errHead
	}
	idText, keyText, _ := strings.Cut(h.Get(tunnel.HeaderSealKey), " ")
	id, errID := base64.StdEncoding.DecodeString(idText)
	key, errKey := base64.StdEncoding.DecodeString(keyText)
	sender, wrapped, ok := seal.SplitKey(key)
	if errID != nil || errKey != nil || !ok || len(id) != len(seal.KeyID{}) {
		return nil, "", errHead
	}
	c.sender, c.wrapped = string(sender), wrapped
	if c.prekey = m.prekey(seal.KeyID(id)); c.prekey == nil {
		return nil, tunnel.RefusedStaleKey, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, before := c.prekey.opened[c.head.Call]; before {
		return nil, tunnel.RefusedRepeated, nil
	}
	return c, "", nil
}

// seals reports whether calls of an endpoint are sealed.
func seals(e fleet.Endpoint) bool { return e == fleet.ChatCompletions || e == fleet.EmbeddingsEndpoint }

// prekey returns the prekey with this id, or nil if there is none that opens another call.
func (m *Machine) prekey(id seal.KeyID) *prekey {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expire(time.Now())
	for _, p := range m.prekeys {
		if p.ID() == id && len(p.opened) < maxOpened {
			return p
		}
	}
	return nil
}

// receiver returns the receiver for the calls of a sender.
func (m *Machine) receiver(p *prekey, sender string) (*seal.Receiver, error) {
	m.mu.Lock()
	r := p.receivers[sender]
	m.mu.Unlock()
	if r != nil {
		return r, nil
	}
	r, err := p.NewReceiver([]byte(sender))
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(p.receivers) >= maxContexts {
		clear(p.receivers) // the next call of each makes it again
	}
	p.receivers[sender] = r
	return r, nil
}

// Call is a sealed call that was opened.
type Call struct {
	Model   fleet.ModelID
	Stream  bool
	Choices int
	Text    []byte // the body, in the dialect of its endpoint
	// Own reports that it comes from a daemon with this machine's account key.
	Own bool
	// Cache names the caller's prompt cache.
	Cache [16]byte

	machine *Machine
	call    *Received
	answer  *seal.AnswerSealer
}

// Open opens the call with its body, which it overwrites. The refusal is repeated for one
// that was opened before, and stale_key if its key grew too old while the body came. An
// error means that the call was changed on its way.
func (m *Machine) Open(c *Received, body []byte) (*Call, tunnel.Refusal, error) {
	if m.prekey(c.prekey.ID()) == nil {
		return nil, tunnel.RefusedStaleKey, nil
	}
	receiver, err := m.receiver(c.prekey, c.sender)
	if err != nil {
		return nil, "", err
	}
	opened, err := receiver.Open(c.text, c.wrapped, body)
	if err != nil {
		return nil, "", err
	}
	answer, err := opened.Answer()
	if err != nil {
		return nil, "", err
	}
	if !m.first(c) {
		return nil, tunnel.RefusedRepeated, nil
	}
	return &Call{
		Model: fleet.ModelID(c.head.Model), Stream: c.head.Stream, Choices: c.head.Choices, Text: opened.Text,
		Own: opened.From(m.keys.owner().Key()), Cache: opened.Cache, machine: m, call: c, answer: answer,
	}, "", nil
}

// first records that a call was opened. It reports false if it was before.
func (m *Machine) first(c *Received) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, before := c.prekey.opened[c.head.Call]
	c.prekey.opened[c.head.Call] = struct{}{}
	return !before
}

// unopened records that a call did not run, so that the hub may try it here again.
func (m *Machine) unopened(c *Received) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(c.prekey.opened, c.head.Call)
}

// errOtherCall is the fault of a call whose head and body do not agree. The hub routed and
// counted it by the head.
var errOtherCall = fault.New(fault.InvalidRequest, "the body of the sealed call differs from its head")

// Check checks that the body is the one that the head describes.
func (c *Call) Check() error {
	read := dialect.ReadHead
	if c.call.Endpoint == fleet.EmbeddingsEndpoint {
		read = dialect.ReadEmbeddingsHead
	}
	head, err := read(c.Text)
	if err != nil {
		return err
	}
	stream := head.Stream && c.call.Endpoint != fleet.EmbeddingsEndpoint // embeddings are not streamed
	if head.Model != c.Model || stream != c.Stream || max(head.Choices, 1) != max(c.Choices, 1) {
		return errOtherCall
	}
	return nil
}

// Answer is an http.ResponseWriter that seals the answer to a call. It must be closed, if
// the answer is complete, and ended.
type Answer struct {
	http.ResponseWriter
	call   *Call
	id     string // correlation id
	status int
	text   []byte // not sealed yet
	tail   []byte // the last bytes written
	ran    bool   // something of what the engine answered was sent
}

// Answer returns the writer of the answer to the hub. id is the call's correlation id.
func (c *Call) Answer(w http.ResponseWriter, id string) *Answer {
	return &Answer{ResponseWriter: w, call: c, id: id}
}

// WriteHeader sends the status of a stream. Other answers are sent by Close.
func (a *Answer) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	a.status = status
	if !a.streams() {
		return
	}
	h := a.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Del("Content-Length")
	a.ran = true
	a.ResponseWriter.WriteHeader(status)
	_, _ = a.ResponseWriter.Write(frame(a.call.answer.Head())) // Close reports a lost connection
}

func (a *Answer) streams() bool { return a.status == http.StatusOK && a.call.Stream }

// Write adds to the answer.
func (a *Answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	a.text = append(a.text, p...)
	a.tail = append(a.tail, p[max(0, len(p)-maxTail):]...)
	a.tail = a.tail[max(0, len(a.tail)-maxTail):]
	return len(p), nil
}

// FlushError seals and sends what was written to a stream.
func (a *Answer) FlushError() error {
	if !a.streams() {
		return nil
	}
	if err := a.seal(false); err != nil {
		return err
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// seal sends what was written as one chunk of a stream.
func (a *Answer) seal(last bool) error {
	_, err := a.ResponseWriter.Write(frame(a.call.answer.Chunk(a.text, last)))
	a.text = a.text[:0]
	return err
}

// frame returns an event of a sealed stream.
func frame(b []byte) []byte {
	out := make([]byte, 0, len("data: \n\n")+base64.StdEncoding.EncodedLen(len(b)))
	return append(base64.StdEncoding.AppendEncode(append(out, "data: "...), b), "\n\n"...)
}

// Close ends the answer. An answer that is not closed was cut.
func (a *Answer) Close() error {
	switch {
	case a.streams():
		if len(a.text) > 0 {
			if err := a.seal(false); err != nil {
				return err
			}
		}
		a.text = append(a.text, a.usage()...)
		if err := a.seal(true); err != nil {
			return err
		}
		if !a.whole() { // the hub records so, and cannot read it
			return nil
		}
		_, err := a.ResponseWriter.Write([]byte("data: [DONE]\n\n"))
		return err
	case a.status == http.StatusOK:
		return a.served()
	}
	return a.fail()
}

// maxTail is how many of the last bytes of a stream have its end mark.
const maxTail = 16

// whole reports whether the engine's stream has its end mark.
func (a *Answer) whole() bool {
	return bytes.HasSuffix(bytes.TrimRight(a.tail, "\r\n"), []byte("[DONE]"))
}

// served sends an answer that is not streamed. The hub cannot check it; it reads the usage
// in the trailer.
func (a *Answer) served() error {
	usage, err := dialect.CheckUnary(bytes.NewReader(a.text))
	switch {
	case err != nil:
		return a.fault(fault.Of(err))
	case !usage.Reported:
		return a.unary(a.status, a.text)
	}
	h := a.Header()
	h["Trailer"] = []string{dialect.UsageTrailer, dialect.CachedTrailer}
	if err := a.unary(a.status, a.text); err != nil {
		return err
	}
	h.Set(dialect.UsageTrailer, usage.Trailer())
	h.Set(dialect.CachedTrailer, strconv.FormatInt(usage.Cached, 10))
	return nil
}

// usage returns the last chunk of a stream: the engine's token counts, which the caller's
// daemon does not get in a trailer; empty without any.
func (a *Answer) usage() string {
	h := a.Header()
	usage, reported := dialect.ParseTrailer(h.Get(dialect.UsageTrailer), h.Get(dialect.CachedTrailer))
	if !reported {
		return ""
	}
	return usage.Trailer() + " " + strconv.FormatInt(usage.Cached, 10)
}

// End ends the call. If nothing of an answer was sent, the hub may try the call here again.
func (a *Answer) End() {
	if !a.ran {
		a.call.machine.unopened(a.call.call)
	}
}

// unary sends a status with one sealed chunk.
func (a *Answer) unary(status int, text []byte) error {
	head := a.call.answer.Head()
	body := append(head[:len(head):len(head)], a.call.answer.Chunk(text, true)...)
	h := a.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	a.ran = true
	a.ResponseWriter.WriteHeader(status)
	_, err := a.ResponseWriter.Write(body)
	return err
}

// fail sends an answer with another status than 200. A refusal, and what another machine
// may serve, has a status alone. Everything else is the fault of the call: it is sealed,
// because engines quote prompts, and its code is beside it.
func (a *Answer) fail() error {
	h := a.Header()
	if f := gateway.EngineFault(a.status, a.text); f != nil {
		return a.fault(f)
	}
	h.Del("Content-Type")
	h.Del("Content-Length")
	if a.status != http.StatusNotFound && a.status != http.StatusTooManyRequests {
		a.status = http.StatusServiceUnavailable // the hub would take others for the call's fault
	}
	a.ResponseWriter.WriteHeader(a.status)
	return nil
}

// fault seals a fault of the engine, with its code beside it.
func (a *Answer) fault(f *fault.Fault) error {
	a.Header().Set(tunnel.HeaderFault, string(f.Code))
	return a.unary(f.Status(), dialect.FaultBody(dialect.Chat, f, a.id))
}
