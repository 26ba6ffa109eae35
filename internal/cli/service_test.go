package cli

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
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
	if err := os.WriteFile(filepath.Join(programs, "systemctl"), []byte(fake), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	t.Setenv("KITH_HOME", filepath.Join(home, "a 100% kith"))
	unit := filepath.Join(home, ".config", "systemd", "user", "kith.service")
	json := func(installed, running string) said {
		return said{out: `{"installed":` + installed + `,"running":` + running + `,"file":"` + unit + `"}` + "\n"}
	}
	check(t, kith(t, "", "service", "status", "--json"), json("false", "false"))
	check(t, kith(t, "", "service", "uninstall"), said{out: "not installed\n"})
	if got := kith(t, "", "service", "install"); got.status != 0 || !strings.Contains(got.out, unit) || !strings.Contains(got.out, "enable-linger") {
		t.Fatalf("%+v", got)
	}
	text, err := os.ReadFile(unit)
	program, _ := os.Executable()
	if err != nil || !strings.Contains(string(text), `ExecStart="`+program+`" serve`) || !strings.Contains(string(text), `Environment="KITH_HOME=`+home+`/a 100%% kith"`) {
		t.Errorf("%v\n%s", err, text)
	}
	check(t, kith(t, "", "service", "status", "--json"), json("true", "true"))
	check(t, kith(t, "", "service", "install", "--json"), json("true", "true")) // again, over itself
	check(t, kith(t, "", "service", "uninstall", "--json"), json("false", "false"))
	if _, err := os.Stat(unit); err == nil {
		t.Error("the unit is still there")
	}
	calls, _ := os.ReadFile(log)
	for _, line := range []string{"--user daemon-reload", "--user enable --now kith.service", "--user is-active --quiet kith.service", "--user disable --now kith.service"} {
		if !strings.Contains(string(calls), line+"\n") {
			t.Errorf("systemctl was never called with %q:\n%s", line, calls)
		}
	}

	// A systemctl that fails says why.
	if err := os.WriteFile(filepath.Join(programs, "systemctl"), []byte("#!/bin/sh\necho no bus\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	check(t, kith(t, "", "service", "install"), said{1, "", "cannot run `systemctl --user daemon-reload`: exit status 1: no bus"})
}

// The packages' user unit is the one that `kith service install` writes.
func TestPackagedService(t *testing.T) {
	text, err := serviceTemplates.ReadFile("service/kith.service")
	if err != nil {
		t.Fatal(err)
	}
	packaged, err := os.ReadFile(filepath.Join("..", "..", "deploy", "systemd", "kith.service"))
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.NewReplacer("{{program}}", "/usr/bin/kith", "{{home}}", "%h/.kith").Replace(string(text)); want != string(packaged) {
		t.Errorf("deploy/systemd/kith.service is\n%s\nand has to be\n%s", packaged, want)
	}
}

// The launchd agent is well-formed for any paths.
func TestLaunchdAgent(t *testing.T) {
	t.Setenv("HOME", "/Users/ann")
	s, err := (&app{home: "/Users/ann/R&D <kith>"}).newService("darwin")
	if err != nil || s.path != "/Users/ann/Library/LaunchAgents/org.kith.daemon.plist" {
		t.Fatalf("%v %+v", err, s)
	}
	text, err := s.text("/opt/kith & co/kith")
	if err != nil || !strings.Contains(string(text), "<string>/opt/kith &amp; co/kith</string><string>serve</string>") {
		t.Errorf("%v\n%s", err, text)
	}
	decoder := xml.NewDecoder(strings.NewReader(string(text)))
	for err = nil; err == nil; {
		_, err = decoder.Token()
	}
	if err != io.EOF {
		t.Error(err)
	}
	if _, err := (&app{}).newService("plan9"); err == nil || !strings.HasPrefix(err.Error(), "cannot install a service on plan9; ") {
		t.Error(err)
	}
}
