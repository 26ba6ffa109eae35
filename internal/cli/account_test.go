package cli

import (
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
)

// TestAccountCommands: what each command about the account asks of the hub, and
// the heart of what a person reads; with --json it prints the answer as it came.
func TestAccountCommands(t *testing.T) {
	for _, test := range []struct {
		args   []string
		answer string
		asked  string // method, path and body
		out    string // a part of what a person reads
	}{
		{[]string{"share", "add", "bob"}, `{"with":"bob","models":[]}`, `POST /api/shares {"with":"bob"}`, "bob may use your machines: no limits"},
		{[]string{"share", "add", "bob", "--models", "a,b/c", "--hours", "Sat 10:00-12:00", "--concurrent", "2", "--per-day", "9"}, `{"with":"bob","per_day":9}`,
			`POST /api/shares {"with":"bob","models":["a","b/c"],"hours":"Sat 10:00-12:00","concurrent":2,"per_day":9}`, "9 a day"},
		{[]string{"share", "add", "bob", "--models", "all", "--hours", "always", "--concurrent", "none", "--per-day", "none"}, `{"with":"bob","models":[],"hours":"","concurrent":null,"per_day":null}`,
			`POST /api/shares {"with":"bob","models":null,"hours":null,"concurrent":null,"per_day":null}`, "bob may use your machines: no limits"},
		{[]string{"group", "limit", "lab", "--models", "tiny", "--per-day", "5"}, `{"group":"lab","models":["tiny"],"per_day":5}`,
			`POST /api/groups/lab/limits {"models":["tiny"],"per_day":5}`, "all other members of group lab together may use your machines: models tiny; 5 a day"},
		{[]string{"share", "remove", "bob x"}, `{}`, "DELETE /api/shares/bob%20x ", "bob x can no longer"},
		{[]string{"share", "remove", "inv_0f"}, `{}`, "DELETE /api/shares/inv_0f ", "inv_0f can no longer"},
		{[]string{"share", "remove", "inv_01234567-89ab-7cde-8f01-23456789abcd"}, `{}`,
			"DELETE /api/invites/inv_01234567-89ab-7cde-8f01-23456789abcd ", "invite inv_01234567"},
		{[]string{"share", "invite"}, `{"code":"kithi_x","uses":1,"expires":"2026-12-01T00:00:00Z"}`, `POST /api/invites {"uses":1,"expires":"7d"}`, "kithi_x\n"},
		{[]string{"share", "invite", "--uses", "3", "--expires", "12h"}, `{"code":"kithi_x","uses":3}`, `POST /api/invites {"uses":3,"expires":"12h"}`, "3 times"},
		{[]string{"accept", "kithi_x"}, `{"owner":"ann","state":"accepted"}`, `POST /api/invites/accept {"code":"kithi_x"}`, "ann shares with you"},
		{[]string{"accept", "https://hub.example.org/invite/kithi_x"}, `{"owner":"ann","state":"accepted"}`, `POST /api/invites/accept {"code":"kithi_x"}`, "ann shares with you"},
		{[]string{"group", "list"}, `{"object":"list","data":[{"name":"lab","kind":"org","in":true,"admin":true,"size":2,"members":[{"name":"ann","admin":true},{"name":"bob","admin":false}],"kept_out":["box"],"limits":{"per_day":5},"closed":[{"machine":"den","by":"all"},{"machine":"car","by":"configuration"}]},` +
			`{"name":"all","kind":"open","in":false,"admin":false,"size":7,"members":[],"kept_out":[]}]}`,
			"GET /api/groups ", "lab     org    admin   5 a day       box, den (out of all), car ([share] groups)   -        ann (admin), bob\nall     open   -       -             -                                             -        7"},
		{[]string{"group", "create", "lab", "--kind", "org"}, `{}`, `POST /api/groups {"name":"lab","kind":"org"}`, "group lab created"},
		{[]string{"group", "join", "all"}, `{}`, "POST /api/groups/all/join ", "you are in group all"},
		{[]string{"group", "leave", "a/b"}, `{}`, "POST /api/groups/a%2Fb/leave ", "no longer in group a/b"},
		{[]string{"group", "list"}, `{"object":"list","data":[{"name":"lab","kind":"org","in":true,"admin":true,"size":1,"members":[{"name":"ann","admin":true}],"invitations":[{"member":"bob","by":"ann"}]},` +
			`{"name":"club","kind":"org","size":7,"invited":{"member":"ann","by":"eve"}},{"name":"firm","kind":"org","size":2,"invited":{"member":"ann","by":""}}]}`,
			"GET /api/groups ", "lab     org    admin                     -             -          -        ann (admin), bob (invited)\nclub    org    invited by eve            -             -          -        7\n" +
				"firm    org    invited by the operator   -             -          -        2\nAnswer an invitation with `kith group accept NAME`"},
		{[]string{"group", "invite", "lab", "bob"}, `{"state":"invited"}`, `POST /api/groups/lab/invitations {"member":"bob"}`, "bob is invited to group lab and joins by accepting"},
		{[]string{"group", "invite", "lab", "eve"}, `{"state":"joined"}`, `POST /api/groups/lab/invitations {"member":"eve"}`, "eve is in group lab already"},
		{[]string{"group", "accept", "a/b"}, `{}`, "POST /api/groups/a%2Fb/accept ", "you are in group a/b: its members can use your machines"},
		{[]string{"group", "decline", "lab"}, `{}`, "POST /api/groups/lab/decline ", "nothing is shared with group lab"},
		{[]string{"group", "remove", "lab", "bob"}, `{}`, "DELETE /api/groups/lab/members/bob ", "bob is neither in group lab nor invited to it"},
		{[]string{"group", "admin", "lab", "bob"}, `{}`, `POST /api/groups/lab/admins {"member":"bob"}`, "bob is now an admin of group lab"},
		{[]string{"group", "list"}, `{"object":"list","data":[{"name":"lab","kind":"open","in":true,"admin":true,"size":2,"machines":[{"owner":"bob","machine":"desk","rule":"pinned"},{"owner":"eve","machine":"den","rule":"excluded"}]}]}`,
			"GET /api/groups ", "eve/den (excluded)   bob/desk   2"},
		{[]string{"group", "pin", "lab", "bob/desk"}, `{}`, `POST /api/groups/lab/machines {"owner":"bob","machine":"desk","rule":"pinned"}`, "desk of bob is pinned in group lab"},
		{[]string{"group", "exclude", "lab", "bob/desk", "--undo"}, `{}`, `POST /api/groups/lab/machines {"owner":"bob","machine":"desk","rule":"none"}`, "is no longer excluded from group lab"},
		{[]string{"group", "keep-out", "lab"}, `{}`, `POST /api/machines/mch_1/keep-out {"group":"lab"}`, "kept out of group lab"},
		{[]string{"group", "keep-out", "--all"}, `{}`, `POST /api/machines/mch_1/keep-out {"all":true}`, "kept out of every group"},
		{[]string{"group", "keep-out", "lab", "--undo"}, `{}`, `POST /api/machines/mch_1/keep-out {"group":"lab","undo":true}`, "no longer kept out of group lab"},
		{[]string{"why", "req_01234567-89ab-7cde-8f01-23456789abcd"}, `{"mine":false,"caller":"bob","model":"m","status":200,"code":"machine_offline","took_ms":9000,"waited_ms":7000,"place":2,"tries":[` +
			`{"machine":"shy","owner":"ann","via":"shared","after_ms":0,"took_ms":1,"outcome":"did not take it: busy","prompt":false},` +
			`{"machine":"box","owner":"ann","via":"shared","after_ms":7000,"took_ms":2000,"outcome":"began to answer and did not finish: machine_offline","prompt":true}]}`,
			"GET /api/why/req_01234567-89ab-7cde-8f01-23456789abcd ", "bob called  with m\n" +
				"end       failed after 9s: Machine offline (200 machine_offline)\nwaited    7s, from place 2 in line\n\nMACHINE   OWNER   ACCESS   AFTER   TOOK   PROMPT-SENT   OUTCOME\n" +
				"shy       ann     shared   0s      1ms    no            did not take it: busy\nbox       ann     shared   7s      2s     yes           began to answer and did not finish: machine_offline"},
		{[]string{"why", "req_01234567-89ab-7cde-8f01-23456789abcd"}, `{"mine":true,"model":"m","status":404,"code":"model_not_found","decisions":[{"verdict":"refuse","row":1,"reason":"none offers it","change":"another id"}]}`,
			"GET /api/why/req_01234567-89ab-7cde-8f01-23456789abcd ", "\ndecided   after 0s: refuse: none offers it\nchange    another id\n"},
		{[]string{"why", "tiny"}, `{"model":"tiny","verdict":"refuse","row":1,"code":"model_not_found","status":404,"reason":"none offers it","change":"another id"}`,
			"GET /api/why?family=chat&model=tiny ", "\nwhy       none offers it\nchange    another id\n"},
	} {
		t.Run(strings.Join(test.args, " "), func(t *testing.T) {
			handler, log := double(t, words(test.answer))
			server := httptest.NewServer(handler)
			defer server.Close()
			home := t.TempDir()
			credential := `{"hub":"` + server.URL + `","machine":"mch_1","member":"ann","region":"home","secret":"kithm_x"}`
			assert.OK(t, os.WriteFile(filepath.Join(home, "credential"), []byte(credential), 0o600))
			t.Setenv("KITH_HOME", home)
			t.Setenv("KITH_HUB", "")
			got := kith(t, "", test.args...)
			assert.That(t, got.status == 0 && strings.Contains(got.out, test.out) && got.err == "", got, test.out)
			check(t, kith(t, "", append(test.args, "--json")...), said{0, test.answer + "\n", ""})
			for _, ask := range *log {
				if got := ask.method + " " + ask.path + " " + ask.body; got != test.asked || ask.bearer != "Bearer kithm_x" {
					t.Errorf("asked %s with %s\nwant  %s", got, ask.bearer, test.asked)
				}
			}
		})
	}
}

