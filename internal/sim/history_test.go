package sim

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/store"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "play this history alone")
	seedsFlag = flag.Int("seeds", 0, "how many histories to play; 0: 300, with -short 60")
	firstFlag = flag.Uint64("first", 1, "the first of the seeds")
)

// TestSeeds plays random histories. What holds in each, always:
//
//   - no call runs on a machine that its key could not reach in the last 5 s, nor
//     on one that is paused, closed or full;
//   - no call runs twice at once, unless every connection to the first one's machine
//     broke or the hub holds that it is gone, nor ever again after the first byte of its
//     answer;
//   - what the records no longer allow ends within 5 s of their commit;
//   - who waits for a machine does so for as long as was said, to half a second;
//   - what ends with [DONE] is complete, what is incomplete ends without, with an
//     error frame or a broken connection;
//   - each refusal is a row that the records allow;
//
// and once it is quiet: nothing is held anywhere, every machine is back, each
// call is in the ledger once, and each member gets of each model exactly what
// the table says.
func TestSeeds(t *testing.T) {
	all := new(delays)
	t.Cleanup(func() { t.Logf("from the commit to the end of what it ended, in false time:\n%s", all) })
	eachSeed(t, cmp.Or(*seedsFlag, unlessShort(300, 60)), func(t *testing.T, seed uint64) {
		inBubble(t, func(w *world) { w.play(seed, all) })
	})
}

// eachSeed plays a history for each of n seeds, or for the one that -seed names.
func eachSeed(t *testing.T, n int, play func(t *testing.T, seed uint64)) {
	first := *firstFlag
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			defer func() {
				if name, _, _ := strings.Cut(t.Name(), "/"); t.Failed() {
					t.Logf("play it again: go test ./internal/sim -race -run %s -seed %d -count 5", name, seed)
				}
			}()
			play(t, seed)
		})
	}
}

// unlessShort returns the usual number of plays, or with -short, as under the race
// detector, the fewer.
func unlessShort(usual, fewer int) int {
	if testing.Short() {
		return fewer
	}
	return usual
}

// play makes a world, plays a history in it, and checks the results.
func (w *world) play(seed uint64, all *delays) []*answer {
	rng := rand.New(rand.NewPCG(seed, 1))
	w.rng, w.draw = rng, seed
	w.populate()
	w.runs.check = w.checkRun
	var answers []*answer
	for range 60 + rng.IntN(60) {
		if rng.IntN(3) > 0 {
			answers = append(answers, w.someCall())
		} else {
			w.somethingHappens()
		}
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(700*time.Millisecond)))
	}
	w.calm()
	for _, a := range answers {
		<-a.over
		w.checkAnswer(a)
	}
	w.checkLosses(all)
	w.settled()
	w.checkQuiet()
	w.checkLedger(answers)
	return answers
}

var modelNames = []string{"m1", "m2", "m3", "emb"}

// populate makes members, machines, shares and groups.
func (w *world) populate() {
	for i := range 3 + w.rng.IntN(3) {
		m := w.addMember(fmt.Sprintf("member%d", i))
		if reach := pick(w.rng, account.ReachAll, account.ReachAll, account.ReachShared, account.ReachOwn); reach != account.ReachAll {
			w.addKey(m, reach)
		}
		w.people = append(w.people, m)
		if w.desks != nil {
			w.addDesk(m)
		}
	}
	for i := range 2 + w.rng.IntN(4) {
		var models []string
		for _, name := range modelNames {
			if w.rng.IntN(2) == 0 {
				models = append(models, name)
			}
		}
		if models == nil {
			models = modelNames[:1]
		}
		m := w.addMachine(pick(w.rng, w.people...), fmt.Sprintf("box%d", i), 1+w.rng.IntN(2), models...)
		m.engine.Set(enginetest.Behaviour{First: time.Duration(w.rng.Int64N(int64(6 * time.Second))), Interval: time.Duration(w.rng.Int64N(int64(time.Second)))})
		m.lingers = time.Duration(w.rng.Int64N(int64(2 * time.Second)))
		if w.rng.IntN(3) == 0 {
			m.from, m.until = w.rng.IntN(2), 2+w.rng.IntN(2)
			m.post("/hours", fmt.Sprintf(`{"hours":"Mon-Sun 00:%02d-00:%02d","timezone":"UTC"}`, m.from, m.until))
		}
	}
	for range w.rng.IntN(2 * len(w.people)) {
		w.changeShare()
	}
	for range w.rng.IntN(3) {
		w.groups = append(w.groups, w.addGroup(account.GroupOrg, pick(w.rng, w.people...)))
		for range w.rng.IntN(3) {
			w.changeGroup()
		}
	}
	w.changed("")
	time.Sleep(2 * time.Second)
}

