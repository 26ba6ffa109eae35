//go:build unix

package site

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// BenchmarkLivePages measures one second of 1,000 open pages. Each belongs to another
// member, with a machine of two models and 20 other machines in reach. It measures the
// check and all events, for a number of machines that changed. Events are sent through
// net/http and real sockets, and reading them is included.
func BenchmarkLivePages(b *testing.B) {
	const pages = 1000
	for _, of := range []string{"machines", "models", "access"} {
		for _, moved := range []int{0, 100, pages} {
			b.Run(fmt.Sprintf("%s/moved=%d", of, moved), func(b *testing.B) { benchLive(b, of, pages, moved) })
		}
	}
}

func benchLive(b *testing.B, of string, pages, moved int) {
	db, err := store.Open(b.Context(), store.Config{Path: filepath.Join(b.TempDir(), "kith.db")})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	s := fleet.NewSnapshot()
	member := func(i int) fleet.MemberID { return fleet.MemberID(fmt.Sprintf("mem_%d", i)) }
	for i := range pages {
		hours, _ := fleet.ParseHours("Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00", "Europe/Lisbon")
		s = s.WithMachine(&fleet.Machine{
			ID: fleet.MachineID(fmt.Sprintf("mch_%d", i)), Owner: member(i), OwnerName: "owner", Name: "box", Online: true, Slots: 4, Hours: hours,
			Offers: []fleet.Offer{{ID: "llama3", Families: fleet.Families(fleet.Chat)}, {ID: fleet.ModelID(fmt.Sprint("model-", i%7)), Families: fleet.Families(fleet.Chat)}},
		})
	}
	for i := range pages {
		var shares []*fleet.Share
		for j := 1; j <= 20; j++ {
			shares = append(shares, &fleet.Share{ID: fleet.ShareID(fmt.Sprintf("%d-%d", i, j)), Owner: member((i + j) % pages), Member: member(i)})
		}
		s = s.WithShares(member(i), shares)
	}
	var uses []fleet.ActiveCall
	a := api.New(api.Config{
		DB: db, Snapshot: func() *fleet.Snapshot { return s }, Running: func() []fleet.ActiveCall { return uses }, Queued: func(*fleet.Machine) int { return 0 },
		Confirmed: func(time.Time) bool { return true }, Admit: func(fleet.Caller) error { return nil },
		Models: func(_ context.Context, c fleet.Caller) ([]api.Model, error) { return reached(s, c.Member), nil },
	})
	site := New(a, Config{Base: "http://localhost"})
	render := map[string]livePage{"machines": machinesContent, "models": modelsContent, "access": accessContent}[of]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = site.follow(r.Context(), w, fleet.Caller{Member: fleet.MemberID(r.URL.Query().Get("member"))}, render)
	}))
	defer server.Close()
	events := make(chan struct{}, 4*pages)
	for i := range pages {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET /?member=%s HTTP/1.1\r\nHost: x\r\n\r\n", member(i))
		go func() {
			buffer := make([]byte, 64<<10)
			for {
				if _, err := conn.Read(buffer); err != nil {
					return
				}
				events <- struct{}{}
			}
		}()
	}
	for range pages {
		<-events
	}
	now := time.Now()
	site.refresh(now)
	var before, after syscall.Rusage
	at := 0
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	for b.Loop() {
		at++
		uses = uses[:0]
		for i := range moved {
			m := s.Machine(fleet.MachineID(fmt.Sprintf("mch_%d", i)))
			if at%2 == 1 {
				m.Reserve("llama3", false)
				uses = append(uses, fleet.ActiveCall{Caller: member((i + pages - 1) % pages), Name: "n", Machine: m, Model: "llama3", Class: fleet.Shared})
			} else {
				m.Release("llama3")
			}
			if of == "models" {
				m.Load.SetLocal(at % 2 * 3) // with the reserved slot: busy
			}
		}
		site.MarkChanged()
		now = now.Add(time.Second)
		site.live.notBefore, site.live.lastHeartbeat, site.live.minute = time.Time{}, now, now.Truncate(time.Minute)
		for range changedBy(site, func() { site.refresh(now) }) {
			<-events
		}
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(cpu.Microseconds())/1000/float64(at), "cpu-ms/s")
}

// changedBy returns how many pages a check changed.
func changedBy(s *Site, render func()) int {
	before := map[*stream]*liveContent{}
	for st := range s.live.streams {
		before[st] = st.now.Load()
	}
	render()
	n := 0
	for st, was := range before {
		if st.now.Load() != was {
			n++
		}
	}
	return n
}

// reached returns a hub's list of the models in a member's reach.
func reached(s *fleet.Snapshot, who fleet.MemberID) []api.Model {
	at := map[fleet.ModelID]int{}
	var out []api.Model
	now := time.Now()
	for m, standing := range s.Reach(who, fleet.Everything) {
		for i := range m.Offers {
			seen, ok := standing.State(m, &m.Offers[i], now)
			if !ok {
				continue
			}
			j, known := at[m.Offers[i].ID]
			if !known {
				j = len(out)
				at[m.Offers[i].ID] = j
				out = append(out, api.Model{ID: m.Offers[i].ID, Via: seen.Class.String()})
			}
			out[j].Machines++
			out[j].Availability = seen.State.String()
		}
	}
	return out
}
