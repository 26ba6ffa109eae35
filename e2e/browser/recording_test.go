package browser_test

import (
	"cmp"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// terminal is two shells, one above the other, that tmux plays, and what was seen of them.
type terminal struct {
	t      *testing.T
	socket string
	active int // the shell that is typed into
	last   time.Time
	at     time.Duration // of the last frame, without what was cut from pauses
	frames []frame
}

// frame is what the terminal shows from a time on.
type frame struct {
	at   time.Duration
	rows []string // with the escape sequences of colours
	x, y int      // of the cursor
}

// The size of the terminal, and how it is recorded.
const (
	columns   = 88
	upper     = 9 // rows of the shell above
	lower     = 14
	aKey      = 35 * time.Millisecond  // from one to the next
	aPause    = 900 * time.Millisecond // the longest that is kept
	lastFrame = 4 * time.Second        // how long the last frame is shown
)

// newTerminal starts the shells.
func newTerminal(t *testing.T, home string, env []string) *terminal {
	t.Helper()
	r := &terminal{t: t, socket: filepath.Join(shortDir(t), "tmux"), last: time.Now()}
	shell := "exec env 'PS1=$ ' '" + strings.Join(env, "' '") + "' bash --norc --noprofile"
	r.tmux("new-session", "-d", "-x", strconv.Itoa(columns), "-y", strconv.Itoa(upper+1+lower), "-c", home, shell, ";", "set", "-g", "status", "off")
	t.Cleanup(func() { r.tmux("kill-server") })
	r.tmux("split-window", "-v", "-l", strconv.Itoa(lower), "-c", home, shell)
	t.Cleanup(r.end)
	return r
}

// end ends what the shells run: kith serve outlives a terminal that is closed.
func (r *terminal) end() {
	r.tmux("send-keys", "-t", ":.0", "C-c", ";", "send-keys", "-t", ":.1", "C-c")
	for late := time.Now().Add(patience); strings.Contains(r.tmux("list-panes", "-F", "#{pane_current_command}"), "kith"); time.Sleep(aKey) {
		assert.Require(r.t, time.Now().Before(late), "kith does not end")
	}
}

func (r *terminal) tmux(args ...string) string {
	r.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-u", "-f", "/dev/null", "-S", r.socket}, args...)...).CombinedOutput()
	if err != nil {
		r.t.Fatalf("tmux %v: %v %s", args, err, out)
	}
	return string(out)
}

// look adds a frame if the terminal changed, and returns what the active shell shows.
func (r *terminal) look() string {
	r.t.Helper()
	pane := fmt.Sprint(":.", r.active)
	seen := r.tmux("display", "-p", "-t", pane, "#{cursor_x} #{cursor_y}", ";", "capture-pane", "-p", "-e", "-t", ":.0", ";", "capture-pane", "-p", "-e", "-t", ":.1")
	cursor, screen, _ := strings.Cut(seen, "\n")
	f := frame{rows: strings.Split(strings.TrimSuffix(screen, "\n"), "\n")}
	_, err := fmt.Sscan(cursor, &f.x, &f.y)
	assert.OK(r.t, err, cursor)
	f.y += r.active * upper
	now := time.Now()
	if n := len(r.frames); n == 0 || !slices.Equal(r.frames[n-1].rows, f.rows) || r.frames[n-1].x != f.x || r.frames[n-1].y != f.y {
		r.at += min(now.Sub(r.last), aPause)
		r.last, f.at = now, r.at
		r.frames = append(r.frames, f)
	}
	from := r.active * upper
	return plainText(strings.Join(f.rows[min(from, len(f.rows)):min(from+[]int{upper, lower}[r.active], len(f.rows))], "\n"))
}

// types types a line, and waits until the shell shows a text.
func (r *terminal) types(line, until string) string {
	r.t.Helper()
	for _, key := range line {
		r.tmux("send-keys", "-t", fmt.Sprint(":.", r.active), "-l", string(key))
		r.look()
		time.Sleep(aKey)
	}
	r.pause(300 * time.Millisecond)
	r.tmux("send-keys", "-t", fmt.Sprint(":.", r.active), "Enter")
	return r.shows(until)
}

// shows waits until the active shell shows a text.
func (r *terminal) shows(text string) string {
	r.t.Helper()
	for late := time.Now().Add(patience); ; time.Sleep(aKey) {
		screen := r.look()
		if strings.Contains(screen, text) {
			return screen
		}
		assert.Require(r.t, time.Now().Before(late), "the terminal never shows", text, "but", screen)
	}
}

// pause records for a time.
func (r *terminal) pause(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(aKey) {
		r.look()
	}
}

// record records what a newcomer does: sign a machine in, serve, and call a model that runs
// elsewhere.
func (n *town) record() {
	t := n.t
	engine := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "qwen3:4b", ContextLength: 40960, Tools: true}}})
	assert.OK(t, engine.Start())
	t.Cleanup(func() { engine.Close() })
	home := filepath.Join(n.home, "newcomer")
	assert.OK(t, os.MkdirAll(filepath.Join(home, ".kith"), 0o700))
	assert.OK(t, os.WriteFile(filepath.Join(home, ".kith", "config.toml"), fmt.Appendf(nil, "[daemon]\nlisten = %q\n[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%q]\n",
		enginetest.FreeAddress(), engine.URL()+"/v1"), 0o600))
	r := newTerminal(t, home, []string{"PATH=" + filepath.Dir(n.binary) + ":" + os.Getenv("PATH"), "HOME=" + home, "KITH_SYSTEM_ROOT=" + n.home, "HISTFILE=", "NO_COLOR=",
		"HTTPS_PROXY=" + n.proxy(), "NO_PROXY=127.0.0.1,localhost", "SSL_CERT_FILE=" + n.pem, "CURL_CA_BUNDLE=" + n.pem, "KITH_KEY=" + n.secrets[ada].Reveal()})
	r.shows("$")
	r.pause(500 * time.Millisecond)
	r.types("kith login --hub https://"+hubName, "Type ")
	screen := r.shows("-")
	r.pause(time.Second)
	screen = r.look()
	assert.Require(t, userCode.MatchString(screen), screen)
	n.op.open("/device")
	n.op.send("#show", "#code", userCode.FindString(screen))
	n.op.send("#approve")
	r.shows("signed in to")
	r.pause(aPause)
	r.types("kith serve 2>serve.log", "daemon on")
	r.pause(aPause)
	r.active = 1
	r.types("kith models --account", "qwen3:4b")
	r.pause(2 * aPause)
	r.types("clear", "$")
	r.types("kith run qwen3-coder:30b \"A haiku about a shared computer\"", "the fan sings")
	r.pause(aPause)
	r.types("curl -sS https://"+hubName+"/v1/chat/completions --oauth2-bearer $KITH_KEY \\", ">")
	r.types(`  --json '{"model":"qwen3:8b","messages":[{"role":"user","content":"Ready?"}]}' |`, "Ready")
	r.types(`  grep -o '"content":"[^"]*"'`, `"content":"Yes.`)
	r.pause(aPause)
	picture := r.svg()
	assert.OK(t, os.WriteFile(filepath.Join(*pictures, "terminal.svg"), picture, 0o644))
	t.Logf("terminal.svg: %d KiB, %v", len(picture)>>10, r.at.Round(time.Second))
}

