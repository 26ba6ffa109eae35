package site

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// livePath begins the paths of the streams that keep open pages up to date. A page
// is right without its stream: it shows what was when it was asked for.
const livePath = "/live/"

const (
	passEvery = time.Second      // at most one look at what changed, and so one event
	passRest  = 20               // times its own length a look is followed by rest: 5 % of a core in all
	beatEvery = 15 * time.Second // proxies cut silent streams
	// streamWrite is how long a browser may take to take one event.
	streamWrite = 20 * time.Second
	// maxStreams is how many pages of one member are kept up to date at once.
	maxStreams = 12
)

// words are what a page shows in one place that changes by itself.
type words struct{ text, tone string }

// MarshalJSON writes the text, and its tone behind it where it has one.
func (w words) MarshalJSON() ([]byte, error) {
	if w.tone == "" {
		return json.Marshal([]string{w.text})
	}
	return json.Marshal([]string{w.text, w.tone})
}

// scene is all that changes by itself on one page of one member. Page and stream
// are written from the same.
type scene struct {
	// shape is a hash of everything else that the page shows of what is live: where it
	// differs, the page has to be loaded again.
	shape shape
	texts map[string]words // by the element's id; what is absent is idle
}

// Shape is for templates.
func (a scene) Shape() shape { return a.shape }

func (a scene) equal(b scene) bool { return a.shape == b.shape && maps.Equal(a.texts, b.texts) }

// shape is a hash that all nodes of a hub make the same way.
type shape uint64

// with takes texts in, each apart from its neighbours.
func (h shape) with(texts ...string) shape {
	sum := fnv.New64a()
	line := strconv.AppendUint(nil, uint64(h), 10)
	for _, text := range texts {
		line = strconv.AppendQuote(line, text)
	}
	_, _ = sum.Write(line) // a hash takes everything
	return shape(sum.Sum64())
}

func (h shape) String() string { return strconv.FormatUint(uint64(h), 36) }

// glance is one look at the hub, for any number of members.
type glance struct {
	now      time.Time
	snapshot *fleet.Snapshot
	uses     []api.Use
	shares   func() map[fleet.MemberID]shape // of the shares that name a member
}

func (s *Site) glance(now time.Time) *glance {
	snapshot := s.Snapshot()
	return &glance{now, snapshot, s.Running(), sync.OnceValue(func() map[fleet.MemberID]shape { return shareShapes(snapshot, now) })}
}

// livePage says what is live on a page.
type livePage func(*Site, *glance, api.Caller) scene

// tie is something that runs by a session and ends with it: a page's stream, or
// an answer on /try.
type tie struct {
	member, session string
	until           time.Time // the session ends then, unless it was used since
	end             context.CancelCauseFunc
}

// stream is one open page.
type stream struct {
	look   livePage
	caller api.Caller
	now    atomic.Pointer[scene] // at the last look; nil: there was none
	wake   chan struct{}         // something changed, or it is time for a sign of life
}

// live is what goes on behind open pages. One goroutine looks for all of them;
// each stream's own only writes.
type live struct {
	stirred atomic.Bool // something may have changed since the last look
	asked   chan struct{}

	mu       sync.Mutex
	stopped  bool
	ties     map[*tie]struct{}
	streams  map[*stream]struct{}
	open     map[string]int  // streams, by member
	suspects map[string]bool // members whose sessions have to be looked at

	// Of the one goroutine.
	minute time.Time // of the last look: hours open and close with one
	rest   time.Time // until then there is none
	beaten time.Time
}

func newLive() live {
	return live{
		asked: make(chan struct{}, 1), ties: map[*tie]struct{}{}, streams: map[*stream]struct{}{},
		open: map[string]int{}, suspects: map[string]bool{},
	}
}

// Stir says that a machine, or what runs on it, moved. It costs next to nothing.
func (s *Site) Stir() {
	if !s.live.stirred.Load() {
		s.live.stirred.Store(true)
	}
}

// OnChange takes in that facts of the store moved (nil: any of them): what runs
// by a session that ended ends.
func (s *Site) OnChange(changes []fleet.Change) {
	s.Stir()
	l := &s.live
	l.mu.Lock()
	defer l.mu.Unlock()
	suspect := func(member string) {
		l.suspects[member] = true
		select {
		case l.asked <- struct{}{}:
		default:
		}
	}
	for _, c := range changes {
		if c.Kind == fleet.MemberChanged || c.Kind == fleet.SessionsChanged {
			suspect(c.ID)
		}
	}
	if changes == nil {
		for t := range l.ties {
			suspect(t.member)
		}
	}
}

