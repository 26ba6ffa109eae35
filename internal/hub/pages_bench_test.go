package hub

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/site"
	"github.com/kith/kith/internal/store"
)

// The size at which each page has to answer within 20 ms.
const (
	cityMembers  = 10_000
	cityMachines = 1_000
	cityRecords  = 1_000_000
	cityTraces   = 50_000
)

// city is a hub's store and snapshot at that size, and its site with one member
// signed in, who has much of everything: a fiftieth of all calls, on forty machines,
// of three models, ten machines, on which a hundredth of all calls ran, shares from a hundred owners, two groups, one of which is open
// and has a thousand members.
type city struct {
	db       *store.DB
	snapshot *fleet.Snapshot
	site     *site.Site
}

func newCity(b *testing.B) *city {
	db, err := store.Open(b.Context(), store.Config{Path: filepath.Join(b.TempDir(), "kith.db")})
	fatal(b, err)
	b.Cleanup(func() { db.Close() })
	c := &city{db: db, snapshot: fleet.NewSnapshot()}
	c.people(b)
	c.history(b)
	a := api.New(api.Config{
		DB: db, Region: "home", Log: slog.New(slog.DiscardHandler),
		Identify: func(context.Context, string) (fleet.Caller, error) { return fleet.Caller{}, nil },
		Snapshot: func() *fleet.Snapshot { return c.snapshot },
		Models: func(_ context.Context, w fleet.Caller) (out []api.Model, err error) {
			for _, m := range dispatch.ListModels(c.snapshot, fleet.Caller{Member: w.Member, Reach: w.Reach}, time.Now()) {
				out = append(out, api.Model{ID: m.ID, Availability: string(m.Availability), Via: m.Via.String(), Machines: m.Machines})
			}
			return out, nil
		},
		Running: func() []fleet.ActiveCall { return nil }, Queued: func(*fleet.Machine) int { return 0 },
		KeyLoad: func(string) *fleet.LimitLoad { return nil },
		Control: func(context.Context, fleet.MachineID, fleet.Control) error { return nil },
		Files: func(context.Context, fleet.MachineID, fleet.FileAct) (fleet.ModelFiles, error) {
			return fleet.ModelFiles{}, nil
		},
		Changed: func(context.Context) {}, Admit: func(fleet.Caller) error { return nil },
		Miss:      func(_ fleet.Caller, _ fleet.ModelID, f *fault.Fault) *fault.Fault { return f },
		Confirmed: func(time.Time) bool { return true }, Trace: db.Trace,
	})
	c.site = site.New(a, site.Config{Base: "http://localhost", Health: func(context.Context) []site.Part { return nil }})
	return c
}

