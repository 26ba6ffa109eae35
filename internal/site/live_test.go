package site

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json/v2"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// event is one event of a page's stream.
type event struct {
	Shape string              `json:"shape"`
	All   bool                `json:"all"`
	Texts map[string][]string `json:"texts"`
}

// listener is a browser's end of a page's stream.
type listener struct {
	t      *testing.T
	header http.Header
	lines  *bufio.Scanner
}

// listen opens a stream, until the test's end at most.
func (b *browser) listen(path string) *listener {
	b.t.Helper()
	resp := b.knock(path)
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != "text/event-stream" {
		b.t.Fatalf("%s: %s, %v", path, resp.Status, resp.Header)
	}
	return &listener{b.t, resp.Header, bufio.NewScanner(resp.Body)}
}

func (b *browser) knock(path string) *http.Response {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, "GET", b.web.URL+path, nil)
	check(b.t, err)
	r.Header = b.header.Clone()
	r.Header.Set("Accept", "text/event-stream")
	resp, err := b.client.Do(r)
	check(b.t, err)
	b.t.Cleanup(func() { cancel(); resp.Body.Close() })
	return resp
}

// next returns what comes next: an event, "beat" for a heartbeat, or "end".
func (l *listener) next() (e event, kind string) {
	l.t.Helper()
	for l.lines.Scan() {
		line := l.lines.Text()
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			check(l.t, json.Unmarshal([]byte(data), &e))
			return e, "event"
		}
		if line == ":" {
			return e, "beat"
		}
	}
	return e, "end"
}

// expect checks that the next event is the given one, with any shape.
func (l *listener) expect(all bool, texts map[string][]string) event {
	l.t.Helper()
	got, kind := l.next()
	if diff := cmp.Diff(event{got.Shape, all, texts}, got); diff != "" || kind != "event" {
		l.t.Fatalf("%s: %s", kind, diff)
	}
	return got
}

func (l *listener) wants(kind string) {
	l.t.Helper()
	if e, got := l.next(); got != kind {
		l.t.Fatalf("%s %+v, want %s", got, e, kind)
	}
}

// ends reads the stream to its end, ignoring everything before it.
func (l *listener) ends() {
	for kind := ""; kind != "end"; {
		_, kind = l.next()
	}
}

// box returns ada's machine.
func (w *world) box() *fleet.Machine { return w.snapshot.Machine(fleet.MachineID(w.machine.ID)) }

// TestLiveMachines checks that the stream sends everything once, then only changes, with
// the page's texts.
func TestLiveMachines(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	ada.header.Set("Last-Event-Id", "'; DROP TABLE sessions; --")
	l, id := ada.listen("/live/machines"), tn.machine.ID
	first := l.expect(true, map[string][]string{"state-" + id: {"ready", "good"}, "running-" + id: {"0 of 3 slots"}, "queue-" + id: {"0"}})
	page := ada.get("/machines").want(t, 200, `data-shape="`+first.Shape+`"`, `id="running-`+id+`" data-live data-idle="0">0 of 3 slots<`, `class="state good">ready<`)
	if l.header.Get("Set-Cookie") != "" || page.header.Get("Cache-Control") != "no-store" || l.header.Get("Cache-Control") != "no-store" {
		t.Errorf("a stream is answered with %v", l.header)
	}
	now := time.Now()
	refresh := func() {
		now = now.Add(refreshEvery)
		tn.site.live.lastHeartbeat, tn.site.live.notBefore = now, now
		tn.site.refresh(now)
	}
	refresh() // nothing changed

	assert.Require(t, tn.box().Reserve("tiny", false), "no slot")
	tn.box().Offer("tiny").Load.Measure(fleet.Circle{}, fleet.Measurement{At: time.Now(), FirstToken: 420 * time.Millisecond})
	tn.queued = 2
	tn.site.MarkChanged()
	refresh()
	refresh()
	l.expect(false, map[string][]string{"running-" + id: {"1 of 3 slots"}, "queue-" + id: {"2"}, "first-" + id + "-0": {"420 ms"}})

	tn.blind = true // nothing is updated that cannot be confirmed
	tn.box().Release("tiny")
	tn.site.MarkChanged()
	refresh()
	tn.blind = false
	refresh()
	same := l.expect(false, map[string][]string{"running-" + id: {"0 of 3 slots"}})
	assert.Equal(t, same.Shape, first.Shape, "a slot changed the page's shape")
	paused := *tn.box()
	paused.Paused = true
	tn.snapshot = tn.snapshot.WithMachine(&paused)
	tn.site.MarkChanged()
	refresh()
	changed := l.expect(false, map[string][]string{"state-" + id: {"paused", "warn"}})
	assert.That(t, changed.Shape != first.Shape, "a page that offers other buttons has the same shape")
	ada.get("/machines").want(t, 200, `data-shape="`+changed.Shape+`"`)
	ada.get("/machines/"+id).want(t, 200, ">paused<", ">2</span>", `data-page="/machines/`+id+`"`)
	ada.get("/machines/"+id+"?tab=models").want(t, 200, ">paused<", ">420 ms<", `data-page="/machines/`+id+`?tab=models"`)

	tn.site.live.lastHeartbeat = time.Time{}
	tn.site.refresh(now.Add(time.Millisecond))
	l.wants("beat")
	tn.site.live.stop()
	l.wants("end")
	if resp := ada.knock("/live/machines"); resp.StatusCode != 503 {
		t.Errorf("a hub that stops answers %s", resp.Status)
	}
}

