package store_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
)

// testPages checks that lists read page by page return each record once, even if many
// have the same millisecond.
func testPages(t *testing.T, db *store.DB) {
	ctx := t.Context()
	const many = 23
	want := map[string][]string{}
	for i := range many {
		at := later(i / 9) // nine at each time
		member := account.Member{ID: fmt.Sprintf("mem_%02d", i), Name: fmt.Sprintf("Member_%02d", i), Created: at, Disabled: i == 3}
		ok(t, db.CreateMember(ctx, member))
		machine := account.Machine{
			ID: fmt.Sprintf("mch_%02d", i), OwnerID: member.ID, Name: fmt.Sprintf("box %d%%", i), Region: "home", Hash: [32]byte{byte(i), 1}, Created: at,
		}
		ok(t, db.CreateMachine(ctx, machine))
		act := account.Act{ID: fmt.Sprintf("act_%02d", i), At: at, What: "enable a member", Subject: member.Name}
		ok(t, db.SetMemberDisabled(account.Acting(ctx, &act), member.ID, i == 3))
		story := account.Trace{CallID: fmt.Sprintf("req_%02d", i), MemberID: "mem_00", Started: at}
		ok(t, db.SaveTraces(ctx, []account.Trace{story, {CallID: story.CallID, MemberID: "mem_01", Started: at}}, later(many)))
		for _, id := range []string{member.ID, machine.ID, act.ID, story.CallID} {
			want[id[:4]] = append([]string{id}, want[id[:4]]...)
		}
	}
	for kind, page := range map[string]func(account.Place) []account.Place{
		"mem_": func(p account.Place) []account.Place {
			return places(must[[]account.Member](t)(db.MembersBefore(ctx, p, "member_", 4)), func(m account.Member) account.Place { return account.Place{At: m.Created, ID: m.ID} })
		},
		"mch_": func(p account.Place) []account.Place {
			return places(must[[]account.Machine](t)(db.MachinesBefore(ctx, p, "%", 4)), func(k account.Machine) account.Place {
				return account.Place{At: k.Created, ID: k.ID}
			})
		},
		"act_": func(p account.Place) []account.Place {
			return places(must[[]account.Act](t)(db.Acts(ctx, p, account.ActFilter{}, 4)), func(a account.Act) account.Place { return account.Place{At: a.At, ID: a.ID} })
		},
		"req_": func(p account.Place) []account.Place {
			return places(must[[]account.Trace](t)(db.TracesOf(ctx, "mem_00", p, 4)), func(s account.Trace) account.Place { return account.Place{At: s.Started, ID: s.CallID} })
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
		assert.That(t, slices.Equal(got, want[kind]), "pages of 4 tell", got, want[kind])
	}

	// The search text is not a pattern.
	for part, n := range map[string]int{"": many, "MEMBER_1": 10, "_": many, "%": 0, "member-": 0, "!": 0} {
		same(t, len(must[[]account.Member](t)(db.MembersBefore(ctx, account.Place{}, part, 100))), n)
	}
	found := must[[]account.Machine](t)(db.MachinesBefore(ctx, account.Place{}, "ember_07", 100))
	if len(found) != 1 || found[0].OwnerName != "Member_07" || found[0].Name != "box 7%" {
		t.Errorf("by its owner is found %+v", found)
	}
	same(t, len(must[[]account.Machine](t)(db.MachinesBefore(ctx, account.Place{}, "BOX 1", 100))), 11)
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
