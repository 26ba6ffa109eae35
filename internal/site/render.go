package site

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"fmt"
	"html/template"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// The files of the pages. static/LICENSES.md lists the licenses of the libraries.
//
//go:embed static templates
var files embed.FS

// staticPath is the prefix of the paths of static files. A hash of the content and the
// name follow, so that browsers can cache the file forever.
const staticPath = "/static/"

// asset is one static file.
type asset struct {
	kind         string
	body, zipped []byte
}

// assetKinds are the types of the static files and of the documentation's pictures. They
// do not depend on the MIME tables of this computer.
var assetKinds = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	".png": "image/png", ".woff2": "font/woff2",
}

// assetInCSS matches a file name in a stylesheet, which is replaced by the file's path.
var assetInCSS = regexp.MustCompile(`url\("([a-z0-9.]+)"\)`)

// unservedCSS matches what a stylesheet is served without: a comment, except for one with a
// license, with the space around it, and the indentation of a line.
var unservedCSS = regexp.MustCompile(`(?s)\s*/\*[^!].*?\*/|(?m)^ +`)

// bundles are scripts that are served as one without comments and indentation, which is fewer
// requests and fewer bytes. No literal in them has more than one line.
var bundles = map[string][]string{
	"chat.js": {"dom.js", "history.js", "tree.js", "said.js", "settings.js", "calls.js", "picker.js", "chats.js", "try.js"},
}

// unservedJS matches what these scripts are served without: a line that is only a comment, and
// the indentation of another.
var unservedJS = regexp.MustCompile(`(?m)^ *//.*\n|^ +`)

// assets are the static files by path, and assetPaths their paths by name.
var (
	assets = sync.OnceValue(func() map[string]asset {
		all, paths := map[string]asset{}, map[string]string{}
		names := must(fs.Glob(files, "static/*"))
		slices.SortFunc(names, func(a, b string) int { // stylesheets last: they contain paths of other files
			return cmp.Or(cmp.Compare(path.Ext(b), path.Ext(a)), cmp.Compare(a, b))
		})
		add := func(name string, a asset) {
			a.kind, a.zipped = assetKinds[path.Ext(name)], compress(a.body, gzip.BestCompression)
			at := fmt.Sprintf("%s%.8x/%s", staticPath, sha256.Sum256(a.body), name)
			all[at], paths[name] = a, at
		}
		for name, parts := range bundles {
			var body []byte
			for _, part := range parts {
				body = append(body, unservedJS.ReplaceAll(must(files.ReadFile("static/"+part)), nil)...)
			}
			add(name, asset{body: body})
		}
		for _, name := range names {
			a := asset{body: must(files.ReadFile(name))}
			switch path.Ext(name) {
			case ".md":
				continue
			case ".js":
				if path.Base(name) == "app.js" { // like the bundles, it has no literal of several lines
					a.body = unservedJS.ReplaceAll(a.body, nil)
				}
			case ".css":
				a.body = assetInCSS.ReplaceAllFunc(unservedCSS.ReplaceAll(a.body, nil), func(match []byte) []byte {
					return fmt.Appendf(nil, "url(%q)", paths[string(assetInCSS.FindSubmatch(match)[1])])
				})
			}
			add(path.Base(name), a)
		}
		return all
	})
	assetPaths = sync.OnceValue(func() map[string]string {
		paths := map[string]string{}
		for at := range assets() {
			paths[path.Base(at)] = at
		}
		return paths
	})
)

// compress returns the text compressed with gzip at a level.
func compress(text []byte, level int) []byte {
	var zipped bytes.Buffer
	zip := must(gzip.NewWriterLevel(&zipped, level))
	_, _ = zip.Write(text) // writes to memory never fail
	_ = zip.Close()
	return zipped.Bytes()
}

