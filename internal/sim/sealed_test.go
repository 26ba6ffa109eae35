package sim

import (
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
func (m *machine) local(path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest("POST", "http://127.0.0.1:80"+path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
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
