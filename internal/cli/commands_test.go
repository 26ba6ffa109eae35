package cli

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/llama"
)

// said is what one command did.
type said struct {
	status   int
	out, err string
}

// kith runs one command in this process, with KITH_HOME an own folder unless
// the test set it, and none of the environment's other settings.
func kith(t *testing.T, in string, args ...string) said {
	t.Helper()
	var out bytes.Buffer
	errs := new(shared) // a hub that starts slowly logs that meanwhile
	status := Main(t.Context(), args, strings.NewReader(in), &out, errs)
	return said{status, out.String(), errs.String()}
}

// asked is a request that a double of a server was sent.
type asked struct{ method, path, bearer, body string }

// double answers requests with the handler's words and keeps what it was asked.
func double(t *testing.T, answer func(w http.ResponseWriter, path string)) (http.Handler, *[]asked) {
	t.Helper()
	var mu sync.Mutex // a completion asks for several lists at once
	var log []asked
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		log = append(log, asked{r.Method, r.URL.String(), r.Header.Get("Authorization"), string(body)})
		mu.Unlock()
		answer(w, r.URL.Path)
	}), &log
}

func words(text string) func(http.ResponseWriter, string) {
	return func(w http.ResponseWriter, _ string) { io.WriteString(w, text) }
}

func refuse(status int, code, message string) func(http.ResponseWriter, string) {
	return func(w http.ResponseWriter, _ string) {
		w.WriteHeader(status)
		io.WriteString(w, `{"error":{"code":"`+code+`","message":"`+message+`"}}`)
	}
}

const streamed = `: waiting 2 ahead, 41 s left

data: {"choices":[{"delta":{"role":"assistant","reasoning_content":"hm"}}]}

data: {"choices":[{"delta":{"content":"Hello"}}]}

data: {"choices":[{"delta":{"content":" there"},"finish_reason":"stop"}]}

data: [DONE]

`

func TestRun(t *testing.T) {
	for _, test := range []struct {
		name   string
		answer func(http.ResponseWriter, string)
		args   []string
		in     string
		want   said
	}{
		{"prompt", words(streamed), []string{"run", "tiny", "say", "hello"}, "", said{0, "Hello there\n", ""}},
		{"prompt from standard input", words(streamed), []string{"run", "tiny"}, "say hello\n", said{0, "Hello there\n", ""}},
		{"one document", words(`{"id": "c1",` + "\n" + `"choices":[{"message":{"role":"assistant","content":"Hello"}}]}`), []string{"run", "tiny", "say hello", "--json"}, "",
			said{0, `{"id":"c1","choices":[{"message":{"role":"assistant","content":"Hello"}}]}` + "\n", ""}},
		{"a document without an answer", words(`{"choices":[]}`), []string{"run", "tiny", "x", "--json"}, "", said{1, "", "cannot understand the answer: it holds no choices"}},
		{"no document", words("<html>"), []string{"run", "tiny", "x", "--json"}, "", said{1, "", "cannot understand the answer"}},
		{"nothing to ask", words(streamed), []string{"run", "tiny"}, " ", said{2, "", "cannot ask nothing"}},
		{"all busy", refuse(503, "CAPACITY_FULL", "all busy"), []string{"run", "tiny", "x"}, "", said{4, "", "cannot run tiny: all busy"}},
		{"nobody serves it", refuse(404, "model_not_found", "no such"), []string{"run", "tiny", "x"}, "", said{4, "", "cannot run tiny: no such"}},
		{"wrong address", refuse(404, "route_not_found", "no route"), []string{"run", "tiny", "x"}, "", said{1, "", "no route"}},
		{"wrong key", refuse(401, "invalid_api_key", "wrong key"), []string{"run", "tiny", "x"}, "", said{3, "", "wrong key"}},
		{"no words at all", refuse(500, "", ""), []string{"run", "tiny", "x"}, "", said{1, "", "status 500"}},
		{"fails on the way", words("data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n" +
			"data: {\"error\":{\"code\":\"machine_offline\",\"message\":\"the machine went away\"}}\n\n"),
			[]string{"run", "tiny", "x"}, "", said{4, "Hel", "the machine went away"}},
		{"cut short", words("data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n"),
			[]string{"run", "tiny", "x"}, "", said{1, "Hel", "without its end mark"}},
		{"not a frame", words("data: <html>\n\n"), []string{"run", "tiny", "x"}, "", said{1, "", "cannot understand a frame"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			handler, log := double(t, test.answer)
			server := httptest.NewServer(handler)
			defer server.Close()
			t.Setenv("KITH_HOME", t.TempDir())
			t.Setenv("KITH_HUB", server.URL+"/v1")
			t.Setenv("KITH_API_KEY", "kith_home_secret")
			check(t, kith(t, test.in, test.args...), test.want)
			if test.want.status == 2 {
				return
			}
			if want := (asked{"POST", "/v1/chat/completions", "Bearer kith_home_secret", ""}); len(*log) != 1 ||
				(*log)[0].method+(*log)[0].path+(*log)[0].bearer != want.method+want.path+want.bearer {
				t.Fatalf("asked %+v, want one %+v", *log, want)
			}
			stream := `"stream":true,`
			if slices.Contains(test.args, "--json") {
				stream = ""
			}
			if body := (*log)[0].body; !strings.HasPrefix(body, `{"model":"tiny",`+stream+`"messages":[{"role":"user","content":`) {
				t.Errorf("sent %s", body)
			}
		})
	}
}