// TestLimitsThatAreNone: a limit of 0 is refused before the hub is asked, with what
// to write instead; a warning of the hub's is on standard error.
func TestLimitsThatAreNone(t *testing.T) {
	handler, log := double(t, words(`{"with":"bob","group":"lab","code":"c","warnings":["no machine of yours offers the model \"x\""]}`))
	server := httptest.NewServer(handler)
	defer server.Close()
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "k")
	for _, command := range [][]string{{"share", "add", "bob"}, {"share", "invite"}, {"group", "limit", "lab"}} {
		for _, flag := range []string{"--concurrent=0", "--per-day=0", "--per-day=-1", "--concurrent=many"} {
			got := kith(t, "", append(slices.Clone(command), flag)...)
			if got.status != 2 || !strings.Contains(got.err, "none for no limit") || !strings.Contains(got.err, "kith pause") {
				t.Errorf("%v %s: %+v", command, flag, got)
			}
		}
		assert.Require(t, len(*log) == 0, "asked", *log)
	}
	for _, command := range [][]string{{"share", "add", "bob"}, {"share", "invite"}, {"group", "limit", "lab"}} {
		if got := kith(t, "", append(command, "--models", "x")...); got.status != 0 || got.err != "warning: no machine of yours offers the model \"x\"\n" {
			t.Errorf("%v: %+v", command, got)
		}
	}
}

