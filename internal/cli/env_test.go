package cli

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// clientsHub plays a hub whose first ready model is for embeddings.
func clientsHub(t *testing.T) (*httptest.Server, *[]string) {
	var log []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		log = append(log, r.URL.Path+" "+string(body))
		switch {
		case r.Header.Get("Authorization") != "Bearer it's":
			refuse(401, "invalid_api_key", "the key is wrong")(w, "")
		case (r.URL.Path == "/v1/messages") != (r.Header.Get("Anthropic-Version") != ""):
			refuse(400, "invalid_request", "the version of the messages dialect is missing, or out of place")(w, "")
		case r.Method == http.MethodGet:
			io.WriteString(w, `{"data":[{"id":"busy","availability":"busy","context_length":9,"capabilities":["tools"]},{"id":"clips","availability":"ready","capabilities":["transcription"]},{"id":"vectors","availability":"ready"},`+
				`{"id":"small","availability":"ready","context_length":20480,"capabilities":["tools"]},{"id":"large","availability":"ready","context_length":262144,"capabilities":["tools"]}]}`)
		case strings.Contains(string(body), "vectors"):
			refuse(404, "model_not_found", "not for chat")(w, "")
		default:
			io.WriteString(w, `{}`)
		}
	}))
	t.Cleanup(server.Close)
	return server, &log
}

func TestEnv(t *testing.T) {
	server, log := clientsHub(t)
	t.Setenv("KITH_HOME", t.TempDir())
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "it's")
	t.Setenv("SHELL", "/bin/sh")
	lines := kith(t, "", "env")
	assert.Require(t, lines.status == 0 && lines.err == "", lines)
	// The lines mean to a shell what they say.
	shell := exec.Command("sh", "-euc", `ANTHROPIC_API_KEY=old; export ANTHROPIC_API_KEY; eval "$1"; env | grep -E '^(OPENAI|ANTHROPIC)_' | sort`, "sh", lines.out)
	got, err := shell.CombinedOutput()
	want := "ANTHROPIC_AUTH_TOKEN=it's\nANTHROPIC_BASE_URL=" + server.URL + "\nOPENAI_API_KEY=it's\nOPENAI_BASE_URL=" + server.URL + "/v1\n"
	assert.That(t, err == nil && string(got) == want, err, got, want)
	if want := []string{
		"/v1/models ",
		`/v1/chat/completions {"model":"vectors","max_tokens":1,"messages":[{"role":"user","content":"Hello"}]}`,
		`/v1/chat/completions {"model":"small","max_tokens":1,"messages":[{"role":"user","content":"Hello"}]}`,
		`/v1/messages {"model":"small","max_tokens":1,"messages":[{"role":"user","content":"Hello"}]}`,
	}; strings.Join(*log, "\n") != strings.Join(want, "\n") {
		t.Errorf("proved by %q", *log)
	}
	for shell, part := range map[string]string{
		"fish":       "set -gx OPENAI_API_KEY 'it\\'s'\nset -gx ANTHROPIC_BASE_URL '" + server.URL + "'",
		"powershell": "$env:OPENAI_API_KEY = 'it''s'\n",
	} {
		if got := kith(t, "", "env", "--shell", shell); !strings.Contains(got.out, part) || !strings.Contains(got.out, "kith env --shell "+shell) {
			t.Errorf("%s: %+v", shell, got)
		}
	}
	check(t, kith(t, "", "env", "--json"), said{out: `{"set":{"ANTHROPIC_AUTH_TOKEN":"it's","ANTHROPIC_BASE_URL":"` + server.URL +
		`","OPENAI_API_KEY":"it's","OPENAI_BASE_URL":"` + server.URL + `/v1"},"unset":["ANTHROPIC_API_KEY"],"proved_by":"small"}` + "\n"})
	check(t, kith(t, "", "env", "--shell", "tcsh"), said{2, "", `cannot write lines for the shell "tcsh"`})
	t.Setenv("KITH_API_KEY", "wrong")
	check(t, kith(t, "", "env"), said{3, "", "cannot prove the address and the key: the key is wrong"})
	t.Setenv("KITH_API_KEY", "")
	check(t, kith(t, "", "env"), said{3, "", "kith keys create"})
}

