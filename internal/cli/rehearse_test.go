package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// A rehearsal that finds every answer right proves nothing: it must find each
// way to be wrong.
func TestAJudgeFindsWhatIsWrong(t *testing.T) {
	full := scenario{code: "CAPACITY_FULL", status: 503, reason: "wait_elapsed", waits: true}
	closed := scenario{code: "outside_sharing_hours", status: 503, noRetry: true}
	unknown := scenario{code: "model_not_found", status: 404}
	right := func(s *scenario, frame bool) *rehearsalResult {
		a := &rehearsalResult{Status: s.status, Headers: map[string]string{"Content-Type": "application/json", "X-Correlation-Id": "req_1"}}
		if s.status == 503 {
			a.Headers["Retry-After"] = "5"
		}
		if s.noRetry {
			a.Headers["X-Should-Retry"] = "false"
		}
		a.Answer = `{"error":{"code":"` + s.code + `","correlation_id":"req_1","reason":"` + s.reason + `"}}`
		if frame {
			a.Status, a.Headers["Content-Type"] = 200, "text/event-stream"
			a.Answer = ": waiting 0 ahead, 1 s left\n\ndata: " + `{"error":{"code":"` + s.code + `","correlation_id":"req_1","details":{"reason":"` + s.reason + `"}}}` + "\n\n"
		}
		return a
	}
	replace := func(old, fresh string) func(*rehearsalResult) {
		return func(a *rehearsalResult) { a.Answer = strings.ReplaceAll(a.Answer, old, fresh) }
	}
	for name, c := range map[string]struct {
		scenario *scenario
		frame    bool
		disrupt  func(*rehearsalResult)
		wrong    string
	}{
		"right":                 {scenario: &full},
		"right, in a frame":     {scenario: &full, frame: true},
		"right, without retry":  {scenario: &closed},
		"right, 404":            {scenario: &unknown},
		"status":                {&full, false, func(a *rehearsalResult) { a.Status = 500 }, "status 500"},
		"a status for a frame":  {&full, true, func(a *rehearsalResult) { a.Status = 503 }, "status 503"},
		"type":                  {&full, false, func(a *rehearsalResult) { a.Headers["Content-Type"] = "text/html" }, "text/html"},
		"code":                  {&full, false, replace("CAPACITY_FULL", "capacity_full"), "code capacity_full"},
		"code in a frame":       {&full, true, replace("CAPACITY_FULL", "machine_offline"), "code machine_offline"},
		"reason missing":        {&full, false, replace("wait_elapsed", ""), "reason"},
		"reason too many":       {&closed, false, replace(`"reason":""`, `"reason":"wait_elapsed"`), "reason"},
		"reason beside details": {&full, true, replace(`"details":{"reason":"wait_elapsed"}`, `"reason":"wait_elapsed"`), "no details"},
		"another's id":          {&full, false, replace("req_1", "req_2"), "correlation id"},
		"no Retry-After":        {&full, false, func(a *rehearsalResult) { delete(a.Headers, "Retry-After") }, "Retry-After"},
		"Retry-After on 404":    {&unknown, false, func(a *rehearsalResult) { a.Headers["Retry-After"] = "5" }, "Retry-After"},
		"to be retried":         {&closed, false, func(a *rehearsalResult) { delete(a.Headers, "X-Should-Retry") }, "x-should-retry"},
		"end mark":              {&full, true, func(a *rehearsalResult) { a.Answer += "data: [DONE]\n\n" }, "end mark"},
		"silence":               {&full, true, replace(": waiting", "data: {}\n\n: waiting"), "no comment"},
		"no error":              {&full, false, func(a *rehearsalResult) { a.Answer = `{"choices":[]}` }, "no error"},
		"nothing":               {&full, true, func(a *rehearsalResult) { a.Answer = "" }, "no error"},
	} {
		a := right(c.scenario, c.frame)
		if c.disrupt != nil {
			c.disrupt(a)
		}
		if got := a.judge(c.scenario, c.frame); (got == "") != (c.wrong == "") || !strings.Contains(got, c.wrong) {
			t.Errorf("%s: judged %q, not %q", name, got, c.wrong)
		}
	}
}

func TestClosedTodayIsClosedNow(t *testing.T) {
	start := time.Date(2026, 10, 1, 0, 0, 0, 0, time.FixedZone("far east", 14*60*60))
	for now := start; now.Before(start.AddDate(0, 0, 8)); now = now.Add(29 * time.Minute) {
		hours := assert.Value(fleet.ParseHours(closedToday(now), "UTC"))(t)
		for _, soon := range []time.Duration{0, time.Hour, 24 * time.Hour} {
			assert.Require(t, !hours.Open(now.Add(soon)), hours, "is open", soon, "after", now)
		}
		assert.Require(t, hours.Open(now.AddDate(0, 0, 3)), hours, "never opens")
	}
}
