package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store"
)

// testPages: lists read page by page tell everything once, though much of it is
// of one millisecond.
func testPages(t *testing.T, db *store.DB) {
	ctx := t.Context()
	const many = 23
	want := map[string][]string{}
	for i := range many {
		at := later(i / 9) // nine of each moment
		member := account.Member{ID: fmt.Sprintf("mem_%02d", i), Name: fmt.Sprintf("Member_%02d", i), Created: at, Disabled: i == 3}
		ok(t, db.CreateMember(ctx, member))
		machine := account.Machine{
			ID: fmt.Sprintf("mch_%02d", i), OwnerID: member.ID, Name: fmt.Sprintf("box %d%%", i), Region: "home", Hash: [32]byte{byte(i), 1}, Created: at,
		}
		ok(t, db.CreateMachine(ctx, machine))
		act := account.Act{ID: fmt.Sprintf("act_%02d", i), At: at, What: "enable a member", Subject: member.Name}
		ok(t, db.SetMemberDisabled(account.Acting(ctx, &act), member.ID, i == 3))
		story := account.Story{CallID: fmt.Sprintf("req_%02d", i), MemberID: "mem_00", Started: at}
		ok(t, db.SaveStories(ctx, []account.Story{story, {CallID: story.CallID, MemberID: "mem_01", Started: at}}, later(many)))
		for _, id := range []string{member.ID, machine.ID, act.ID, story.CallID} {
			want[id[:4]] = append([]string{id}, want[id[:4]]...)
		}
	}
	for kind, page := range map[string]func(account.Place) []account.Place{
		"mem_": func(p account.Place) []account.Place {
			return places(must[[]account.Member](t)(db.MembersBefore(ctx, p, "member_", 4)), func(m account.Member) account.Place { return account.Place{At: m.Created, ID: m.ID} })
		},
		"mch_": func(p account.Place) []account.Place {
			return places(must[[]account.Kept](t)(db.MachinesBefore(ctx, p, "%", 4)), func(k account.Kept) account.Place {
				return account.Place{At: k.Machine.Created, ID: k.Machine.ID}
			})
		},
		"act_": func(p account.Place) []account.Place {
			return places(must[[]account.Act](t)(db.Acts(ctx, p, 4)), func(a account.Act) account.Place { return account.Place{At: a.At, ID: a.ID} })
		},
		"req_": func(p account.Place) []account.Place {
			return places(must[[]account.Story](t)(db.StoriesOf(ctx, "mem_00", p, 4)), func(s account.Story) account.Place { return account.Place{At: s.Started, ID: s.CallID} })
		},
	} {
		var got []string
		for from := (account.Place{}); ; {
			found := page(from)
			if len(found) == 0 || len(got) > many {
				break
			}
			for _, p := range found {
				got = append(got, p.ID)
			}
			from = found[len(found)-1]
		}
		if !slices.Equal(got, want[kind]) {
			t.Errorf("pages of 4 tell %q, want %q", got, want[kind])
		}
	}

	// What is searched for is no pattern.
	for part, n := range map[string]int{"": many, "MEMBER_1": 10, "_": many, "%": 0, "member-": 0, "!": 0} {
		same(t, len(must[[]account.Member](t)(db.MembersBefore(ctx, account.Place{}, part, 100))), n)
	}
	found := must[[]account.Kept](t)(db.MachinesBefore(ctx, account.Place{}, "ember_07", 100))
	if len(found) != 1 || found[0].OwnerName != "Member_07" || found[0].Machine.Name != "box 7%" {
		t.Errorf("by its owner is found %+v", found)
	}
	same(t, len(must[[]account.Kept](t)(db.MachinesBefore(ctx, account.Place{}, "BOX 1", 100))), 11)
	_, err := db.MembersBefore(ctx, account.Place{}, "\x00", 1)
	fails(t, err, store.ErrInvalid)

	all, disabled, err := db.CountMembers(ctx)
	ok(t, err)
	same(t, []int{all, disabled}, []int{many, 1})
	ok(t, db.RevokeMachine(ctx, "mch_05", later(1)))
	same(t, must[int](t)(db.CountMachines(ctx)), many-1)
}

func places[T any](of []T, place func(T) account.Place) (all []account.Place) {
	for _, one := range of {
		all = append(all, place(one))
	}
	return all
}

// testUsageWith: what went between a member and each other is summed by the
// other, most calls first; what no machine took is between nobody.
func testUsageWith(t *testing.T, db *store.DB) {
	ctx := t.Context()
	for _, id := range []string{"ada", "bob"} {
		ok(t, db.CreateMember(ctx, account.Member{ID: "mem_" + id, Name: id, Created: start}))
	}
	var records []account.Usage
	for i, c := range []struct{ caller, owner, code string }{
		{"mem_ada", "mem_bob", ""}, {"mem_ada", "mem_bob", "machine_offline"}, {"mem_ada", "mem_ada", ""}, {"mem_ada", "", "CAPACITY_FULL"},
		{"mem_eve", "mem_bob", ""}, {"mem_bob", "mem_bob", ""}, {"mem_bob", "mem_bob", ""}, {"mem_bob", "mem_bob", ""},
	} {
		records = append(records, account.Usage{
			CallID: fmt.Sprint("call-", i), Attempt: 1, Started: start, MemberID: c.caller, OwnerID: c.owner, MachineID: "mch", Model: "m", Code: c.code,
			Waited: time.Second, TokensIn: 10, TokensOut: 100,
		})
	}
	old := records[0]
	old.CallID, old.Started = "old", start.AddDate(0, 0, -2)
	ok(t, db.RecordUsage(ctx, append(records, old)))
	sums := must[[]account.UsageWith](t)
	of := func(id, name string, calls, refused int64) account.UsageWith {
		return account.UsageWith{MemberID: id, Name: name, Calls: calls, Refused: refused, Waited: time.Duration(calls) * time.Second, TokensIn: 10 * calls, TokensOut: 100 * calls}
	}
	same(t, sums(db.OwnersOfCaller(ctx, "mem_ada", start, 9)), []account.UsageWith{of("mem_bob", "bob", 2, 1), of("mem_ada", "ada", 1, 0)})
	same(t, sums(db.CallersOnOwner(ctx, "mem_bob", start, 9)), []account.UsageWith{of("mem_bob", "bob", 3, 0), of("mem_ada", "ada", 2, 1), of("mem_eve", "", 1, 0)})
	same(t, sums(db.CallersOnOwner(ctx, "mem_bob", start, 1)), []account.UsageWith{of("mem_bob", "bob", 3, 0)})
	same(t, sums(db.OwnersOfCaller(ctx, "mem_ada", old.Started, 1)), []account.UsageWith{of("mem_bob", "bob", 3, 1)})
	same(t, len(sums(db.CallersOnOwner(ctx, "", start, 9))), 0)
}
