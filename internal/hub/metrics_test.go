package hub

import (
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

func newMetricsRegistry(t *testing.T, h *Hub) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry() // it checks what is collected against what is described
	for _, c := range h.Metrics() {
		assert.OK(t, registry.Register(c))
	}
	return registry
}

// TestMetricsAreWellFormed checks names, types, help texts and units by the rules of
// Prometheus, with every value present, and that no label names who called what.
func TestMetricsAreWellFormed(t *testing.T) {
	others := assert.Value(cluster.New(cluster.Config{Log: slog.New(slog.DiscardHandler)}))(t)
	r := newRig(t, Config{Cluster: others})
	backup := account.Backup{ID: "bak_1", At: time.Now(), File: t.TempDir() + "/copy.db"}
	assert.Value(r.kept.Backup(t.Context(), backup, nil))(t)
	registry := newMetricsRegistry(t, r.Hub)
	problems := assert.Value(testutil.GatherAndLint(registry))(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families := assert.Value(registry.Gather())(t)
	may := map[string]bool{"code": true, "route": true, "dialect": true, "outcome": true, "peer": true}
	seen := map[string]bool{}
	for _, family := range families {
		seen[family.GetName()] = true
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				assert.That(t, may[label.GetName()], family.GetName(), "has the label", label.GetName())
			}
		}
	}
	for _, name := range []string{"kith_backup_last_timestamp_seconds", "kith_queue_calls", "kith_forwards_total", "kith_calls_total"} {
		assert.That(t, seen[name], name, "is missing")
	}
	assert.That(t, !seen["kith_confirmation_age_seconds"], "a hub that follows no database has a confirmation")
}

// TestCallsMoveTheirSeries makes calls that end in different ways and looks which
// series each moves.
func TestCallsMoveTheirSeries(t *testing.T) {
	r := newRig(t, Config{})
	_, secret := r.member("ann")
	ask := func(path, secret, body string) {
		q := httptest.NewRequest("POST", path, strings.NewReader(body))
		q.Header.Set("Authorization", "Bearer "+secret)
		q.Header.Set("Content-Type", "application/json")
		q.Header.Set("anthropic-version", "2023-06-01")
		r.Handler().ServeHTTP(httptest.NewRecorder(), q)
	}
	const chat, messages = "/v1/chat/completions", "/v1/messages"
	count := func(code, route, dialect string) float64 {
		return testutil.ToFloat64(r.metrics.calls.WithLabelValues(code, route, dialect))
	}
	const call = `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`
	ask(chat, secret, call)
	ask(messages, secret, call)
	ask(chat, secret, `{"model":`)
	ask(chat, mistyped(secret), call)
	ask("/v1/other", secret, call) // no call
	for _, c := range []struct {
		code, route, dialect string
		want                 float64
	}{
		{"model_not_found", chat, "chat", 1}, {"model_not_found", messages, "messages", 1},
		{"invalid_request", chat, "chat", 1}, {"invalid_api_key", chat, "chat", 1}, {Served, chat, "chat", 0},
	} {
		assert.Equal(t, count(c.code, c.route, c.dialect), c.want, c.code, c.route)
	}
	r.finished(&gateway.Call{
		ID: "req_1", Endpoint: fleet.ChatCompletions, Caller: fleet.Caller{Member: "mem_1"}, Arrived: time.Now(), Started: time.Now(),
		Trace: gateway.Trace{Waited: 3 * time.Second},
	}, gateway.Outcome{Status: 200, FirstByte: 4 * time.Second, Duration: 20 * time.Second})
	assert.Equal(t, count(Served, chat, "chat"), 1, "served")
	want := `
# HELP kith_call_first_byte_seconds Time from the arrival of calls to the first byte of their answers.
# TYPE kith_call_first_byte_seconds histogram
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="0.05"} 0
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="0.1"} 0
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="0.25"} 0
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="0.5"} 0
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="1"} 0
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="2.5"} 0
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="5"} 1
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="10"} 1
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="30"} 1
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="60"} 1
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="180"} 1
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="600"} 1
kith_call_first_byte_seconds_bucket{route="/v1/chat/completions",le="+Inf"} 1
kith_call_first_byte_seconds_sum{route="/v1/chat/completions"} 4
kith_call_first_byte_seconds_count{route="/v1/chat/completions"} 1
`
	if err := testutil.CollectAndCompare(r.metrics.firstByte, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if got := testutil.CollectAndCount(r.metrics.wait); got != 2 { // chat and messages
		t.Errorf("%d routes have waits", got)
	}
}

// TestObservingAllocatesNothing holds the cost of the metrics of one call.
func TestObservingAllocatesNothing(t *testing.T) {
	m := newCallMetrics()
	call, out := &gateway.Call{Endpoint: fleet.Messages}, gateway.Outcome{FirstByte: time.Second, Duration: time.Minute}
	m.observe(call, out)
	assert.Equal(t, testing.AllocsPerRun(100, func() { m.observe(call, out) }), 0, "allocations a call")
}