// TestRunAtTheDaemon: the daemon gets the key by which it knows kith run.
func TestRunAtTheDaemon(t *testing.T) {
	handler, log := double(t, words(streamed))
	t.Setenv("KITH_HOME", onSocket(t, "daemon.sock", handler))
	t.Setenv("KITH_API_KEY", "")
	check(t, kith(t, "", "run", "tiny", "say hello"), said{0, "Hello there\n", ""})
	assert.That(t, len(*log) == 1 && (*log)[0].bearer == "Bearer kith-run", *log)
}

// check compares what a command did; an error only has to hold the words.
func check(t *testing.T, got, want said) {
	t.Helper()
	if got.status != want.status || got.out != want.out || !strings.Contains(got.err, want.err) || want.err == "" && got.err != "" {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got.err != "" && (!strings.HasPrefix(got.err, "kith: cannot ") || strings.Count(got.err, "\n") != 1) {
		t.Errorf("not one line `kith: cannot …`: %q", got.err)
	}
}

func TestChatKeepsWhatWasSaid(t *testing.T) {
	handler, log := double(t, words(streamed))
	server := httptest.NewServer(handler)
	defer server.Close()
	var out bytes.Buffer
	c := &conversation{
		app:     &app{in: strings.NewReader("one\n\n  two \n/bye\nthree\n"), out: screen{&out}, err: screen{io.Discard}},
		surface: toHub(server.URL, ""), model: "tiny",
	}
	assert.OK(t, c.chat(t.Context()))
	if len(*log) != 2 {
		t.Fatalf("asked %d times, want 2 (an empty line asks nothing, /bye ends)", len(*log))
	}
	want := `{"model":"tiny","stream":true,"messages":[{"role":"user","content":"one"},` +
		`{"role":"assistant","content":"Hello there"},{"role":"user","content":"two"}]}`
	assert.Equal(t, (*log)[1].body, want, "second turn sent")
}

// A Ctrl-C that came when the last answer had ended does not stop the next one.
func TestChatForgetsALateInterrupt(t *testing.T) {
	handler, log := double(t, words(streamed))
	server := httptest.NewServer(handler)
	defer server.Close()
	var out bytes.Buffer
	c := &conversation{app: &app{out: screen{&out}, err: screen{io.Discard}}, surface: toHub(server.URL, ""), model: "tiny"}
	interrupts := make(chan os.Signal, 1)
	interrupts <- os.Interrupt
	if err := c.turn(t.Context(), interrupts, "one"); err != nil || len(*log) != 1 || strings.Contains(out.String(), "stopped") {
		t.Errorf("%v, %d calls, said %q", err, len(*log), out.String())
	}
}

func TestChatGoesOnAfterAFailure(t *testing.T) {
	fail := true
	handler, log := double(t, func(w http.ResponseWriter, path string) {
		if fail {
			fail = false
			refuse(503, "CAPACITY_FULL", "all busy")(w, path)
			return
		}
		words(streamed)(w, path)
	})
	server := httptest.NewServer(handler)
	defer server.Close()
	var errs bytes.Buffer
	c := &conversation{
		app:     &app{in: strings.NewReader("one\ntwo\n"), out: screen{io.Discard}, err: screen{&errs}},
		surface: toHub(server.URL, ""), model: "tiny",
	}
	assert.OK(t, c.chat(t.Context()))
	assert.Contains(t, errs.String(), "kith: cannot run tiny: all busy", "the failure was reported as")
	assert.Lacks(t, (*log)[1].body, "one", "a turn that failed is still in the conversation")
}

func TestInterruptStopsTheAnswerNotTheChat(t *testing.T) {
	begun := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n")
		w.(http.Flusher).Flush()
		close(begun)
		<-r.Context().Done() // the answer that never ends, until the caller leaves
	}))
	defer server.Close()
	interrupts := make(chan os.Signal, 1)
	go func() {
		<-begun
		interrupts <- os.Interrupt
	}()
	c := &conversation{app: &app{out: screen{io.Discard}, err: screen{io.Discard}}, surface: toHub(server.URL, ""), model: "tiny"}
	assert.OK(t, c.turn(t.Context(), interrupts, "hello"), "the interrupt ended the chat")
	assert.Equal(t, len(c.said), 0, "the stopped turn is remembered", c.said)
}