func pick[T any](rng *rand.Rand, from ...T) T { return from[rng.IntN(len(from))] }

func (w *world) someCall() *answer {
	by := pick(w.rng, w.people...)
	q := ask{
		by: by, model: pick(w.rng, append(modelNames, "nobody's")...),
		stream: w.rng.IntN(2) == 0, words: 1 + w.rng.IntN(6),
	}
	q.stream = q.stream && q.model != "emb"
	if w.rng.IntN(3) == 0 {
		// Never 5, when the first heartbeat comes, or 15, when the second does: which
		// of two timers of one instant is first is Go's choice.
		q.prefer = fmt.Sprintf("wait=%d", pick(w.rng, 0, 1, 2, 3, 4, 6, 7, 9, 12, 17, 19))
	}
	if w.rng.IntN(8) == 0 {
		q.leave = time.Duration(1 + w.rng.Int64N(int64(8*time.Second)))
	}
	if w.cluster != nil {
		q.via = pick(w.rng, w.cluster.seats...)
	}
	if w.desks != nil && w.rng.IntN(2) == 0 {
		q.at = w.desks[by]
	}
	return w.begin(q)
}

// somethingHappens does one thing to the world.
func (w *world) somethingHappens() {
	m := pick(w.rng, w.machines...)
	switch w.rng.IntN(18) {
	case 0, 1:
		m.disturb()
		m.cut()
	case 2:
		m.disturb()
		m.blackhole()
	case 3:
		m.disturb()
		m.stop()
	case 4:
		m.disturb()
		m.setAway(true)
	case 5, 6:
		w.restore(m)
	case 7:
		m.disturb()
		m.setDown(!m.down)
	case 8, 9:
		b := enginetest.Behaviour{First: time.Duration(w.rng.Int64N(int64(6 * time.Second))), Interval: time.Duration(w.rng.Int64N(int64(3 * time.Second)))}
		if w.rng.IntN(3) == 0 {
			b.Fault, b.After = pick(w.rng, enginetest.Die, enginetest.Cut, enginetest.Unmarked, enginetest.Garbage, enginetest.Hang), w.rng.IntN(4)
		}
		b.Status = pick(w.rng, 0, 0, 0, 0, 500, 503, 404)
		if b.Fault != enginetest.None || b.Status != 0 {
			m.faulty.Store(true)
		}
		if b.Status == 404 || b.Status == 503 {
			m.disturb()
		}
		m.engine.Set(b)
	case 10:
		w.pause(m, !m.paused)
	case 11, 16, 17:
		if w.rng.IntN(3) > 0 {
			w.endUsedShare()
		}
		w.changeShare()
		w.changed("share ended")
	case 12:
		if len(w.groups) > 0 {
			w.changeGroup()
			w.changed("group left")
		}
	case 13:
		w.changed(w.changeMember())
	case 14:
		if !m.revoked && w.rng.IntN(3) == 0 {
			m.disturb()
			m.revoked = true
			w.must(w.db.RevokeMachine(w.t.Context(), m.id, time.Now()))
			w.changed("machine revoked")
		}
	case 15:
		switch {
		case w.cluster != nil:
			w.cluster.happens(w)
		case w.rng.IntN(3) == 0:
			w.restart()
		}
	}
}

