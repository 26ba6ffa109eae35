package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
)

// shown returns a text without the colors of a terminal.
func shown(t *testing.T, text string) string {
	t.Helper()
	var out strings.Builder
	assert.Value(lipgloss.Fprint(&out, text))(t)
	return out.String()
}

const keyHeadings = "[KEY] NAME SECRET (REGION) STATE USED TODAY"

var keyRows = [][]string{
	{"key_0123456789abcdefghijklmnop", "laptop", "…wxyz", "home", "live", "21 Nov 09:30", "1,201 of 2,000"},
	{"key_zyxwvutsrqponmlkjihgfedcba", "日本語 display", "…abcd", "home", "expired", "never", "0"},
}

// A table that fits is as wide as its cells. One that does not wraps at words; then the ids
// have lines of their own; then each row is a list.
func TestTableInWindow(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		120: `
NAME            SECRET  STATE    USED          TODAY           KEY
laptop          …wxyz   live     21 Nov 09:30  1,201 of 2,000  key_0123456789abcdefghijklmnop
日本語 display  …abcd   expired  never         0               key_zyxwvutsrqponmlkjihgfedcba
`,
		84: `
NAME            SECRET  STATE    USED          TODAY
laptop          …wxyz   live     21 Nov 09:30  1,201 of 2,000
  key_0123456789abcdefghijklmnop
日本語 display  …abcd   expired  never         0
  key_zyxwvutsrqponmlkjihgfedcba
`,
		56: `
NAME         SECRET  STATE    USED          TODAY
laptop       …wxyz   live     21 Nov 09:30  1,201 of
                                            2,000
  key_0123456789abcdefghijklmnop
日本語       …abcd   expired  never         0
display
  key_zyxwvutsrqponmlkjihgfedcba
`,
		40: `
NAME    laptop
SECRET  …wxyz
STATE   live
USED    21 Nov 09:30
TODAY   1,201 of 2,000
KEY     key_0123456789abcdefghijklmnop

NAME    日本語 display
SECRET  …abcd
STATE   expired
USED    never
TODAY   0
KEY     key_zyxwvutsrqponmlkjihgfedcba
`,
		30: `
NAME    laptop
SECRET  …wxyz
STATE   live
USED    21 Nov 09:30
TODAY   1,201 of 2,000
KEY     key_0123456789abcdefgh
        ijklmnop

NAME    日本語 display
SECRET  …abcd
STATE   expired
USED    never
TODAY   0
KEY     key_zyxwvutsrqponmlkji
        hgfedcba
`,
	} {
		got := shown(t, inWindow(strings.Fields(keyHeadings), keyRows, width))
		assert.Equal(t, "\n"+got, want, width)
	}
}

// No line is wider than the window, and no letter is lost, however wide the words are.
func TestTableNeverRunsOver(t *testing.T) {
	t.Parallel()
	long := "models/" + strings.Repeat("wide漢字", 12)
	rows := [][]string{{long, "ada", "no limits, at any time of the day"}, {"tiny", "-", attacks}}
	for width := 20; width <= 130; width++ {
		got := shown(t, inWindow([]string{"MODEL", "OWNER", "LIMITS"}, rows, width))
		harmless(t, "a table", got)
		letters := strings.NewReplacer(" ", "", "\n", "")
		for line := range strings.SplitSeq(got, "\n") {
			assert.That(t, lipgloss.Width(line) <= width && line == strings.TrimRight(line, " "), "a line of", lipgloss.Width(line), width, line)
		}
		columns := columnsOf([]string{"MODEL"}, rows)
		columns[0].cells = columns[0].cells[:1]
		alone := letters.Replace(shown(t, columns[0].cell(0, width)))
		assert.Equal(t, alone, long, width)
	}
}

// A text wraps at spaces, not within flags and ids; a wide character is not cut.
func TestWrap(t *testing.T) {
	t.Parallel()
	assert.Equal(t, wrap("run `kith models --account` now", 18), "run `kith models\n--account` now")
	assert.Equal(t, wrap("model qwen3-coder-30b", 15), "model\nqwen3-coder-30b")
	assert.Equal(t, wrap("日本語の文", 5), "日本\n語の\n文")
}

