package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

	// The words are no patterns.
	for words, n := range map[string]int{"": many, "MEMBER_1": 10, "_": many, "%": 0, "member-": 0, "!": 0, "2 member": 5, "mem 1 er_ 0": 2} {
		in := strings.Fields(words)
		got := must[[]account.MemberActivity](t)(db.ListMembers(ctx, account.MemberQuery{Words: in, Most: 100}))
		all, disabled, err := db.CountMembers(ctx, in...)
		ok(t, err)
		same(t, []int{len(got), all}, []int{n, n})
		same(t, disabled, len(slices.DeleteFunc(got, func(m account.MemberActivity) bool { return !m.Disabled })))
	}
	for part, n := range map[string]int{"ember_07": 1, "BOX 1": 11, "%": many, "": many} {
		same(t, len(must[[]account.Machine](t)(db.ListMachines(ctx, part))), n)
	}
	found := must[[]account.Machine](t)(db.ListMachines(ctx, "ember_07"))[0]
	same(t, []any{found.ID, found.OwnerName, found.Name, found.Created.Equal(later(0)), found.LastSeen.IsZero(), found.Revoked.IsZero()}, []any{"mch_07", "Member_07", "box 7%", true, true, true})
	_, err := db.ListMembers(ctx, account.MemberQuery{Words: []string{"\x00"}, Most: 1})
	fails(t, err, store.ErrInvalid)
	_, err = db.ListMachines(ctx, "\x00")
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

// testMemberLists checks the pages of the list of members, in each order, and what each
// member last did.
func testMemberLists(t *testing.T, db *store.DB) {
	ctx := t.Context()
	at := func(hours int) time.Time { return later(0).Truncate(time.Hour).Add(time.Duration(hours) * time.Hour) }
	for i, name := range []string{"bea", "Ann", "cid", "dan"} { // in the order of their creation
		ok(t, db.CreateMember(ctx, account.Member{ID: "mem_" + name, Name: name, Created: later(i), Disabled: name == "cid", Operator: name == "dan"}))
	}
	for i, owner := range []string{"Ann", "Ann", "bea", "bea"} {
		m := account.Machine{ID: fmt.Sprint("mch_", i), OwnerID: "mem_" + owner, Name: fmt.Sprint("box ", i), Region: "home", Hash: [32]byte{byte(i), 2}, Created: later(0)}
		ok(t, db.CreateMachine(ctx, m))
	}
	ok(t, db.RevokeMachine(ctx, "mch_3", later(1)))
	ok(t, db.CreateSession(ctx, account.Session{ID: "ses_1", MemberID: "mem_bea", Created: at(1), Data: []byte{1}, Seen: at(4), Expires: at(900)}))
	ok(t, db.CreateKey(ctx, account.Key{ID: "key_1", MemberID: "mem_Ann", Region: "home", Reach: account.ReachAll, Hash: [32]byte{7}, Created: at(1)}))
	ok(t, db.TouchKeys(ctx, map[string]time.Time{"key_1": at(5)}))
	ok(t, db.RecordUsage(ctx, []account.Usage{
		{CallID: "req_1", Attempt: 1, Started: at(3), MemberID: "mem_cid", Model: "m"}, {CallID: "req_2", Attempt: 1, Started: at(2), MemberID: "mem_bea", Model: "m"},
		{CallID: "req_3", Attempt: 1, Started: later(3), MemberID: "mem_dan", Model: "m"}, // in the hour in which dan was created
	}))
	for sort, want := range map[string]string{
		"": "dan cid Ann bea", "-created": "dan cid Ann bea", "created": "bea Ann cid dan", "name": "Ann bea cid dan", "-name": "dan cid bea Ann",
		"state": "dan Ann bea cid", "-state": "cid dan Ann bea", "machines": "dan cid bea Ann", "-machines": "Ann bea dan cid",
		"active": "dan cid bea Ann", "-active": "Ann bea cid dan", "name; DROP TABLE members": "dan cid Ann bea",
	} {
		var names []string
		for skip := range 4 { // pages of one
			page := must[[]account.MemberActivity](t)(db.ListMembers(ctx, account.MemberQuery{Sort: sort, Skip: skip, Most: 1}))
			same(t, len(page), 1)
			names = append(names, page[0].Name)
		}
		assert.Equal(t, strings.Join(names, " "), want, sort)
	}
	for state, want := range map[string]string{account.MemberActive: "dan Ann bea", account.MemberDisabled: "cid", "gone": "dan Ann bea"} {
		var names []string
		for _, m := range must[[]account.MemberActivity](t)(db.ListMembers(ctx, account.MemberQuery{State: state, Most: 9})) {
			names = append(names, m.Name)
		}
		assert.Equal(t, strings.Join(names, " "), want, state)
	}
	all := must[[]account.MemberActivity](t)(db.ListMembers(ctx, account.MemberQuery{Sort: "name", Most: 9}))
	var did []string
	for _, m := range all {
		did = append(did, fmt.Sprintf("%s %t %t %d %s", m.ID, m.Operator, m.Disabled, m.Machines, m.Active.Sub(at(0))))
	}
	same(t, did, []string{"mem_Ann false false 2 5h0m0s", "mem_bea false false 1 4h0m0s", "mem_cid false true 0 3h0m0s", "mem_dan true false 0 " + later(3).Sub(at(0)).String()})
	ok(t, db.CreateMember(ctx, account.Member{ID: "mem_eve", Name: "eve", Created: later(4)}))
	all = must[[]account.MemberActivity](t)(db.ListMembers(ctx, account.MemberQuery{Words: []string{"eve"}, Most: 9}))
	assert.That(t, len(all) == 1 && all[0].Active.IsZero(), "a member who did nothing", all)
}