// TestShareList: shares and open invites for a person, all of both as JSON.
func TestShareList(t *testing.T) {
	const (
		shares = `[{"owner":"ann","with":"bob","direction":"given","models":["tiny"],"hours":"Sat 10:00-12:00","concurrent":2,"per_day":9},` +
			`{"owner":"eve","with":"ann","direction":"received","models":[],"hours":"","concurrent":0,"per_day":0}]`
		invites = `[{"id":"inv_1","last_four":"wxyz","state":"open","uses":3,"used":1,"models":["tiny"],"expires":"2026-12-01T12:00:00Z"},` +
			`{"id":"inv_2","last_four":"abcd","state":"revoked","uses":1,"used":0}]`
	)
	handler, log := double(t, func(w http.ResponseWriter, path string) {
		data := shares
		if path == "/api/invites" {
			data = invites
		}
		words(`{"object":"list","data":`+data+`}`)(w, path)
	})
	server := httptest.NewServer(handler)
	defer server.Close()
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "k")
	got := kith(t, "", "share", "list")
	for _, part := range []string{
		"bob      you share with    models tiny; hours Sat 10:00-12:00; 2 at once; 9 a day", "eve      shares with you   no limits",
		"\n\nINVITE", "inv_1    …wxyz   1 of 3   models tiny   " + time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC).Local().Format("2 Jan"),
	} {
		if !strings.Contains(got.out, part) || strings.Contains(got.out, "inv_2") {
			t.Errorf("got %+v, want it to say %q and nothing of inv_2", got, part)
		}
	}
	check(t, kith(t, "", "share", "list", "--json"), said{0, `{"object":"list","data":` + shares + `,"invites":` + invites + "}\n", ""})
	assert.That(t, len(*log) == 4, "asked", *log)
}

