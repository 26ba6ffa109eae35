package sim

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/enginetest"
)

// seal makes the daemon of a machine seal and open calls.
func (m *machine) seal() {
	m.w.t.Helper()
	m.config.Sealed = sealed.Prefer
	m.w.must(m.Reload(m.w.t.Context(), m.config))
	time.Sleep(time.Second) // the hub reads its keys
}

// local makes a call at the machine's own surface.
func (m *machine) local(path, body string, header ...string) (w *httptest.ResponseRecorder) {
	r := httptest.NewRequest("POST", "http://127.0.0.1:80"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w = httptest.NewRecorder()
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler { // an answer that broke off
			panic(p)
		}
	}()
	m.Handler().ServeHTTP(w, r)
	return w
}

const sealedChat = `{"model":"m","stream":true,"messages":[{"role":"user","content":"tag-1 apple pear"}]}`

// Sealed calls of one daemon are served by another one, through a real hub, for hours in
// which prekeys turn.
func TestSealedCalls(t *testing.T) {
	inBubble(t, func(w *world) {
		t := w.t
		ann, box := w.addBox(1)
		bob := w.addMember("bob")
		lap := w.addMachine(bob, "lap", 1, "other")
		vectors := w.addMachine(ann, "vectors", 1, "emb")
		w.share(ann, bob)
		for _, m := range []*machine{box, lap, vectors} {
			m.seal()
		}
		served := func(path, body, want string) {
			t.Helper()
			got := lap.local(path, body)
			assert.Require(t, got.Code == 200 && strings.Contains(got.Body.String(), want), got.Code, got.Body)
			assert.That(t, got.Header().Get("X-Kith-Sealed") == "yes" && strings.HasPrefix(got.Header().Get("X-Kith-Route"), "shared; machine="), got.Header())
		}
		for range 6 {
			served("/v1/chat/completions", sealedChat, "[DONE]")
			served("/v1/chat/completions", strings.Replace(sealedChat, "true", "false", 1), "apple pear")
			served("/v1/messages", `{"model":"m","max_tokens":9,"stream":true,"messages":[{"role":"user","content":"apple pear"}]}`, "message_stop")
			served("/v1/embeddings", `{"model":"emb","input":"apple pear"}`, `"embedding"`)
			time.Sleep(47 * time.Minute)
		}
		usage, err := w.db.Usage(t.Context())
		w.must(err)
		assert.Equal(t, len(usage), 24)
		for _, u := range usage {
			assert.That(t, u.Code == "" && u.TokensIn > 0 && (u.MachineID == box.id || u.MachineID == vectors.id), u)
		}

		// An engine's refusal reaches the caller in its own words.
		box.engine.Set(enginetest.Behaviour{Status: 400, Answer: `{"error":{"message":"pears are not allowed"}}`})
		got := lap.local("/v1/chat/completions", sealedChat)
		assert.That(t, got.Code == 400 && strings.Contains(got.Body.String(), "pears are not allowed"), got.Code, got.Body)
		box.engine.Set(enginetest.Behaviour{})

		// A machine that starts again has another key: the call is sealed again.
		served("/v1/chat/completions", sealedChat, "[DONE]")
		box.stop()
		box.start()
		time.Sleep(5 * time.Second)
		served("/v1/chat/completions", sealedChat, "[DONE]")

		// A call waits for its machine, and is sealed again for another one that is ready before.
		box.engine.Set(slow(10 * time.Second))
		first, second := make(chan *httptest.ResponseRecorder, 1), make(chan *httptest.ResponseRecorder, 1)
		begin := func(into chan *httptest.ResponseRecorder) {
			go func() { into <- lap.local("/v1/chat/completions", sealedChat) }()
			time.Sleep(time.Second)
		}
		begin(first)
		began := time.Now()
		begin(second)
		a, b := <-first, <-second
		assert.That(t, a.Code == 200 && b.Code == 200 && time.Since(began) > 10*time.Second, a.Code, b.Code, time.Since(began))
		assert.Contains(t, b.Body.String(), ": sealed=yes\n\n")

		spare := w.addMachine(ann, "spare", 1)
		begin(first)
		begin(second)
		began = time.Now()
		spare.stop()
		spare.config.Sealed = sealed.Prefer
		spare.engine = enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: "m"}}})
		spare.start()
		b = <-second
		assert.That(t, b.Code == 200 && time.Since(began) < 8*time.Second && b.Header().Get("X-Kith-Route") == "shared; machine=spare; owner=ann", b.Code, time.Since(began), b.Header())
		<-first

		// A share that ends in an answer ends it as it ends any other, although a machine that
		// came meanwhile could take the call: it can no longer be sealed again.
		spare.stop()
		time.Sleep(time.Minute)
		box.engine.Set(enginetest.Behaviour{Interval: 5 * time.Second})
		begin(first)
		cy := w.addMember("cy")
		w.addMachine(cy, "den", 1, "m").seal()
		w.share(cy, bob)
		time.Sleep(3 * time.Second)
		w.must(w.db.RemoveShare(t.Context(), ann.ID, bob.ID))
		w.live.Settle(t.Context())
		a = <-first
		assert.That(t, a.Code == 200 && strings.Contains(a.Body.String(), `"code":"CASCADE_EXHAUSTED"`) && strings.Contains(a.Body.String(), "no longer shared with you"), a.Code, a.Body)
		w.share(ann, bob)
		w.must(w.db.RemoveShare(t.Context(), cy.ID, bob.ID))
		w.live.Settle(t.Context())

		// With the engine gone and all machines away the refusals are those of any call.
		box.stop()
		spare.stop()
		time.Sleep(5 * time.Minute)
		got = lap.local("/v1/chat/completions", sealedChat)
		assert.That(t, got.Code == http.StatusServiceUnavailable && strings.Contains(got.Body.String(), "machine_offline"), got.Code, got.Body)
		assert.Equal(t, got.Header().Get("X-Kith-Sealed"), "no; reason=not_sent")
		synctest.Wait()
	})
}

