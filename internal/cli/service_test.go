package cli

import (
	"encoding/xml"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
)

// TestService installs, queries and uninstalls with a systemctl that only records its
// arguments.
func TestService(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Logf("systemd is Linux's; %s has its own manager", runtime.GOOS)
		return
	}
	home, programs := t.TempDir(), t.TempDir()
	log := filepath.Join(programs, "log")
	fake := "#!/bin/sh\necho \"$@\" >>" + log + "\ncase \"$2\" in is-active) test -e " + programs + "/up;; enable) touch " + programs + "/up;; disable) rm -f " + programs + "/up;; esac\n"
	assert.OK(t, os.WriteFile(filepath.Join(programs, "systemctl"), []byte(fake), 0o700))
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("KITH_HOME", filepath.Join(home, "a 100% kith"))
	clearKept(t)
	t.Setenv("HTTPS_PROXY", `http://ann:50%40$5"@proxy.test:3128`)
	t.Setenv("no_proxy", "intranet.test")
	t.Setenv("SSL_CERT_FILE", "/etc/our ca.pem")
	t.Setenv("KITH_TEST_FAR", "sk-1")
	write(t, filepath.Join(home, "a 100% kith", "config.toml"), "[[upstream]]\nname = \"far\"\nurl = \"https://x.test/v1\"\nkey = \"env:KITH_TEST_FAR\"\n")
	unit := filepath.Join(home, ".config", "systemd", "user", "kith.service")
	json := func(installed, running string) said {
		return said{out: `{"installed":` + installed + `,"running":` + running + `,"file":"` + unit + `"}` + "\n"}
	}
	check(t, kith(t, "", "service", "status", "--json"), json("false", "false"))
	check(t, kith(t, "", "service", "uninstall"), said{out: "not installed\n"})
	kept := "PATH, HTTPS_PROXY, no_proxy, SSL_CERT_FILE, KITH_TEST_FAR\n"
	if got := kith(t, "", "service", "install"); got.status != 0 || !strings.Contains(got.out, unit) || !strings.Contains(got.out, "enable-linger") ||
		!strings.Contains(got.out, "with these variables of this shell: "+kept) || strings.Contains(got.out, "ann") {
		t.Fatalf("%+v", got)
	}
	text, err := os.ReadFile(unit)
	if err != nil || !strings.Contains(string(text), `ExecStart="`+thisProgram(t)+`" serve`) || !strings.Contains(string(text), `Environment="KITH_HOME=`+home+`/a 100%% kith"`) {
		t.Errorf("%v\n%s", err, text)
	}
	for _, line := range []string{
		`Environment="PATH=` + programs + ":", `Environment="HTTPS_PROXY=http://ann:50%%40$5\"@proxy.test:3128"`, `Environment="no_proxy=intranet.test"`,
		`Environment="SSL_CERT_FILE=/etc/our ca.pem"`, `Environment="KITH_TEST_FAR=sk-1"`,
	} {
		assert.Contains(t, string(text), "\n"+line, "the unit has no line", line, text)
	}
	check(t, kith(t, "", "service", "status", "--json"), json("true", "true"))
	again := json("true", "true") // over itself
	again.out = strings.TrimSuffix(again.out, "}\n") + `,"variables":["PATH","HTTPS_PROXY","no_proxy","SSL_CERT_FILE","KITH_TEST_FAR"]}` + "\n"
	check(t, kith(t, "", "service", "install", "--json"), again)
	check(t, kith(t, "", "service", "uninstall", "--json"), json("false", "false"))
	if _, err := os.Stat(unit); err == nil {
		t.Error("the unit is still there")
	}
	calls, _ := os.ReadFile(log)
	for _, line := range []string{"--user daemon-reload", "--user enable --now kith.service", "--user is-active --quiet kith.service", "--user disable --now kith.service"} {
		assert.Contains(t, string(calls), line+"\n", "systemctl was never called with", line, calls)
	}

	// Without a systemd for this user, or if it does not start the service, nothing is left.
	for name, c := range map[string]struct{ systemctl, want string }{
		"no bus":    {"echo no bus; exit 1", "exit status 1: no bus"},
		"not found": {"", "executable file not found"},
		"no start":  {"test $2 != enable || { echo masked; exit 1; }", "cannot run `systemctl --user enable --now kith.service`: exit status 1: masked"},
	} {
		t.Run(name, func(t *testing.T) {
			home, only := t.TempDir(), t.TempDir()
			if c.systemctl != "" {
				if err := os.WriteFile(filepath.Join(only, "systemctl"), []byte("#!/bin/sh\n"+c.systemctl+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", only)
			t.Setenv("HOME", home)
			t.Setenv("KITH_HOME", filepath.Join(home, ".kith"))
			got := kith(t, "", "service", "install")
			if got.status != 1 || !strings.Contains(got.err, c.want) || name != "no start" && !strings.Contains(got.err, "@reboot KITH_HOME='"+home+"/.kith' '"+thisProgram(t)+"' serve") {
				t.Errorf("%+v", got)
			}
			if left, _ := os.ReadDir(home); len(left) > 0 {
				t.Errorf("%s is left in the home folder", left[0].Name())
			}
			// What an installation with another home left can be removed.
			file := filepath.Join(home, ".config", "systemd", "user", "kith.service")
			write(t, file, "[Service]\n")
			if name == "no start" {
				if got := kith(t, "", "service", "install"); got.status != 1 {
					t.Errorf("%+v", got)
				}
				if text, _ := os.ReadFile(file); string(text) != "[Service]\n" {
					t.Errorf("the older unit is now\n%s", text)
				}
			}
			if got := kith(t, "", "service", "uninstall"); got.status != 0 {
				t.Errorf("%+v", got)
			}
			if _, err := os.Stat(file); err == nil {
				t.Error("the unit is still there")
			}
		})
	}
}

func thisProgram(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err == nil {
		self, err = stableProgram(self, os.Args[0])
	}
	assert.OK(t, err)
	return self
}

// clearKept unsets the variables that a service keeps, except PATH.
func clearKept(t *testing.T) {
	t.Helper()
	for _, name := range keptVariables {
		if name != "PATH" {
			t.Setenv(name, "")
		}
	}
}

// TestStableProgram: the service names the link that an upgrade moves.
func TestStableProgram(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Log("Windows has no service")
		return
	}
	root := assert.Value(filepath.EvalSymlinks(t.TempDir()))(t)
	cellar := filepath.Join(root, "Cellar", "kith", "1.0", "bin", "kith")
	other := filepath.Join(root, "other", "kith")
	for _, file := range []string{cellar, other} {
		write(t, file, "#!/bin/sh\n")
		chmod(t, file, 0o700)
	}
	link, named := filepath.Join(root, "bin", "kith"), filepath.Join(root, "opt", "kith-2")
	for _, l := range []string{link, named} {
		assert.OK(t, os.MkdirAll(filepath.Dir(l), 0o700))
		assert.OK(t, os.Symlink(cellar, l))
	}
	for name, c := range map[string]struct{ path, started, want string }{
		"link on the PATH":         {filepath.Dir(link), "kith", link},
		"by the file itself":       {filepath.Dir(link), cellar, link},
		"another link":             {root, named, named},
		"another kith on the PATH": {filepath.Dir(other), cellar, cellar},
		"nothing known":            {root, "-kith", cellar},
	} {
		t.Setenv("PATH", c.path)
		assert.Equal(t, assert.Value(stableProgram(cellar, c.started))(t), c.want, name)
	}
}

// The packages' user unit is the one that `kith service install` writes.
func TestPackagedService(t *testing.T) {
	text := assert.Value(serviceTemplates.ReadFile("service/kith.service"))(t)
	packaged := assert.Value(os.ReadFile(filepath.Join("..", "..", "deploy", "systemd", "kith.service")))(t)
	if want := strings.NewReplacer("{{program}}", "/usr/bin/kith", "{{home}}", "%h/.kith", "{{environment}}", "").Replace(string(text)); want != string(packaged) {
		t.Errorf("deploy/systemd/kith.service is\n%s\nand has to be\n%s", packaged, want)
	}
}

// TestLaunchdAgent: the agent is a property list whose keys have the types and values that
// launchd.plist(5) wants, for any paths and variables.
func TestLaunchdAgent(t *testing.T) {
	t.Setenv("HOME", "/Users/ann")
	clearKept(t)
	t.Setenv("PATH", "/opt/homebrew/bin:/usr/bin")
	t.Setenv("HTTPS_PROXY", "http://ann:a&b@proxy.test:3128")
	s, err := (&app{home: "/Users/ann/R&D <kith>"}).newService("darwin")
	assert.Require(t, err == nil && s.path == "/Users/ann/Library/LaunchAgents/org.kith.daemon.plist", err, s)
	text, err := s.text("/opt/kith & co/kith")
	assert.OK(t, err)
	want := map[string]any{
		"Label":            "org.kith.daemon",
		"ProgramArguments": []any{"/opt/kith & co/kith", "serve"},
		"EnvironmentVariables": map[string]any{
			"KITH_HOME": "/Users/ann/R&D <kith>", "PATH": "/opt/homebrew/bin:/usr/bin", "HTTPS_PROXY": "http://ann:a&b@proxy.test:3128",
		},
		"RunAtLoad": true, "KeepAlive": true,
		"StandardErrorPath": "/Users/ann/R&D <kith>/log/daemon.log",
	}
	if diff := cmp.Diff(want, propertyList(t, text)); diff != "" {
		t.Errorf("the agent is not as wanted (-want +got):\n%s\n%s", diff, text)
	}
	if _, err := (&app{}).newService("plan9"); err == nil || !strings.HasPrefix(err.Error(), "cannot install a service on plan9; ") {
		t.Error(err)
	}
}

// propertyList parses a property list in XML: its value as a string, a bool, a []any or a
// map[string]any.
func propertyList(t *testing.T, text []byte) any {
	t.Helper()
	type element struct {
		XMLName  xml.Name
		Text     string    `xml:",chardata"`
		Elements []element `xml:",any"`
	}
	var value func(e element) any
	value = func(e element) any {
		switch e.XMLName.Local {
		case "string":
			return e.Text
		case "true", "false":
			return e.XMLName.Local == "true"
		case "array":
			list := []any{}
			for _, each := range e.Elements {
				list = append(list, value(each))
			}
			return list
		case "dict":
			dict := map[string]any{}
			for pair := range slices.Chunk(e.Elements, 2) {
				if _, twice := dict[pair[0].Text]; len(pair) != 2 || pair[0].XMLName.Local != "key" || twice {
					t.Fatalf("a dict with %+v", pair)
				}
				dict[pair[0].Text] = value(pair[1])
			}
			return dict
		}
		t.Fatalf("no property list has a %s", e.XMLName.Local)
		return nil
	}
	var list element
	if err := xml.Unmarshal(text, &list); err != nil || list.XMLName.Local != "plist" || len(list.Elements) != 1 {
		t.Fatalf("%v\n%s", err, text)
	}
	return value(list.Elements[0])
}

// TestStartAtSignIn: no system is pointed to a service that it does not have.
func TestStartAtSignIn(t *testing.T) {
	for system, want := range map[string]string{"linux": "kith service install", "darwin": "kith service install", "windows": "task scheduler"} {
		if got := startAtSignIn(system); !strings.Contains(got, want) || strings.Contains(got, "install") != (system != "windows") {
			t.Errorf("%s: %s", system, got)
		}
	}
	assert.Lacks(t, ownerCommand("windows", `C:\kith`), "chown")
}