// keepLive keeps open pages up to date until ctx ends, and then ends their
// streams; answers on /try end by themselves.
func (s *Site) keepLive(ctx context.Context) error {
	defer s.live.stop()
	tick := time.NewTicker(passEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.live.asked:
			s.recheck(ctx, s.DB.Now())
		case <-tick.C:
			now := s.DB.Now()
			s.recheck(ctx, now)
			s.pass(now)
		}
	}
}

// pass looks at what every open page shows, if anything moved, and wakes the
// streams of those that show something else now.
func (s *Site) pass(now time.Time) {
	l := &s.live
	if minute := now.Truncate(time.Minute); !minute.Equal(l.minute) {
		l.minute = minute
		l.stirred.Store(true)
	}
	beat := now.Sub(l.beaten) >= beatEvery
	if beat {
		l.beaten = now
	}
	// While it is unknown who reaches what, nothing new is shown.
	look := l.stirred.Load() && !now.Before(l.rest) && s.Confirmed(time.Now())
	if !beat && !look {
		return
	}
	l.mu.Lock()
	streams := slices.Collect(maps.Keys(l.streams))
	l.mu.Unlock()
	var changed []*stream
	if look {
		l.stirred.Store(false) // first: what moves meanwhile is looked at again
		if len(streams) > 0 {
			seen := s.glance(now)
			for _, st := range streams {
				next := st.look(s, seen, st.caller)
				if last := st.now.Load(); last == nil || !next.equal(*last) {
					st.now.Store(&next)
					changed = append(changed, st)
				}
			}
		}
		done := s.DB.Now()
		l.rest = done.Add(passRest * done.Sub(now))
	}
	if beat {
		changed = streams
	}
	for _, st := range changed {
		select {
		case st.wake <- struct{}{}:
		default:
		}
	}
}

// signedOut ends what ran by a session that ended.
func signedOut() *fault.Fault {
	return fault.New(fault.InvalidAPIKey, "you are signed out: sign in again")
}

// recheck ends what runs by sessions that ended. Where that is unknown just now,
// they are looked at again with the next second.
func (s *Site) recheck(ctx context.Context, now time.Time) {
	l := &s.live
	l.mu.Lock()
	var due []*tie
	for t := range l.ties {
		if l.suspects[t.member] || !now.Before(t.until) {
			due = append(due, t)
		}
	}
	clear(l.suspects)
	l.mu.Unlock()
	for _, t := range due {
		until, err := s.sessionUntil(ctx, t.member, t.session, now)
		switch {
		case errors.Is(err, account.ErrNotFound):
			t.end(signedOut())
		case err != nil:
			until = now
		}
		l.mu.Lock()
		t.until = until
		l.mu.Unlock()
	}
}

// sessionUntil returns when a session ends unless it is used meanwhile;
// account.ErrNotFound: it ended, or its member is disabled.
func (s *Site) sessionUntil(ctx context.Context, member, session string, now time.Time) (time.Time, error) {
	kept, err := s.DB.Session(ctx, session, now)
	if err != nil {
		return time.Time{}, err
	}
	m, err := s.DB.Member(ctx, member)
	if err == nil && (m.Disabled || kept.MemberID != member) {
		err = account.ErrNotFound
	}
	return kept.Expires, err
}

// tie gives a context that ends when the visitor's session does, with signedOut
// as its cause, until it is released.
func (s *Site) tie(v *visit) (_ context.Context, release func(), _ error) {
	ctx, end := context.WithCancelCause(v.Context())
	t := &tie{member: v.me.ID, session: s.sessionID(v.Context()), end: end}
	l := &s.live
	l.mu.Lock()
	t.until = s.DB.Now().Add(sessionIdle)
	l.ties[t] = struct{}{}
	l.mu.Unlock()
	release = func() {
		l.mu.Lock()
		delete(l.ties, t)
		l.mu.Unlock()
		end(nil)
	}
	// What ended after the visit was let in and before it was tied is seen now.
	until, err := s.sessionUntil(ctx, t.member, t.session, s.DB.Now())
	if err != nil {
		release()
		if errors.Is(err, account.ErrNotFound) {
			err = signedOut()
		}
		return nil, nil, err
	}
	l.mu.Lock()
	t.until = until
	l.mu.Unlock()
	return ctx, release, nil
}