func TestModels(t *testing.T) {
	list := `{"object":"list","data":[{"id":"tiny","object":"model","context_length":512,"availability":"outside_hours","via":"shared","machines":2,"capabilities":["default_tools","tools"]},{"id":"a","capabilities":["no_tools"]},{"id":"b","capabilities":["thinking","tools"]},{"id":"x/y"}]}`
	handler, log := double(t, words(list))
	server := httptest.NewServer(handler)
	defer server.Close()
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "k")
	check(t, kith(t, "", "models", "--account"), said{0, "MODEL   CONTEXT   TOOLS     AVAILABILITY    MACHINES   ACCESS\n" +
		"tiny    512       default   outside hours   2          shared\n" +
		"a       -         no                        -          \n" +
		"b       -         yes                       -          \n" +
		"x/y     -         -                         -          \n", ""})
	check(t, kith(t, "", "models", "--account", "--json"), said{0, list + "\n", ""})
	if got := (*log)[0]; got.method+" "+got.path+" "+got.bearer != "GET /api/models Bearer k" {
		t.Errorf("asked %+v", got)
	}
}

// TestRunWaitsForTheEngine: while the built-in engine starts, kith run waits; any other
// refusal ends it.
func TestRunWaitsForTheEngine(t *testing.T) {
	for name, test := range map[string]struct{ starting, refusal, answer string }{
		"starting": {`"engines":[{"kind":"builtin","name":"kith","why":"` + llama.ErrStarting.Error() + `"}]`, "CAPACITY_FULL", "hello\n"},
		"ended":    {`"engines":[{"kind":"builtin","name":"kith","why":"it ended"}]`, "CAPACITY_FULL", ""},
		"unknown":  {`"engines":[{"kind":"builtin","name":"kith","why":"` + llama.ErrStarting.Error() + `"}]`, "model_not_found", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KITH_API_KEY", "")
			asked := 0
			mux := http.NewServeMux()
			mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
				if asked++; asked > 3 {
					io.WriteString(w, `{"models":["tiny"]}`)
					return
				}
				io.WriteString(w, `{"models":[],`+test.starting+`}`)
			})
			mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
				if asked > 3 {
					io.WriteString(w, `data: {"choices":[{"delta":{"content":"hello"}}]}`+"\n\ndata: [DONE]\n\n")
					return
				}
				w.WriteHeader(http.StatusServiceUnavailable)
				fmt.Fprintf(w, `{"error":{"code":%q,"message":"not now"}}`, test.refusal)
			})
			dir := onSocket(t, "daemon.sock", mux)
			var out bytes.Buffer
			c := &conversation{app: &app{home: dir, out: screen{&out}, err: screen{io.Discard}}, model: "tiny", local: true}
			var err error
			if c.surface, err = c.toDaemon(); err != nil {
				t.Fatal(err)
			}
			if err = c.answer(t.Context(), "hi"); out.String() != test.answer || (err == nil) != (test.answer != "") {
				t.Errorf("%q, %v", out.String(), err)
			}
		})
	}
}

