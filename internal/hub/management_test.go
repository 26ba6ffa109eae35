package hub

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/site"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// TestAuditLog: what is done on the operator's socket is in the log, with the
// member concerned; what only reads, or was refused, is not.
func TestAuditLog(t *testing.T) {
	r := newRig(t, Config{})
	r.member("ada")
	r.member("bob")
	r.ok("GET", "/members", "")
	r.ok("POST", "/shares", `{"owner":"ada","with":"bob"}`)
	if a := r.admin("POST", "/shares", `{"owner":"ada","with":"bob"}`); a.Status == 200 {
		t.Fatal("shared twice")
	}
	r.ok("DELETE", "/shares?owner=ada&with=bob", "")
	r.ok("POST", "/groups", `{"name":"lab","kind":"org","admin":"ada"}`)
	r.ok("POST", "/groups/lab/invitations", `{"member":"bob"}`)
	r.ok("DELETE", "/groups/lab/members/bob", "")
	r.ok("POST", "/machines/token", `{"member":"ada","name":"box"}`)
	r.ok("POST", "/members/bob/link", "")
	r.ok("POST", "/members/bob/disable", "")
	acts := assert.Value(r.kept.Acts(t.Context(), account.Place{}, account.ActFilter{}, 100))(t)
	var got []string
	for i := range acts {
		a := acts[len(acts)-1-i]
		assert.That(t, a.By == "" && !a.At.IsZero(), "the log tells", a)
		got = append(got, a.What+": "+a.Subject)
	}
	want := []string{
		"create a member: ada", "create a key: ada, ", "create a member: bob", "create a key: bob, ",
		"add a share: ada, bob", "end a share: ada, bob", "create a group: lab, ada", "invite to a group: lab, bob", "remove from a group: lab, bob",
		"make a login token: ada, box", "make a sign-in link: bob", "disable a member: bob",
	}
	sorted := cmp.Transformer("set", func(all []string) map[string]int { // two may fall into one millisecond
		n := map[string]int{}
		for _, s := range all {
			n[s]++
		}
		return n
	})
	if diff := cmp.Diff(want, got, sorted); diff != "" {
		t.Error(diff)
	}
}

// A call by a session continues until its member is disabled: a session is no key that
// could be looked up.
func TestSessionContinues(t *testing.T) {
	r := newRig(t, Config{})
	id, _ := r.member("ada")
	ada := assert.Value(r.kept.MemberByName(t.Context(), "ada"))(t)
	caller := fleet.Caller{Member: fleet.MemberID(ada.ID), Name: "ada", KeyID: api.SiteKey + ada.ID}
	if f, err := r.revoked(t.Context(), caller); f != nil || err != nil {
		t.Error("a session is not valid")
	}
	r.ok("POST", "/keys/"+id+"/revoke", "")
	if f, err := r.revoked(t.Context(), caller); f != nil || err != nil {
		t.Error("a session ended with a key")
	}
	r.ok("POST", "/members/ada/disable", "")
	if f, err := r.revoked(t.Context(), caller); f == nil || err != nil {
		t.Error("a session outlives its member")
	}
	caller.Member, caller.Name = "mem_unknown", "unknown"
	if f, err := r.revoked(t.Context(), caller); f == nil || err != nil {
		t.Errorf("a call of a member who is not there: %v, %v", f, err)
	}
}

// A call by a key or by a machine's credential continues until that is revoked or its
// member is disabled.
func TestCredentialContinues(t *testing.T) {
	r := newRig(t, Config{})
	key, _ := r.member("ada")
	other := r.ok("POST", "/keys", `{"member":"ada"}`).Body["id"].(string)
	box, _ := r.machine("ada", "box")
	den, _ := r.machine("ada", "den")
	ada := assert.Value(r.kept.MemberByName(t.Context(), "ada"))(t)
	callers := map[string]fleet.Caller{}
	for _, id := range []string{key, other, "key_gone"} {
		callers[id] = fleet.Caller{Member: fleet.MemberID(ada.ID), KeyID: id}
	}
	for _, id := range []string{box, den, "mch_gone"} {
		callers[id] = fleet.Caller{Member: fleet.MemberID(ada.ID), Machine: fleet.MachineID(id)}
	}
	continues := func(want ...string) {
		t.Helper()
		for id, caller := range callers {
			if f, err := r.revoked(t.Context(), caller); (f == nil) != slices.Contains(want, id) || err != nil {
				t.Errorf("%s: %v, %v", id, f, err)
			}
		}
	}
	continues(key, other, box, den)
	r.ok("POST", "/keys/"+key+"/revoke", "")
	r.ok("POST", "/machines/"+box+"/revoke", "")
	continues(other, den)
	r.ok("POST", "/members/ada/disable", "")
	continues()
}

