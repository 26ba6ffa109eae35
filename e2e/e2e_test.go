// Package e2e_test drives the binary that members get, as separate processes
// on loopback: each script in testdata is one scenario, with the commands
// below and curl.
package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/enginetest"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"llama-server": llamaServer, "claude": codingAgent})
}

// scripts is where the stories are; make test-all also runs those in agents.
var scripts = flag.String("scripts", "testdata", "the folder of the scripts to run")

// builtBinary is the one under test.
func builtBinary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("KITH_BIN")
	if path == "" {
		path, _ = filepath.Abs("../bin/kith")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("cannot find the binary under test: %v; run make build, or make test", err)
	}
	return path
}

func TestScripts(t *testing.T) {
	binary := builtBinary(t)
	agents, _ := filepath.Abs("agents/node_modules/.bin")
	members, _ := filepath.Abs("../docs/clients.md")
	testscript.Run(t, testscript.Params{
		Dir: *scripts,
		Setup: func(env *testscript.Env) error {
			path := filepath.Dir(binary) + string(os.PathListSeparator) + env.Getenv("PATH")
			env.Setenv("PATH", path)
			env.Setenv("ONLYKITH", filepath.Dir(binary)) // a PATH without the double of llama-server
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("HOME", home)
			env.Setenv("KITH_HOME", filepath.Join(home, ".kith"))
			env.Setenv("NO_COLOR", "1")
			env.Setenv("KITH_SYSTEM_ROOT", filepath.Join(env.WorkDir, "system"))
			env.Setenv("AGENTS", agents)
			env.Setenv("PAGE", members)
			env.Setenv("OTHERDAY", time.Now().UTC().AddDate(0, 0, 3).Format("Mon"))
			s := &story{procs: map[string]*process{}, streams: map[string]*streamed{}, doubles: map[string]double{}}
			env.Values[storyKey{}] = s
			env.Defer(func() {
				s.end()
				if t, ok := env.T().(interface{ Failed() bool }); ok && t.Failed() {
					for name, p := range s.procs {
						env.T().Log(name, "said:\n", p.said())
					}
				}
			})
			return os.MkdirAll(filepath.Join(home, ".kith"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"network":    network,
			"hub":        hub,
			"daemon":     daemon,
			"member":     member,
			"double":     startDouble,
			"reader":     reader,
			"coder":      coder,
			"computed":   computed,
			"page":       page,
			"behave":     behave,
			"counts":     counts,
			"call":       call,
			"stream":     stream,
			"first":      first,
			"flood":      flood,
			"ended":      ended,
			"hangup":     hangup,
			"kill9":      kill9,
			"halt":       halt,
			"until":      until,
			"body":       body,
			"gguf":       gguf,
			"agentmodel": agentmodel,
			"modelhub":   startModelHub,
			"flow":       flow,
			"resumed":    resumed,
			"value":      value,
			"wiretap":    wiretap,
			"sees":       sees,
			"oneday":     func(*testscript.TestScript, bool, []string) { enginetest.OneDay() },
		},
		RequireExplicitExec: true,
	})
}

// storyKey finds the story of a script.
type storyKey struct{}

// story is what one script started.
type story struct {
	procs   map[string]*process
	streams map[string]*streamed
	doubles map[string]double
	tap     *tap // nil: none

	modelHub *modelSource // nil: none was started
}

func of(ts *testscript.TestScript) *story { return ts.Value(storyKey{}).(*story) }

// end ends whatever still runs, by its id.
func (s *story) end() {
	for _, st := range s.streams {
		st.cancel()
	}
	for _, p := range s.procs {
		p.kill()
	}
	for _, d := range s.doubles {
		d.engine.Close()
	}
	if s.modelHub != nil {
		s.modelHub.end()
	}
}

// usage ends a script whose line is wrong.
func usage(ts *testscript.TestScript, neg bool, ok bool, text string) {
	if neg || !ok {
		ts.Fatalf("usage: %s", text)
	}
}

// value NAME FILE sets $NAME to what the file holds.
func value(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2, "value NAME FILE")
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}

// body FILE SIZE writes a chat request of exactly SIZE bytes.
func body(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2, "body FILE SIZE")
	var size int
	_, err := fmt.Sscan(args[1], &size)
	ts.Check(err)
	head, tail := `{"model":"tiny","messages":[{"role":"user","content":"`, `"}]}`
	text := make([]byte, size)
	for i := range text {
		text[i] = 'a'
	}
	copy(text, head)
	copy(text[size-len(tail):], tail)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o600))
}