// onSocket serves a double on a unix socket in a folder of its own.
func onSocket(t *testing.T, name string, handler http.Handler) (dir string) {
	t.Helper()
	dir = shortDir(t)
	listener := assert.Value(new(net.ListenConfig).Listen(context.Background(), "unix", filepath.Join(dir, name)))(t)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: handler}}
	server.Start()
	t.Cleanup(server.Close)
	return dir
}

func TestAdmin(t *testing.T) {
	for _, test := range []struct {
		args   string
		answer string
		asked  string // method, path and body
		out    string // a part of what a person reads
	}{
		{"member create ann --operator", `{"id":"mem_1","name":"ann"}`, `POST /members {"name":"ann","operator":true}`, "member ann added"},
		{"member list", `[{"id":"mem_1","name":"ann","operator":true,"disabled":false,"created":"2026-11-21T08:00:00Z"}]`, "GET /members ", "operator"},
		{"member list", `[]`, "GET /members ", "none"},
		{"member disable ann/b", `{}`, "POST /members/ann%2Fb/disable ", "ann/b disabled"},
		{"key create --member ann --name ci", `{"id":"key_1","secret":"kith_home_s","member":"ann","region":"home"}`,
			`POST /keys {"member":"ann","name":"ci","reach":"all"}`, "kith_home_s\n"},
		{"key create --member ann --region us", `{"id":"key_1","secret":"kith_us_s","member":"ann","region":"us","base_url":"https://us.example/v1"}`,
			`POST /keys {"member":"ann","region":"us","reach":"all"}`, "A key of ann in region us, base URL https://us.example/v1."},
		{"key list --member ann", `[{"id":"key_1","last_four":"wxyz","region":"us","base_url":"https://us.example/v1","created":"2026-11-21T08:00:00Z","revoked":"2026-11-21T08:00:00Z"}]`,
			"GET /keys?member=ann ", "https://us.example/v1"},
		{"key revoke key_1", `{}`, "POST /keys/key_1/revoke ", "key key_1 revoked"},
		{"machine token --member ann", `{"token":"kitht_home_s"}`, `POST /machines/token {"member":"ann"}`, "kitht_home_s\n"},
		{"health", `{"ready":true}`, "GET /health ", "the hub serves calls"},
		{"usage --days 7 --by week", `{"days":7,"by":"week","since":"2026-11-16","members":3,"total":{"calls":12,"tokens_in":5},"steps":[{"day":"2026-11-16","calls":12,"members":3}],"models":[{"model":"m1","calls":12}],"codes":[]}`,
			"GET /usage?by=week&days=7 ", "Calls of 3 members  7 days, since 2026-11-16\n12 calls, 5 tokens in"},
		{"usage", `{"days":30,"by":"day","since":"2026-10-24","members":0,"total":{},"steps":[],"models":[],"codes":[]}`, "GET /usage?by=day ", "none"},
		{"machine list", `[{"id":"mch_1","name":"desk","owner":"ann","online":true}]`, "GET /machines ", "online"},
		{"machine revoke mch_1", `{}`, "POST /machines/mch_1/revoke ", "machine mch_1 revoked"},
		{"share add --owner ann --with bob", `{}`, `POST /shares {"owner":"ann","with":"bob"}`, "ann now shares with bob"},
		{"share remove --owner ann --with bob", `{}`, "DELETE /shares?owner=ann&with=bob ", "no longer"},
		{"group create team --kind org --admin ann", `{}`, `POST /groups {"name":"team","kind":"org","admin":"ann"}`, "group team created"},
		{"group add team bob", `{}`, `POST /groups/team/invitations {"member":"bob"}`, "bob is invited to group team and joins by accepting"},
		{"group admin team bob", `{}`, `POST /groups/team/admins {"member":"bob"}`, "bob is now an admin of group team"},
		{"group remove team bob", `{}`, "DELETE /groups/team/members/bob ", "bob is neither in group team nor invited"},
	} {
		t.Run(test.args, func(t *testing.T) {
			handler, log := double(t, words(test.answer))
			dir := onSocket(t, "admin.sock", handler)
			args := append([]string{"admin", "--data", dir}, strings.Fields(test.args)...)
			got := kith(t, "", args...)
			assert.That(t, got.status == 0 && strings.Contains(got.out, test.out) && got.err == "", got, test.out)
			check(t, kith(t, "", append(args, "--json")...), said{0, test.answer + "\n", ""})
			for _, ask := range *log {
				assert.Equal(t, ask.method+" "+ask.path+" "+ask.body, test.asked, "asked")
			}
		})
	}
}