// A last column of prose is below its row if the others have no room for it.
func TestTableMovesProse(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"qwen3-coder-30b", "needs it all", "coding agents on 32 GB"}, {"tiny", "yes", "tests"}}
	assert.Equal(t, shown(t, inWindow([]string{"MODEL", "FITS", "GOOD-AT"}, rows, 30)), `
MODEL            FITS
qwen3-coder-30b  needs it all
  coding agents on 32 GB
tiny             yes
  tests
`[1:])
}

// No window is too narrow, and no table too empty.
func TestTableInANarrowWindow(t *testing.T) {
	t.Parallel()
	for width := 1; width < 30; width++ {
		for _, rows := range [][][]string{{{"", "-", "-"}}, {{"a model of many words", "", "as many words as here"}}} {
			for _, headings := range [][]string{{"MODEL", "TOOLS", "GOOD-AT"}, {"MODEL", "TOOLS", "[ID]"}, {"[ID]", "(TOOLS)", "(GOOD-AT)"}} {
				got := shown(t, inWindow(headings, rows, width))
				for word := range strings.FieldsSeq(rows[0][0]) {
					assert.That(t, strings.Contains(got, word) || width < 12, "a word is not shown", width, got)
				}
			}
		}
	}
}

// A column in which no row has anything is left out of a table that is too wide.
func TestTableLeavesOutEmptyColumns(t *testing.T) {
	t.Parallel()
	rows := [][]string{{"lab", "-", "ada, bob, carol and dave"}, {"home", "", "ada"}}
	headings := []string{"GROUP", "PINNED", "MEMBERS"}
	assert.Contains(t, inWindow(headings, rows, 80), "PINNED")
	narrow := inWindow(headings, rows, 34)
	assert.That(t, !strings.Contains(narrow, "PINNED"), "an empty column", narrow)
	assert.Contains(t, shown(t, narrow), "lab    ada, bob, carol and dave")
}

// States have the colors of the site.
func TestStatesHaveColors(t *testing.T) {
	t.Parallel()
	for state, want := range map[string]string{
		"ready": "32", "live": "32", "connected, at its node a": "32", "open; hours: always": "32", "in use: card": "32",
		"busy": "33", "paused until 18:30; hours: always": "33", "outside hours": "33", "outside its hours: Mon": "33", "reconnecting": "33", "returning": "33",
		"offline": "31", "revoked": "31", "refused, the key": "31", "failed": "31",
		"opened": "", "not added": "", "the machine is offline": "", "": "",
	} {
		got := plain(toned(state))
		if want != "" {
			head, _, _ := strings.Cut(strings.TrimPrefix(got, "\x1b["+want+"m"), "\x1b[m")
			assert.That(t, got != state && strings.HasPrefix(state, head) && head != "", state, "has not the color", want, got)
			continue
		}
		assert.Equal(t, got, state)
	}
	table := inWindow([]string{"NAME", "STATE"}, [][]string{{"offline", "offline"}}, 80)
	assert.Contains(t, table, "\x1b[31moffline")
	assert.Equal(t, strings.Count(table, "\x1b[31m"), 1, "colors")
}

// In a terminal a table has its width and colors, without colors if NO_COLOR is set; in a
// pipe neither, and all columns in their order.
func TestTableInATerminal(t *testing.T) {
	key := `{"id":"key_0123456789abcdefghijklmnop","name":"the display in the kitchen","last_four":"wxyz","region":"home","reach":"all","manage":false,"state":"live","created":"2026-11-21T09:30:00Z","base_url":"https://hub.example/v1"}`
	const invite = `{"id":"inv_1","state":"open","last_four":"Mlk8","uses":3,"limits":{},"expires":"2026-12-05T09:30:00Z"}`
	lists := map[string]string{"/api/keys": key, "/api/invites": invite}
	handler, _ := double(t, func(w http.ResponseWriter, path string) { io.WriteString(w, `{"data":[`+lists[path]+`]}`) })
	server := httptest.NewServer(handler)
	defer server.Close()
	env := []string{"KITH_HOME=" + t.TempDir(), "KITH_HUB=" + server.URL, "KITH_API_KEY=kith_home_secret", "TERM=xterm-256color"}
	const list = "stty cols 80; kith keys list"
	p := inTerminal(t, list, env...)
	text := p.shows("[status 0]")
	assert.Contains(t, text, "\n  key_0123456789abcdefghijklmnop\n")
	assert.Contains(t, text, "\nkitchen")
	assert.That(t, !strings.Contains(text, "hub.example"), "the only region's address", text)
	assert.Contains(t, p.tmux("capture-pane", "-p", "-e"), "\x1b[32mlive")
	p = inTerminal(t, list, append(env, "NO_COLOR=1")...)
	p.shows("[status 0]")
	assert.That(t, !strings.Contains(p.tmux("capture-pane", "-p", "-e"), "\x1b[32m"), "colors")
	text = inTerminal(t, "kith share list", env...).shows("[status 0]") // `kith share remove` takes the id
	assert.Contains(t, text, "UNTIL")
	assert.Contains(t, text, "  inv_1\n")
	p = inTerminal(t, list+" | cat", env...)
	text = p.shows("[status 0]")
	assert.Contains(t, text, "\nkey_0123456789abcdefghijklmnop   the display in the kitchen   …wxyz    home     all     inference   live")
	assert.Contains(t, text, "https://hub.example/v1")
}