// acceptsGzip reports whether the response may be compressed with gzip.
func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// compressed are the templates whose pages are compressed. None holds a secret where it is
// loaded by GET: the length of a compressed page reveals what a secret in it has in common
// with a text beside it, which an attacker may choose (BREACH).
var compressed = map[string]bool{
	"access": true, "access-for-you": true, "access-group": true, "access-groups": true, "access-invites": true, "api": true, "applications": true, "documentation": true, "home": true, "machine": true, "machines": true,
	"model": true, "models": true, "notices": true, "operator": true, "operator-audit": true, "operator-machines": true,
	"operator-members": true, "request": true, "requests": true, "sessions": true, "try": true, "usage": true,
}

// must panics on an error in the embedded files. The first test finds such an error.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func serveStatic(w http.ResponseWriter, r *http.Request) {
	a, ok := assets()[r.URL.Path]
	if !ok || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "there is no such file", http.StatusNotFound)
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	body := a.body
	if acceptsGzip(r) {
		body = a.zipped
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodGet {
		_, _ = w.Write(body) // an error means that the browser disconnected
	}
}

// templates are the templates of the pages, each with the layout.
var templates = sync.OnceValue(func() map[string]*template.Template {
	base := template.Must(template.New("layout").Funcs(template.FuncMap{
		"asset":    func(name string) string { return assetPaths()[name] },
		"icon":     icon,
		"moment":   moment,
		"complete": complete,
		"ago":      func(t time.Time) string { return ago(t, time.Now()) },
		"number":   api.Number,
		"short":    short,
		"odd":      func(n int) bool { return n%2 == 1 },
		"duration": duration,
		"size":     size,
		"rate":     rate,
		"link": func(v screen, href, text, icon string) navLink {
			link := navLink{Href: href, Text: text, Icon: icon,
				Here: v.under(href) || href == accessPath && (v.under("/sharing") || v.under("/groups"))}
			if href == noticesPath {
				link.Count = v.Notices
			}
			return link
		},
		"tabs": func(at string, pairs ...string) (links []navLink) {
			for pair := range slices.Chunk(pairs, 2) {
				below := len(links) > 0 && strings.HasPrefix(at, pair[0]+"/") // every page is below the first
				links = append(links, navLink{Href: pair[0], Text: pair[1], Here: at == pair[0] || below})
			}
			return links
		},
		"madeat":    api.MadeAt,
		"title":     api.Title,
		"outcome":   api.Outcome,
		"speed":     func(t account.Trace) float64 { return t.Speed() },
		"tone":      func(state string) string { return availabilityWords(state).tone },
		"state":     func(state string) string { return availabilityWords(state).text },
		"code":      inCode,
		"browser":   browserName,
		"abilities": abilities,
		"facts":     factWords,
		"computer":  computerWords,
		"engines":   engineWords,
		"kinds":     kindWords,
		"params":    parameterWords,
		"lacks":     lacks,
		"list":      func(values []string) string { return strings.Join(values, ", ") },
		"few":       few,
		"lines":     func(values []string) string { return strings.Join(values, "\n") },
		"key":       nameKey,
		"limits":    limitWords,
		"limited":   func(l api.Limits) bool { return limitWords(l) != "no limits" },
		"unlimited": func(ways []accessWay) bool {
			return !slices.ContainsFunc(ways, func(w accessWay) bool { return limitWords(w.Limits) != "no limits" })
		},
		"reach":    reachWords,
		"keystate": func(k api.Key) stateCount { return stateCount{State: keyState(k).text, Tone: keyState(k).tone} },
		"qr":       qrCode,
		"pre":      preText,
		"live": func(s liveContent, id, idle string) liveWords {
			now := s.texts[id]
			return liveWords{id, cmp.Or(now.text, idle), now.tone, idle}
		},
		"minute": utcMinute, "midnight": midnight,
		"menu": func(id, name string) menuButton { return menuButton{"menu-" + id, name} },
		// fileact returns the button for an act on a model file.
		"fileact": func(machine, act, model, do string) fileButton { return fileButton{machine, act, model, do} },
	}).ParseFS(files, "templates/layout.html", "templates/parts.html", "templates/facts.html"))
	parsed := map[string]*template.Template{}
	for _, name := range must(fs.Glob(files, "templates/*.html")) {
		page := strings.TrimSuffix(path.Base(name), ".html")
		if page != "layout" && page != "parts" && page != "facts" {
			parsed[page] = template.Must(template.Must(base.Clone()).ParseFS(files, name))
		}
	}
	return parsed
})