func TestAdminTellsTheHubsRefusal(t *testing.T) {
	handler, _ := double(t, refuse(404, "route_not_found", "no member is named ann"))
	dir := onSocket(t, "admin.sock", handler)
	check(t, kith(t, "", "admin", "--data", dir, "member", "disable", "ann"),
		said{1, "", "cannot disable the member: no member is named ann"})
}

func TestLoginKeepsTheCredential(t *testing.T) {
	handler, log := double(t, words(`{"secret":"kithm_home_s","machine":"mch_1","name":"desk","member":"ann","region":"home"}`))
	server := httptest.NewServer(handler)
	defer server.Close()
	home := filepath.Join(t.TempDir(), "new", "home")
	t.Setenv("KITH_HOME", home)
	t.Setenv("KITH_HUB", "")
	check(t, kith(t, "kitht_home_s\n", "login", "--hub", server.URL+"/v1/", "--token", "-"),
		said{0, "signed in to " + server.URL + " as a machine of ann; start its daemon with `kith serve`\n", ""})
	name, _ := os.Hostname()
	if got := (*log)[0]; got.method+" "+got.path+" "+got.body != `POST /login {"name":"`+name+`","token":"kitht_home_s"}` {
		t.Errorf("asked %+v", got)
	}
	file := filepath.Join(home, "credential")
	info := assert.Value(os.Stat(file))(t)
	assert.Equal(t, info.Mode().Perm(), 0o600, file, "has mode")
	// What was saved is what later commands use.
	t.Setenv("KITH_API_KEY", "")
	kith(t, "", "models", "--account")
	if got := (*log)[len(*log)-1]; got.bearer != "Bearer kithm_home_s" {
		t.Errorf("the account's models were asked for with %q", got.bearer)
	}
}

