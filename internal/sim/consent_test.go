package sim

import (
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
)

// TestInvitedIsNoCandidate: an invitation to a group makes no machine a candidate,
// in either direction, until it is accepted; nor does a new one for a member who
// left (spec/routing.md#consent).
func TestInvitedIsNoCandidate(t *testing.T) {
	inBubble(t, func(w *world) {
		ctx, ann, bob := w.t.Context(), w.addMember("ann"), w.addMember("bob")
		w.addMachine(ann, "box", 1, "anns")
		w.addMachine(bob, "den", 1, "bobs")
		g := w.addGroup(account.GroupOrg, ann)
		invite := func(by string) {
			w.t.Helper()
			now := time.Now().UTC()
			w.must(w.db.InviteToGroup(ctx, account.GroupInvitation{GroupID: g, MemberID: bob.ID, ByID: by, Created: now, Expires: now.Add(account.InvitationLife)}))
		}
		apart := func() {
			w.t.Helper()
			time.Sleep(6 * time.Second) // whatever the store says is in force (spec/api.md#within-5s)
			w.refused(ask{by: bob, model: "anns"}, 403, "NOT_IN_CIRCLE")
			w.refused(ask{by: ann, model: "bobs"}, 403, "NOT_IN_CIRCLE")
		}
		apart()
		invite(ann.ID)
		apart()
		w.must(w.db.DeclineGroup(ctx, g, bob.ID, time.Now()))
		invite("")
		apart()
		w.must(w.db.AcceptGroup(ctx, g, bob.ID, time.Now()))
		time.Sleep(6 * time.Second)
		w.wantServed(w.do(ask{by: bob, model: "anns"}), 1)
		w.wantServed(w.do(ask{by: ann, model: "bobs"}), 1)
		w.must(w.db.LeaveGroup(ctx, g, bob.ID))
		apart()
		invite(ann.ID)
		apart()
	})
}