// addDesk gives a member a machine without models, at whose surface programs make calls.
func (w *world) addDesk(by *member) {
	w.addMachine(by, "desk of "+by.Name, 1)
	last := len(w.machines) - 1
	w.desks[by], w.machines = w.machines[last], w.machines[:last]
}

// TestSealedSeeds plays the histories of TestSeeds in which all machines have keys, and
// half of the calls are made at a machine of the caller. The same holds for them, and
//
//   - a call is sealed unless it runs on a machine to whose owner none was sealed before;
//   - each answer is in the ledger once.
func TestSealedSeeds(t *testing.T) {
	all := new(delays)
	t.Cleanup(func() { t.Logf("from the commit to the end of what it ended, in false time:\n%s", all) })
	eachSeed(t, cmp.Or(*seedsFlag, unlessShort(100, 20)), func(t *testing.T, seed uint64) {
		inBubble(t, func(w *world) {
			w.desks = map[*member]*machine{}
			answers := w.play(seed, all)
			w.checkSealed(answers)
		})
	})
}

// checkSealed looks at how the calls made at desks were sent, and at their records.
func (w *world) checkSealed(answers []*answer) {
	for i, a := range answers {
		switch how := a.sealed(); {
		case a.at == nil || how == "yes" || how == sealed.NotSent:
		case how == sealed.NoKey:
			for _, r := range w.runs.of(a.tag) {
				for _, before := range answers[:i] {
					runs := w.runs.of(before.tag)
					if before.at == a.at && before.sealed() == "yes" && len(runs) > 0 && before.ended.Before(a.began) && runs[0].machine.owner == r.machine.owner {
						w.t.Errorf("%s was sent in clear to %s after %s was sealed", a, r.machine.name, before)
					}
				}
			}
		case a.err == nil:
			w.t.Errorf("sent %q: %s", how, a)
		}
	}
	type pair struct{ member, machine string }
	var served, cut, recorded = map[pair]int{}, map[string]int{}, map[pair]int{}
	direct := map[string]bool{}
	for _, a := range w.asks {
		switch {
		case a.at == nil:
			direct[a.header.Get("X-Correlation-ID")] = true
		case a.served():
			runs := w.runs.of(a.tag)
			served[pair{a.by.ID, runs[len(runs)-1].machine.id}]++
		case a.err != nil:
			cut[a.by.ID]++ // it may be recorded as served
		}
	}
	records, err := w.db.Usage(w.t.Context())
	w.must(err)
	for _, u := range records {
		if u.Code == "" && !direct[u.CallID] {
			recorded[pair{u.MemberID, u.MachineID}]++
		}
	}
	for p, n := range served {
		assert.That(w.t, recorded[p] >= n && recorded[p] <= n+cut[p.member], p, "was served", n, "calls; the ledger has", recorded[p])
	}
}
