package sim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"time"
)

// pace returns an engine that answers after first with so many tokens in four frames each.
func pace(first, token time.Duration, tokens int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		time.Sleep(first)
		for sent := 0; sent < tokens; sent += 4 {
			fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{"content":"four words of text "}}]}`+"\n\n")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(4 * token)
		}
		fmt.Fprintf(w, `data: {"id":"c","object":"chat.completion.chunk","model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":20,"completion_tokens":%d,"total_tokens":%d}}`+"\n\ndata: [DONE]\n\n", tokens, 20+tokens)
	}
}

// In open groups of 50 members, five people with two accounts each run a machine that
// answers at once, in five ways. They prove it to their other account, by a share, in a
// group of their own and in the open group. A trap gets no more calls of the others than an
// honest newcomer, and the fast machines lose less than a twentieth of what they get
// without traps (spec/security.md#attracting).
func TestTrapsAttractNoCalls(t *testing.T) {
	calls := 10_000
	if testing.Short() {
		calls = 2_500
	}
	with, without := attract(t, calls, true), attract(t, calls, false)
	t.Logf("of %d calls with traps %+v, without %+v", calls, with, without)
	if least := slices.Min(with.newcomers); slices.Max(with.traps) > least {
		t.Errorf("the traps got %d calls, an honest newcomer %d", with.traps, least)
	}
	if 100*with.fast < 95*without.fast {
		t.Errorf("the fast machines got %d calls beside traps and %d without", with.fast, without.fast)
	}
}

// attracted is how many calls the machines of TestTrapsAttractNoCalls got.
type attracted struct {
	fast             int
	newcomers, traps []int
}

// attract plays so many calls. The first half establishes 12 honest machines; then the
// traps and two newcomers join.
func attract(t *testing.T, calls int, withTraps bool) (got attracted) {
	const tokens = 16
	honest := pace(800*time.Millisecond, 150*time.Millisecond, tokens)
	tricks := []http.HandlerFunc{
		pace(0, 0, 4), pace(0, 0, tokens), pace(0, 0, 25*tokens), pace(time.Millisecond, time.Millisecond, tokens),
		pace(50*time.Millisecond, 12*time.Millisecond, tokens),
	}
	inBubble(t, func(w *world) {
		rng := rand.New(rand.NewPCG(1, 2))
		members := func(name string, n int) (all []*member) {
			for i := range n {
				all = append(all, w.addMember(fmt.Sprint(name, i)))
			}
			return all
		}
		people, crooks, puppets := members("member", 40), members("crook", len(tricks)), members("puppet", len(tricks))
		w.together(slices.Concat(people, crooks, puppets)...)
		w.together(slices.Concat(people[:20], crooks, puppets)...)
		play := func(calls int) {
			var running []*answer
			for range calls {
				running = append(running, w.begin(ask{by: people[rng.IntN(len(people))], model: "m", stream: true}))
				time.Sleep(time.Duration(rng.ExpFloat64() * 3.6 * float64(time.Second)))
			}
			for _, a := range running {
				if <-a.over; !a.served() {
					t.Errorf("%v", a)
				}
			}
		}
		var fast, newcomers, traps []*trap
		var all []*trap
		add := func(owner *member, name string, answer http.HandlerFunc) *trap {
			all = append(all, w.addTrap(owner, name, answer))
			return all[len(all)-1]
		}
		defer func() {
			for _, x := range all {
				x.end()
			}
		}()
		for i := range 3 {
			fast = append(fast, add(people[i], fmt.Sprint("fast", i), pace(300*time.Millisecond, 50*time.Millisecond, tokens)))
		}
		for i := range 9 {
			add(people[10+i], fmt.Sprint("slow", i), honest)
		}
		play(calls / 2)
		for i, trick := range tricks {
			if !withTraps {
				break
			}
			traps = append(traps, add(crooks[i], fmt.Sprint("trap", i), trick))
			switch i {
			case 0:
				w.share(crooks[i], puppets[i])
			case 1, 2:
				w.together(crooks[i], puppets[i])
			}
			for range 60 {
				w.do(ask{by: puppets[i], model: "m", stream: true})
				time.Sleep(2 * time.Second)
			}
		}
		for i := range 2 {
			newcomers = append(newcomers, add(people[30+i], fmt.Sprint("newcomer", i), honest))
		}
		before := make(map[*trap]int)
		for _, x := range slices.Concat(fast, traps) {
			before[x] = x.asked()
		}
		play(calls / 2)
		for _, x := range fast {
			got.fast += x.asked() - before[x]
		}
		for _, x := range newcomers {
			got.newcomers = append(got.newcomers, x.asked())
		}
		for _, x := range traps {
			got.traps = append(got.traps, x.asked()-before[x])
		}
	})
	return got
}
