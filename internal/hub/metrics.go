package hub

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/dispatch"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/ledger"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/store"
)

// Served is the value of the label code for a call that was answered completely. The
// other values are the codes of docs/errors.md and gateway.Cancelled.
const Served = "ok"

// callMetrics counts and times the hub's calls. No label names a member, a key, a machine
// or a model, so the number of series does not grow with theirs
// (docs/operate/metrics.md#labels).
type callMetrics struct {
	calls                     *prometheus.CounterVec
	wait, firstByte, duration *prometheus.HistogramVec
}

var callEndpoints = [...]fleet.Endpoint{fleet.ChatCompletions, fleet.EmbeddingsEndpoint, fleet.Transcriptions, fleet.Responses, fleet.Messages}

func newCallMetrics() callMetrics {
	histogram := func(name, help string, buckets ...float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"route"})
	}
	m := callMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kith_calls_total", Help: "Calls that came to this hub and ended, by the code of their end (ok: answered completely), route and dialect.",
		}, []string{"code", "route", "dialect"}),
		wait: histogram("kith_call_wait_seconds", "How long calls waited for a machine.",
			0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 180),
		firstByte: histogram("kith_call_first_byte_seconds", "Time from the arrival of calls to the first byte of their answers.",
			0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600),
		duration: histogram("kith_call_duration_seconds", "Time from the arrival of calls to their end.",
			0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600, 1800),
	}
	codes := []string{Served, gateway.Cancelled}
	for code := range fault.Codes() {
		codes = append(codes, string(code))
	}
	for _, endpoint := range callEndpoints { // a rate needs a 0 before the first call
		for _, code := range codes {
			m.calls.WithLabelValues(code, endpoint.Path(), dialectOf(endpoint))
		}
	}
	return m
}

// dialectOf returns the dialect of refusals at the endpoint.
func dialectOf(endpoint fleet.Endpoint) string {
	switch endpoint {
	case fleet.Responses:
		return "responses"
	case fleet.Messages:
		return "messages"
	default:
		return "chat"
	}
}

// count counts a call that has ended.
func (m *callMetrics) count(call *gateway.Call, out gateway.Outcome) {
	m.calls.WithLabelValues(cmp.Or(out.Code, Served), call.Endpoint.Path(), dialectOf(call.Endpoint)).Inc()
}

// observe counts and times a call that reached dispatch.
func (m *callMetrics) observe(call *gateway.Call, out gateway.Outcome) {
	m.count(call, out)
	route := call.Endpoint.Path()
	m.wait.WithLabelValues(route).Observe(call.Trace.Waited.Seconds())
	m.duration.WithLabelValues(route).Observe(out.Duration.Seconds())
	if out.FirstByte > 0 {
		m.firstByte.WithLabelValues(route).Observe(out.FirstByte.Seconds())
	}
}

// finished handles the end of a call that reached dispatch.
func (h *Hub) finished(call *gateway.Call, out gateway.Outcome) {
	h.metrics.observe(call, out)
	h.calls.Finished(call, out)
}

// refused handles a call that the gateway refused.
func (h *Hub) refused(call *gateway.Call, out gateway.Outcome) {
	h.metrics.count(call, out)
	if call.Caller.Member != "" { // otherwise no member could read a trace
		h.calls.Refused(call, out)
	}
}

// Metrics returns the hub's metrics.
func (h *Hub) Metrics() []prometheus.Collector {
	m := &h.metrics
	return []prometheus.Collector{m.calls, m.wait, m.firstByte, m.duration, stateMetrics{h}}
}

// stateMetrics reads the state of the hub's parts when it is collected.
type stateMetrics struct{ *Hub }

// reading is the state of the hub's parts at one time.
type reading struct {
	now      time.Time // by the store's clock
	live     registry.Status
	peers    []cluster.Peer
	forwards map[string]uint64
	calls    dispatch.Status
	grants   cluster.Grants
	ledger   ledger.Status
	spool    spool.Use
	pool     store.Pool
	backup   account.Backup // the last successful one
	failed   bool           // the last attempt failed
	ready    bool
	draining bool
}