// sentence returns a message as a sentence of a page: with a capital and a full stop.
func sentence(message string) string {
	if message == "" {
		return ""
	}
	_, size := utf8.DecodeRuneInString(message)
	return strings.ToUpper(message[:size]) + message[size:] + "."
}

// fewNames is how many names of a list are shown in one row of a table.
const fewNames = 4

// few returns the first names of a list, and how many more there are.
func few(names []string) string {
	if len(names) <= fewNames+1 {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %s more", strings.Join(names[:fewNames], ", "), api.Number(len(names)-fewNames))
}

// limitWords returns limits as text.
func limitWords(l api.Limits) string {
	var all []string
	if len(l.Models) > 0 {
		all = append(all, "models "+strings.Join(l.Models, ", "))
	}
	if l.Hours != "" {
		all = append(all, l.Hours+" machine time")
	}
	if l.Concurrent != nil {
		all = append(all, fmt.Sprint(*l.Concurrent, " at once"))
	}
	switch {
	case l.PerDay == nil:
	case *l.PerDay == 1:
		all = append(all, "1 call a day")
	default:
		all = append(all, api.Number(*l.PerDay)+" calls a day")
	}
	return cmp.Or(strings.Join(all, "; "), "no limits")
}

// navLink is a link in the navigation.
type navLink struct {
	Href, Text, Icon string
	Here             bool // it leads to the current page or to one above
	Count            int  // number of new items there
}

// icon returns a symbol of static/icons.svg.
func icon(name string) template.HTML {
	at := assetPaths()["icons.svg"] + "#" + name
	return template.HTML(`<svg class="icon" aria-hidden="true"><use href="` + at + `"/></svg>`)
}

// liveWords is an element whose text is updated live. Idle is its text when the page's
// stream has none for it.
type liveWords struct{ ID, Text, Tone, Idle string }

// menuButton opens the menu of a row. ID is that of the menu.
type menuButton struct{ ID, Name string }

// moment returns a time as text, as shown until the page's script converts it to the
// reader's time zone.
func moment(t time.Time) string { return api.Moment(t, time.Now().UTC()) }

// complete returns a time with its year, for text that may be read much later, such as
// e-mail.
func complete(t time.Time) string { return api.Moment(t, time.Time{}) }

// utcMinute returns a time of a filter, which is UTC, as the value of a field for a date and
// a time; "" if it is none. api.RequestFilter has the forms of such a time.
func utcMinute(text string) string {
	const minute = "2006-01-02T15:04"
	for _, layout := range []string{time.DateOnly, minute, time.RFC3339} {
		if at, err := time.Parse(layout, text); err == nil {
			return at.UTC().Format(minute)
		}
	}
	return ""
}

// ago returns how long ago a time was, or how far ahead it is, in one unit. If it is more
// than a week away, ago returns the moment.
func ago(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	apart := now.Sub(t).Round(time.Second).Abs()
	text := ""
	count := func(unit time.Duration) int {
		if t.After(now) { // rounded to the nearest unit, "in 7 days" must not become 6 a moment later
			return int(apart.Round(unit) / unit)
		}
		return int(apart / unit)
	}
	switch {
	case apart < time.Minute && !t.After(now):
		return "just now"
	case apart < time.Minute:
		return "in a moment"
	case apart < time.Hour:
		text = fmt.Sprintf("%d min", count(time.Minute))
	case apart < 24*time.Hour:
		text = fmt.Sprintf("%d h", count(time.Hour))
	case count(24*time.Hour) == 1:
		text = "1 day"
	case apart <= 7*24*time.Hour:
		text = fmt.Sprintf("%d days", count(24*time.Hour))
	default:
		return api.Moment(t, now.UTC())
	}
	if t.After(now) {
		return "in " + text
	}
	return text + " ago"
}

// short returns a number with its thousands separated, or from 100,000 on with a unit: 123 k,
// 11.4 M.
func short(n int64) string {
	if n < 100_000 {
		return api.Number(n)
	}
	value, unit := float64(n), ""
	for _, next := range []string{"k", "M", "G", "T"} {
		if value < 999.5 {
			break
		}
		value, unit = value/1000, next
	}
	if value < 100 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", value), ".0") + " " + unit
	}
	return fmt.Sprintf("%.0f %s", value, unit)
}

