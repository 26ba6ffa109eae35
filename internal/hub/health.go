package hub

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/site"
)

// healthWithin is how long to wait for the database.
const healthWithin = 2 * time.Second

// health returns the state of the hub's parts for the operator.
func (h *Hub) health(ctx context.Context) []site.Part {
	parts := []site.Part{h.databaseHealth(ctx), h.journalHealth()}
	if len(h.live.Nodes(time.Now())) > 0 {
		parts = append(parts, h.clockHealth())
	}
	parts = append(parts, h.memoryHealth())
	if backups, scheduled := h.backups.health(); scheduled {
		parts = append(parts, backups)
	}
	if mail, sends := h.site.MailPart(); sends {
		parts = append(parts, mail)
	}
	return parts
}

// refusedLately is how long a hub counts as not ready after it refused a call that it
// could not record, for example because the disk was full. After that time the next call
// shows whether the cause persists.
const refusedLately = 10 * time.Second

// Ready returns nil, or why this hub currently refuses all calls or, after its start,
// those to machines at other hubs. A load balancer then uses another hub.
func (h *Hub) Ready(now time.Time) error {
	records := h.ledger.Status()
	switch {
	case !h.live.Confirmed(now): // docs/spec/security.md#revocation
		return errors.New("the database did not confirm for 5 s which keys and shares are valid")
	case records.Broken:
		return errors.New("the journal of the ledger cannot be written")
	case now.Sub(records.Refused) < refusedLately:
		return errors.New("calls cannot be recorded: the disk or the journal is full")
	case h.cfg.Cluster != nil && !h.cfg.Cluster.Joined(now):
		return errors.New("the machines of the other hub nodes are not known yet")
	}
	return nil
}

// memoryHealth returns the state of the memory for requests and answers.
func (h *Hub) memoryHealth() site.Part {
	held := h.spool.Use()
	use := fmt.Sprintf("%s MiB of requests and answers in memory, %s MiB on disk", api.Number(held.Memory>>20), api.Number(held.Disk>>20))
	if h.spool.Full() {
		return site.Part{Name: "Memory", Text: use + ": nearly full, new calls are refused"}
	}
	return site.Part{Name: "Memory", Good: true, Text: use}
}

func (h *Hub) databaseHealth(ctx context.Context) site.Part {
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	began := time.Now()
	_, err := h.records.Grant(ctx, [32]byte{}) // a code that does not exist
	took := max(time.Millisecond, time.Since(began).Round(time.Millisecond))
	if err != nil && !errors.Is(err, account.ErrNotFound) {
		return site.Part{Name: "Database", Text: "does not answer; the log has the reason"}
	}
	if !h.live.Confirmed(time.Now()) {
		return site.Part{Name: "Database", Text: "changes cannot be followed: calls are refused until they can"}
	}
	return site.Part{Name: "Database", Good: true, Text: "answered within " + length(took)}
}

// clockHealth compares this computer's clock with the database's.
func (h *Hub) clockHealth() site.Part {
	ahead := h.live.ClockAhead().Round(time.Second)
	side := "ahead of"
	if ahead < 0 {
		side = "behind"
	}
	if h.live.ClockWrong() {
		return site.Part{Name: "Clock", Text: fmt.Sprintf("%s %s the database's, which all hubs use: synchronize both computers, as with NTP", length(ahead.Abs()), side)}
	}
	return site.Part{Name: "Clock", Good: true, Text: "agrees with the database's"}
}

// journalHealth returns the state of the ledger's journal.
func (h *Hub) journalHealth() site.Part {
	switch s := h.ledger.Status(); {
	case !s.Journal:
		return site.Part{Name: "Journal", Good: true, Text: "none: records wait in memory"}
	case s.Broken:
		return site.Part{Name: "Journal", Text: "takes nothing until it is started again: calls are refused until then; the log has the reason"}
	default:
		return site.Part{Name: "Journal", Good: true, Text: fmt.Sprintf("%.0f %% full, %s calls open, %s records on their way to the database", 100*s.Used, api.Number(s.Open), api.Number(s.Pending))}
	}
}

// signUpWords describe the values of [site] signup.
var signUpWords = map[site.SignUp]string{
	site.SignUpInvite: "people with a member's invite",
	site.SignUpOpen:   "anyone",
	site.SignUpClosed: "no one: operators add members",
}

// limits returns the limits in effect, for the operator.
func (h *Hub) limits() []site.Limit {
	rate, edge := h.edge.InForce()
	cfg := h.inForce.Load()
	limits := []site.Limit{
		{Name: "Requests of one key", Value: "not limited"},
		{Name: "Calls of one member that run at once", Value: most(cfg.Running)},
		{Name: "Calls of one member that wait at once", Value: most(cfg.Waiting)},
		{Name: "Wait for a machine", Value: length(cfg.Wait)},
		{Name: "Wait for a machine, streamed", Value: length(cfg.WaitStream)},
		{Name: "First byte of a machine", Value: length(cfg.FirstByte)},
		{Name: "Silence within an answer", Value: length(edge.Idle)},
		{Name: "A streamed call", Value: length(edge.Stream)},
		{Name: "Any other call", Value: length(edge.Unary)},
		{Name: "A request's body", Value: api.Number(edge.Body>>20) + " MiB"},
		{Name: "A clip to transcribe", Value: api.Number(edge.Upload>>20) + " MiB"},
		{Name: "Machines of one member", Value: most(cfg.Machines)},
		{Name: "Machines that connect at once", Value: api.Number(cfg.Admissions)},
		{Name: "Turns of the responses dialect are kept", Value: length(cfg.KeepResponses)},
		{Name: "What happened to a call is kept", Value: length(account.TraceLife)},
		{Name: "Who may sign up", Value: signUpWords[cmp.Or(cfg.Site.SignUp, site.SignUpInvite)]},
	}
	if rate.PerSecond > 0 {
		limits[0].Value = fmt.Sprintf("%g a second, %s at once", rate.PerSecond, api.Number(rate.Burst))
	}
	return limits
}

// mostBusyClients is the maximum number of clients near a limit that the operator sees.
const mostBusyClients = 20

// busyClients returns the clients that are near a limit, for the operator.
func (h *Hub) busyClients() []site.BusyClient {
	var all []site.BusyClient
	for _, held := range h.cfg.Clients.BusyClients(mostBusyClients) {
		all = append(all, site.BusyClient{Client: addressText(held.Client), What: held.What, Held: held.Held, Limit: held.Limit})
	}
	return all
}

// addressText formats a network, or its only address.
func addressText(n netip.Prefix) string {
	if n.IsSingleIP() {
		return n.Addr().String()
	}
	return n.String()
}

// most formats a limit; a negative one means no limit.
func most(n int) string {
	if n < 0 {
		return "not limited"
	}
	return api.Number(n)
}

// length formats a duration exactly: 9 min 50 s, 24 h, 7 days.
func length(d time.Duration) string {
	if d <= 0 {
		return "none"
	}
	var words []string
	for _, unit := range []struct {
		name     string
		of, from time.Duration
	}{{"days", 24 * time.Hour, 48 * time.Hour}, {"h", time.Hour, time.Hour}, {"min", time.Minute, time.Minute}, {"s", time.Second, time.Second}, {"ms", time.Millisecond, 0}} {
		if n := d / unit.of; d >= unit.from && n > 0 {
			words = append(words, fmt.Sprintf("%d %s", n, unit.name))
			d -= n * unit.of
		}
	}
	return strings.Join(words, " ")
}