// Help and facts wrap beside their labels, in a window of 60 columns.
func TestTextInATerminal(t *testing.T) {
	handler, _ := double(t, words(`{"version":"1.0.0","tunnel":{"signed_in":true,"hub":"https://hub.example","name":"desk","state":"refused",`+
		`"error":"the machine's credential was revoked, or its member is disabled"},"sharing":{"paused":true}}`))
	home := onSocket(t, "daemon.sock", handler)
	for command, wants := range map[string][]string{
		"kith keys create --help": {"\n      --expires string   when it ends: after a time like 90d\n                         or 12h, or at"},
		"kith dev --help":         {"\nWith --nodes there are several hub nodes on a PostgreSQL\ndatabase of their own."},
		"kith status":             {"desk: refused, the\n          machine's credential was revoked, or its member", "\nsharing   paused; hours:"},
		"kith doctor":             {"\nnote  credential     this machine is not signed in; it\n                     serves its own programs only\n"},
	} {
		p := inTerminal(t, "stty cols 60; "+command, "KITH_HOME="+home, "TERM=xterm-256color")
		text := p.until("ends", func(screen string) bool { return strings.Contains(screen, "[status ") })
		for _, want := range wants {
			assert.Contains(t, text, want)
		}
		for line := range strings.SplitSeq(text, "\n") {
			assert.That(t, lipgloss.Width(line) <= 60 || strings.HasPrefix(line, "kith: "), command, line)
		}
		if command == "kith status" {
			colored := p.tmux("capture-pane", "-p", "-e")
			assert.Contains(t, colored, "\x1b[31mrefused")
			assert.Contains(t, colored, "\x1b[33mpaused")
		}
	}
}

// kith admin top fits its window: no line wraps, and the window does not scroll.
func TestTopFitsItsWindow(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.Local)
	top := api.Top{At: now, Running: 20, Waiting: 20, Online: 20}
	for i := range 20 {
		top.Calls = append(top.Calls, api.TopCall{Member: "margarethe", Model: "qwen3-coder:30b-a3b-q4_K_M", State: "running", Machine: "lab-a100-" + strconv.Itoa(i), Owner: "ada", Since: now.Add(-time.Minute)})
		top.Queues = append(top.Queues, api.TopQueue{Model: "a/long-model-name-" + strconv.Itoa(i), Waiting: 3, Oldest: now})
		top.Machines = append(top.Machines, api.TopMachine{Name: "lab-a100-" + strconv.Itoa(i), Owner: "margarethe", Slots: 8, Models: 12})
	}
	for _, window := range [][2]int{{60, 15}, {80, 24}, {40, 10}, {20, 4}, {200, 50}, {1, 1}} {
		got := shown(t, topOnScreen(top, window[0], window[1]))
		lines := strings.Split(got, "\n") // the last is the cursor's
		assert.That(t, len(lines) <= max(window[1], 2), window, len(lines), "lines")
		for _, line := range lines {
			assert.That(t, lipgloss.Width(line) <= window[0], window, "a line of", lipgloss.Width(line), line)
		}
	}
	narrow := shown(t, topOnScreen(top, 60, 15))
	for _, want := range []string{"20 calls running, 20 waiting, 20 machines online", "MEMBER", "1m0s", "QUEUE", "RUNNING", "0/8", "12", "online"} {
		assert.Contains(t, narrow, want, "60 columns")
	}
}
