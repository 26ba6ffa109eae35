package store_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
)

// A new member or group cannot have a name that looks like another.
func TestNamesThatLookAlike(t *testing.T) {
	t.Parallel()
	onEachConfig(t, func(t *testing.T, config store.Config, _ func() *sql.DB) {
		ctx := t.Context()
		db := open(t, config)
		member := func(name string) error {
			return db.CreateMember(ctx, account.Member{ID: account.NewID("mem_"), Name: name, Created: time.Now()})
		}
		signUp := func(name string) error {
			m := account.Member{ID: account.NewID("mem_"), Name: name, Created: time.Now()}
			return db.SignUp(ctx, account.SignUp{Member: m, Password: "x"}, time.Now())
		}
		group := func(name string) error {
			g := account.Group{ID: account.NewID("grp_"), Name: name, Kind: account.GroupOpen, Created: time.Now()}
			if alice, err := db.MemberByName(ctx, "alice"); err == nil {
				g.Members = []account.GroupMember{{MemberID: alice.ID, Admin: true}}
			}
			return db.CreateGroup(ctx, g)
		}
		for _, create := range []func(string) error{member, signUp, group} {
			first, looks := "alice", []string{"аӏісе", "ALICE", "Alice", "aIice"}
			switch {
			case errors.Is(create(first), account.ErrExists): // already a member: signUp uses the next one
				first, looks = "Ian", []string{"lan", "IAN", "1an"}
				ok(t, create(first))
			}
			if err := create(first); !errors.Is(err, account.ErrExists) || errors.Is(err, account.ErrLooksTaken) {
				t.Errorf("%s again: %v", first, err)
			}
			for _, name := range looks {
				assert.Is(t, create(name), account.ErrLooksTaken, name, "beside", first)
			}
		}
		assert.Is(t, assert.Err(db.MemberByName(ctx, "ALICE")), account.ErrNotFound, "a refused member is there")
		ok(t, group("box-1"))
		assert.Is(t, group("b0x-1"), account.ErrLooksTaken, "b0x-1")
		// The name of a group is free after its last member left.
		box := must[account.Group](t)(db.GroupByName(ctx, "box-1"))
		ok(t, db.LeaveGroup(ctx, box.ID, box.Members[0].MemberID))
		ok(t, group("BOX-1"))
	})
}