var userCode = regexp.MustCompile(`\b[A-Z]{4}-[A-Z]{4}\b`)

// proxy starts an HTTP proxy that leads to the hub, whatever is asked for, and returns its address.
func (n *town) proxy() string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hub, err := net.Dial("tcp", n.listen)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer hub.Close()
		client, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return // the client left
		}
		defer client.Close()
		_, _ = io.WriteString(client, "HTTP/1.1 200 OK\r\n\r\n") // the copies end if it fails
		go func() { _, _ = io.Copy(hub, client); hub.Close() }()
		_, _ = io.Copy(client, hub) // either end may leave at any time
	}))
	n.t.Cleanup(server.Close)
	return server.URL
}

var escape = regexp.MustCompile("\x1b\\[([0-9;]*)m|\x1b[()].|[\x0e\x0f]")

// plainText returns text without escape sequences.
func plainText(text string) string { return escape.ReplaceAllString(text, "") }

// The measures of the picture, in pixels.
const (
	cellWidth  = 8.4
	cellHeight = 19
	margin     = 16
	titleBar   = 34
)

// svg returns the recording as a picture that moves by CSS alone, without end. Each row is there
// once for each text that it had, shown while it had it. Where the system asks for less
// motion it is the last frame.
func (r *terminal) svg() []byte {
	total := r.at + lastFrame
	const rows, wide = upper + lower, columns*cellWidth + 2*margin
	const high = titleBar + rows*cellHeight + 2*margin
	var style, body strings.Builder
	names := map[[2]time.Duration]string{} // of the animations, by when they show
	show := func(from, to time.Duration, element, attributes, content string) {
		span := [2]time.Duration{from, to}
		name := names[span]
		if name == "" {
			name = fmt.Sprintf("s%d", len(names))
			names[span] = name
			after := "hidden"
			if to == total {
				after = "visible"
			}
			fmt.Fprintf(&style, "@keyframes %s{%.2f%%{visibility:visible}%.2f%%,to{visibility:%s}}.%s{animation-name:%s}\n",
				name, 100*float64(from)/float64(total), 100*float64(to)/float64(total), after, name, name)
		}
		if to == total {
			name += " last"
		}
		fmt.Fprintf(&body, "<%s class=\"%s\" %s>%s</%s>\n", element, name, attributes, content, element)
	}
	top := func(y int) int {
		at := titleBar + margin/2 + y*cellHeight
		if y >= upper {
			at += margin / 2
		}
		return at
	}
	for y := range rows {
		r.spans(func(f frame) string { return f.row(y) }, total, func(from, to time.Duration, row string) {
			if n := utf8.RuneCountInString(plainText(row)); n > 0 {
				show(from, to, "text", fmt.Sprintf(`x="%d" y="%d" textLength="%.1f"`, margin, top(y)+14, float64(n)*cellWidth), coloured(row))
			}
		})
	}
	r.spans(func(f frame) string { return fmt.Sprint(f.x, " ", f.y) }, total, func(from, to time.Duration, at string) {
		var x, y int
		_, _ = fmt.Sscan(at, &x, &y) // as it was written
		show(from, to, "rect", fmt.Sprintf(`x="%.1f" y="%d" width="8" height="17"`, margin+float64(x)*cellWidth, top(y)), "")
	})
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d" role="img" aria-label="kith login, kith serve, and a call for a model on another machine">
<style>
text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e9ebef;white-space:pre}
rect{fill:#a9b1ff;opacity:.7}
.window{fill:#16191e;stroke:#3a414c;opacity:1}
.c1{fill:#ff9c9c}.c2{fill:#74d6a0}.c3{fill:#f2ba68}.c4,.c5{fill:#a9b1ff}.c6{fill:#5fd0cf}.dim{fill:#a0a8b6}.bold{font-weight:700}
[class^=s]{visibility:hidden;animation:%.1fs step-end infinite}
@media(prefers-reduced-motion:reduce){[class^=s]{animation:none}[class$=last]{visibility:visible}}
%s</style>
<rect class="window" x=".5" y=".5" width="%.0f" height="%d" rx="10"/>
<circle cx="20" cy="19" r="5.5" fill="#ff6159"/><circle cx="39" cy="19" r="5.5" fill="#ffbd2e"/><circle cx="58" cy="19" r="5.5" fill="#28c941"/>
<path d="M0 %dH%.0f" stroke="#3a414c"/>
%s</svg>
`, wide, high, wide, high, total.Seconds(), style.String(), wide-1, high-1, top(upper)-margin/2, wide, body.String())
}

// row returns a row of the frame, without the spaces at its end.
func (f frame) row(y int) string {
	if y >= len(f.rows) {
		return ""
	}
	return strings.TrimRight(f.rows[y], " ")
}

// spans calls show with each value that a part of the frames had, and from when to when.
func (r *terminal) spans(part func(frame) string, total time.Duration, show func(from, to time.Duration, value string)) {
	for i := 0; i < len(r.frames); {
		value, from, to := part(r.frames[i]), r.frames[i].at, total
		for i++; i < len(r.frames); i++ {
			if part(r.frames[i]) != value {
				to = r.frames[i].at
				break
			}
		}
		show(from, to, value)
	}
}

// coloured returns a row as the content of a text element.
func coloured(row string) string {
	var out strings.Builder
	weight, colour := "", ""
	for row != "" {
		text, code, rest := row, "", ""
		if at := escape.FindStringSubmatchIndex(row); at != nil {
			text, rest = row[:at[0]], row[at[1]:]
			if at[2] >= 0 {
				code = cmp.Or(row[at[2]:at[3]], "0")
			}
		}
		switch class := strings.TrimSpace(weight + " " + colour); {
		case text != "" && class != "":
			fmt.Fprintf(&out, `<tspan class="%s">%s</tspan>`, class, html.EscapeString(text))
		default:
			out.WriteString(html.EscapeString(text))
		}
		for number := range strings.SplitSeq(code, ";") {
			switch n, err := strconv.Atoi(number); {
			case err != nil: // a change of the character set
			case n == 0:
				weight, colour = "", ""
			case n == 1:
				weight = "bold"
			case n == 2:
				weight = "dim"
			case n == 22:
				weight = ""
			case n == 39:
				colour = ""
			case n >= 31 && n <= 36, n >= 91 && n <= 96:
				colour = fmt.Sprint("c", n%10)
			}
		}
		row = rest
	}
	return out.String()
}
