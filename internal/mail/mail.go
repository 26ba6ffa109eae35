// Package mail sends letters through an operator's mail server, in the
// background: Send only puts a letter into a bounded queue, and Run delivers,
// with a few more tries where the server is away or busy. Nobody ever waits for
// a mail server, and nothing that is logged names an address or says what a
// letter does.
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

// TLS says how the connection to the mail server is kept from others.
type TLS string

// How the connection is secured. Without TLS a password and every link in a
// letter travel in the clear: only on one's own machine.
const (
	StartTLS TLS = "starttls" // after the greeting, and refused where the server has none
	Implicit TLS = "implicit" // from the first byte
	NoTLS    TLS = "none"
)

// Config says how letters are sent.
type Config struct {
	Host     string // the mail server; empty: no letter is ever sent
	Port     int
	User     string // empty: the server is not signed in to
	Password string
	From     string // the address that letters come from, with or without a name
	TLS      TLS    // empty: StartTLS
}

// LogValue hides the password from slog.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.Host) }

// Letter is one e-mail of plain text.
type Letter struct {
	MemberID string // whom it is for: what the log knows it by
	To       string // as Address gives it
	Subject  string // ours: nothing in it comes from a stranger
	Text     string
	Until    time.Time // it is of no use after this; zero: a day from now
}

// Bounds of what waits and of how long it is tried.
const (
	mostWaiting = 256
	lettersLife = 24 * time.Hour
	tryWithin   = 30 * time.Second // all of one try
)

// pauses are those between the tries of one letter.
var pauses = []time.Duration{30 * time.Second, 2 * time.Minute, 10 * time.Minute}

// Sender sends letters. Make it with New, then Run it.
type Sender struct {
	config  Config
	log     *slog.Logger
	deliver func(context.Context, Letter) error
	arrived chan struct{} // a letter to look at; holds one

	mu      sync.Mutex
	waiting []waiting
	sent    time.Time // when a letter last went out
	failed  time.Time // when one last did not
	why     string    // it did not
}

type waiting struct {
	Letter
	due   time.Time
	tries int
}

// New makes a sender; nil, which sends nothing, where no mail server is
// configured.
func New(c Config, log *slog.Logger) *Sender {
	if c.Host == "" {
		return nil
	}
	return &Sender{config: c, log: log, deliver: courier{Config: c}.deliver, arrived: make(chan struct{}, 1)}
}

// Send takes a letter to be sent soon. One that finds the queue full is lost,
// and the log says so.
func (s *Sender) Send(l Letter) {
	if s == nil {
		return
	}
	now := time.Now()
	if l.Until.IsZero() {
		l.Until = now.Add(lettersLife)
	}
	s.mu.Lock()
	full := len(s.waiting) >= mostWaiting
	if !full {
		s.waiting = append(s.waiting, waiting{Letter: l, due: now})
	}
	s.mu.Unlock()
	if full {
		s.log.Warn("mail lost: too much waits to be sent", "member", l.MemberID)
		return
	}
	select {
	case s.arrived <- struct{}{}:
	default:
	}
}

// Run delivers what was sent until ctx ends. What waits then is lost.
func (s *Sender) Run(ctx context.Context) error {
	if s == nil {
		<-ctx.Done()
		return nil
	}
	for ctx.Err() == nil {
		letter, next := s.due(time.Now())
		if letter != nil {
			s.try(ctx, *letter)
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
		s.log.Warn("mail lost: the hub ends", "letters", n)
	}
	return nil
}

// due takes out the letter that has waited longest past its time; where there is
// none, it says when there will be, if ever.
func (s *Sender) due(now time.Time) (letter *waiting, next time.Time) {
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

// try makes one try, and says what came of it.
func (s *Sender) try(ctx context.Context, w waiting) {
	if !time.Now().Before(w.Until) {
		s.log.Warn("mail lost: it could not be sent while it was of use", "member", w.MemberID, "tries", w.tries)
		return
	}
	err := s.deliver(ctx, w.Letter)
	now := time.Now()
	w.tries++
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.sent = now
		s.log.Info("mail sent", "member", w.MemberID, "tries", w.tries)
		return
	}
	why, final := cause(err)
	final = final || w.tries > len(pauses)
	if ctx.Err() == nil {
		s.failed, s.why = now, why
		s.log.Warn("mail not sent", "member", w.MemberID, "tries", w.tries, "again", !final, "cause", why)
	}
	if !final {
		w.due = now.Add(pauses[w.tries-1])
		s.waiting = append(s.waiting, w)
	}
}

// Health is how sending goes: good until a letter fails, and again once one went
// out.
func (s *Sender) Health() (good bool, told string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const moment = "2 Jan 2006, 15:04 UTC"
	switch {
	case s.failed.After(s.sent):
		return false, "last failure " + s.failed.UTC().Format(moment) + ": " + s.why
	case s.sent.IsZero():
		return true, "nothing was sent since the start"
	}
	return true, "last sent " + s.sent.UTC().Format(moment)
}

// Address is an address that a person typed, as letters can go to it. It is of
// ASCII: two that look alike, or become the same in lower case, are not taken for
// each other. ok is false for anything that is not one bare address.
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
