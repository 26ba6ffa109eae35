// Package mail sends messages through an operator's mail server in the background:
// Send adds a message to a bounded queue, and Run delivers it, with a few retries.
// No request waits for a mail server, and the log holds neither addresses nor text
// of messages.
package mail

import (
	"context"
	"log/slog"
	netmail "net/mail"
	"slices"
	"strings"
	"sync"
	"time"
)

// TLS is how the connection to the mail server is secured.
type TLS string

// Without TLS the password and every link in a message are sent in the clear. Use it only
// for a mail server on the same machine.
const (
	StartTLS TLS = "starttls" // after the greeting; an error if the server does not support it
	Implicit TLS = "implicit" // from the first byte
	NoTLS    TLS = "none"
)

// Config configures the mail server.
type Config struct {
	Host     string // the mail server; empty: no message is sent
	Port     int
	User     string // empty: no authentication
	Password string
	From     string // the sender address, with or without a name
	TLS      TLS    // empty: StartTLS
}

// LogValue hides the password from slog.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.Host) }

// Message is an e-mail of plain text.
type Message struct {
	MemberID string // of the recipient, for the log
	To       string // as Address returns it
	Subject  string // never contains text from members
	Text     string
	Until    time.Time // the message is dropped after this; zero: in a day
}

const (
	maxWaiting  = 256
	defaultLife = 24 * time.Hour
	tryWithin   = 30 * time.Second
)

// pauses are the delays between the attempts to send one message.
var pauses = []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// Sender sends messages. Make it with New, then call Run.
type Sender struct {
	config  Config
	log     *slog.Logger
	deliver func(context.Context, Message) error
	arrived chan struct{} // wakes Run; capacity 1

	mu      sync.Mutex
	waiting []waiting
	sent    time.Time // when a message was last sent
	failed  time.Time // when sending last failed
	why     string    // the cause of that failure
}

type waiting struct {
	Message
	due   time.Time
	tries int
}

// New returns a sender. If no mail server is configured it returns nil, and a nil Sender
// sends nothing.
func New(c Config, log *slog.Logger) *Sender {
	if c.Host == "" {
		return nil
	}
	return &Sender{config: c, log: log, deliver: transport{Config: c}.deliver, arrived: make(chan struct{}, 1)}
}

// Send queues a message. If the queue is full, it drops the message and logs that.
func (s *Sender) Send(m Message) {
	if s == nil {
		return
	}
	now := time.Now()
	if m.Until.IsZero() {
		m.Until = now.Add(defaultLife)
	}
	s.mu.Lock()
	full := len(s.waiting) >= maxWaiting
	if !full {
		s.waiting = append(s.waiting, waiting{Message: m, due: now})
	}
	s.mu.Unlock()
	if full {
		s.log.Warn("mail lost: the queue is full", "member", m.MemberID)
		return
	}
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// Run delivers queued messages until ctx ends, and logs how many it then drops.
func (s *Sender) Run(ctx context.Context) error {
	if s == nil {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		message, next := s.due(time.Now())
		if message != nil {
			s.try(ctx, *message)
			continue
		}
		var later <-chan time.Time
		if !next.IsZero() {
			later = time.After(time.Until(next))
		}
		select {
		case <-s.arrived:
		case <-later:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.waiting); n > 0 {
		s.log.Warn("mail lost: the hub ends", "messages", n)
	}
	return nil
}

// due removes and returns the first message that is due. If none is due, it returns when
// the next one is, or the zero time.
func (s *Sender) due(now time.Time) (message *waiting, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return nil, time.Time{}
	}
	first := 0
	for i, w := range s.waiting {
		if w.due.Before(s.waiting[first].due) {
			first = i
		}
	}
	found := s.waiting[first]
	if found.due.After(now) {
		return nil, found.due
	}
	s.waiting = slices.Delete(s.waiting, first, first+1)
	return &found, time.Time{}
}

// try makes one attempt to deliver a message, and queues a retry if necessary.
func (s *Sender) try(ctx context.Context, w waiting) {
	if !time.Now().Before(w.Until) {
		s.log.Warn("mail lost: it could not be sent in time", "member", w.MemberID, "tries", w.tries)
		return
	}
	w.tries++
	if sent, again := s.send(ctx, w); !sent && again {
		w.due = time.Now().Add(pauses[w.tries-1])
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting = append(s.waiting, w)
	}
}

// Deliver sends a message at once, without the queue, and reports whether the server
// accepted it. If it did not, again reports whether the caller should try again.
func (s *Sender) Deliver(ctx context.Context, m Message) (sent, again bool) {
	return s.send(ctx, waiting{Message: m, tries: 1})
}

// send makes one attempt to deliver a message, and logs the result.
func (s *Sender) send(ctx context.Context, w waiting) (sent, again bool) {
	err := s.deliver(ctx, w.Message)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.sent = time.Now()
		s.log.Info("mail sent", "member", w.MemberID, "tries", w.tries)
		return true, false
	}
	why, final := cause(err)
	again = !final && w.tries <= len(pauses)
	if ctx.Err() == nil {
		s.failed, s.why = time.Now(), why
		s.log.Warn("mail not sent", "member", w.MemberID, "tries", w.tries, "again", again, "cause", why)
	}
	return false, again
}

// Health returns the time of the last attempt and why it failed; why is empty if it
// succeeded. The time is zero if there was no attempt since the start.
func (s *Sender) Health() (last time.Time, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed.After(s.sent) {
		return s.failed, s.why
	}
	return s.sent, ""
}

// Address returns an address that a person typed, without surrounding spaces. ok is false
// unless it is a single bare address in ASCII: other characters may look alike or be
// equal in lower case.
func Address(typed string) (address string, ok bool) {
	typed = strings.TrimSpace(typed)
	local, domain, _ := strings.Cut(typed, "@")
	parsed, err := netmail.ParseAddress(typed)
	plain := func(text, signs string) bool {
		return text != "" && !strings.ContainsFunc(text, func(r rune) bool {
			return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune(signs, r)
		})
	}
	ok = err == nil && parsed.Name == "" && parsed.Address == typed && len(typed) <= 254 && len(local) <= 64 &&
		plain(local, "!#$%&'*+-/=?^_`{|}~.") && plain(domain, "-.")
	if !ok {
		return "", false
	}
	return typed, true
}
