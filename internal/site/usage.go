package site

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// usageData is what /usage shows.
type usageData struct {
	api.UsagePage
	Spans []int // days to choose from
}

func (s *Site) usageData(v *visit) (usageData, error) {
	usage, err := call(s, v, api.GetUsage, api.Span{Days: v.URL.Query().Get("days")})
	return usageData{usage, []int{7, 30, 90, 365}}, err
}

// usageViews are the tables of one side of /usage, as they may be asked for one
// by one.
var usageViews = []string{"day", "model", "machine", "member", "code"}

// usageCSV is GET /usage.csv[?days=N][&side=caller|owner][&of=VIEW]: what /usage
// shows, a row for each sum; one side or one table of it where they are named.
func (s *Site) usageCSV(v *visit) (reply, error) {
	query := v.URL.Query()
	side, of := query.Get("side"), query.Get("of")
	if side != "" && side != "caller" && side != "owner" {
		return reply{}, fault.New(fault.InvalidRequest, "side is caller or owner, not %.20q", side).WithParam("side")
	}
	if of != "" && !slices.Contains(usageViews, of) {
		return reply{}, fault.New(fault.InvalidRequest, "of is %s, not %.20q", strings.Join(usageViews, ", "), of).WithParam("of")
	}
	usage, err := call(s, v, api.GetUsage, api.Span{Days: v.URL.Query().Get("days")})
	if err != nil {
		return reply{}, err
	}
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	w.UseCRLF = true // as RFC 4180 has it
	_ = w.Write([]string{"side", "of", "name", "calls", "refused", "others", "waited_ms", "tokens_in", "tokens_out"})
	for _, part := range []struct {
		name string
		api.UsageSide
	}{{"caller", usage.As}, {"owner", usage.On}} {
		if side == "" || side == part.name {
			for _, row := range rowsOf(part.UsageSide, of) {
				_ = w.Write(append([]string{part.name}, row...)) // into memory
			}
		}
	}
	w.Flush()
	parts := []string{"kith-usage", side, of, usage.Since}
	name := strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "-") + ".csv"
	return reply{write: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/csv; charset=utf-8")
		w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", name))
		_, _ = w.Write(text.Bytes())
	}}, nil
}

// rows are the rows of one table, or of all where none is named: which table,
// what the sum is of, and its numbers.
func rowsOf(u api.UsageSide, of string) (rows [][]string) {
	add := func(view, name string, sum api.UsageSum) {
		if of != "" && of != view {
			return
		}
		row := []string{view, inCell(name)}
		for _, n := range []int64{sum.Calls, sum.Refused, sum.Others, sum.WaitedMS, sum.TokensIn, sum.TokensOut} {
			row = append(row, strconv.FormatInt(n, 10))
		}
		rows = append(rows, row)
	}
	for _, d := range u.Days {
		add("day", d.Day, d.UsageSum)
	}
	for _, m := range u.Models {
		add("model", m.Model, m.UsageSum)
	}
	for _, m := range u.Machines {
		add("machine", cmp.Or(m.Name, m.Machine), m.UsageSum)
	}
	for _, m := range u.Members {
		add("member", m.Member, m.UsageSum)
	}
	for _, c := range u.Codes {
		add("code", c.Code, api.UsageSum{Calls: c.Calls, Refused: c.Calls})
	}
	return rows
}

// inCell keeps a spreadsheet from taking a member's text for a formula.
func inCell(name string) string {
	if name != "" && strings.ContainsRune("=+-@\t\r\n", rune(name[0])) {
		return "'" + name
	}
	return name
}