// restart stops the hub and starts it again, some time later.
func (w *world) restart() {
	w.restarts = append(w.restarts, time.Now())
	for _, m := range w.machines {
		m.disturb()
	}
	w.stopHub()
	time.Sleep(time.Duration(w.rng.Int64N(int64(3 * time.Second))))
	w.startHub()
	w.restarts = append(w.restarts, time.Now())
	for _, m := range w.machines {
		m.disturb()
	}
}

// restore brings a machine back.
func (w *world) restore(m *machine) {
	m.disturb()
	m.setAway(false)
	m.setDown(false)
	m.start()
}

func (w *world) pause(m *machine, paused bool) {
	if m.end == nil {
		return
	}
	path := "/resume"
	if paused {
		path = "/pause"
	}
	m.post(path, "")
	m.mu.Lock()
	m.paused, m.pauses = paused, append(m.pauses, time.Now())
	m.mu.Unlock()
}

func (w *world) changeShare() {
	owner, with := pick(w.rng, w.people...), pick(w.rng, w.people...)
	if owner == with {
		return
	}
	err := w.db.AddShare(w.t.Context(), account.Share{ID: w.newID("shr_"), OwnerID: owner.ID, MemberID: with.ID, Created: time.Now().UTC()})
	if errors.Is(err, account.ErrExists) {
		err = w.db.RemoveShare(w.t.Context(), owner.ID, with.ID)
	}
	w.must(err)
}

// endUsedShare ends a share by which a call runs now, if there is one.
func (w *world) endUsedShare() {
	now := w.history[len(w.history)-1]
	var used [][2]string // owner, member
	w.runs.mu.Lock()
	for _, r := range w.runs.all {
		share := [2]string{r.machine.owner.ID, w.asked(r.call).by.ID}
		if r.live && now.shares[share] {
			used = append(used, share)
		}
	}
	w.runs.mu.Unlock()
	if len(used) > 0 {
		share := pick(w.rng, used...)
		w.must(w.db.RemoveShare(w.t.Context(), share[0], share[1]))
	}
}

func (w *world) changeGroup() {
	group, who := pick(w.rng, w.groups...), pick(w.rng, w.people...)
	now := time.Now().UTC()
	err := w.db.InviteToGroup(w.t.Context(), account.GroupInvitation{GroupID: group, MemberID: who.ID, Created: now, Expires: now.Add(account.InvitationLife)})
	switch {
	case err == nil:
		err = w.db.AcceptGroup(w.t.Context(), group, who.ID, now)
	case errors.Is(err, account.ErrExists):
		err = w.db.RemoveGroupMember(w.t.Context(), group, who.ID)
	}
	if err != nil && !errors.Is(err, store.ErrInvalid) { // the last admin stays
		w.t.Fatal(err)
	}
}

// changeMember revokes a key and makes another, or disables or enables a member;
// it says which.
func (w *world) changeMember() string {
	who := pick(w.rng, w.people...)
	if w.rng.IntN(2) == 0 {
		w.must(w.db.RevokeKey(w.t.Context(), who.key.ID, time.Now()))
		w.addKey(who, pick(w.rng, account.ReachAll, account.ReachShared, account.ReachOwn))
		return "key revoked"
	}
	who.Disabled = !who.Disabled
	w.must(w.db.SetMemberDisabled(w.t.Context(), who.ID, who.Disabled))
	for _, m := range w.machines {
		if m.owner == who {
			m.disturb()
		}
	}
	return "member disabled"
}

