package dispatch

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

func callerOf(name string) fleet.Caller {
	return fleet.Caller{Member: fleet.MemberID("mem_" + name), Name: name}
}

// Whatever an engine claims and a clock does, the store accepts the record.
func TestRecordIsAlwaysTaken(t *testing.T) {
	db, err := store.Open(t.Context(), store.Config{Path: storetest.SQLite(t)})
	assert.OK(t, err)
	defer db.Close()
	call := &gateway.Call{
		ID: "req_1", Model: fleet.ModelID(strings.Repeat("m", fleet.MaxModelID)), Caller: callerOf("ann"), Arrived: time.Now(), Started: time.Now(),
		Trace: gateway.Trace{Waited: -time.Second},
	}
	u := usageOf(call, gateway.Outcome{
		Status: 200, FirstByte: math.MaxInt64, FirstToken: math.MaxInt64, Frames: 1, Duration: math.MinInt64, TokensIn: math.MaxInt64, TokensOut: -5, Reported: true,
	})
	assert.OK(t, db.RecordUsage(t.Context(), []account.Usage{u}))
	got, err := db.Usage(t.Context())
	assert.Require(t, err == nil && len(got) == 1, got, err)
	if g := got[0]; g.TokensIn != math.MaxInt32 || g.TokensOut != 0 || g.FirstByte != 24*time.Hour || g.Duration != 0 || g.Waited != 0 || g.Attempt != 1 {
		t.Errorf("%+v", g)
	}
}

// A call with a machine's credential is recorded with the machine and its program.
func TestRecordOfAMachine(t *testing.T) {
	for want, caller := range map[string]fleet.Caller{
		"machine mch_1":        {Machine: "mch_1"},
		"machine mch_1 run":    {Machine: "mch_1", Program: fleet.ProgramRun},
		"machine mch_1 launch": {Machine: "mch_1", Program: fleet.ProgramLaunch},
		"key_1":                {KeyID: "key_1"},
		"":                     {}, // one who was not identified
	} {
		call := &gateway.Call{Caller: caller}
		assert.Equal(t, runningUsage(call).KeyID, want, "usage")
		assert.Equal(t, tracesOf(call, gateway.Outcome{})[0].KeyID, want, "trace")
		machine, program := account.ParseMachineKey(want)
		assert.That(t, machine == string(caller.Machine) && program == string(caller.Program), want, machine, program)
	}
}