// TestLivePass checks that a check happens only after a change or at the start of a
// minute, and after a pause of twenty times the duration of the previous check.
func TestLivePass(t *testing.T) {
	tn := newTown(t, nil)
	s, looks := tn.site, 0
	_, err := s.live.join(func(*Site, *hubView, fleet.Caller) liveContent {
		looks++
		return liveContent{shape(looks), map[string]words{}}
	}, fleet.Caller{Member: "m"})
	check(t, err)
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	for i, step := range []struct {
		stir  bool
		after time.Duration
		want  int
	}{{false, 0, 1}, {false, 59 * time.Second, 1}, {true, 59 * time.Second, 2}, {false, 60 * time.Second, 3}, {false, 61 * time.Second, 3}} {
		if step.stir {
			s.MarkChanged()
		}
		s.live.notBefore = time.Time{}
		if s.refresh(at.Add(step.after)); looks != step.want {
			t.Errorf("step %d: %d looks, want %d", i, looks, step.want)
		}
	}
	s.MarkChanged()
	s.live.notBefore = at.Add(70 * time.Second)
	if s.refresh(at.Add(69 * time.Second)); looks != 3 {
		t.Error("no rest between looks")
	}
	if s.refresh(at.Add(70 * time.Second)); looks != 4 {
		t.Error("what moved during the rest was forgotten")
	}
}

// TestLiveEnds checks that everything that depends on a session ends with it, and with
// its member, and that what depends on another session does not.
func TestLiveEnds(t *testing.T) { onEachStore(t, testLiveEnds) }