// With --local the daemon is asked over TCP, as its clients will.
func TestEnvLocal(t *testing.T) {
	handler, log := double(t, words(`{"data":[]}`))
	server := httptest.NewServer(handler)
	home := t.TempDir()
	t.Setenv("KITH_HOME", home)
	t.Setenv("SHELL", "/bin/sh")
	write(t, filepath.Join(home, "config.toml"), "[daemon]\nlisten = \""+strings.TrimPrefix(server.URL, "http://")+"\"\n")
	check(t, kith(t, "", "env", "--local"), said{out: "export OPENAI_BASE_URL='" + server.URL + "/v1'\nexport OPENAI_API_KEY='kith'\n" +
		"export ANTHROPIC_BASE_URL='" + server.URL + "'\nexport ANTHROPIC_AUTH_TOKEN='kith'\nunset ANTHROPIC_API_KEY\n" +
		"# The address and the key are valid; no model is ready for a call now. Use them with:\n#   eval \"$(kith env --local)\"\n"})
	assert.That(t, len(*log) == 1, "asked", *log)
	server.Close()
	check(t, kith(t, "", "env", "--local"), said{1, "", "start it with `kith serve`"})
}

// fakeAgent puts a program on PATH that says how it was started and ends with 7.
func fakeAgent(t *testing.T, name string) {
	t.Helper()
	dir := t.TempDir()
	script := "#!/bin/sh\nprintf '<%s>' \"$@\"; echo\nenv | grep -E '^(ANTHROPIC|CLAUDE|KITH_API|OPENCODE)_' | sort\nexit 7\n"
	assert.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// noDaemon is a home whose daemon would listen where nothing does.
func noDaemon(t *testing.T) string {
	t.Helper()
	gone := httptest.NewServer(nil)
	gone.Close()
	home := t.TempDir()
	write(t, filepath.Join(home, "config.toml"), "[daemon]\nlisten = \""+strings.TrimPrefix(gone.URL, "http://")+"\"\n")
	return home
}

// An agent whose dialect the daemon speaks is started on it for a model that is
// here, and without a key.
func TestLaunchLocal(t *testing.T) {
	hub, _ := clientsHub(t)
	handler, _ := double(t, words(`{"data":[{"id":"tiny","availability":"ready","context_length":16384},{"id":"small","availability":"ready","context_length":24576,"capabilities":["tools"]}]}`))
	server := httptest.NewServer(handler)
	defer server.Close()
	home := t.TempDir()
	t.Setenv("KITH_HOME", home)
	t.Setenv("KITH_HUB", "")
	t.Setenv("KITH_API_KEY", "")
	write(t, filepath.Join(home, "config.toml"), "[daemon]\nlisten = \""+strings.TrimPrefix(server.URL, "http://")+"\"\n")
	for _, name := range []string{"claude", "codex", "opencode"} {
		fakeAgent(t, name)
	}
	claude := func(base, key, model, context, answer string) string {
		return "<--model><" + model + ">\nANTHROPIC_AUTH_TOKEN=" + key + "\nANTHROPIC_BASE_URL=" + base + "\nANTHROPIC_DEFAULT_HAIKU_MODEL=" + model +
			"\nCLAUDE_CODE_AUTO_COMPACT_WINDOW=" + context + "\nCLAUDE_CODE_MAX_CONTEXT_TOKENS=" + context + "\nCLAUDE_CODE_MAX_OUTPUT_TOKENS=" + answer + "\nCLAUDE_CODE_SUBAGENT_MODEL=" + model + "\n"
	}
	check(t, kith(t, "", "launch", "claude"), said{7, claude(server.URL, "kith-launch", "small", "24576", "6144") + "KITH_API_KEY=\n", ""})
	check(t, kith(t, "", "launch", "claude", "--model", "tiny"), said{7, claude(server.URL, "kith-launch", "tiny", "16384", "4096") + "KITH_API_KEY=\n", ""})
	check(t, kith(t, "", "launch", "claude", "--model", "large"), said{3, "", "the daemon of this machine does not serve it"})
	check(t, kith(t, "", "launch", "codex"), said{3, "", "without an API key"})
	check(t, kith(t, "", "launch", "opencode"), said{7, "<>\nKITH_API_KEY=kith-launch\n" +
		`OPENCODE_CONFIG_CONTENT={"model":"kith/small","provider":{"kith":{"models":{"small":{"limit":{"context":24576,"output":6144}}},` +
		`"npm":"@ai-sdk/openai-compatible","options":{"apiKey":"{env:KITH_API_KEY}","baseURL":"` + server.URL + `/v1"}}}}` + "\n", ""})

	t.Setenv("KITH_HUB", hub.URL)
	t.Setenv("KITH_API_KEY", "it's")
	check(t, kith(t, "", "launch", "claude", "--model", "small"), said{7, claude(server.URL, "kith-launch", "small", "24576", "6144") + "KITH_API_KEY=it's\n", ""})
	check(t, kith(t, "", "launch", "claude"), said{7, claude(hub.URL, "it's", "large", "262144", "32000") + "KITH_API_KEY=it's\n", ""})
}

func TestLaunch(t *testing.T) {
	server, _ := clientsHub(t)
	t.Setenv("KITH_HOME", noDaemon(t))
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "it's")
	t.Setenv("ANTHROPIC_API_KEY", "of another service")
	for name, test := range map[string]struct {
		args []string
		out  string
	}{
		"claude": {[]string{"--model", "small", "--", "-p", "say hello"}, "<--model><small><-p><say hello>\n" +
			"ANTHROPIC_AUTH_TOKEN=it's\nANTHROPIC_BASE_URL=HUB\nANTHROPIC_DEFAULT_HAIKU_MODEL=small\n" +
			"CLAUDE_CODE_AUTO_COMPACT_WINDOW=20480\nCLAUDE_CODE_MAX_CONTEXT_TOKENS=20480\nCLAUDE_CODE_MAX_OUTPUT_TOKENS=5120\nCLAUDE_CODE_SUBAGENT_MODEL=small\nKITH_API_KEY=it's\n"},
		"codex": {[]string{"--", "exec"}, `<-c><model="large"><-c><model_provider="kith"><-c><model_providers.kith.name="kith"><-c><model_providers.kith.base_url="HUB/v1">` +
			`<-c><model_providers.kith.env_key="KITH_API_KEY"><-c><model_providers.kith.wire_api="responses"><-c><model_context_window=262144><exec>` + "\nANTHROPIC_API_KEY=of another service\nKITH_API_KEY=it's\n"},
		"opencode": {[]string{"--model=small"}, "<>\nANTHROPIC_API_KEY=of another service\nKITH_API_KEY=it's\n" +
			`OPENCODE_CONFIG_CONTENT={"model":"kith/small","provider":{"kith":{"models":{"small":{"limit":{"context":20480,"output":5120}}},` +
			`"npm":"@ai-sdk/openai-compatible","options":{"apiKey":"{env:KITH_API_KEY}","baseURL":"HUB/v1"}}}}` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			fakeAgent(t, name)
			check(t, kith(t, "", append([]string{"launch", name}, test.args...)...), said{7, strings.ReplaceAll(test.out, "HUB", server.URL), ""})
		})
	}
}