// A second sign-in revokes the machine of the first one, also where that is at another hub.
func TestLoginRevokesTheOneBefore(t *testing.T) {
	made := `{"secret":"kithm_home_new","machine":"mch_2","name":"desk","member":"ann","region":"home"}`
	handler, log := double(t, func(w http.ResponseWriter, path string) {
		if path == "/login" {
			io.WriteString(w, made)
			return
		}
		io.WriteString(w, `{"state":"revoked"}`)
	})
	hub := httptest.NewServer(handler)
	defer hub.Close()
	other, otherLog := double(t, words(`{"state":"revoked"}`))
	elsewhere := httptest.NewServer(other)
	defer elsewhere.Close()
	home := t.TempDir()
	t.Setenv("KITH_HOME", home)
	for name, c := range map[string]struct {
		before daemon.Credential
		log    *[]asked
		out    string
	}{
		"the same hub":  {daemon.Credential{Hub: hub.URL, Machine: "mch_1", Member: "ann", Secret: "kithm_home_old"}, log, "the machine of ann of the sign-in before is revoked at " + hub.URL},
		"another hub":   {daemon.Credential{Hub: elsewhere.URL, Machine: "mch_1", Member: "bob", Secret: "kithm_home_old"}, otherLog, "the machine of bob of the sign-in before is revoked at " + elsewhere.URL},
		"no hub":        {daemon.Credential{Hub: "http://127.0.0.1:1", Machine: "mch_1", Secret: "kithm_home_old"}, nil, "still valid at http://127.0.0.1:1: cannot reach the hub"},
		"the same once": {daemon.Credential{Hub: hub.URL, Machine: "mch_2", Secret: "kithm_home_old"}, nil, "kith serve`\n"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.OK(t, daemon.SaveCredential(home, c.before))
			*log, *otherLog = nil, nil
			got := kith(t, "", "login", "--hub", hub.URL, "--token", "kitht_home_s")
			assert.That(t, got.status == 0 && strings.Contains(got.out, c.out), got, "does not say", c.out)
			var revoked []asked
			for _, a := range append(*log, *otherLog...) {
				if a.method == http.MethodDelete {
					revoked = append(revoked, a)
				}
			}
			if c.log == nil && len(revoked) > 0 || c.log != nil && (len(revoked) != 1 || (*c.log)[len(*c.log)-1] != asked{"DELETE", "/api/machines/mch_1", "Bearer kithm_home_old", ""}) {
				t.Errorf("revoked %+v", revoked)
			}
			assert.Equal(t, assert.Value(daemon.LoadCredential(home))(t).Secret, "kithm_home_new", "kept")
		})
	}
}

func TestLoginRefused(t *testing.T) {
	handler, _ := double(t, refuse(401, "invalid_api_key", "the login token is wrong, used or expired"))
	server := httptest.NewServer(handler)
	defer server.Close()
	home := t.TempDir()
	t.Setenv("KITH_HOME", home)
	check(t, kith(t, "", "login", "--hub", server.URL, "--token", "kitht_home_s"), said{3, "", "cannot sign in: the login token is wrong"})
	if _, err := os.Stat(filepath.Join(home, "credential")); err == nil {
		t.Error("a refused sign-in left a credential")
	}
}