// wrongClock is a store's facts where the clock of this node's computer is ahead.
type wrongClock struct {
	registry.Facts
	ahead time.Duration
}

func (f wrongClock) Poll(ctx context.Context, after account.Position) (account.StoreState, []fleet.Change, error) {
	state, changes, err := f.Facts.Poll(ctx, after)
	state.Nodes, state.ClockAhead = []account.Node{{Name: "hub-home", Region: "home"}}, f.ahead
	return state, changes, err
}

// TestClock: the operator's page and a metric have by how much this computer's clock differs
// from the database's.
func TestClock(t *testing.T) {
	db := assert.Value(store.Open(t.Context(), store.Config{Path: storetest.SQLite(t)}))(t)
	t.Cleanup(func() { db.Close() })
	for ahead, want := range map[time.Duration]site.Part{
		time.Second:  {Name: "Clock", Good: true, Text: "agrees with the database's"},
		time.Hour:    {Name: "Clock", Text: "1 h ahead of the database's, which all hubs use: synchronize both computers, as with NTP"},
		-time.Minute: {Name: "Clock", Text: "1 min behind the database's, which all hubs use: synchronize both computers, as with NTP"},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := rigOn(t, db, wrongClock{db.Facts("home"), ahead}, Config{Region: "home"})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go r.live.Run(ctx)
			time.Sleep(3 * time.Second)
			if parts := r.health(t.Context()); !slices.Contains(parts, want) {
				t.Errorf("%v ahead: %+v", ahead, parts)
			}
			const metric = "kith_clock_offset_seconds"
			want := fmt.Sprintf("# HELP %s By how much the clock of this hub's computer is ahead of the database's, which all hubs use. 0 on SQLite.\n# TYPE %[1]s gauge\n%[1]s %[2]v\n", metric, ahead.Seconds())
			if err := testutil.GatherAndCompare(newMetricsRegistry(t, r.Hub), strings.NewReader(want), metric); err != nil {
				t.Errorf("%v ahead: %v", ahead, err)
			}
		})
	}
}

// TestHealth: the operator's page has the state of each part, and names a database
// that does not answer.
func TestHealth(t *testing.T) {
	room := assert.Value(spool.Open("", spool.Limits{Memory: 2000}))(t)
	r := newRig(t, Config{Edge: gateway.Config{Spool: room}})
	states := func() map[string]bool {
		all := map[string]bool{}
		for _, p := range r.health(t.Context()) {
			if all[p.Name] = p.Good; p.Text == "" {
				t.Errorf("nothing is told of %s", p.Name)
			}
		}
		return all
	}
	// The registry does not run here: nothing follows the database, or hints.
	assert.Same(t, states(), map[string]bool{"Database": false, "Journal": true, "Memory": true})
	if err := r.Ready(time.Now()); err == nil {
		t.Error("a hub that follows no database is ready")
	}
	held := assert.Value(r.spool.Keep(spool.Holder{Member: "mem_1"}, make([]byte, 800)))(t)
	if got := states(); !got["Memory"] {
		t.Error("room is called none")
	}
	other := assert.Value(r.spool.Keep(spool.Holder{Member: "mem_2"}, make([]byte, 800)))(t)
	if got := states(); got["Memory"] {
		t.Error("a full memory is called well")
	}
	held.Close()
	other.Close()
	assert.That(t, len(r.limits()) >= 10 && r.limits()[0].Value == "not limited", "limits", r.limits())
	if nodes := r.nodes(); len(nodes) != 1 || time.Since(nodes[0].Started) > time.Hour {
		t.Errorf("nodes: %+v", nodes)
	}
	if limits := fmt.Sprint(r.limits()); !strings.Contains(limits, "{Machines of one member 1,000}") || !strings.Contains(limits, "{Who may sign up people with a member's invite}") {
		t.Errorf("limits: %s", limits)
	}
	for d, want := range map[time.Duration]string{
		-time.Second: "none", 500 * time.Millisecond: "500 ms", 10 * time.Second: "10 s", 9*time.Minute + 50*time.Second: "9 min 50 s",
		time.Hour: "1 h", 24 * time.Hour: "24 h", 25*time.Hour + time.Minute: "25 h 1 min", 60 * time.Hour: "2 days 12 h", 7 * 24 * time.Hour: "7 days",
	} {
		assert.Equal(t, length(d), want, d)
	}
}