func fatal(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func member(n int) string  { return fmt.Sprintf("mem_%05d", n) }
func machine(n int) string { return fmt.Sprintf("mch_%04d", n) }

// owner is the number of the member who has the machine: the first has ten.
func owner(machine int) int { return max(0, machine-9) }

func (c *city) people(b *testing.B) {
	ctx, now := b.Context(), time.Now().UTC()
	for i := range cityMembers {
		m := account.Member{ID: member(i), Name: fmt.Sprintf("member %d", i), Operator: i == 0, Created: now.Add(time.Duration(i-cityMembers) * time.Minute)}
		fatal(b, c.db.CreateMember(ctx, m))
	}
	for i := range cityMachines {
		m := account.Machine{ID: machine(i), OwnerID: member(owner(i)), Name: fmt.Sprintf("box %d", i), Region: "home", Created: now.Add(time.Duration(i-cityMachines) * time.Minute)}
		m.Hash[0], m.Hash[1], m.Hash[2] = byte(i), byte(i>>8), 1
		fatal(b, c.db.CreateMachine(ctx, m))
		live := &fleet.Machine{ID: fleet.MachineID(m.ID), Owner: fleet.MemberID(m.OwnerID), OwnerName: fmt.Sprintf("member %d", owner(i)), Name: m.Name, Online: true, Slots: 4}
		for k := range 5 {
			live.Offers = append(live.Offers, fleet.Offer{ID: fleet.ModelID(fmt.Sprintf("model-%02d", (i+4*k)%20)), Families: fleet.Families(fleet.Chat), ContextLength: 8192})
		}
		c.snapshot = c.snapshot.WithMachine(live)
	}
	var shares []*fleet.Share
	for i := 1; i <= 100; i++ {
		for _, s := range [...]account.Share{{OwnerID: member(i), MemberID: member(0)}, {OwnerID: member(0), MemberID: member(i)}} {
			s.ID, s.Created = account.NewID("shr_"), now
			fatal(b, c.db.AddShare(ctx, s))
		}
		shares = append(shares, &fleet.Share{Owner: fleet.MemberID(member(i)), Member: fleet.MemberID(member(0))})
	}
	c.snapshot = c.snapshot.WithShares(fleet.MemberID(member(0)), shares)
	for name, size := range map[string]int{"lab": 50, "everybody": 1000} {
		g := account.Group{ID: account.NewID("grp_"), Name: name, Kind: account.GroupOpen, Created: now}
		var ids []fleet.MemberID
		for i := range size {
			g.Members = append(g.Members, account.GroupMember{MemberID: member(i), Admin: i == 0})
			ids = append(ids, fleet.MemberID(member(i)))
		}
		fatal(b, c.db.CreateGroup(ctx, g))
		c.snapshot = c.snapshot.WithGroup(&fleet.Group{ID: fleet.GroupID(g.ID), Name: name, Open: true, Members: ids})
	}
	for i := range 50 {
		k := account.Key{ID: account.NewID("key_"), MemberID: member(0), Name: fmt.Sprint("key ", i), Region: "home", Reach: account.ReachAll, Created: now}
		k.Hash[0], k.Hash[1] = byte(i), 2
		fatal(b, c.db.CreateKey(ctx, k))
	}
	for i := range 10_000 {
		act := account.Act{ID: account.NewID("act_"), At: now, By: member(0), ByName: "member 0", What: "enable a member", Subject: "member"}
		if i%2 == 0 {
			fatal(b, c.db.SetMemberDisabled(account.Acting(ctx, &act), member(1+i/2), false))
		}
	}
}

func (c *city) history(b *testing.B) {
	const batch = 20_000
	random, now := rand.New(rand.NewPCG(1, 2)), time.Now().UTC()
	who := func() int { // a fiftieth of all is the first's
		if random.IntN(50) == 0 {
			return 0
		}
		return random.IntN(cityMembers)
	}
	for from := 0; from < cityRecords; from += batch {
		list := make([]account.Usage, batch)
		for i := range list {
			caller := who()
			m := (7*caller + random.IntN(40)) % cityMachines // of those that one reaches
			list[i] = account.Usage{
				CallID: account.NewID("req_"), Attempt: 1, Started: now.Add(-time.Duration(from+i) * (90 * 24 * time.Hour / cityRecords)),
				MemberID: member(caller), OwnerID: member(owner(m)), MachineID: machine(m), Model: fmt.Sprintf("model-%02d", (caller+random.IntN(3))%20),
				TokensIn: 100, TokensOut: 200, TokensHow: account.TokensReported,
			}
			if random.IntN(20) == 0 {
				list[i].Code = "CAPACITY_FULL"
			}
		}
		fatal(b, c.db.RecordUsage(b.Context(), list))
	}
	for from := 0; from < cityTraces; from += batch {
		var list []account.Trace
		for i := range batch {
			s := account.Trace{
				CallID: fmt.Sprintf("req_%07d", from+i), MemberID: member(who()), Mine: true, Caller: "member", Model: "model-01", Status: 200,
				Started: now.Add(-time.Duration(from+i) * (6 * 24 * time.Hour / cityTraces)), Endpoint: "/v1/chat/completions",
				Tries: []account.Attempt{{Machine: "box", Owner: "member", Via: "shared", Outcome: "answered"}},
			}
			if from+i < 200 {
				s.MemberID = member(0)
			}
			list = append(list, s)
		}
		fatal(b, c.db.SaveTraces(b.Context(), list, now))
	}
}

// BenchmarkPages times every page that is read, from the request to the last byte
// written, for a member who has much of everything, at the size above.
func BenchmarkPages(b *testing.B) {
	c := newCity(b)
	much, usual := c.browser(b, member(0)), c.browser(b, member(5000))
	page := func(name, path string, get func(string) *httptest.ResponseRecorder) {
		b.Run(name, func(b *testing.B) {
			var longest time.Duration
			for b.Loop() {
				began := time.Now()
				w := get(path)
				longest = max(longest, time.Since(began))
				if w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
			b.ReportMetric(float64(longest.Microseconds())/1000, "ms-longest")
		})
	}
	for _, days := range []string{"30", "90", "365"} {
		page("usage of a usual member, days "+days, "/usage?days="+days, usual)
	}
	for _, path := range []string{
		"/", "/account", "/sessions", "/applications", "/device", "/machines", "/access", "/models", "/models?model=model-03", "/try",
		"/usage?days=7", "/usage?days=30", "/usage?days=90", "/usage.csv?days=90", "/requests", "/requests/req_0000007",
		"/operator", "/operator/members", "/operator/members?q=999", "/operator/members?name=nobody", "/operator/machines", "/operator/machines?q=member+77", "/operator/audit", "/api",
	} {
		page(path, path, much)
	}
}

// browser is a member's, signed in; it gets pages.
func (c *city) browser(b *testing.B, id string) func(path string) *httptest.ResponseRecorder {
	jar, err := cookiejar.New(nil)
	fatal(b, err)
	base, err := url.Parse("http://localhost/")
	fatal(b, err)
	do := func(method, path string, form url.Values) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(form.Encode()))
		r.Header.Set("Accept", "text/html")
		if method == http.MethodPost {
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		for _, cookie := range jar.Cookies(base) {
			r.AddCookie(cookie)
		}
		w := httptest.NewRecorder()
		c.site.ServeHTTP(w, r)
		jar.SetCookies(base, w.Result().Cookies())
		return w
	}
	link, err := c.site.NewLink(b.Context(), id)
	fatal(b, err)
	if w := do("POST", "/welcome", url.Values{"link": {strings.TrimPrefix(link, "/welcome/")}}); w.Code != http.StatusSeeOther {
		b.Fatal(w.Code, w.Body)
	}
	return func(path string) *httptest.ResponseRecorder { return do(http.MethodGet, path, nil) }
}