func testLiveEnds(t *testing.T, tn *town) {
	position, err := tn.db.Position(t.Context())
	check(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- tn.site.Run(ctx) }()
	defer func() { cancel(); check(t, <-done) }()
	took := func() { // like a registry
		t.Helper()
		var changes []fleet.Change
		position, changes, err = tn.db.Changes(t.Context(), position)
		check(t, err)
		tn.site.OnChange(changes)
	}
	begun, causes := make(chan struct{}, 8), make(chan error, 8)
	tn.call = func(w http.ResponseWriter, r *http.Request, _ fleet.Caller) {
		w.Header().Set("Content-Type", "text/event-stream")
		check(t, http.NewResponseController(w).Flush())
		begun <- struct{}{}
		<-r.Context().Done()
		causes <- context.Cause(r.Context())
	}
	for name, end := range map[string]func(b, other *browser){
		"it is ended from another browser": func(b, other *browser) {
			page := other.get("/sessions").body
			for _, s := range must1(tn.db.SessionsOf(t.Context(), tn.members["ada"].ID, time.Now())) {
				if strings.Contains(page, s.ID) && s.ID != tn.sessionOf(other) {
					other.post("/sessions/end", "session", s.ID).goes(t, "/sessions")
				}
			}
		},
		"sign-out": func(b, _ *browser) { b.post("/signout").goes(t, "/signin") },
		"all but the other's": func(_, other *browser) {
			check(t, tn.db.EndSessionsOf(t.Context(), tn.members["ada"].ID, tn.sessionOf(other)))
		},
		"a new password": func(_, other *browser) {
			check(t, tn.db.SetPassword(t.Context(), tn.members["ada"].ID, "hash", tn.sessionOf(other), time.Now()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, other := tn.as("ada"), tn.as("ada")
			mine, theirs := b.listen("/live/machines"), other.listen("/live/models")
			mine.wants("event")
			theirs.wants("event")
			answer := make(chan seen, 1)
			go func() { answer <- b.chat(`{"model":"of-ada"}`) }()
			<-begun // if a session ends before this, it is refused instead (TestLiveLetIn)
			tn.site.recheck(ctx, time.Now())
			assert.Equal(t, tn.site.tied(), 3, "things go on")
			end(b, other)
			took()
			mine.ends()
			if f := fault.Of(<-causes); f.Code != fault.InvalidAPIKey {
				t.Errorf("an answer ended with %v", f)
			}
			<-answer
			assert.Equal(t, tn.site.tied(), 1, "things go on")
			if name == "a new password" {
				check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["ada"].ID, true))
				took()
				theirs.ends()
				check(t, tn.db.SetMemberDisabled(t.Context(), tn.members["ada"].ID, false))
				return
			}
			check(t, tn.db.EndSession(t.Context(), tn.sessionOf(other)))
			tn.site.OnChange(nil) // everything may have changed
			theirs.ends()
		})
	}
}

// tied returns how much depends on sessions.
func (s *Site) tied() int {
	s.live.mu.Lock()
	defer s.live.mu.Unlock()
	return len(s.live.sessionUses)
}

// sessionOf returns the id of a browser's session.
func (tn *town) sessionOf(b *browser) string {
	hash := hashOf(b.session().Value)
	return base64.RawURLEncoding.EncodeToString(hash[:])
}

// TestRefreshStoresNoSession checks that a script's request for a part of a page does not store
// the session: what a form puts there at the same time, such as its confirmation, would be lost.
func TestRefreshStoresNoSession(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	stored := func() account.Session {
		return must1(tn.db.SessionsOf(t.Context(), tn.members["ada"].ID, time.Now()))[0]
	}
	changed := stored()
	changed.Data = append(changed.Data, ' ') // as by another request, after this one loaded it
	check(t, tn.db.TouchSession(t.Context(), changed))
	ada.header.Set(refreshHeader, "1")
	ada.get("/machines").want(t, 200)
	assert.Equal(t, string(stored().Data), string(changed.Data), "after a refresh")
	ada.header.Del(refreshHeader)
	ada.get("/machines").want(t, 200)
	assert.That(t, string(stored().Data) != string(changed.Data), "a page does not store its session")
}

// TestLiveExpires checks that an expired session ends its streams, that streams do not
// count as use, and that use of the session keeps its streams open.
func TestLiveExpires(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	l := ada.listen("/live/machines")
	l.wants("event")
	session := must1(tn.db.SessionsOf(t.Context(), tn.members["ada"].ID, time.Now()))[0]
	session.Expires = session.Expires.Add(time.Hour)
	session.Seen = session.Seen.Add(time.Hour)
	session.Data = append(session.Data, ' ')
	check(t, tn.db.TouchSession(t.Context(), session))
	tn.site.recheck(t.Context(), session.Expires.Add(-time.Minute))
	assert.Require(t, tn.site.tied() == 1, "a stream ended with a session that goes on")
	tn.site.recheck(t.Context(), session.Expires.Add(time.Minute))
	l.wants("end")
}