// duration returns milliseconds as text in a suitable unit.
func duration(ms int64) string {
	d := time.Duration(ms) * time.Millisecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", ms)
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return strings.TrimSuffix(fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute), " 0 min")
	default:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
}

// rate returns tokens per second as text.
func rate(x float64) string {
	if x < 100 {
		return fmt.Sprintf("%.1f", x)
	}
	return api.Number(int64(math.Round(x)))
}

// size returns a number of bytes as text.
func size(n int64) string {
	const unit = 1024
	switch {
	case n < unit:
		return api.Number(n) + " bytes"
	case n < unit*unit:
		return fmt.Sprintf("%.1f KiB", float64(n)/unit)
	case n < unit*unit*unit:
		return fmt.Sprintf("%.1f MiB", float64(n)/unit/unit)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/unit/unit/unit)
}

// midnight returns an element with the time of day when the count of a day's calls begins
// again. The page's script converts it to the reader's time zone.
func midnight() template.HTML {
	end := time.Now().UTC().Truncate(24*time.Hour).AddDate(0, 0, 1)
	return template.HTML(`<time datetime="` + end.Format(time.RFC3339) + `" data-clock>00:00 UTC</time>`)
}

// inCode renders one of our texts as HTML. `x` in it becomes code, and 00:00 UTC becomes
// midnight.
func inCode(text string) template.HTML {
	return template.HTML(strings.ReplaceAll(string(withCode(text)), "00:00 UTC", string(midnight())))
}

// withCode renders one of our texts as HTML. `x` in it becomes code.
func withCode(text string) template.HTML {
	var page strings.Builder
	for {
		before, rest, _ := strings.Cut(text, "`")
		command, after, closed := strings.Cut(rest, "`")
		if !closed {
			page.WriteString(template.HTMLEscapeString(text))
			return template.HTML(page.String())
		}
		page.WriteString(template.HTMLEscapeString(before) + "<code>" + template.HTMLEscapeString(command) + "</code>")
		text = after
	}
}

// preText renders the text of an element. It leaves quotes alone, which html/template
// would escape in five bytes each.
func preText(text string) template.HTML {
	return template.HTML(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(text))
}

// browserName returns the browser's name for a User-Agent header. An unknown header is
// returned unchanged.
func browserName(agent string) string {
	first := func(names ...[2]string) string {
		for _, name := range names {
			if strings.Contains(agent, name[0]) {
				return name[1]
			}
		}
		return ""
	}
	// A browser also claims to be those that follow it in this list.
	program := first([2]string{"Firefox/", "Firefox"}, [2]string{"Edg", "Edge"}, [2]string{"OPR/", "Opera"},
		[2]string{"Chrome/", "Chrome"}, [2]string{"CriOS/", "Chrome"},
		[2]string{"FxiOS/", "Firefox"}, [2]string{"Safari/", "Safari"})
	system := first([2]string{"Android", "Android"}, [2]string{"iPhone", "iPhone"}, [2]string{"iPad", "iPad"},
		[2]string{"Windows", "Windows"}, [2]string{"Mac OS X", "macOS"},
		[2]string{"CrOS", "ChromeOS"}, [2]string{"Linux", "Linux"})
	if program == "" || system == "" {
		return cmp.Or(agent, "unknown")
	}
	return program + " on " + system
}

func reachWords(r account.Reach) string {
	switch r {
	case account.ReachOwn:
		return "your machines"
	case account.ReachShared:
		return "your own and shared machines"
	default:
		return "everything you can use"
	}
}

