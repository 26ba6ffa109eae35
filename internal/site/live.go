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

// livePath is the prefix of the event streams that update open pages. A page works
// without its stream: it then shows the state at the time it was loaded.
const livePath = "/live/"

const (
	refreshEvery   = time.Second      // at most one check for changes, and so one event, in this time
	refreshRest    = 20               // the pause after a check, as a multiple of its duration: 5 % of one core in all
	heartbeatEvery = 15 * time.Second // proxies cut connections that are silent for long
	// streamWrite is the write deadline for one event.
	streamWrite = 20 * time.Second
	// maxStreams is the number of open pages of one member that are updated at the same
	// time.
	maxStreams = 12
)

// words are the text of one element that is updated live, and its tone.
type words struct{ text, tone string }

// MarshalJSON writes an array: the text, then the tone unless it is empty.
func (w words) MarshalJSON() ([]byte, error) {
	if w.tone == "" {
		return json.Marshal([]string{w.text})
	}
	return json.Marshal([]string{w.text, w.tone})
}

// liveContent is the live content of one page for one member. The page and its stream are
// rendered from the same content.
type liveContent struct {
	// shape is a hash of the live content that cannot be updated in place. When it
	// changes, the page has to be loaded again.
	shape shape
	texts map[string]words // by element id; an id that is absent is idle
}

// Shape returns the shape, for templates.
func (a liveContent) Shape() shape { return a.shape }

func (a liveContent) equal(b liveContent) bool {
	return a.shape == b.shape && maps.Equal(a.texts, b.texts)
}

// shape is a hash that is the same on all nodes of a hub.
type shape uint64

// with returns the hash extended by texts. Each text is quoted, so that different lists
// of texts never give the same input.
func (h shape) with(texts ...string) shape {
	sum := fnv.New64a()
	line := strconv.AppendUint(nil, uint64(h), 10)
	for _, text := range texts {
		line = strconv.AppendQuote(line, text)
	}
	_, _ = sum.Write(line) // a hash never returns an error
	return shape(sum.Sum64())
}

func (h shape) String() string { return strconv.FormatUint(uint64(h), 36) }

// hubView is a snapshot of the hub for rendering. It serves any number of members.
type hubView struct {
	now      time.Time
	snapshot *fleet.Snapshot
	uses     []fleet.ActiveCall
	shares   func() map[fleet.MemberID]shape // of the shares that name a member
}

func (s *Site) hubView(now time.Time) *hubView {
	snapshot := s.Snapshot()
	return &hubView{now, snapshot, s.Running(),
		sync.OnceValue(func() map[fleet.MemberID]shape { return shareShapes(snapshot, now) })}
}

// livePage renders the live content of a page for a caller.
type livePage func(*Site, *hubView, fleet.Caller) liveContent

// sessionUse is something that depends on a session and ends with it: a page's stream, or
// an answer on /try.
type sessionUse struct {
	member, session string
	until           time.Time // when the session ends unless it is used again
	end             context.CancelCauseFunc
}

// stream is one open page.
type stream struct {
	render livePage
	caller fleet.Caller
	now    atomic.Pointer[liveContent] // as of the last check; nil: there was none
	wake   chan struct{}               // signals a change, or that a heartbeat is due
}

// live holds the state behind open pages. One goroutine checks for changes for all of
// them; the goroutine of each stream only writes.
type live struct {
	changed    atomic.Bool // something may have changed since the last check
	recheckNow chan struct{}

	mu          sync.Mutex
	stopped     bool
	sessionUses map[*sessionUse]struct{}
	streams     map[*stream]struct{}
	open        map[string]int  // number of streams, by member
	unchecked   map[string]bool // members whose sessions have to be checked

	// The following fields are used only by the goroutine that runs keepLive.
	minute        time.Time // of the last check: sharing hours open and close on a minute
	notBefore     time.Time // no check before this time
	lastHeartbeat time.Time
}

func newLive() live {
	return live{
		recheckNow: make(chan struct{}, 1), sessionUses: map[*sessionUse]struct{}{}, streams: map[*stream]struct{}{},
		open: map[string]int{}, unchecked: map[string]bool{},
	}
}

