package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// call makes a chat call and returns its status and code.
func (r *rig) call(secret, model string) (int, string) {
	r.t.Helper()
	a := send(r.t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		q.Header.Set("Authorization", "Bearer "+secret)
		r.Handler().ServeHTTP(w, q)
	}), "POST", "/v1/chat/completions", `{"model":"`+model+`","messages":[{"role":"user","content":"hi"}]}`)
	return a.Status, a.code()
}

// run runs the hub's registry until the test's bubble ends, and waits until it is
// loaded.
func (r *rig) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.live.Run(ctx) }()
	r.t.Cleanup(func() { cancel(); <-ended })
	<-r.live.Ready()
}

// world is random members, machines of three regions, shares and groups.
type world struct {
	t        *testing.T
	db       *store.DB
	draw     *rand.Rand
	members  []account.Member
	machines []account.Machine
	offers   map[string]map[string]bool // of each machine
	shares   map[[2]string]bool         // owner and member
	groups   []map[string]bool          // members of each
	ids      []string                   // of the groups
}

var regionNames = []string{"eu", "us", "asia"}

func must(t *testing.T, err error) {
	t.Helper()
	assert.Require(t, err == nil || errors.Is(err, account.ErrExists), err)
}

func (w *world) member() account.Member { return w.members[w.draw.IntN(len(w.members))] }
func (w *world) model() string          { return fmt.Sprint("m", w.draw.IntN(12)) }

// change makes one random change.
func (w *world) change() {
	ctx, now := w.t.Context(), time.Now()
	switch owner := w.member(); w.draw.IntN(5) {
	case 0:
		m := account.Machine{ID: account.NewID("mch_"), OwnerID: owner.ID, Name: account.NewID("box"), Region: regionNames[w.draw.IntN(3)], Created: now}
		m.Hash[0], m.Hash[1], m.Hash[2] = 1, byte(len(w.machines)), byte(len(w.machines)>>8)
		must(w.t, w.db.CreateMachine(ctx, m))
		w.machines = append(w.machines, m)
		w.save(m)
	case 1:
		if len(w.machines) > 0 {
			m := w.machines[w.draw.IntN(len(w.machines))]
			must(w.t, w.db.RenameMachine(ctx, m.OwnerID, m.ID, account.NewID("box")))
		}
	case 2:
		if with := w.member(); with.ID != owner.ID {
			must(w.t, w.db.AddShare(ctx, account.Share{ID: account.NewID("shr_"), OwnerID: owner.ID, MemberID: with.ID, Created: now}))
			w.shares[[2]string{owner.ID, with.ID}] = true
		}
	case 3:
		id := account.NewID("grp_")
		must(w.t, w.db.CreateGroup(ctx, account.Group{ID: id, Name: account.NewID("group"), Kind: account.GroupOpen, Members: []account.GroupMember{{MemberID: owner.ID, Admin: true}}, Created: now}))
		w.groups, w.ids = append(w.groups, map[string]bool{owner.ID: true}), append(w.ids, id)
	case 4:
		if n := len(w.groups); n > 0 {
			g := w.draw.IntN(n)
			must(w.t, w.db.JoinGroup(ctx, w.ids[g], owner.ID, now))
			w.groups[g][owner.ID] = true
		}
	}
}

// save saves the offers of a machine, as the hub at which it was last connected does.
func (w *world) save(m account.Machine) {
	w.offers[m.ID] = map[string]bool{}
	var models []string
	for range 3 {
		id := w.model()
		if !w.offers[m.ID][id] {
			models = append(models, `{"id":"`+id+`","families":["chat"],"endpoints":["/v1/chat/completions"]}`)
		}
		w.offers[m.ID][id] = true
	}
	ad := `{"version":1,"name":"box","slots":1,"models":[` + strings.Join(models, ",") + `]}`
	must(w.t, w.db.SaveOffers(w.t.Context(), m.ID, []byte(ad), time.Now()))
}

// reaches reports whether the member reaches the machine, by its owner alone.
func (w *world) reaches(member string, m account.Machine) bool {
	if m.OwnerID == member || w.shares[[2]string{m.OwnerID, member}] {
		return true
	}
	for _, g := range w.groups {
		if g[m.OwnerID] && g[member] {
			return true
		}
	}
	return false
}

// A hub knows the machines of its own region only: those of others are no candidates,
// are in no list, and are not counted in rows 1 and 5 to 7, whatever is changed at
// which region while it runs (spec/routing.md#region).
func TestRegionsShareNoMachine(t *testing.T) {
	for seed := range uint64(3) {
		synctest.Test(t, func(t *testing.T) {
			db, err := store.Open(t.Context(), store.Config{Path: storetest.SQLite(t)})
			must(t, err)
			t.Cleanup(func() { db.Close() })
			w := &world{t: t, db: db, draw: rand.New(rand.NewPCG(seed, 1)), offers: map[string]map[string]bool{}, shares: map[[2]string]bool{}}
			hubs, keys := map[string]*rig{}, map[[2]string]string{}
			for _, region := range regionNames {
				hubs[region] = rigOn(t, db, db.Facts(region), Config{Region: region})
			}
			for i := range 5 {
				m := account.Member{ID: account.NewID("mem_"), Name: fmt.Sprint("member", i), Created: time.Now()}
				must(t, db.CreateMember(t.Context(), m))
				w.members = append(w.members, m)
				for _, region := range regionNames {
					keys[[2]string{m.ID, region}] = hubs[region].ok("POST", "/keys", `{"member":"`+m.Name+`"}`).Body["secret"].(string)
				}
			}
			for range 60 {
				w.change()
			}
			for _, region := range regionNames {
				hubs[region].run()
			}
			checked := 0
			for round := range 3 {
				time.Sleep(40 * time.Second) // changes are read, and no machine is expected back any more
				for _, region := range regionNames {
					checked += w.check(hubs[region], region, keys)
				}
				if round < 2 {
					for range 30 {
						w.change()
					}
				}
			}
			t.Logf("seed %d: %d machines, %d calls", seed, len(w.machines), checked)
		})
	}
}

