package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
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
		_, err := db.Trace(ctx, wrong[0], wrong[1])
		fails(t, err, store.ErrNotFound)
	}

	// Written again it stays; past its life it goes with the next that come.
	again := anns
	again.Code = "changed"
	ok(t, db.SaveTraces(ctx, []account.Trace{again}, later(2)))
	same(t, get(db.Trace(ctx, "req_1", "mem_ann")), anns)
	end := start.Add(account.TraceLife)
	ok(t, db.SaveTraces(ctx, []account.Trace{aStory("req_2", "mem_ann", end)}, end))
	get(db.Trace(ctx, "req_1", "mem_ann"))
	ok(t, db.SaveTraces(ctx, nil, end.Add(time.Millisecond)))
	_, err := db.Trace(ctx, "req_1", "mem_ann")
	fails(t, err, store.ErrNotFound)
	get(db.Trace(ctx, "req_2", "mem_ann"))

	// A model's name may be anything that can be asked for.
	odd := aStory("req_3", "mem_ann", end)
	odd.Model = strings.Repeat("\u202e\"\\", 20)
	ok(t, db.SaveTraces(ctx, []account.Trace{odd}, end))
	same(t, get(db.Trace(ctx, "req_3", "mem_ann")), odd)
}
