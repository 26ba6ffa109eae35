package systems_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kith/kith/internal/enginetest"
)

// wine returns a Windows with a new disk, whose drive C is below the test's folder.
func wine(t *testing.T) (s *system, c string) {
	t.Helper()
	dir := t.TempDir()
	programs := filepath.Join("/usr", "lib", "wine")
	s = &system{t: t, program: []string{filepath.Join(programs, "wine64")}}
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "NO_COLOR=1", "WINEPREFIX=" + filepath.Join(dir, "wine"), "WINEDEBUG=-all"}
	if out, status := s.kith("wineboot", "--init"); status != 0 {
		t.Fatalf("Wine does not start: %d\n%s", status, out)
	}
	t.Cleanup(func() { // the processes that it started
		for _, args := range [][]string{{"-k"}, {"-w"}} {
			server := exec.Command(filepath.Join(programs, "wineserver64"), args...)
			server.Env = s.env
			_ = server.Run()
		}
	})
	c = filepath.Join(dir, "wine", "drive_c")
	library, err := os.ReadFile(built(t, "bcryptprimitives.dll"))
	if err == nil {
		err = os.WriteFile(filepath.Join(c, "windows", "system32", "bcryptprimitives.dll"), library, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

// packages runs the tests of packages that only Windows has, or that it answers otherwise.
func packages(s *system) {
	s.t.Helper()
	for program, test := range map[string]string{"daemon.test.exe": "TestPipe", "outbound.test.exe": "TestErrors"} {
		out, status := (&system{t: s.t, program: slices.Concat(s.program, []string{built(s.t, program)}), env: s.env}).kith("-test.v", "-test.run=^"+test)
		if status != 0 || !strings.Contains(out, "--- PASS: "+test) {
			s.t.Errorf("%s: %d\n%s", program, status, out)
		}
	}
}

// TestWindows: kith.exe checks a machine, and runs a network on it whose calls an engine
// beside it answers. Its socket is a pipe.
func TestWindows(t *testing.T) {
	s, c := wine(t)
	packages(s)
	s.program = append(s.program, built(t, "kith.exe"))
	check := func(want int, has string, args ...string) {
		t.Helper()
		if out, status := s.kith(args...); status != want || !strings.Contains(out, has) {
			t.Errorf("kith %s: %d, want %d and %q\n%s", strings.Join(args, " "), status, want, has, out)
		}
	}
	engine := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: "stand-in"}}})
	if err := engine.Start(); err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	engine.Set(enginetest.Behaviour{Text: "The capital is Paris."})
	s.env = append(s.env, `KITH_HOME=C:\kith`, "OLLAMA_HOST="+strings.TrimPrefix(engine.URL(), "http://"))

	check(0, "windows/amd64", "version")
	check(1, "the daemon does not run", "doctor")
	check(0, `C:\kith\config.toml is not there`, "config", "check")
	if err := os.MkdirAll(filepath.Join(c, "kith"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(c, "kith", "config.toml"), []byte("[daemon]\r\nlistn = \"x\"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	check(1, `config.toml:2:1: unknown key "daemon.listn"`, "config", "check")

	n, end := s.dev(`C:\kith\dev`)
	callAll(t, n, "stand-in", "Paris")
	if got := engine.Counts(); got.Completed != 4 {
		t.Errorf("the engine counts %+v", got)
	}
	// Over the pipes of the daemon and the hub.
	s.env = append(s.env, `KITH_HOME=C:\kith\dev`)
	check(0, "stand-in", "status")
	check(0, "operator", "admin", "--data", `C:\KITH\dev`, "member", "list")
	end()
	check(0, "not running", "status")
}