// check compares what the hub of a region knows and answers with the world.
func (w *world) check(r *rig, region string, keys map[[2]string]string) (calls int) {
	known := map[string]bool{}
	for m := range r.live.Snapshot().Machines() {
		known[string(m.ID)] = true
	}
	for _, m := range w.machines {
		if here := m.Region == region; known[m.ID] != here {
			w.t.Errorf("region %s, a machine of %s: known %v", region, m.Region, known[m.ID])
		}
	}
	for _, member := range w.members {
		for i := range 13 { // the last of which no machine offers
			model := fmt.Sprint("m", i)
			want := "model_not_found"
			for _, m := range w.machines {
				if m.Region == region && w.offers[m.ID][model] && w.reaches(member.ID, m) {
					want = "machine_offline"
				}
			}
			if _, code := r.call(keys[[2]string{member.ID, region}], model); code != want {
				w.t.Errorf("region %s, %s asks for %s: %s, want %s", region, member.Name, model, code, want)
			}
			calls++
		}
		list, err := r.calls.Models(w.t.Context(), fleet.Caller{Member: fleet.MemberID(member.ID)})
		assert.That(w.t, err == nil && len(list) == 0, "region", region, "lists", list, err)
	}
	return calls
}

// blind is the facts of a region whose database is out of reach on demand.
type blind struct {
	*store.Facts
	down atomic.Bool
}

func (b *blind) Poll(ctx context.Context, after account.Position) (account.StoreState, []fleet.Change, error) {
	if b.down.Load() {
		return account.StoreState{}, nil, errDown
	}
	return b.Facts.Poll(ctx, after)
}

// A region that is cut off from the database refuses after 5 s; the others serve on.
func TestRegionCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := store.Open(t.Context(), store.Config{Path: storetest.SQLite(t)})
		must(t, err)
		t.Cleanup(func() { db.Close() })
		facts := &blind{Facts: db.Facts("eu")}
		eu := rigOn(t, db, facts, Config{Region: "eu"})
		us := rigOn(t, db, db.Facts("us"), Config{Region: "us", Regions: map[string]*url.URL{"eu": {Scheme: "http", Host: "localhost"}}})
		_, euKey := eu.member("ann")
		usKey := us.ok("POST", "/keys", `{"member":"ann"}`).Body["secret"].(string)
		for _, r := range []*rig{eu, us} {
			r.machine("ann", "box-"+r.cfg.Region)
			r.run()
		}
		want := func(r *rig, secret, code string) {
			t.Helper()
			if _, got := r.call(secret, "m"); got != code {
				t.Errorf("%s: %s, want %s", r.cfg.Region, got, code)
			}
		}
		time.Sleep(time.Minute)
		want(eu, euKey, "model_not_found")
		facts.down.Store(true)
		eu.kept.down.Store(true)
		time.Sleep(3 * time.Second)
		want(eu, euKey, "model_not_found")
		time.Sleep(3 * time.Second) // the last poll began at most a second before
		want(eu, euKey, "CASCADE_EXHAUSTED")
		want(us, usKey, "model_not_found")
		facts.down.Store(false)
		eu.kept.down.Store(false)
		time.Sleep(2 * time.Second)
		want(eu, euKey, "model_not_found")
	})
}

// A key of another region is forwarded without a look-up, with the database down too;
// on the management API, which serves every member's account anywhere, it is refused
// with the address.
func TestKeyOfAnotherRegion(t *testing.T) {
	var forwarded atomic.Int64
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		forwarded.Add(1)
		w.Header().Set("X-Correlation-Id", "req_far")
		_, _ = io.WriteString(w, `{"from":"`+r.Header.Get("Kith-Forwarded-From")+`"}`)
	}))
	defer far.Close()
	at, err := url.Parse(far.URL)
	must(t, err)
	r := newRig(t, Config{Region: "eu", Regions: map[string]*url.URL{"us": at}})
	r.kept.down.Store(true)
	key := credential.Mint(credential.APIKey, "us").Reveal()
	machine := credential.Mint(credential.MachineKey, "us").Reveal()
	for secret, want := range map[string]int{
		key: 200, machine: 200, mistyped(key): 401, elsewhere(credential.APIKey): 401,
		credential.Mint(credential.LinkCode, "us").Reveal(): 401, credential.Mint(credential.LoginToken, "us").Reveal(): 401,
	} {
		q, w := httptest.NewRequest("GET", "/v1/models", nil), httptest.NewRecorder()
		q.Header.Set("Authorization", "Bearer "+secret)
		r.Handler().ServeHTTP(w, q)
		if w.Code != want || want == 200 && w.Body.String() != `{"from":"eu"}` {
			t.Errorf("%.10s: %d %s", secret, w.Code, w.Body)
		}
	}
	q, w := httptest.NewRequest("GET", "/api/keys", nil), httptest.NewRecorder()
	q.Header.Set("Authorization", "Bearer "+key)
	if r.Handler().ServeHTTP(w, q); w.Code != 401 || !strings.Contains(w.Body.String(), far.URL) {
		t.Errorf("the management API: %d %s", w.Code, w.Body)
	}
	if forwarded.Load() != 2 || r.kept.lookups.Load() != 0 {
		t.Errorf("%d forwarded, %d look-ups", forwarded.Load(), r.kept.lookups.Load())
	}
}