// TestLiveBounds checks the maximum number of streams of a member. One that ends makes
// room.
func TestLiveBounds(t *testing.T) {
	tn := newTown(t, nil)
	ada, bob := tn.as("ada"), tn.as("bob")
	for i := range maxStreams {
		ada.listen([]string{"/live/machines", "/live/models", "/live/access"}[i%3]).wants("event")
	}
	if resp := ada.knock("/live/models"); resp.StatusCode != 429 {
		t.Errorf("one more: %s", resp.Status)
	}
	bob.listen("/live/models").wants("event")
	tn.site.live.mu.Lock()
	open := tn.site.live.open[tn.members["ada"].ID]
	tn.site.live.mu.Unlock()
	assert.That(t, open == maxStreams && tn.site.tied() == maxStreams+1, open, "streams", tn.site.tied(), "tied")
	if resp := tn.browser().knock("/live/machines"); resp.StatusCode != 303 || !strings.HasPrefix(resp.Header.Get("Location"), "/signin?") {
		t.Errorf("without a session: %s", resp.Status)
	}
}

// TestLiveIsTheMembersOwn checks that streams show another member nothing of ada's.
func TestLiveIsTheMembersOwn(t *testing.T) {
	tn := newTown(t, nil)
	tn.uses = []fleet.ActiveCall{{Caller: fleet.MemberID(tn.members["bob"].ID), Name: "bob", Machine: tn.box(), Model: "tiny", Class: fleet.Shared}}
	eve := tn.as("eve")
	for path, want := range map[string]map[string][]string{
		"/live/machines": {}, "/live/access": {}, "/live/models": {"now-0": {"unknown", "warn"}, "machines-0": {"0"}},
	} {
		eve.listen(path).expect(true, want)
	}
	tn.as("ada").listen("/live/access").expect(true, map[string][]string{"use-" + nameKey("bob"): {"tiny on box", "good"}})
	tn.as("bob").listen("/live/access").expect(true, map[string][]string{"using-" + nameKey("ada"): {"tiny on box", "good"}})
}

// TestLiveAccess checks that adding or removing a share, a limit, a group or a machine
// changes the shape of the pages of the members concerned, and of no others.
func TestLiveAccess(t *testing.T) {
	tn := newTown(t, nil)
	id := func(name string) fleet.MemberID { return fleet.MemberID(tn.members[name].ID) }
	now := time.Now()
	streams := map[string]*listener{}
	shown := map[string]string{}
	for _, name := range []string{"ada", "bob", "eve"} {
		streams[name] = tn.as(name).listen("/live/access")
		shown[name] = streams[name].expect(true, map[string][]string{}).Shape
		tn.as(name).get("/access").want(t, 200, `data-shape="`+shown[name]+`"`)
	}
	share := func(l fleet.Limits) *fleet.Share {
		return &fleet.Share{ID: "s", Owner: id("ada"), Member: id("bob"), Limits: l}
	}
	lab := func(members ...fleet.MemberID) *fleet.Group {
		return &fleet.Group{ID: "g", Name: "lab", Members: members}
	}
	none, begin := tn.snapshot, shown["ada"]
	for _, step := range []struct {
		name    string
		next    func(*fleet.Snapshot) *fleet.Snapshot
		changes []string
	}{
		{"a share", func(s *fleet.Snapshot) *fleet.Snapshot {
			return s.WithShares(id("bob"), []*fleet.Share{share(fleet.Limits{})})
		}, []string{"ada", "bob"}},
		{"a limit", func(s *fleet.Snapshot) *fleet.Snapshot {
			return s.WithShares(id("bob"), []*fleet.Share{share(fleet.Limits{PerDay: 1})})
		}, []string{"ada", "bob"}},
		{"its end of the day", func(s *fleet.Snapshot) *fleet.Snapshot {
			s.ShareOf(id("bob"), "s").Reserve(now)
			return s
		}, []string{"ada", "bob"}},
		{"a machine goes", func(s *fleet.Snapshot) *fleet.Snapshot {
			m := *tn.box()
			m.Online = false
			return s.WithMachine(&m)
		}, []string{"ada", "bob"}},
		{"a group", func(s *fleet.Snapshot) *fleet.Snapshot { return s.WithGroup(lab(id("ada"))) }, []string{"ada"}},
		{"a member of it", func(s *fleet.Snapshot) *fleet.Snapshot { return s.WithGroup(lab(id("ada"), id("eve"))) }, []string{"ada", "eve"}},
		{"a group's limit", func(s *fleet.Snapshot) *fleet.Snapshot {
			g := lab(id("ada"), id("eve"))
			g.Limits = map[fleet.MemberID]*fleet.Limits{id("ada"): {Models: []fleet.ModelID{"tiny"}}}
			return s.WithGroup(g)
		}, []string{"ada", "eve"}},
		{"a machine kept out", func(s *fleet.Snapshot) *fleet.Snapshot {
			g := lab(id("ada"), id("eve"))
			g.KeptOut = []fleet.MachineID{tn.box().ID}
			return s.WithGroup(g)
		}, []string{"ada", "eve"}},
		{"all as it was", func(*fleet.Snapshot) *fleet.Snapshot { return none }, []string{"ada", "bob", "eve"}},
	} {
		tn.snapshot = step.next(tn.snapshot)
		tn.site.MarkChanged()
		tn.site.live.lastHeartbeat, tn.site.live.notBefore = now, time.Time{}
		tn.site.refresh(now)
		for name, l := range streams {
			got := accessContent(tn.site, tn.site.hubView(now), fleet.Caller{Member: id(name)}).shape.String()
			if changed := got != shown[name]; changed != slices.Contains(step.changes, name) {
				t.Fatalf("%s: the page of %s has another shape: %t", step.name, name, changed)
			}
			if shown[name] != got {
				shown[name] = l.expect(false, map[string][]string{}).Shape
			}
			if shown[name] != got {
				t.Fatalf("%s: the stream of %s has the shape %s, want %s", step.name, name, shown[name], got)
			}
		}
	}
	assert.Equal(t, shown["ada"], begin, "where all is as it was the shape is another one")
}