// screen is the data of every template.
type screen struct {
	Title   string
	Path    string
	Here    string // path with its query, to return to
	Theme   string // "light", "dark", or empty for the system's
	Me      account.Member
	SignUp  SignUp
	Base    string
	Problem *fault.Fault
	Notices int        // number of unread notices
	Done    string     // the confirmation message of the previous action
	Form    url.Values // the typed values of a refused form
	ID      string
	Data    any
}

// under reports whether the page is at a path or below it. Only the first page is under
// "/".
func (v screen) under(path string) bool {
	return v.Path == path || path != "/" && strings.HasPrefix(v.Path, path+"/")
}

// Joining reports whether the page signs a visitor up by a link or an invite, also after a
// refused form. Such a page has no link to the normal sign-up, which would lose the code.
func (v screen) Joining() bool {
	return v.under("/welcome") || v.under("/invite") || v.Form.Get("link") != "" || v.Form.Get("invite") != ""
}

// refreshHeader marks a request from a script that loads a page to copy a part of it
// (static/app.js). It leaves the confirmation message for the next page that the member
// opens.
const refreshHeader = "X-Kith-Refresh"

// answerWith writes a handler's reply or error.
func (s *Site) answerWith(w http.ResponseWriter, v *visit, out reply, err error) {
	h := w.Header()
	if err == nil && out.write != nil {
		out.write(w)
		return
	}
	if err == nil && out.to != "" {
		if out.done != "" && v.me.ID != "" {
			s.sessions.Put(v.Context(), sessionDone, out.done)
		}
		h.Set("Location", out.to)
		w.WriteHeader(http.StatusSeeOther)
		return
	}
	seen := screen{
		Title: out.title, Path: v.URL.Path, Here: v.URL.RequestURI(), Theme: theme(v.Request), Me: v.me,
		SignUp: s.SignUp, Base: s.Base, ID: v.id, Data: out.data, Form: v.form,
	}
	status := http.StatusOK
	if err != nil {
		seen.Problem = fault.Of(err)
		status = seen.Problem.Status()
		if seen.Problem.Code == fault.InternalError {
			s.Log.Error("page failed", "id", v.id, "method", v.Method, "error", err)
		}
		api.SetRetryAfter(h, seen.Problem)
	} else if v.me.ID != "" && v.Header.Get(refreshHeader) == "" {
		seen.Done = s.sessions.PopString(v.Context(), sessionDone)
	}
	if out.page == "" {
		out.page, seen.Title = "problem", cmp.Or(out.title, seen.Problem.Code.Title())
	}
	if v.me.ID != "" {
		seen.Notices = s.countNotices(v)
	}
	var text bytes.Buffer
	if err := templates()[out.page].ExecuteTemplate(&text, "layout", seen); err != nil {
		s.Log.Error("cannot write a page", "id", v.id, "page", out.page, "error", err)
		http.Error(w, "something went wrong on our side; the operator can find it in the log by the ID "+v.id+"",
			http.StatusInternalServerError)
		return
	}
	page := text.Bytes()
	if seen.Problem != nil && v.Method == http.MethodPost {
		page = atForm(page, v.URL.Path, cmp.Or(v.form.Get("machine"), v.form.Get("group"), v.form.Get("with"),
			v.form.Get("member")), seen.Problem.Param)
	}
	h.Set("Content-Type", "text/html; charset=utf-8")
	if v.Method == http.MethodGet && compressed[out.page] {
		h.Set("Vary", "Accept-Encoding")
		if acceptsGzip(v.Request) {
			h.Set("Content-Encoding", "gzip")
			page = compress(page, gzip.DefaultCompression)
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write(page)
}

// countNotices returns the member's number of unread notices. If the database fails, it
// returns 0, so that the page can still be shown.
func (s *Site) countNotices(v *visit) int {
	n, err := s.DB.CountNotices(v.Context(), v.me.ID, s.DB.Now())
	if err != nil {
		s.Log.Warn("cannot count the notices of a member", "id", v.id, "error", err)
	}
	return n
}