// An owner learns what happened on the owner's machines and how long the call had waited
// for them, but not where else the call was or how it ended elsewhere.
func TestTracesOf(t *testing.T) {
	arrived := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	machine := func(owner, name string) *fleet.Machine {
		return &fleet.Machine{ID: fleet.MachineID(name), Owner: fleet.MemberID("mem_" + owner), OwnerName: owner, Name: name}
	}
	try := func(m *fleet.Machine, class fleet.Class, outcome string) gateway.Attempt {
		return gateway.Attempt{Machine: m, Class: class, After: time.Second, Took: time.Millisecond, Outcome: outcome, Prompt: outcome == "answered", Began: outcome == "answered"}
	}
	own, anns, also, dans := machine("bob", "own"), machine("ann", "a1"), machine("ann", "a2"), machine("dan", "d1")
	call := &gateway.Call{ID: "req_1", Caller: callerOf("bob"), Model: "m", Endpoint: fleet.EmbeddingsEndpoint, Arrived: arrived, Started: arrived}
	call.Trace.Waited, call.Trace.Place = time.Minute, 3
	call.Trace.First, call.Trace.Last = gateway.Decision{Row: 4, Verdict: fleet.Wait}, gateway.Decision{Row: 7, Verdict: fleet.Refuse}
	call.Trace.Tries = []gateway.Attempt{
		try(own, fleet.Own, "x"), try(anns, fleet.Shared, "y"), try(dans, fleet.Grouped, "z"), try(also, fleet.Shared, "answered"),
	}
	for i := range call.Trace.Tries {
		call.Trace.Tries[i].Waited = time.Duration(i) * 20 * time.Second
	}
	call.Trace.Machine, call.Trace.Owner, call.Caller.KeyID, call.Stream = also.ID, also.Owner, "key_1", true
	all := tracesOf(call, gateway.Outcome{Status: 200, Duration: 3 * time.Second, FirstToken: 1500 * time.Millisecond, Frames: 9, TokensIn: 8, TokensOut: 31})

	byMember := map[string]account.Trace{}
	for _, s := range all {
		byMember[s.MemberID] = s
	}
	bob, ann, dan := byMember["mem_bob"], byMember["mem_ann"], byMember["mem_dan"]
	assert.Require(t, len(all) == 3 && len(bob.Tries) == 4 && len(ann.Tries) == 2 && len(dan.Tries) == 1, all)
	if !bob.Mine || bob.WaitedMS != 60_000 || bob.Place != 3 || bob.TookMS != 3000 || len(bob.Decisions) != 2 {
		t.Errorf("the caller sees %+v", bob)
	}
	if bob.KeyID != "key_1" || bob.FirstMS != 1500 || bob.TokensIn != 8 || bob.TokensOut != 31 || bob.Speed() != 20 {
		t.Errorf("the caller sees of the answer %+v", bob)
	}
	if ann.KeyID != "" || ann.FirstMS != 500 || ann.TokensIn != 8 || ann.TokensOut != 31 {
		t.Errorf("the owner whose machine served it sees of the answer %+v", ann)
	}
	if dan.KeyID != "" || dan.FirstMS != 0 || dan.TokensIn != 0 || dan.TokensOut != 0 {
		t.Errorf("the owner whose machine did not sees of the answer %+v", dan)
	}
	for _, of := range []account.Trace{bob, ann} { // a streamed attempt ends with its answer, and not with the answer's beginning
		last := of.Tries[len(of.Tries)-1]
		assert.Equal(t, last.AfterMS+last.TookMS, bob.TookMS, "end of the attempt that answered", of.MemberID)
		assert.Equal(t, of.Tries[0].TookMS, 1, "duration of an attempt that did not answer", of.MemberID)
	}
	call.Stream = false
	for _, of := range tracesOf(call, gateway.Outcome{Status: 200, Duration: 3 * time.Second}) { // read to its end before it is sent on
		assert.Equal(t, of.Tries[len(of.Tries)-1].TookMS, 1, "duration of an attempt that is not streamed", of.MemberID)
	}
	call.Stream = true
	assert.Equal(t, bob.Decisions[1].Row, 1, "row", "of an embeddings call reveals what is out of reach")
	if ann.Mine || ann.WaitedMS != 60_000 || ann.Place != 0 || ann.Decisions != nil || ann.Status != 200 || ann.TookMS != 2000 || ann.Tries[0].Machine != "a1" {
		t.Errorf("the owner whose machine served it sees %+v", ann)
	}
	if dan.Status != 0 || dan.Code != "" || dan.TookMS != 0 || dan.WaitedMS != 40_000 || dan.Tries[0].Outcome != "z" || dan.Tries[0].Prompt {
		t.Errorf("the owner whose machine did not sees %+v", dan)
	}
	for _, of := range tracesOf(call, gateway.Outcome{Status: 200, Code: "engine_timeout", Message: "no answer for 2m0s"}) {
		assert.Equal(t, of.Message != "", of.Mine, "the cause that its caller received, seen by", of.MemberID)
	}
	call.Trace.Tries[3].Began, call.Trace.Tries[3].Outcome = false, outcomeText[failed]
	for code, want := range map[string]string{"engine_error": "failed", gateway.Cancelled: "did not answer before the caller left"} {
		for _, s := range tracesOf(call, gateway.Outcome{Code: code}) {
			if last := s.Tries[len(s.Tries)-1]; s.MemberID != "mem_dan" {
				assert.Equal(t, last.Outcome, want, "an attempt that did not answer, of a call that ended with", code)
			}
		}
	}
	call.Trace.Tries[3].Began, call.Trace.Tries[3].Outcome = true, account.Answered
	for code, want := range map[string]string{
		"": "answered", "machine_offline": "began to answer and did not finish: machine_offline", gateway.Cancelled: "began to answer; the caller left",
	} {
		for _, s := range tracesOf(call, gateway.Outcome{Status: 200, Code: code}) {
			last := s.Tries[len(s.Tries)-1]
			if s.MemberID != "mem_dan" && (last.Outcome != want || !last.Prompt) || s.Tries[0].Outcome == want {
				t.Errorf("ended with %q: %s reads %+v", code, s.MemberID, s.Tries)
			}
		}
	}

	assert.Equal(t, account.Cancelled, gateway.Cancelled, "the code of a call whose caller left")
	for _, s := range tracesOf(call, gateway.Outcome{Status: 200, TokensIn: 515, Truncated: true}) {
		last, cut := s.Tries[len(s.Tries)-1].Outcome, "answered; its engine read only a part of the conversation (prompt_tokens=515)"
		if (last == cut) != (s.MemberID != "mem_dan") || s.Tries[0].Outcome == cut {
			t.Errorf("of a part of the conversation: %s reads %+v", s.MemberID, s.Tries)
		}
	}

	refused := &gateway.Call{ID: "req_2", Caller: callerOf("bob"), Model: "m", Arrived: arrived, Started: arrived}
	refused.Trace.First = gateway.Decision{Row: 1}
	refused.Trace.Last = refused.Trace.First
	if all := tracesOf(refused, gateway.Outcome{Status: 404, Code: "model_not_found"}); len(all) != 1 || len(all[0].Decisions) != 1 || all[0].Decisions[0].Row != 1 {
		t.Errorf("%+v", all)
	}
}