// TestWhoseAccount: which hub is asked with which secret, by what is set.
func TestWhoseAccount(t *testing.T) {
	handler, log := double(t, words(`{"object":"list","data":[]}`))
	server := httptest.NewServer(handler)
	defer server.Close()
	saved, configured := t.TempDir(), t.TempDir()
	write(t, filepath.Join(saved, "credential"), `{"hub":"`+server.URL+`","machine":"mch_1","member":"ann","region":"home","secret":"kithm_x"}`)
	write(t, filepath.Join(configured, "config.toml"), "[hub]\nurl = \""+server.URL+"/v1\"\n")
	for _, test := range []struct {
		name, home, hub, key string
		bearer               string // of the request to the double; empty: none is made
		want                 said
	}{
		{"machine", saved, "", "", "kithm_x", said{out: "none\n"}},
		{"machine and a key", saved, "", "k", "kithm_x", said{out: "none\n"}},
		{"machine, and a key of the hub by name", saved, server.URL, "k", "k", said{out: "none\n"}},
		{"key with the configured hub", configured, "", "k", "k", said{out: "none\n"}},
		{"key and hub", t.TempDir(), server.URL + "/v1", "k", "k", said{out: "none\n"}},
		{"the saved hub by name", saved, server.URL + "/v1/", "", "kithm_x", said{out: "none\n"}},
		{"another hub without a key", saved, "https://other.example", "", "", said{3, "", "this machine is signed in to " + server.URL}},
		{"key without a hub", t.TempDir(), "", "k", "", said{2, "", "cannot determine which hub KITH_API_KEY is for: set KITH_HUB"}},
		{"nothing", t.TempDir(), "", "", "", said{3, "", "not signed in"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			*log = nil
			t.Setenv("KITH_HOME", test.home)
			t.Setenv("KITH_HUB", test.hub)
			t.Setenv("KITH_API_KEY", test.key)
			check(t, kith(t, "", "models", "--account"), test.want)
			bearer := ""
			for _, ask := range *log {
				bearer += strings.TrimPrefix(ask.bearer, "Bearer ")
			}
			if bearer != test.bearer {
				t.Errorf("asked %+v, want it with %q", *log, test.bearer)
			}
		})
	}
}

// TestRefusedCredential: a revoked machine is sent to `kith login`, a wrong key is not.
func TestRefusedCredential(t *testing.T) {
	handler, _ := double(t, refuse(401, "invalid_api_key", "the API key is wrong: create one"))
	server := httptest.NewServer(handler)
	defer server.Close()
	home := t.TempDir()
	write(t, filepath.Join(home, "credential"), `{"hub":"`+server.URL+`","machine":"mch_1","member":"ann","region":"home","secret":"kithm_x"}`)
	t.Setenv("KITH_HOME", home)
	for _, args := range [][]string{{"models", "--account"}, {"share", "list"}, {"why", "tiny"}, {"usage"}} {
		got := kith(t, "", args...)
		if got.status != 3 || !strings.Contains(got.err, "sign in again with `kith login --hub "+server.URL+"`") || strings.Contains(got.err, "API key") {
			t.Errorf("%v: %+v", args, got)
		}
	}
	t.Setenv("KITH_API_KEY", "k")
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL)
	check(t, kith(t, "", "share", "list"), said{3, "", "the API key is wrong: create one"})
}

// TestInternalError: what fails at the hub is found in its log by the id that is printed.
func TestInternalError(t *testing.T) {
	err := refusalIn(500, []byte(`{"error":{"code":"internal_error","message":"something","correlation_id":"req_7"}}`))
	assert.Contains(t, err.Error(), "its log says what, at req_7")
}

