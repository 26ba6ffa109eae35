package site

import (
	"fmt"
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// Parts of a page that TestTimesAreLabelled looks at.
var (
	timeElement = regexp.MustCompile(`<time datetime="([^"]*)"([^>]*)>([^<]*)</time>`)
	attributes  = regexp.MustCompile(`(?:aria-label|title|alt)="([^"]*)"`)
	inlineTag   = regexp.MustCompile(`</?(?:a|b|code|small|span|strong|time)\b[^>]*>`)
	anyTag      = regexp.MustCompile(`(?s)<script.*?</script>|<[^>]*>`)
	clockTime   = regexp.MustCompile(`\b\d{1,2}:\d{2}\b`)
	dateField   = regexp.MustCompile(`<label>([^/]*)(?:</span>)? <input type="date[^>]*>`)
	zoneLabel   = regexp.MustCompile(`UTC|machine time|Machine time|in the time zone`)
)

// unlabelled returns the lines of a page, and its texts for screen readers, with a time of
// day whose zone is not named beside it. A time element is in the reader's zone if the
// script runs, and UTC otherwise; it has to name UTC, and an instant to convert.
func unlabelled(page string) (wrong []string) {
	for _, m := range timeElement.FindAllStringSubmatch(page, -1) {
		if _, err := time.Parse(time.RFC3339, m[1]); err != nil || clockTime.MatchString(m[3]) && !strings.HasSuffix(m[3], "UTC") {
			wrong = append(wrong, m[0])
		}
	}
	for _, m := range dateField.FindAllStringSubmatch(page, -1) {
		if !strings.Contains(m[1], "UTC") {
			wrong = append(wrong, m[0])
		}
	}
	page = timeElement.ReplaceAllString(page, "")
	var texts []string
	for _, m := range attributes.FindAllStringSubmatch(page, -1) {
		texts = append(texts, m[1])
	}
	page = anyTag.ReplaceAllString(inlineTag.ReplaceAllString(page, ""), "\n")
	for _, text := range append(texts, strings.Split(page, "\n")...) {
		if clockTime.MatchString(text) && !zoneLabel.MatchString(text) {
			wrong = append(wrong, html.UnescapeString(text))
		}
	}
	return wrong
}

// TestTimesAreLabelled checks that each time on each page is in the reader's zone, by a
// time element that the script converts, or has its zone beside it: UTC, or the clock of a
// machine.
func TestTimesAreLabelled(t *testing.T) {
	for text, want := range map[string]int{
		"<p>open 18:00-23:00</p>": 1, "<p>open 18:00-23:00 <b>machine time</b></p>": 0, "<p>18:00</p><p>UTC</p>": 1, `<a aria-label="until 9:30">x</a>`: 1,
		`<time datetime="2026-11-21T10:30:00Z">10:30</time>`: 1, `<time datetime="2026-11-21T10:30:00Z">10:30 UTC</time>`: 0, `<time datetime="10:30">10:30 UTC</time>`: 1, "qwen3:32b": 0,
		`<label>From <input type="date">`: 1, `<label>From<span data-utc>, UTC</span> <input type="datetime-local">`: 0,
	} {
		assert.Equal(t, len(unlabelled(text)), want, text)
	}

	tn := newTown(t, nil)
	tn.history()
	now, ada := time.Now().UTC(), tn.members["ada"].ID
	check(t, tn.db.SaveTraces(t.Context(), []account.Trace{{CallID: "req_spent", MemberID: ada, Started: now, Mine: true, Caller: "ada", Model: "tiny", Endpoint: "/v1/chat/completions",
		Status: 503, Code: "CASCADE_EXHAUSTED", Decisions: []account.Decision{{Verdict: "refuse", Row: 10, Seen: []account.StateCount{{Via: "shared", State: "spent", Machines: 1}}}}}}, now))
	check(t, tn.db.AddNotices(t.Context(), []account.Notice{{MemberID: ada, Kind: account.NoticeSpent, Subject: "shr_1", Occasion: now, At: now,
		Text: "You have used up the 3 calls a day that bob allows you, until 00:00 UTC."}}, now))
	live := *tn.snapshot.Machine(fleet.MachineID(tn.machine.ID))
	live.Paused, live.PausedUntil = true, now.Add(3*time.Hour)
	tn.snapshot = tn.snapshot.WithMachine(&live)
	b := tn.as("ada")
	b.post("/sharing/share", "with", "bob", "hours", "Mon-Fri 18:00-23:00", "per_day", "3").goes(t, "/access")
	check(t, tn.db.SetMemberOperator(t.Context(), ada, true))
	seen := 0
	for _, path := range []string{
		"/", "/machines", "/machines/" + tn.machine.ID, machineAddress(tn.machine.ID, sharingTab), "/models", "/models?model=tiny", "/access", "/applications", "/usage", "/usage?days=1&by=hour", "/requests", "/requests/req_1", "/requests/req_spent",
		"/requests?from=2026-11-21T10:30&to=2026-11-22T10:30:00.000Z", "/notices", "/account", "/sessions", "/try",
		"/operator", "/operator/members", "/operator/machines", "/operator/usage?days=1&by=hour", "/operator/audit",
	} {
		page := b.get(path).want(t, 200)
		assert.Equal(t, fmt.Sprint(unlabelled(page.body)), "[]", "times without a zone on", path)
		seen += len(clockTime.FindAllString(page.body, -1))
	}
	assert.That(t, seen > 50, "only", seen, "times were looked at")
	b.get("/access").want(t, 200, "Mon-Fri 18:00-23:00 machine time; 3 calls a day")
	b.get("/usage?days=1&by=hour").want(t, 200, `"><time datetime="`)
	b.get("/requests?from=2026-11-21T10:30&to=2026-11-22T10:30:00.000Z").want(t, 200, `id="from" value="2026-11-21T10:30"`, `id="to" value="2026-11-22T10:30"`)
	b.get("/requests/req_spent").want(t, 200, `data-clock>00:00 UTC</time>`)
	b.get("/notices").want(t, 200, `Times: <span data-zone>UTC</span>`, `data-clock>00:00 UTC</time>`)
}