// The credential is removed by every sign-out; the output says whether the hub still
// knows it.
func TestLogout(t *testing.T) {
	handler := http.Handler(nil)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	defer server.Close()
	for what, c := range map[string]struct {
		answer func(http.ResponseWriter, string)
		out    []string
		json   string
	}{
		"revoked":         {words(`{"state":"revoked"}`), []string{"signed out of HUB", "revoked there and removed here"}, `"revoked":true}`},
		"revoked already": {refuse(401, "invalid_api_key", "wrong"), []string{"signed out of HUB"}, `"revoked":true}`},
		"no hub":          {nil, []string{"removed here\n", "HUB still knows it: cannot", "kith admin machine revoke mch_1"}, `"revoked":false,"trouble":"cannot `},
		"a hub in need":   {refuse(500, "internal_error", "sorry"), []string{"HUB still knows it: cannot revoke the credential: sorry"}, `"revoked":false`},
	} {
		for _, flags := range [][]string{nil, {"--json"}} {
			home, hub := t.TempDir(), server.URL
			t.Setenv("KITH_HOME", home)
			t.Setenv("KITH_HUB", "http://127.0.0.1:1") // another hub than this machine's
			log := new([]asked)
			if c.answer == nil {
				hub = "http://127.0.0.1:1"
			} else {
				handler, log = double(t, c.answer)
			}
			if err := daemon.SaveCredential(home, daemon.Credential{Hub: hub, Machine: "mch_1", Secret: "kithm_home_s"}); err != nil {
				t.Fatal(err)
			}
			got := kith(t, "", append([]string{"logout"}, flags...)...)
			words := strings.ReplaceAll(got.out, hub, "HUB")
			want := c.out
			if flags != nil {
				want = []string{`{"hub":"HUB","machine":"mch_1",` + c.json}
			}
			for _, part := range want {
				if got.status != 0 || got.err != "" || !strings.Contains(words, part) {
					t.Errorf("%s: %+v does not say %q", what, got, part)
				}
			}
			if c.answer != nil && (len(*log) != 1 || (*log)[0] != asked{"DELETE", "/api/machines/mch_1", "Bearer kithm_home_s", ""}) {
				t.Errorf("%s: asked %+v", what, *log)
			}
			check(t, kith(t, "", "logout"), said{3, "", "cannot sign out: this machine is not signed in"})
		}
	}
}

func TestStatusOfARunningDaemon(t *testing.T) {
	handler, _ := double(t, words(`{"version":"v1","started":"2026-11-21T08:00:00Z","local":"http://127.0.0.1:8701/v1",`+
		`"tunnel":{"signed_in":true,"hub":"http://h","name":"desk","state":"acked","since":"2026-11-21T08:00:00Z"},`+
		`"sharing":{"paused":true,"hours":"","timezone":"UTC","slots":0},"open":true,"slots":4,"routed":1,"own":2,"models":["tiny"],"engines":[]}`))
	dir := onSocket(t, "daemon.sock", handler)
	t.Setenv("KITH_HOME", dir)
	got := kith(t, "", "status")
	for _, part := range []string{"http://127.0.0.1:8701/v1", "machine desk: connected", "4; calls from the hub take 1, your own 2", "paused", "tiny"} {
		assert.Contains(t, got.out, part, "status does not say", got.err)
	}
	if got := kith(t, "", "status", "--json"); !strings.HasPrefix(got.out, `{"running":true,`) {
		t.Errorf("got %+v", got)
	}
}

// TestStatusWhileItsEngineStarts: it says that instead of no engine and no model.
// A model that an engine has and the daemon does not offer is counted, with the cause.
func TestStatusCountsModelsLeftOut(t *testing.T) {
	handler, _ := double(t, words(`{"models":["a"],"engines":[{"place":"http://h:1","kind":"ollama","name":"Ollama","models":256,"left_out":"744 models, because an engine can offer 256 at most; have it list fewer"}]}`))
	t.Setenv("KITH_HOME", onSocket(t, "daemon.sock", handler))
	got := kith(t, "", "status")
	assert.Contains(t, got.out, "Ollama at http://h:1: 256 models\n          left out: 744 models, because an engine can offer 256 at most; have it list fewer\n")
}

func TestStatusWhileItsEngineStarts(t *testing.T) {
	handler, _ := double(t, words(`{"models":[],"engines":[{"place":"http://builtin","kind":"builtin","name":"kith","models":1,"why":"the built-in engine is starting"}]}`))
	t.Setenv("KITH_HOME", onSocket(t, "daemon.sock", handler))
	const shown = "\nengines   the built-in engine is starting\nmodels    none yet\n"
	if got := kith(t, "", "status"); !strings.Contains(got.out, shown) {
		t.Errorf("got %+v", got)
	}
}