// MarkChanged marks the pages as possibly out of date, after a machine or its load
// changed. It is cheap enough to call for each change.
func (s *Site) MarkChanged() {
	if !s.live.changed.Load() {
		s.live.changed.Store(true)
	}
}

// OnChange schedules a refresh after facts in the store changed (nil: any of them), and
// has keepLive check the sessions of the affected members.
func (s *Site) OnChange(changes []fleet.Change) {
	s.MarkChanged()
	l := &s.live
	l.mu.Lock()
	defer l.mu.Unlock()
	check := func(member string) {
		l.unchecked[member] = true
		select {
		case l.recheckNow <- struct{}{}:
		default:
		}
	}
	for _, c := range changes {
		if c.Kind == fleet.MemberChanged || c.Kind == fleet.SessionsChanged {
			check(c.ID)
		}
	}
	if changes == nil {
		for u := range l.sessionUses {
			check(u.member)
		}
	}
}

// keepLive updates open pages until ctx ends, and then ends their streams. Answers on
// /try end with their own requests.
func (s *Site) keepLive(ctx context.Context) error {
	defer s.live.stop()
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.live.recheckNow:
			s.recheck(ctx, s.DB.Now())
		case <-tick.C:
			now := s.DB.Now()
			s.recheck(ctx, now)
			s.refresh(now)
		}
	}
}

// refresh renders every open page again if anything changed, and wakes the streams of the
// pages that are different now.
func (s *Site) refresh(now time.Time) {
	l := &s.live
	if minute := now.Truncate(time.Minute); !minute.Equal(l.minute) {
		l.minute = minute
		l.changed.Store(true)
	}
	heartbeat := now.Sub(l.lastHeartbeat) >= heartbeatEvery
	if heartbeat {
		l.lastHeartbeat = now
	}
	// Pages are not updated while the hub cannot confirm who reaches what.
	due := l.changed.Load() && !now.Before(l.notBefore) && s.Confirmed(time.Now())
	if !heartbeat && !due {
		return
	}
	l.mu.Lock()
	streams := slices.Collect(maps.Keys(l.streams))
	l.mu.Unlock()
	var woken []*stream
	if due {
		l.changed.Store(false) // before the check, so that a change during it causes another check
		if len(streams) > 0 {
			hub := s.hubView(now)
			for _, st := range streams {
				next := st.render(s, hub, st.caller)
				if last := st.now.Load(); last == nil || !next.equal(*last) {
					st.now.Store(&next)
					woken = append(woken, st)
				}
			}
		}
		done := s.DB.Now()
		l.notBefore = done.Add(refreshRest * done.Sub(now))
	}
	if heartbeat {
		woken = streams
	}
	for _, st := range woken {
		select {
		case st.wake <- struct{}{}:
		default:
		}
	}
}

// signedOut returns the cause that streams and answers of an ended session end with.
func signedOut() *fault.Fault {
	return fault.New(fault.InvalidAPIKey, "you are signed out: sign in again")
}

// recheck ends everything that depends on a session that ended. If the store cannot be
// read, it checks again in the next second.
func (s *Site) recheck(ctx context.Context, now time.Time) {
	l := &s.live
	l.mu.Lock()
	var due []*sessionUse
	for u := range l.sessionUses {
		if l.unchecked[u.member] || !now.Before(u.until) {
			due = append(due, u)
		}
	}
	clear(l.unchecked)
	l.mu.Unlock()
	for _, u := range due {
		until, err := s.sessionUntil(ctx, u.member, u.session, now)
		switch {
		case errors.Is(err, account.ErrNotFound):
			u.end(signedOut())
		case err != nil:
			until = now
		}
		l.mu.Lock()
		u.until = until
		l.mu.Unlock()
	}
}

// sessionUntil returns when a session ends unless it is used before. It
// returns account.ErrNotFound if the session ended or its member is disabled.
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