// calm ends the storm: engines and machines are well, until all are back; then
// some go away for good. A daemon that a hub refused is started again. No two machines
// leave or come back in one instant: they would compete for the calls that wait.
func (w *world) calm() {
	for _, m := range w.machines {
		m.engine.Set(enginetest.Behaviour{})
		m.disturb()
		m.stop()
		time.Sleep(time.Millisecond)
		w.restore(m)
		time.Sleep(time.Millisecond)
	}
	time.Sleep(unrest)          // redials, hours of a flapping machine, waits
	for _, m := range w.desks { // the hub refused those of members who were disabled
		m.stop()
		m.start()
	}
	for _, m := range w.machines {
		if w.rng.IntN(5) == 0 {
			m.disturb()
			m.stop()
		}
	}
	time.Sleep(time.Minute)
}

// disturb notes that what is known of the machine may be behind for a while.
func (m *machine) disturb() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.disturbed = append(m.disturbed, time.Now())
}

// unrest is how long after a disturbance a machine may be thought offline or
// empty: found out in 15 s, redialled within 30 s, held out for flapping 60 s.
const unrest = 110 * time.Second

// unsettled says whether a machine may have been thought so during a call.
func (w *world) unsettled(m *machine, from, to time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.end == nil || m.away || m.down {
		return true
	}
	for _, at := range m.disturbed {
		if !at.After(to) && at.Add(unrest).After(from) {
			return true
		}
	}
	return false
}

// steady says whether the machine was surely online then.
func (m *machine) steady(time.Time) bool { return m.end != nil }

// checkRun looks at a run as it begins.
func (w *world) checkRun(r *run, earlier []*run) {
	a := w.asked(r.call)
	if a.via != nil {
		r.hops = w.cluster.links(a.via, r.machine.at.Load())
	}
	now := time.Now()
	good, reached, own := false, false, false
	for _, v := range w.truths(now, bound) {
		known := v.knows(a)
		way := v.way(a.by, a.key.Reach, r.machine)
		good, reached, own = good || known, reached || way != "", own || way == "own"
	}
	m := r.machine
	assert.That(w.t, good && reached, "call", r.call, "of", a.by.Name, "ran on", m.name, "out of its reach")
	m.mu.Lock()
	paused := m.paused && m.pauses[len(m.pauses)-1].Before(now)
	m.mu.Unlock()
	if paused {
		w.t.Errorf("call %s ran on %s, which is paused", r.call, m.name)
	}
	assert.That(w.t, own || m.open(now), "call", r.call, "of", a.by.Name, "ran on", m.name, "outside its hours")
	running := 1
	for _, e := range earlier {
		if !e.live {
			continue
		}
		if e.machine == m && e.life == r.life {
			running++
		}
		if e.call == r.call && !e.parted() && w.knows(a, e.machine) {
			w.t.Errorf("call %s ran on %s while it still ran on %s", r.call, m.name, e.machine.name)
		}
	}
	if running > m.config.Sharing.Slots {
		w.t.Errorf("%s ran %d calls in %d slots", m.name, running, m.config.Sharing.Slots)
	}
}

// checkAnswer looks at what a client got.
func (w *world) checkAnswer(a *answer) {
	cut := false
	for _, at := range w.restarts {
		cut = cut || !at.Before(a.began) && !at.After(a.ended)
	}
	if len(w.restarts)%2 == 0 {
		for i := 0; i < len(w.restarts); i += 2 {
			cut = cut || !a.began.Before(w.restarts[i]) && !a.began.After(w.restarts[i+1])
		}
	}
	left := a.leave > 0 && a.took() >= a.leave
	whole := a.text == a.said
	switch {
	case a.done && (!whole || a.framed || a.err != nil):
		w.t.Errorf("not whole, and yet ended: %s", a)
	case !strings.HasPrefix(a.said, a.text):
		w.t.Errorf("not what was said: %s", a)
	case a.err != nil && !cut && !left:
		w.t.Errorf("the connection broke: %s", a)
	case a.done || a.err != nil:
	case a.code == "":
		w.t.Errorf("neither answer nor error: %s", a)
	case cut: // a hub that has just begun knows little
	case a.code == "engine_error":
		faulty := false
		for _, r := range w.runs.of(a.tag) {
			faulty = faulty || r.machine.faulty.Load()
		}
		if !faulty {
			w.t.Errorf("no engine failed: %s; it ran on %s", a, w.runs.where(a.tag))
		}
	case a.code == "CASCADE_EXHAUSTED" && (a.framed && a.text != "" || w.lostReach(a)): // another machine would serve it
	case a.code == "machine_offline" && len(w.runs.of(a.tag)) > 0:
	case !w.mayRefuse(a):
		w.t.Errorf("no row says so: %s; it ran on %s", a, w.runs.where(a.tag))
	}
	runs := w.runs.of(a.tag)
	if a.stream && a.text != "" && runs[len(runs)-1].at.After(a.first) {
		w.t.Errorf("it ran again after its first byte: %s; it ran on %s", a, w.runs.where(a.tag))
	}
}