// A connected machine's status has the name and the speeds that its hub has, of that machine
// only, read with the machine's own credential.
func TestStatusShowsSpeeds(t *testing.T) {
	hub, log := double(t, words(`{"data":[{"id":"mch_2","name":"attic","models":[{"id":"tiny","first_token_ms":9}]},`+
		`{"id":"mch_1","name":"desk","models":[{"id":"tiny","first_token_ms":420,"tokens_per_second":48.3},{"id":"new"},`+
		`{"id":"slow","first_token_ms":31400,"tokens_per_second":9.96},{"id":"quick","first_token_ms":20,"tokens_per_second":11411}]}]}`))
	server := httptest.NewServer(hub)
	defer server.Close()
	state := "acked"
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"tunnel":{"signed_in":true,"machine":"mch_1","name":"vm","state":"`+state+`"},"models":["tiny","new","slow","quick"],"engines":[]}`)
	})
	dir := onSocket(t, "daemon.sock", handler)
	t.Setenv("KITH_HOME", dir)
	t.Setenv("KITH_API_KEY", "hub_other")
	if err := daemon.SaveCredential(dir, daemon.Credential{Hub: server.URL, Machine: "mch_1", Secret: "kithm_home_s"}); err != nil {
		t.Fatal(err)
	}
	const shown = "\nspeed     tiny: about 0.4 s to first token, 48 tokens/s\n" +
		"          slow: about 31 s to first token, 10 tokens/s\n          quick: about 20 ms to first token, 11,411 tokens/s\n"
	if got := kith(t, "", "status"); !strings.Contains(got.out, shown) || !strings.Contains(got.out, "as machine desk: connected") || got.err != "" {
		t.Errorf("got %+v", got)
	}
	const listed = `"speeds":[{"model":"tiny","first_token_ms":420,"tokens_per_second":48.3},{"model":"slow","first_token_ms":31400,"tokens_per_second":9.96},` +
		`{"model":"quick","first_token_ms":20,"tokens_per_second":11411}]}`
	if got := kith(t, "", "status", "--json"); !strings.Contains(got.out, listed) {
		t.Errorf("got %+v", got)
	}
	if want := (asked{"GET", "/api/machines", "Bearer kithm_home_s", ""}); len(*log) != 2 || (*log)[0] != want {
		t.Errorf("asked %+v", *log)
	}
	state = "dialing"
	if got := kith(t, "", "status"); strings.Contains(got.out, "speed") || len(*log) != 2 {
		t.Errorf("not connected: %+v", got)
	}
	state = "acked"
	server.Close()
	if got := kith(t, "", "status"); strings.Contains(got.out, "speed") || !strings.Contains(got.out, "tiny") || got.status != 0 {
		t.Errorf("without a hub: %+v", got)
	}
}

// TestHealth: the check of a hub that refuses every call fails, and says why.
func TestHealth(t *testing.T) {
	handler, _ := double(t, words(`{"ready":false,"reason":"the journal of the ledger cannot be written"}`))
	got := kith(t, "", "admin", "--data", onSocket(t, "admin.sock", handler), "health")
	if got.status == 0 || got.out != "" || got.err != "kith: cannot serve calls at this hub now: the journal of the ledger cannot be written; its log says more\n" {
		t.Errorf("%+v", got)
	}
}

// Text on standard input follows the prompt.
func TestRunWithPromptAndInput(t *testing.T) {
	handler, log := double(t, words(streamed))
	server := httptest.NewServer(handler)
	defer server.Close()
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL+"/v1")
	t.Setenv("KITH_API_KEY", "kith_home_secret")
	check(t, kith(t, "a long text\n", "run", "tiny", "Summarize:"), said{0, "Hello there\n", ""})
	if want := `{"model":"tiny","stream":true,"messages":[{"role":"user","content":"Summarize:\n\na long text"}]}`; len(*log) != 1 || (*log)[0].body != want {
		t.Errorf("asked %+v", *log)
	}
}