// TestSilentHub: a hub that accepts the connection and does not answer is given up.
func TestSilentHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hub := toHub("https://hub.example.org", "k")
		hub.http.Transport = silent{}
		began := time.Now()
		_, err := hub.call(t.Context(), "list", request{method: http.MethodGet, path: "/api/shares"}, nil)
		if err == nil || err.Error() != "cannot reach the hub at https://hub.example.org: it did not answer within 30s; check its address and the network" {
			t.Error(err)
		}
		assert.Equal(t, time.Since(began), 30*time.Second, "after")
	})
}

// silent is a transport to a hub that does not answer.
type silent struct{}

func (silent) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// TestOthersSocket: a hub of another user is not said to be stopped.
func TestOthersSocket(t *testing.T) {
	c := overSocket("/nowhere", "the hub", "start it with `kith hub`")
	c.http.Transport = refusedDial{}
	_, err := c.send(t.Context(), http.MethodGet, "/", nil)
	if err == nil || err.Error() != "cannot reach the hub: it runs as another user; run this command as that user" {
		t.Error(err)
	}
}

// refusedDial is a transport that may not open the socket.
type refusedDial struct{}

func (refusedDial) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, &net.OpError{Op: "dial", Net: "unix", Err: fs.ErrPermission}
}

// write puts a private file of a test in place.
func write(t *testing.T, path, text string) {
	t.Helper()
	assert.OK(t, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

func TestAccountRefusals(t *testing.T) {
	handler, _ := double(t, refuse(404, "not_found", "no member is named bob"))
	server := httptest.NewServer(handler)
	defer server.Close()
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "k")
	check(t, kith(t, "", "share", "add", "bob"), said{1, "", "cannot share: no member is named bob"})
	check(t, kith(t, "", "group", "keep-out", "--all"), said{3, "", "not signed in"})
	t.Setenv("KITH_API_KEY", "")
	check(t, kith(t, "", "share", "list"), said{3, "", "not signed in"})
}

// TestMachineCommands: what each asks of the daemon over its socket.
func TestMachineCommands(t *testing.T) {
	const status = `{"sharing":{"paused":true,"hours":"Sat 10:00-12:00","timezone":"UTC","slots":0},"open":false}`
	for _, test := range []struct {
		args   string
		answer string
		asked  string // all of it; UNTIL stands for a time
		out    string
	}{
		{"pause", `{"paused":true,"hours":"","timezone":"UTC","slots":0}`, "POST /pause {}", "paused, until `kith resume`"},
		{"pause --for 2h", `{"paused":true,"until":"2026-11-21T20:00:00Z","hours":"","timezone":"UTC","slots":0}`, `POST /pause {"until":"UNTIL"}`, "paused until 2"},
		{"pause --until 18:30", `{"paused":true,"until":"2026-11-21T20:00:00Z","hours":"","timezone":"UTC","slots":0}`, `POST /pause {"until":"UNTIL"}`, "paused until 2"},
		{"pause --drain", `{"paused":true,"hours":"","timezone":"UTC","slots":0}`, "POST /pause {} POST /drain ", "drained: no call"},
		{"resume", `{"paused":false,"hours":"","timezone":"UTC","slots":0}`, "POST /resume ", "taking calls"},
		{"hours", status, "GET /status ", "others may use this machine Sat 10:00-12:00, in UTC: closed now"},
		{"hours show", status, "GET /status ", "Sat 10:00-12:00"},
		{"hours set sat,sun|00:00-24:00 --tz Europe/Lisbon", `{"paused":false,"hours":"Sat,Sun 00:00-24:00","timezone":"Europe/Lisbon","slots":0}`,
			`POST /hours {"hours":"Sat,Sun 00:00-24:00","timezone":"Europe/Lisbon"}`, "in Europe/Lisbon"},
		{"hours clear", `{"paused":false,"hours":"","timezone":"UTC","slots":0}`, `POST /hours {"hours":"","timezone":""}`, "at any time"},
	} {
		t.Run(test.args, func(t *testing.T) {
			handler, log := double(t, words(test.answer))
			t.Setenv("KITH_HOME", onSocket(t, "daemon.sock", handler))
			args := strings.Fields(test.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "|", " ")
			}
			got := kith(t, "", args...)
			assert.That(t, got.status == 0 && strings.Contains(got.out, test.out) && got.err == "", got, test.out)
			var asked []string
			for _, ask := range *log {
				body := ask.body
				if at := strings.Index(body, `"until":"`); at >= 0 {
					body = body[:at] + `"until":"UNTIL"}`
				}
				asked = append(asked, ask.method+" "+ask.path+" "+body)
			}
			assert.Equal(t, strings.Join(asked, " "), test.asked, "asked")
			if got := kith(t, "", append(args, "--json")...); got.status != 0 || !strings.HasPrefix(got.out, `{"running":true,"paused":`) || strings.Count(got.out, "\n") != 1 {
				t.Errorf("as JSON: %+v", got)
			}
		})
	}
}

