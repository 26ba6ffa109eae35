package web

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
)

// homeData is what / shows to who is signed in: how far they have come.
type homeData struct {
	Keys, Machines, Online, Models int
}

func (s *Site) home(v *visit) (reply, error) {
	if v.me.ID == "" {
		return reply{page: "start", title: "Welcome"}, nil
	}
	keys, err := ask[list[Key]](s, v, "GET", "/api/keys", nil, nil)
	if err != nil {
		return reply{}, err
	}
	machines, err := ask[list[Machine]](s, v, "GET", "/api/machines", nil, nil)
	if err != nil {
		return reply{}, err
	}
	models, err := ask[list[Model]](s, v, "GET", "/api/models", nil, nil)
	data := homeData{Machines: len(machines.Data), Models: len(models.Data)}
	for _, k := range keys.Data {
		if k.State == "live" {
			data.Keys++
		}
	}
	for _, m := range machines.Data {
		if m.Online {
			data.Online++
		}
	}
	return reply{page: "home", title: "Home", data: data}, err
}

// usageData is what /usage shows.
type usageData struct {
	UsagePage
	Spans []int // days to choose from
}

func (s *Site) usagePage(v *visit) (reply, error) {
	usage, err := ask[UsagePage](s, v, "GET", "/api/usage", nil, nil)
	return reply{page: "usage", title: "Usage", data: usageData{usage, []int{7, 30, 90, 365}}}, err
}

// usageCSV is GET /usage.csv[?days=N]: what /usage shows, a row for each sum.
func (s *Site) usageCSV(v *visit) (reply, error) {
	usage, err := ask[UsagePage](s, v, "GET", "/api/usage", nil, nil)
	if err != nil {
		return reply{}, err
	}
	var text bytes.Buffer
	w := csv.NewWriter(&text)
	row := func(side, of, name string, u UsageSum) {
		numbers := []int64{u.Calls, u.Refused, u.Others, u.WaitedMS, u.TokensIn, u.TokensOut}
		cells := []string{side, of, inCell(name)}
		for _, n := range numbers {
			cells = append(cells, strconv.FormatInt(n, 10))
		}
		_ = w.Write(cells) // into memory
	}
	_ = w.Write([]string{"side", "of", "name", "calls", "refused", "others", "waited_ms", "tokens_in", "tokens_out"})
	for _, side := range []struct {
		name string
		of   UsageSide
	}{{"caller", usage.As}, {"owner", usage.On}} {
		for _, d := range side.of.Days {
			row(side.name, "day", d.Day, d.UsageSum)
		}
		for _, m := range side.of.Models {
			row(side.name, "model", m.Model, m.UsageSum)
		}
		for _, m := range side.of.Machines {
			row(side.name, "machine", cmp.Or(m.Name, m.Machine), m.UsageSum)
		}
		for _, c := range side.of.Codes {
			row(side.name, "code", c.Code, UsageSum{Calls: c.Calls, Refused: c.Calls})
		}
	}
	w.Flush()
	return reply{file: &download{"kith-usage-" + usage.Since + ".csv", "text/csv; charset=utf-8", text.Bytes()}}, nil
}

// inCell keeps a spreadsheet from taking what somebody named for a formula.
func inCell(name string) string {
	if name != "" && strings.ContainsRune("=+-@\t\r", rune(name[0])) {
		return "'" + name
	}
	return name
}

// requestsData is what /requests shows.
type requestsData struct {
	Stories []account.Story
	Before  string // of the next page; empty: this is the last
}

func (s *Site) requestsPage(v *visit) (reply, error) {
	stories, err := ask[list[account.Story]](s, v, "GET", "/api/requests", nil, nil)
	data := requestsData{Stories: stories.Data}
	if len(data.Stories) == mostStories {
		data.Before = data.Stories[mostStories-1].Started.Format(time.RFC3339Nano)
	}
	return reply{page: "requests", title: "Requests", data: data}, err
}

func (s *Site) requestPage(v *visit) (reply, error) {
	told, err := ask[Told](s, v, "GET", "/api/why/{call}", map[string]string{"call": v.values["call"]}, nil)
	return reply{page: "request", title: "Request", data: told}, err
}