// checkQuiet asks for everything as everybody, now that nothing moves.
func (w *world) checkQuiet() {
	v := w.readTruth()
	for _, m := range w.machines {
		up := m.end != nil && v.there(m)
		if w.machineNow(m) != up {
			w.t.Errorf("%s: routable %v, should be %v: %+v", m.name, !up, up, m.Status().Tunnel)
		}
		if m.end != nil && !v.there(m) && m.Status().Tunnel.State != daemon.TunnelRefused {
			w.t.Errorf("%s may not connect and is %+v", m.name, m.Status().Tunnel)
		}
	}
	for _, by := range w.people {
		for _, model := range append(modelNames, "nobody's") {
			want := v.verdict(w, by, model, time.Now())
			a := w.do(ask{by: by, model: model, stream: model != "emb" && w.rng.IntN(2) == 0})
			assert.That(w.t, a.err == nil && a.code == want && a.served() == (want == ""), "the table", want, a)
			if w.desks != nil && !v.disabled[by.ID] {
				want := v.verdictFor(w, by, account.ReachAll, model, time.Now())
				a := w.do(ask{by: by, model: model, stream: model != "emb" && w.rng.IntN(2) == 0, at: w.desks[by]})
				assert.That(w.t, a.err == nil && a.code == want && a.served() == (want == ""), "the table", want, a)
				assert.That(w.t, !a.served() || a.sealed() == "yes", a.sealed(), a)
			}
		}
	}
}

// checkLedger compares the ledger with what clients got.
func (w *world) checkLedger(answers []*answer) {
	time.Sleep(2 * time.Second)
	records, err := w.db.Usage(w.t.Context())
	w.must(err)
	byID := map[string][]account.Usage{}
	for _, u := range records {
		byID[u.CallID] = append(byID[u.CallID], u)
	}
	for _, a := range answers {
		id := a.header.Get("X-Correlation-ID")
		found := byID[id]
		switch {
		case a.at != nil: // checkSealed
		case id == "" || a.code == "invalid_api_key" && len(found) == 0:
		case a.err != nil && len(found) <= 1:
		case a.framed && a.code == "" || len(found) != 1:
			w.t.Errorf("%d records: %s", len(found), a)
		case found[0].Code != a.code || found[0].MemberID != a.by.ID:
			w.t.Errorf("record %+v: %s", found[0], a)
		case !a.waitedWell(found[0]):
			w.t.Errorf("waited %s, attempt %d, and may wait %s: %s", found[0].Waited, found[0].Attempt, a.patience(), a)
		case a.served():
			runs := w.runs.of(a.tag)
			if last := runs[len(runs)-1].machine; found[0].MachineID != last.id || found[0].OwnerID != last.owner.ID {
				w.t.Errorf("record %+v, it ran on %s: %s", found[0], last.name, a)
			}
		}
	}
}

// waitedWell says whether the call waited as long as it may and, if that is why
// it failed, as long as it must, give or take half a second.
func (a *answer) waitedWell(u account.Usage) bool {
	const half = 500 * time.Millisecond
	if u.Waited > a.patience()+half {
		return false
	}
	return a.reason != "wait_elapsed" || u.Attempt > 0 || a.took() > a.patience()-half && a.took() < a.patience()+half
}