func TestDrainRefused(t *testing.T) {
	handler, _ := double(t, func(w http.ResponseWriter, path string) {
		if path == "/drain" {
			refuse(400, "invalid_request", "it was resumed")(w, path)
			return
		}
		words(`{"paused":true,"hours":"","timezone":"UTC","slots":0}`)(w, path)
	})
	t.Setenv("KITH_HOME", onSocket(t, "daemon.sock", handler))
	check(t, kith(t, "", "pause", "--drain", "--json"), said{1, "", "cannot drain this machine: it was resumed"})
}

// While `kith dev` runs a daemon, the commands of one that does not run say how to reach that.
func TestDaemonOfDev(t *testing.T) {
	home := shortDir(t)
	t.Setenv("KITH_HOME", home)
	dev := filepath.Join(home, "dev")
	assert.OK(t, os.Mkdir(dev, 0o700))
	says := func(want string) {
		for _, command := range []string{"status", "pause", "reload"} {
			if got := kith(t, "", command); !strings.Contains(got.out+got.err, want) {
				t.Errorf("%s: %+v, want %q", command, got, want)
			}
		}
	}
	says("start it with `kith serve`")
	listener := assert.Value(net.Listen("unix", filepath.Join(dev, "daemon.sock")))(t)
	defer listener.Close()
	says("`kith dev` runs one: set KITH_HOME=" + dev + " to reach that")
}

// Where no daemon runs, the commands change and show what it starts with.
func TestMachineCommandsWithoutADaemon(t *testing.T) {
	home := t.TempDir()
	t.Setenv("KITH_HOME", home)
	config := "[share]\nhours = \"Sun 10:00-11:00\"\ntimezone = \"UTC\"\nslots = 2\n"
	assert.OK(t, os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600))
	if got := kith(t, "", "hours"); got.status != 0 || !strings.Contains(got.out, "Sun 10:00-11:00") || !strings.Contains(got.out, "not running") {
		t.Errorf("got %+v", got)
	}
	if _, err := os.Stat(filepath.Join(home, "state.json")); err == nil {
		t.Error("showing the hours saved a state")
	}
	for _, step := range []struct{ args, want string }{
		{"pause --json", `{"running":false,"paused":true,"hours":"Sun 10:00-11:00","timezone":"UTC","slots":2,`},
		{"hours set Mon|09:00-17:00 --tz Europe/Lisbon --json", `{"running":false,"paused":true,"hours":"Mon 09:00-17:00","timezone":"Europe/Lisbon","slots":2,`},
		{"pause --drain --json", `{"running":false,"paused":true,"hours":"Mon 09:00-17:00","timezone":"Europe/Lisbon","slots":2,`},
		{"resume --json", `{"running":false,"paused":false,`},
		{"hours clear --json", `{"running":false,"paused":false,"hours":"","timezone":"Europe/Lisbon","slots":2,"open":true}`},
		{"pause --for 1h --json", `{"running":false,"paused":true,"until":"20`},
	} {
		args := strings.Fields(step.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "|", " ")
		}
		if got := kith(t, "", args...); got.status != 0 || !strings.HasPrefix(got.out, step.want) {
			t.Errorf("%s: got %+v, want %s", step.args, got, step.want)
		}
	}
	for args, words := range map[string]string{
		"pause --for 2h --until 18:30": "give --for or --until, not both", "pause --for -2h": "a positive time", "pause --for 0s": "a positive time",
		"pause --until teatime": "time of the day", "hours set Funday": "cannot read the hours",
		"hours set Mon|09:00-17:00 --tz Mars": "time zone", "share add bob --hours x": "cannot read the hours", "share add bob --per-day -1": "a number from 1",
		"group create lab --kind club": `kind "club"`, "group keep-out": "name one, or give --all", "group keep-out lab --all": "name one, or give --all",
	} {
		args := strings.Fields(args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "|", " ")
		}
		check(t, kith(t, "", args...), said{2, "", words})
	}
}

