package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
)

func aStory(call, member string, started time.Time) account.Trace {
	return account.Trace{
		CallID: call, MemberID: member, Started: started, Mine: true, Caller: "ann", Model: "llama3:8b", Endpoint: "/v1/chat/completions",
		Stream: true, Status: 503, Code: "CAPACITY_FULL", WaitedMS: 60_000, TookMS: 60_001,
		Decisions: []account.Decision{{AfterMS: 1, Verdict: "wait", Row: 4, Seen: []account.StateCount{{Via: "own", State: "busy", Machines: 2}}}},
		Tries:     []account.Attempt{{Machine: "bóx", Owner: "ann", Via: "own", AfterMS: 2, TookMS: 3, Outcome: "failed"}},
	}
}

func testStories(t *testing.T, db *store.DB) {
	ctx, get := t.Context(), must[account.Trace](t)
	anns, bobs := aStory("req_1", "mem_ann", start), aStory("req_1", "mem_bob", start)
	bobs.Mine, bobs.Decisions = false, nil
	ok(t, db.SaveTraces(ctx, []account.Trace{anns, bobs}, later(1)))
	same(t, get(db.Trace(ctx, "req_1", "mem_ann")), anns)
	same(t, get(db.Trace(ctx, "req_1", "mem_bob")), bobs)
	for _, wrong := range [][2]string{{"req_1", "mem_eve"}, {"req_2", "mem_ann"}, {"req_1", ""}, {"", "mem_ann"}, {"req_%", "mem_ann"}, {"req__", "mem____"}} {
		fails(t, assert.Err(db.Trace(ctx, wrong[0], wrong[1])), store.ErrNotFound)
	}

	// A trace that is written again does not change. After its life it is deleted with
	// the next write.
	again := anns
	again.Code = "changed"
	ok(t, db.SaveTraces(ctx, []account.Trace{again}, later(2)))
	same(t, get(db.Trace(ctx, "req_1", "mem_ann")), anns)
	end := start.Add(account.TraceLife)
	ok(t, db.SaveTraces(ctx, []account.Trace{aStory("req_2", "mem_ann", end)}, end))
	get(db.Trace(ctx, "req_1", "mem_ann"))
	ok(t, db.SaveTraces(ctx, nil, end.Add(time.Millisecond)))
	fails(t, assert.Err(db.Trace(ctx, "req_1", "mem_ann")), store.ErrNotFound)
	get(db.Trace(ctx, "req_2", "mem_ann"))

	// If a call has no trace, because its hub crashed or it ended within the last second,
	// its caller and the owner of its machine get one from its usage.
	caller, owner := newMember(t, db, "cut"), newMember(t, db, "owner")
	machine := newMachine(t, db, owner, "attic")
	cut := account.Usage{
		CallID: "req_cut", Attempt: 2, Started: db.Now().Truncate(time.Millisecond).UTC(), MemberID: caller.ID, KeyID: "key_1", MachineID: machine.ID,
		OwnerID: owner.ID, GroupID: "grp_1", Model: "m", Endpoint: "/v1/responses", Stream: true, Code: account.Interrupted, TokensHow: account.TokensUnknown,
		Waited: 2 * time.Second,
	}
	served, old := cut, cut
	served.CallID, served.Code, served.Status, served.GroupID, served.Duration, served.TokensOut = "req_end", "", 200, "", 5*time.Second, 9
	old.CallID, old.Started = "req_old", cut.Started.Add(-account.TraceLife-time.Hour)
	ok(t, db.RecordUsage(ctx, []account.Usage{cut, served, old}))
	mine := account.Trace{
		CallID: "req_cut", MemberID: caller.ID, Started: cut.Started, Mine: true, Caller: caller.Name, Model: "m", Endpoint: "/v1/responses", Stream: true,
		Code: account.Interrupted, WaitedMS: 2000, KeyID: "key_1",
		Tries: []account.Attempt{{Machine: "attic", Owner: owner.Name, Via: "group", AfterMS: 2000, Outcome: "was running it when the hub stopped", Prompt: true}},
	}
	same(t, get(db.Trace(ctx, "req_cut", caller.ID)), mine)
	theirs := get(db.Trace(ctx, "req_end", owner.ID))
	if theirs.Mine || theirs.KeyID != "" || theirs.Status != 200 || theirs.TookMS != 5000 || theirs.TokensOut != 9 || theirs.Tries[0].Outcome != "answered" || theirs.Tries[0].Via != "shared" {
		t.Errorf("the owner sees %+v", theirs)
	}
	for _, wrong := range [][2]string{{"req_cut", "mem_eve"}, {"req_old", caller.ID}} {
		fails(t, assert.Err(db.Trace(ctx, wrong[0], wrong[1])), store.ErrNotFound)
	}

	// A model's name can be any text that a request can contain.
	odd := aStory("req_3", "mem_ann", end)
	odd.Model = strings.Repeat("\u202e\"\\", 20)
	ok(t, db.SaveTraces(ctx, []account.Trace{odd}, end))
	same(t, get(db.Trace(ctx, "req_3", "mem_ann")), odd)
}
