package store_test

import (
	"crypto/sha256"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
)

// onDatabase runs all tests that apply to both databases. Each call of open returns a
// new, empty store, which is closed at the end of its test. The first call must be made
// outside of any synctest bubble.
func onDatabase(t *testing.T, open func(t *testing.T) *store.DB) {
	open(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *store.DB)
	}{
		{"members", testMembers},
		{"keys", testKeys},
		{"machines", testMachines},
		{"kept machines", testActiveMachines},
		{"generations", testGenerations},
		{"login tokens", testLoginTokens},
		{"login token race", testLoginTokenRace},
		{"shares", testShares},
		{"put share", testPutShare},
		{"group limits", testGroupLimits},
		{"calls of groups", testCallsOfGroups},
		{"invites", testInvites},
		{"bounds of invites", testInviteBounds},
		{"invite race", testInviteRace},
		{"groups", testGroups},
		{"seen groups", testSeenGroups},
		{"running groups", testRunningGroups},
		{"last admin race", testLastAdminRace},
		{"group invitations", testGroupInvitations},
		{"group made for a member", testGroupMadeFor},
		{"bounds of group invitations", testInvitationBounds},
		{"group invitation races", testInvitationRaces},
		{"groups of one member", testGroupsOfOneMember},
		{"consent", testConsent},
		{"joins", testJoins},
		{"notices", testNotices},
		{"what is due to be noticed", testDueNotices},
		{"who is mailed", testMembersToMail},
		{"kept out of all", testKeptOutOfAll},
		{"shown class", testShownClass},
		{"disabled member", testDisabledMember},
		{"last operator", testLastOperator},
		{"epoch", testEpoch},
		{"epoch under concurrency", testEpochConcurrency},
		{"behind", testBehind},
		{"lost changes", testLostChanges},
		{"usage", testUsage},
		{"usage of a member", testUsageOfMember},
		{"usage by the hour", testUsageHours},
		{"hours past their time", testUsageHoursEnd},
		{"usage of the hub", testUsageOfHub},
		{"pages of lists", testPages},
		{"members listed", testMemberLists},
		{"calls of shares", testCallsOfShares},
		{"usage refused", testUsageRefused},
		{"usage concurrency", testUsageConcurrency},
		{"usage 10,000", testUsageMany},
		{"stories", testStories},
		{"sign-up", testSignUp},
		{"links", testLinks},
		{"sessions", testSessions},
		{"recovery", testRecovery},
		{"passkeys", testPasskeys},
		{"identities", testIdentities},
		{"ceremonies", testCeremonies},
		{"emails", testEmails},
		{"mailed links", testMailedLinks},
		{"grants", testGrants},
		{"own keys, machines and calls", testOwnThings},
		{"turns", testTurns},
		{"speeds", testSpeeds},
		{"turn bounds", testTurnBounds},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
	}
	t.Run("changes are kept a day", func(t *testing.T) { testPruning(t, open) })
}

// start is a time with all the precision that is stored.
var start = time.Date(2026, 11, 21, 10, 30, 0, 123_000_000, time.UTC)

// later returns a time that many seconds after start.
func later(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func ok(t *testing.T, err error) {
	t.Helper()
	assert.OK(t, err)
}

// must returns the value of a call, and fails the test if there is an error.
func must[T any](t *testing.T) func(value T, err error) T {
	return func(value T, err error) T {
		t.Helper()
		ok(t, err)
		return value
	}
}

// fails checks the kind of an error.
func fails(t *testing.T, err, kind error) {
	t.Helper()
	assert.Require(t, errors.Is(err, kind), "the error", err, kind)
}

// same checks that got equals want. An empty and a nil slice are equal.
func same(t *testing.T, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("got is not want (-want +got):\n%s", diff)
	}
}

// together runs work n times concurrently and waits. work must use Error, not Fatal.
func together(n int, work func(i int)) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { work(i) })
	}
	all.Wait()
}

// The functions below create a record, store it and return it.

func newMember(t *testing.T, db *store.DB, name string) account.Member {
	t.Helper()
	m := account.Member{ID: account.NewID("mem_"), Name: name, Created: start}
	ok(t, db.CreateMember(t.Context(), m))
	return m
}

func newKey(t *testing.T, db *store.DB, m account.Member, secret string) account.Key {
	t.Helper()
	k := account.Key{
		ID: account.NewID("key_"), MemberID: m.ID, Name: "for " + secret, Region: "eu", Reach: account.ReachAll,
		Hash: sha256.Sum256([]byte(secret)), LastFour: "abcd", Created: start,
	}
	ok(t, db.CreateKey(t.Context(), k))
	return k
}

func aMachine(owner account.Member, name string) account.Machine {
	return account.Machine{
		ID: account.NewID("mch_"), OwnerID: owner.ID, OwnerName: owner.Name, Name: name, Region: "eu",
		Hash: sha256.Sum256([]byte(owner.ID + "/" + name)), LastFour: "wxyz", Created: start,
	}
}

func newMachine(t *testing.T, db *store.DB, owner account.Member, name string) account.Machine {
	t.Helper()
	m := aMachine(owner, name)
	ok(t, db.CreateMachine(t.Context(), m))
	return m
}

func newShare(t *testing.T, db *store.DB, owner, member account.Member) account.Share {
	t.Helper()
	s := account.Share{ID: account.NewID("shr_"), OwnerID: owner.ID, MemberID: member.ID, Created: start}
	ok(t, db.AddShare(t.Context(), s))
	return s
}

func newGroup(t *testing.T, db *store.DB, name string, members ...account.Member) account.Group {
	t.Helper()
	g := account.Group{ID: account.NewID("grp_"), Name: name, Kind: account.GroupOrg, Created: start}
	for i, m := range members {
		g.Members = append(g.Members, account.GroupMember{MemberID: m.ID, Admin: i == 0})
	}
	ok(t, db.CreateGroup(t.Context(), g))
	return g
}

// watch returns a function that returns the changes since its last call.
func watch(t *testing.T, db *store.DB) func() []fleet.Change {
	t.Helper()
	at := must[account.Position](t)(db.Position(t.Context()))
	return func() []fleet.Change {
		t.Helper()
		now, changes, err := db.Changes(t.Context(), at)
		ok(t, err)
		for i := range changes {
			if changes[i].Epoch != at.Epoch+int64(i)+1 {
				t.Fatalf("change %d after epoch %d has epoch %d", i, at.Epoch, changes[i].Epoch)
			}
			changes[i].Epoch = 0
		}
		at = now
		return changes
	}
}

// expect checks what changed, in any order.
func expect(t *testing.T, got []fleet.Change, want ...fleet.Change) {
	t.Helper()
	order := func(a, b fleet.Change) int {
		if a.Kind != b.Kind {
			return strings.Compare(string(a.Kind), string(b.Kind))
		}
		return strings.Compare(a.ID, b.ID)
	}
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	same(t, got, want)
}