// An agent is launched on a model of one's own before those of others, however long their
// context is: what it reads goes there.
func TestChooseOwnFirst(t *testing.T) {
	group := listed{ID: "0-fast", Availability: "ready", Via: "group", ContextLength: 1 << 20, Capabilities: []string{"tools"}}
	shared := listed{ID: "shared", Availability: "ready", Via: "shared", ContextLength: 1 << 18, Capabilities: []string{"tools"}}
	own := listed{ID: "own", Availability: "busy", Via: "own", ContextLength: 4096}
	clips := listed{ID: "clips", Availability: "ready", Via: "own", Capabilities: []string{"transcription"}}
	paused := listed{ID: "paused", Availability: "paused", Via: "own", ContextLength: 4096, Capabilities: []string{"tools"}}
	for _, step := range []struct {
		list []listed
		want string
	}{
		{[]listed{group, shared, own, clips, paused}, "own"}, {[]listed{group, shared, clips, paused}, "shared"},
		{[]listed{group, clips, paused}, "0-fast"}, {[]listed{clips, paused}, "paused"}, {[]listed{clips}, "clips"},
	} {
		if got, ok := choose(step.list, ""); !ok || got.ID != step.want {
			t.Errorf("of %+v %s was chosen, want %s", step.list, got.ID, step.want)
		}
	}
}