// useSession returns a context that is canceled when the visitor's session ends, with
// signedOut as its cause. The caller must call release.
func (s *Site) useSession(v *visit) (_ context.Context, release func(), _ error) {
	ctx, end := context.WithCancelCause(v.Context())
	u := &sessionUse{member: v.me.ID, session: s.sessionID(v.Context()), end: end}
	l := &s.live
	l.mu.Lock()
	u.until = s.DB.Now().Add(sessionIdle)
	l.sessionUses[u] = struct{}{}
	l.mu.Unlock()
	release = func() {
		l.mu.Lock()
		delete(l.sessionUses, u)
		l.mu.Unlock()
		end(nil)
	}
	// The session may have ended after the visit was authorized and before it was
	// registered.
	until, err := s.sessionUntil(ctx, u.member, u.session, s.DB.Now())
	if err != nil {
		release()
		if errors.Is(err, account.ErrNotFound) {
			err = signedOut()
		}
		return nil, nil, err
	}
	l.mu.Lock()
	u.until = until
	l.mu.Unlock()
	return ctx, release, nil
}

// whileSignedIn returns a reply that answer writes, with a context that ends with the
// visitor's session.
func (s *Site) whileSignedIn(v *visit, answer func(context.Context, http.ResponseWriter) error) reply {
	return reply{write: func(w http.ResponseWriter) {
		ctx, release, err := s.useSession(v)
		if err == nil {
			defer release()
			err = answer(ctx, w)
		}
		if err != nil {
			api.WriteFault(w, fault.Of(err), v.id)
		}
	}}
}

// join registers a stream of a page for a member. leave removes it.
func (l *live) join(render livePage, who fleet.Caller) (*stream, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.stopped:
		return nil, fault.New(fault.CapacityFull, "this hub is about to stop: load the page again shortly")
	case l.open[string(who.Member)] >= maxStreams:
		return nil, fault.New(fault.RateLimitExceeded,
			"you have %d live pages open, the maximum: close one, or reload this one manually", maxStreams)
	}
	st := &stream{render: render, caller: who, wake: make(chan struct{}, 1)}
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

// stop ends every stream and makes join refuse new ones.
func (l *live) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	for st := range l.streams {
		close(st.wake)
	}
}

// liveStream handles GET /live/…. The first event has all live content of the page; after
// each change another event has the difference. Events carry no id, because a browser
// that reconnects starts with the full content.
func liveStream(page string, render livePage) handler {
	return func(s *Site, v *visit) (reply, error) {
		if !wantsStream(v) {
			return reply{to: page}, nil
		}
		return s.whileSignedIn(v,
			func(ctx context.Context, w http.ResponseWriter) error { return s.follow(ctx, w, v.caller(), render) }), nil
	}
}

// wantsStream reports whether a page's script asks, and not a person who opened the address.
func wantsStream(v *visit) bool { return strings.Contains(v.Header.Get("Accept"), "text/event-stream") }

// follow writes a page's stream until ctx ends, the browser disconnects or the hub stops.
func (s *Site) follow(ctx context.Context, w http.ResponseWriter, who fleet.Caller, render livePage) error {
	st, err := s.live.join(render, who)
	if err != nil {
		return err
	}
	defer s.live.leave(st)
	h, control := w.Header(), http.NewResponseController(w)
	h.Set("Content-Type", "text/event-stream")
	h.Set("X-Accel-Buffering", "no") // nginx would buffer events
	send := func(text []byte) error {
		_ = control.SetWriteDeadline(time.Now().Add(streamWrite)) // connections in memory may not support deadlines
		if _, err := w.Write(text); err != nil {
			return err
		}
		return control.Flush()
	}
	sent := render(s, s.hubView(s.DB.Now()), who)
	begun := sent
	st.now.CompareAndSwap(nil, &begun) // the next check compares with it
	// When a hub stops, its browsers reconnect at random times, not all at once.
	text, err := appendEvent(fmt.Appendf(nil, "retry: %d\n", 2000+rand.IntN(5000)), liveContent{}, sent)
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
	return nil // the browser disconnected
}

// appendEvent appends the event that updates a page from one content to another. If from is
// empty, the event has everything.
func appendEvent(text []byte, from, to liveContent) ([]byte, error) {
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