// TestWhoUsesWhat checks that the page shows running calls, and that ending an access
// reports how many calls it cuts off: those without another way.
func TestWhoUsesWhat(t *testing.T) { onEachStore(t, testWhoUsesWhat) }

func testWhoUsesWhat(t *testing.T, tn *town) {
	ada, bob, eve := tn.members["ada"].ID, tn.members["bob"].ID, tn.members["eve"].ID
	good[anything](tn.world, "ada", "POST", "/api/shares", `{"with":"bob"}`)
	good[anything](tn.world, "ada", "POST", "/api/groups", `{"name":"lab","kind":"org"}`)
	tn.intoGroup("lab", "eve")
	tn.intoGroup("lab", "bob")
	reach := func(share bool, lab ...string) {
		s := tn.snapshot.WithShares(fleet.MemberID(bob), nil).WithoutGroup(fleet.GroupID(tn.labID(ada)))
		if share {
			s = s.WithShares(fleet.MemberID(bob), []*fleet.Share{{ID: "s", Owner: fleet.MemberID(ada), Member: fleet.MemberID(bob)}})
		}
		if len(lab) > 0 {
			g := &fleet.Group{ID: fleet.GroupID(tn.labID(ada)), Name: "lab"}
			for _, m := range lab {
				g.Members = append(g.Members, fleet.MemberID(m))
			}
			s = s.WithGroup(g)
		}
		tn.snapshot = s
	}
	use := func(who, name string, class fleet.Class) fleet.ActiveCall {
		return fleet.ActiveCall{Caller: fleet.MemberID(who), Name: name, Machine: tn.box(), Model: "tiny", Class: class}
	}
	reach(true, ada, bob, eve)
	tn.uses = []fleet.ActiveCall{use(ada, "ada", fleet.Own), use(bob, "bob", fleet.Shared), use(bob, "bob", fleet.Shared), use(eve, "eve", fleet.Grouped)}
	a := tn.as("ada")
	a.get("/access").want(t, 200, `id="use-`+nameKey("bob")+`" data-live data-idle="idle" class="state good">tiny on box (2 calls)<`, `id="use-`+nameKey("eve")+`" data-live data-idle="idle" class="state good">tiny on box<`)
	tn.as("eve").get("/access/for-you").want(t, 200, `id="using-`+nameKey("ada")+`" data-live data-idle="idle" class="state good">tiny on box<`)

	// bob is also in the group, so without the share his calls continue by the group.
	a.get("/sharing/end?with=bob").want(t, 200, "Stop sharing with bob?", "No running call is stopped.", `name="with" value="bob"`)
	a.get("/sharing/end?with=zed").want(t, 404, "you do not share with")
	a.post("/sharing/end", "with", "bob").goes(t, "/access")
	a.get("/access").want(t, 200, "You no longer share with bob. No running call is stopped.")
	reach(true, ada, eve)
	good[anything](tn.world, "ada", "POST", "/api/shares", `{"with":"bob"}`)
	a.get("/sharing/end?with=bob").want(t, 200, cutWords(2), "What bob shares with you does not change.")
	a.post("/sharing/end", "with", "bob").goes(t, "/access")
	a.get("/access").want(t, 200, "2 running calls are stopped within 5 seconds.")

	reach(false, ada, bob, eve)
	if got := good[api.GroupLimits](tn.world, "ada", "POST", "/api/groups/lab/limits", `{"models":["other"]}`); got.Cut != 3 {
		t.Errorf("a limit of the group to another model cuts %d calls, want 3", got.Cut)
	}
	if got := good[api.GroupLimits](tn.world, "ada", "POST", "/api/groups/lab/limits", `{"models":null}`); got.Cut != 0 {
		t.Errorf("the end of that limit cuts %d calls", got.Cut)
	}
	// The calls run by the group. From its creation a share decides about them.
	a.post("/sharing/share", "with", "bob", "models", "other").goes(t, "/access")
	a.get("/access").want(t, 200, "Shared with bob. 2 running calls are stopped within 5 seconds. Note: no machine of yours offers")
	a.post("/machines/keep-out", "machine", tn.machine.ID, "group", "lab").goes(t, "/machines/"+tn.machine.ID+"?tab=sharing")
	a.get("/machines/"+tn.machine.ID+"?tab=sharing").want(t, 200, "box is kept out of lab. 3 running calls are stopped")
	a.post("/machines/keep-out", "machine", tn.machine.ID, "group", "lab", "undo", "yes").goes(t, "/machines/"+tn.machine.ID+"?tab=sharing")
	a.get("/machines/"+tn.machine.ID+"?tab=sharing").want(t, 200, "box may serve lab again")
	a.post("/machines/keep-out", "machine", tn.machine.ID).goes(t, "/machines/"+tn.machine.ID+"?tab=sharing")
	a.get("/machines/"+tn.machine.ID+"?tab=sharing").want(t, 200, "box is kept out of every group. 3 running calls are stopped")
	a.post("/groups/remove", "group", "lab", "member", "eve").goes(t, "/access/group?group=lab")
	a.get("/access/group?group=lab").want(t, 200, "Removed. 1 running call is stopped")
	tn.as("bob").post("/groups/leave", "group", "lab").goes(t, "/access/groups")
	a.get("/groups/end?group=lab").want(t, 200, "Delete the group lab?", cutWords(3))
	a.get("/groups/end?group=none").want(t, 404, "you are not an admin of a group")
	a.post("/groups/end", "group", "lab").goes(t, "/access/groups")
	a.get("/access/groups").want(t, 200, "The group lab is deleted", "3 running calls are stopped")
	a.post("/machines/revoke", "machine", tn.machine.ID).goes(t, "/machines")
	a.get("/machines").want(t, 200, "The machine box is revoked. 3 running calls are stopped")
}