// whileSignedIn is a reply that answer writes, with a context that ends with the visitor's
// session.
func (s *Site) whileSignedIn(v *visit, answer func(context.Context, http.ResponseWriter) error) reply {
	return reply{write: func(w http.ResponseWriter) {
		ctx, release, err := s.tie(v)
		if err == nil {
			defer release()
			err = answer(ctx, w)
		}
		if err != nil {
			api.WriteFault(w, fault.Of(err), v.id)
		}
	}}
}

// join opens a stream of a page for a member; leave closes it.
func (l *live) join(look livePage, who api.Caller) (*stream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped:
		return nil, fault.New(fault.CapacityFull, "this hub is about to stop: load the page again shortly")
	case l.open[string(who.Member)] >= maxStreams:
		return nil, fault.New(fault.RateLimitExceeded, "you have %d pages open that keep themselves up to date: close one, or reload this one by hand", maxStreams)
	}
	st := &stream{look: look, caller: who, wake: make(chan struct{}, 1)}
	l.streams[st] = struct{}{}
	l.open[string(who.Member)]++
	return st, nil
}

func (l *live) leave(st *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.streams, st)
	member := string(st.caller.Member)
	if l.open[member]--; l.open[member] == 0 {
		delete(l.open, member)
	}
}

// stop ends every stream; there are no more.
func (l *live) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for st := range l.streams {
		close(st.wake)
	}
}

// liveStream answers GET /live/…: an event with all that is live on the page, and one
// with what changed each time something did. No event needs one before it, so a
// browser that comes back says nothing of what it had.
func liveStream(page string, look livePage) handler {
	return func(s *Site, v *visit) (reply, error) {
		if !strings.Contains(v.Header.Get("Accept"), "text/event-stream") {
			return reply{to: page}, nil // a person
		}
		return s.whileSignedIn(v, func(ctx context.Context, w http.ResponseWriter) error { return s.follow(ctx, w, v.caller(), look) }), nil
	}
}

// follow writes a page's stream until ctx ends, or the browser or the hub is gone.
func (s *Site) follow(ctx context.Context, w http.ResponseWriter, who api.Caller, look livePage) error {
	st, err := s.live.join(look, who)
	if err != nil {
		return err
	}
	defer s.live.leave(st)
	h, control := w.Header(), http.NewResponseController(w)
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx would hold events back
	send := func(text []byte) error {
		_ = control.SetWriteDeadline(time.Now().Add(streamWrite)) // a connection in memory may have none
		if _, err := w.Write(text); err != nil {
			return err
		}
		return control.Flush()
	}
	sent := look(s, s.glance(s.DB.Now()), who)
	begun := sent
	st.now.CompareAndSwap(nil, &begun) // what the next look is held against
	// Browsers whose stream ends with a hub come back, but not all at once.
	text, err := appendEvent(fmt.Appendf(nil, "retry: %d\n", 2000+rand.IntN(5000)), scene{}, sent)
	for err == nil && send(text) == nil {
		select {
		case <-ctx.Done():
			return nil
		case _, more := <-st.wake:
			if !more {
				return nil
			}
		}
		if next := *st.now.Load(); next.equal(sent) {
			text = []byte(":\n\n")
		} else {
			text, err = appendEvent(nil, sent, next)
			sent = next
		}
	}
	return nil // the browser is gone
}

// appendEvent appends the event of how the page gets from one scene to another; from
// the empty scene, everything.
func appendEvent(text []byte, from, to scene) ([]byte, error) {
	event := struct {
		Shape string           `json:"shape"`
		All   bool             `json:"all,omitzero"`
		Texts map[string]words `json:"texts"`
	}{to.shape.String(), from.texts == nil, map[string]words{}}
	for id := range from.texts {
		if _, ok := to.texts[id]; !ok {
			event.Texts[id] = words{}
		}
	}
	for id, now := range to.texts {
		if was, ok := from.texts[id]; !ok || was != now {
			event.Texts[id] = now
		}
	}
	data, err := json.Marshal(event)
	return fmt.Appendf(text, "data: %s\n\n", data), err
}