func TestPauseEnd(t *testing.T) {
	lisbon := assert.Value(time.LoadLocation("Europe/Lisbon"))(t)
	at := func(text string) time.Time {
		t.Helper()
		moment := assert.Value(time.ParseInLocation("2006-01-02 15:04", text, lisbon))(t)
		return moment
	}
	for _, test := range []struct{ now, until, want string }{
		{"2026-11-21 18:29", "18:30", "2026-11-21 18:30"},
		{"2026-11-21 18:30", "18:30", "2026-11-22 18:30"},
		{"2026-12-31 23:00", "07:00", "2027-01-01 07:00"},
		{"2027-03-27 12:00", "07:00", "2027-03-28 07:00"}, // a day of 23 hours
	} {
		got, err := pauseEnd(at(test.now), 0, false, test.until)
		if err != nil || !got.Equal(at(test.want)) {
			t.Errorf("at %s until %s: %v %v, want %s", test.now, test.until, got, err, test.want)
		}
	}
	if got, err := pauseEnd(at("2026-11-21 18:29"), 0, false, ""); err != nil || !got.IsZero() {
		t.Errorf("without an end: %v %v", got, err)
	}
}

// Without a known time zone hours are refused with the reason, whether the command, the
// configuration or the saved state has them; --tz corrects each but the file.
func TestHoursWithoutAZone(t *testing.T) {
	home := t.TempDir()
	t.Setenv("KITH_HOME", home)
	t.Setenv("TZ", "CET-1CEST")
	const reason = `TZ is "CET-1CEST", which is not in the zone database`
	write := func(name, text string) {
		assert.OK(t, os.WriteFile(filepath.Join(home, name), []byte(text), 0o600))
	}
	expect := func(status int, want string, args ...string) {
		t.Helper()
		if got := kith(t, "", args...); got.status != status || !strings.Contains(got.out+got.err, want) {
			t.Errorf("%v: got %+v, want %d and %s", args, got, status, want)
		}
	}
	expect(1, reason, "hours", "set", "Mon 09:00-17:00")
	expect(1, "--tz Europe/Lisbon", "hours", "set", "Mon 09:00-17:00")
	expect(2, "time zone", "hours", "set", "Mon 09:00-17:00", "--tz", "localtime")
	expect(0, "paused", "pause")
	write("state.json", `{"hours":"Mon 09:00-17:00"}`)
	expect(1, reason, "status")
	expect(0, "in Europe/Lisbon", "hours", "set", "Mon 10:00-17:00", "--tz", "Europe/Lisbon")
	expect(0, "in Europe/Lisbon", "hours", "set", "Mon 09:00-17:00")
	write("config.toml", "[share]\nhours = \"Sun 10:00-11:00\"\n")
	for _, command := range []string{"config check", "hours", "serve"} {
		expect(1, "config.toml:2:9: share.hours takes share.timezone beside it", strings.Fields(command)...)
		expect(1, reason, strings.Fields(command)...)
	}
	t.Setenv("TZ", "Europe/Lisbon")
	expect(0, "is good", "config", "check")
}

// A time zone that this machine, or the hub, does not know is named with what follows.
func TestZoneUnknown(t *testing.T) {
	known := daemon.Status{Sharing: daemon.Sharing{Hours: "Mon 09:00-17:00", Timezone: "Europe/Lisbon"}}
	away, none := known, known
	away.Tunnel.ZoneUnknown = true
	none.Sharing = daemon.Sharing{}
	for want, status := range map[string]daemon.Status{"": known, `the hub does not know "Europe/Lisbon"`: away, "not known, so members whose share has hours": none} {
		if got := zoneUnknown(status); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