// labID returns the id of the group lab, if it exists.
func (tn *town) labID(member string) string {
	groups, err := tn.db.SeenGroups(tn.t.Context(), member, "lab", time.Now())
	if err != nil || len(groups) == 0 {
		return "grp_gone"
	}
	return groups[0].ID
}

// TestRoles checks that an org's admin can make others admins and take the role away,
// except from the last one.
func TestRoles(t *testing.T) { onEachStore(t, testRoles) }

func testRoles(t *testing.T, tn *town) {
	ada, bob := tn.as("ada"), tn.as("bob")
	ada.post("/groups/create", "name", "lab", "kind", "org").goes(t, "/access/group?group=lab")
	tn.intoGroup("lab", "bob")
	ada.get("/access/group?group=lab").want(t, 200, "Its admins invite and remove members", `aria-label="Make admin: bob, of lab"`, ">member<")
	if page := bob.get("/access/group?group=lab").want(t, 200, ">admin<"); strings.Contains(page.body, `action="/groups/admin"`) || strings.Contains(page.body, `action="/groups/demote"`) {
		t.Error("a member is offered what admins do")
	}
	bob.post("/groups/demote", "group", "lab", "member", "ada").want(t, 403, "only an admin")
	ada.post("/groups/demote", "group", "lab", "member", "ada").want(t, 400, "without an admin")
	ada.post("/groups/admin", "group", "lab", "member", "bob").goes(t, "/access/group?group=lab")
	bob.post("/groups/demote", "group", "lab", "member", "ada").goes(t, "/access/group?group=lab")
	ada.post("/groups/demote", "group", "lab", "member", "bob").want(t, 403, "only an admin")
	got := good[api.List[api.Group]](tn.world, "ada", "GET", "/api/groups", "").Data[0].Members
	assert.Same(t, got, []api.GroupMember{{Name: "ada"}, {Name: "bob", Admin: true}})
}