// stateMetric is one value of a reading. NaN values are omitted.
type stateMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*reading) float64
}

func gauge(name, help string, value func(*reading) float64) stateMetric {
	return stateMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, value}
}

func counter(name, help string, value func(*reading) float64) stateMetric {
	return stateMetric{prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, value}
}

// stateValues are the values without labels.
var stateValues = []stateMetric{
	gauge("kith_ready", "Whether this hub takes calls (1), or refuses all of them (0).", func(r *reading) float64 { return oneIf(r.ready) }),
	gauge("kith_draining", "Whether this hub is about to end (1): its calls end and its machines move.", func(r *reading) float64 { return oneIf(r.draining) }),
	gauge("kith_calls_running", "Calls that came to this hub and run on machines now.", func(r *reading) float64 { return float64(r.calls.Running) }),
	gauge("kith_queue_calls", "Calls that came to this hub and wait for a machine now.", func(r *reading) float64 { return float64(r.calls.Waiting) }),
	gauge("kith_queue_oldest_seconds", "Age of the oldest waiting call.", func(r *reading) float64 { return r.calls.Oldest.Seconds() }),
	gauge("kith_machines_online", "Machines that are connected to any hub of the region.", func(r *reading) float64 { return float64(r.live.Online) }),
	gauge("kith_tunnels", "Machines whose tunnel ends at this hub.", func(r *reading) float64 { return float64(r.live.Tunnels) }),
	gauge("kith_confirmation_age_seconds", "Time since the database last confirmed which keys and shares are valid. Over 5 s every call is refused.", func(r *reading) float64 { return known(r.live.Confirmed) }),
	gauge("kith_clock_offset_seconds", "By how much the clock of this hub's computer is ahead of the database's, which all hubs use. 0 on SQLite.", func(r *reading) float64 { return r.live.ClockAhead.Seconds() }),
	gauge("kith_nodes_alive", "Hubs of the database, of all regions, whose beat this one sees move.", func(r *reading) float64 { return float64(r.live.NodesAlive) }),

	gauge("kith_journal_open_calls", "Calls in the journal that have not ended yet.", func(r *reading) float64 { return float64(r.ledger.Open) }),
	gauge("kith_journal_pending_records", "Records of ended calls that the database does not have yet.", func(r *reading) float64 { return float64(r.ledger.Pending) }),
	gauge("kith_journal_oldest_seconds", "Age of the oldest record that the database does not have yet.", func(r *reading) float64 {
		if r.ledger.Oldest.IsZero() {
			return 0
		}
		return max(r.now.Sub(r.ledger.Oldest).Seconds(), 0)
	}),
	gauge("kith_journal_used_bytes", "Bytes of the journal that are used.", func(r *reading) float64 { return float64(r.ledger.Bytes) }),
	gauge("kith_journal_used_ratio", "Part of the journal that is used. Over 0.5 new calls are refused.", func(r *reading) float64 { return r.ledger.Used }),
	gauge("kith_journal_broken", "Whether the journal cannot be written (1), and every call is refused.", func(r *reading) float64 { return oneIf(r.ledger.Broken) }),

	gauge("kith_database_connections_open", "Connections to the database.", func(r *reading) float64 { return float64(r.pool.Open) }),
	gauge("kith_database_connections_in_use", "Connections to the database that are in use.", func(r *reading) float64 { return float64(r.pool.InUse) }),
	gauge("kith_database_connections_max", "Connections to the database that this hub may open.", func(r *reading) float64 { return float64(r.pool.Max) }),
	counter("kith_database_waits_total", "How often a statement waited for a free connection.", func(r *reading) float64 { return float64(r.pool.Waits) }),
	counter("kith_database_wait_seconds_total", "How long statements waited for a free connection.", func(r *reading) float64 { return r.pool.Waited.Seconds() }),
	gauge("kith_backup_last_timestamp_seconds", "When the last good backup was made, by hand or by the schedule; absent if there was none.", func(r *reading) float64 {
		if r.backup.At.IsZero() {
			return math.NaN()
		}
		return float64(r.backup.At.UnixMilli()) / 1e3
	}),
	gauge("kith_backup_last_failed", "Whether the last attempt at a backup failed (1); absent if there was none.", func(r *reading) float64 {
		if r.backup.At.IsZero() && !r.failed {
			return math.NaN()
		}
		return oneIf(r.failed)
	}),

	gauge("kith_held_memory_bytes", "Bytes of requests and answers that are held in memory.", func(r *reading) float64 { return float64(r.spool.Memory) }),
	gauge("kith_held_disk_bytes", "Bytes of requests and answers that are held in files.", func(r *reading) float64 { return float64(r.spool.Disk) }),
	counter("kith_held_refused_total", "Requests and answers that were refused because no space was left.", func(r *reading) float64 { return float64(r.spool.Refused) }),
}