func TestLaunchRefused(t *testing.T) {
	server, _ := clientsHub(t)
	t.Setenv("KITH_HOME", noDaemon(t))
	t.Setenv("KITH_HUB", server.URL)
	t.Setenv("KITH_API_KEY", "it's")
	t.Setenv("PATH", t.TempDir())
	check(t, kith(t, "", "launch", "codex"), said{1, "", "cannot launch codex: it is not on your PATH; install it with `npm install -g @openai/codex`"})
	check(t, kith(t, "", "launch", "vim"), said{2, "", "known agents are claude, codex, opencode"})
	check(t, kith(t, "", "launch"), said{2, "", "name one agent"})
	check(t, kith(t, "", "launch", "codex", "exec"), said{2, "", "after --"})
	fakeAgent(t, "codex")
	check(t, kith(t, "", "launch", "codex", "--model", "none"), said{4, "", "cannot launch on none"})
	t.Setenv("KITH_API_KEY", "")
	check(t, kith(t, "", "launch", "codex"), said{3, "", "without an API key"})
}

// TestCompletion: names from each server that answers, and no output from the others.
func TestCompletion(t *testing.T) {
	const invite = "inv_01234567-89ab-7cde-8f01-23456789abcd"
	handler, _ := double(t, func(w http.ResponseWriter, path string) {
		io.WriteString(w, map[string]string{
			"/v1/models":   `{"data":[{"id":"tiny"},{"id":"here"}]}`,
			"/api/models":  `{"data":[{"id":"tiny"},{"id":"there"}]}`,
			"/api/shares":  `{"data":[{"owner":"ann","with":"bob","direction":"given"},{"owner":"eve","with":"ann","direction":"received"}]}`,
			"/api/groups":  `{"data":[{"name":"lab","in":true,"admin":true,"members":[{"name":"zoe"}],"invitations":[{"member":"yan"}]},{"name":"all","kind":"open"},{"name":"club","kind":"org","invited":{"by":"eve"}}]}`,
			"/api/invites": `{"data":[{"id":"` + invite + `","state":"open"},{"id":"inv_old","state":"revoked"}]}`,
		}[path])
	})
	server := httptest.NewServer(handler)
	defer server.Close()
	home := onSocket(t, "daemon.sock", handler)
	for _, test := range []struct{ typed, live string }{
		{"run ,", "here there tiny"},
		{"run ,t", "there tiny"},
		{"run tiny ,", ""},
		{"why ,h", "here"},
		{"launch ,c", "claude codex"},
		{"launch claude --model ,th", "there"},
		{"env --shell ,f", "sh fish powershell"},
		{"share add ,", "bob eve yan zoe"},
		{"share remove ,", "bob " + invite},
		{"share invite --models ,he", "here"},
		{"group join ,", "all"},
		{"group leave ,", "lab"},
		{"group invite lab ,", "bob eve yan zoe"},
		{"group accept ,", "club"},
		{"group decline ,", "club"},
		{"group remove lab ,y", "yan"},
		{"group remove lab ,z", "zoe"},
		{"group keep-out ,", "lab"},
	} {
		words := strings.Fields(test.typed)
		last := len(words) - 1
		words[last] = strings.TrimPrefix(words[last], ",")
		for _, live := range []bool{true, false} {
			t.Setenv("KITH_HOME", home)
			t.Setenv("KITH_HUB", server.URL)
			t.Setenv("KITH_API_KEY", "k")
			want := test.live
			if !live {
				t.Setenv("KITH_HOME", t.TempDir())
				t.Setenv("KITH_HUB", "http://127.0.0.1:1")
				if words[0] != "env" && (words[0] != "launch" || last > 1) {
					want = ""
				}
			}
			got := kith(t, "", append([]string{"__completeNoDesc"}, words...)...)
			lines := strings.Fields(strings.TrimSuffix(got.out, ":4\n"))
			if strings.Join(lines, " ") != want || got.status != 0 {
				t.Errorf("kith %s (live: %v): %+v, want %q", test.typed, live, got, want)
			}
		}
	}
}