// TestLiveLetIn checks that a session that ends after its visit was authorized, but
// before anything is tied to it, still ends what the visit started.
func TestLiveLetIn(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	ctx, err := tn.site.sessions.Load(t.Context(), ada.session().Value)
	check(t, err)
	check(t, tn.db.EndSession(t.Context(), tn.sessionOf(ada)))
	r := httptest.NewRequest("GET", "/live/machines", nil).WithContext(ctx)
	_, _, err = tn.site.useSession(&visit{Request: r, me: tn.members["ada"]})
	if err == nil || fault.Of(err).Code != fault.InvalidAPIKey || tn.site.tied() != 0 {
		t.Errorf("told %v, %d tied", err, tn.site.tied())
	}
}

// socket is a response on a connection whose other end controls when it reads.
type socket struct {
	net.Conn
	header http.Header
}

func (s socket) Header() http.Header                { return s.header }
func (s socket) WriteHeader(int)                    {}
func (s socket) Flush()                             {}
func (s socket) SetWriteDeadline(t time.Time) error { return s.Conn.SetWriteDeadline(t) }

// TestLiveStuckReader checks that a browser that reads nothing delays neither the check
// nor another page, is disconnected in time, and leaves nothing behind.
func TestLiveStuckReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		site := New(api.New(api.Config{
			DB:       new(store.DB), // for its clock
			Snapshot: fleet.NewSnapshot, Running: func() []fleet.ActiveCall { return nil }, Confirmed: func(time.Time) bool { return true },
		}), Config{Base: "http://localhost"})
		var looks atomic.Uint64
		render := func(*Site, *hubView, fleet.Caller) liveContent {
			n := looks.Add(1)
			return liveContent{shape(n), map[string]words{"n": {text: fmt.Sprint(n)}}}
		}
		follow := func() (far net.Conn, took chan time.Duration) {
			near, far := net.Pipe()
			took = make(chan time.Duration, 1)
			go func() {
				began := time.Now()
				check(t, site.follow(t.Context(), socket{near, http.Header{}}, fleet.Caller{Member: "m"}, render))
				took <- time.Since(began)
			}()
			return far, took
		}
		_, stuck := follow()
		far, gone := follow()
		reader := &listener{t, nil, bufio.NewScanner(far)}
		reader.wants("event")
		for range 5 {
			time.Sleep(refreshEvery) // in the bubble
			site.MarkChanged()
			site.live.notBefore = time.Time{}
			site.refresh(time.Now())
			reader.wants("event")
		}
		assert.Equal(t, <-stuck, streamWrite, "let go after")
		assert.Equal(t, site.live.open["m"], 1, "pages are counted")
		check(t, far.Close())
		site.live.lastHeartbeat = time.Time{}
		site.refresh(time.Now())
		<-gone
		if len(site.live.open)+len(site.live.streams) != 0 {
			t.Errorf("left behind: %v, %v", site.live.open, site.live.streams)
		}
	})
}