// The metrics about other hubs and forwarded requests. A region has only a few hubs, so
// their names can be labels.
var (
	peerUp      = prometheus.NewDesc("kith_peer_up", "Whether another hub of the region that is alive is connected to this one.", []string{"peer"}, nil)
	peerLag     = prometheus.NewDesc("kith_peer_state_age_seconds", "Age of what this hub knows of another one's machines.", []string{"peer"}, nil)
	grantEnds   = prometheus.NewDesc("kith_grants_total", "Slots that this hub offered to calls that wait at other ones, by what resulted.", []string{"outcome"}, nil)
	forwardEnds = prometheus.NewDesc("kith_forwards_total", "Requests that this hub sent on to the hub of a machine, by how they ended.", []string{"outcome"}, nil)
)

// Describe implements prometheus.Collector.
func (s stateMetrics) Describe(descs chan<- *prometheus.Desc) {
	for _, m := range stateValues {
		descs <- m.desc
	}
	descs <- peerUp
	descs <- peerLag
	descs <- forwardEnds
	descs <- grantEnds
}

// Collect implements prometheus.Collector.
func (s stateMetrics) Collect(out chan<- prometheus.Metric) {
	r := s.read()
	for _, m := range stateValues {
		if value := m.value(&r); !math.IsNaN(value) {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, value)
		}
	}
	for _, p := range r.peers {
		out <- prometheus.MustNewConstMetric(peerUp, prometheus.GaugeValue, oneIf(p.Connected), p.Name)
		if age := known(p.Heard); !math.IsNaN(age) {
			out <- prometheus.MustNewConstMetric(peerLag, prometheus.GaugeValue, age, p.Name)
		}
	}
	for outcome, n := range map[string]int64{
		"taken": r.grants.Taken, "gone": r.grants.Gone, "declined": r.grants.Declined, "lost": r.grants.Lost, "expired": r.grants.Expired,
	} {
		out <- prometheus.MustNewConstMetric(grantEnds, prometheus.CounterValue, float64(n), outcome)
	}
	for outcome, n := range r.forwards {
		out <- prometheus.MustNewConstMetric(forwardEnds, prometheus.CounterValue, float64(n), outcome)
	}
}

// read reads the current state of the hub's parts.
func (s stateMetrics) read() reading {
	now := time.Now()
	r := reading{
		now: s.records.Now(), live: s.live.Status(now), calls: s.calls.Status(now), ledger: s.ledger.Status(), spool: s.spool.Use(),
		ready: s.Ready(now) == nil, draining: s.drain.begun.Load(),
	}
	if s.cfg.Cluster != nil {
		r.peers, r.forwards, r.grants = s.cfg.Cluster.Peers(now), s.cfg.Cluster.Forwards(), s.cfg.Cluster.Grants()
	}
	if s.cfg.DB != nil {
		r.pool = s.cfg.DB.Pool()
		ctx, cancel := context.WithTimeout(context.Background(), healthWithin)
		defer cancel()
		last, _ := s.cfg.DB.LastBackup(ctx) // there is no backup, or the database does not answer
		r.failed = last.Fault != ""
		r.backup, _ = s.cfg.DB.LastGoodBackup(ctx)
	}
	return r
}

func oneIf(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// known returns an age in seconds. A negative age is unknown.
func known(age time.Duration) float64 {
	if age < 0 {
		return math.NaN()
	}
	return age.Seconds()
}
