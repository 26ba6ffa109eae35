package cli

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/llama"
)

// TestMain gives every command under test, in this process or in one of its own,
// a default address that cannot be dialled, and no usual ports of engines, and
// gives the tests a home folder of their own and none of the member's settings.
// No test reaches a running kith, its engines or its files, even one that sets no
// KITH_HOME.
func TestMain(m *testing.M) {
	defaultHub, defaultLocal, defaultAdmin = noPort, noPort, noPort
	defaultDiscovery = false
	completionTimeout = soon
	if len(os.Args) > 1 && os.Args[1] == llama.WorkerArg {
		os.Exit(Worker()) // the supervisor starts its own program again
	}
	testscript.Main(isolated{m}, map[string]func(){
		"kith": func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			context.AfterFunc(ctx, stop) // as cmd/kith does
			os.Exit(Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
}

// noPort is a default address under test: to listen there takes any free port,
// and to dial it always fails.
const noPort = "127.0.0.1:0"

// isolated runs the tests with an environment of their own. Commands that are
// processes of their own inherit it.
type isolated struct{ *testing.M }

func (m isolated) Run() (status int) {
	home, err := os.MkdirTemp("", "kith-home-")
	if err != nil {
		log.Fatalf("cannot make a home folder for the tests: %v", err)
	}
	defer os.RemoveAll(home)
	for _, setting := range os.Environ() {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "KITH_") || strings.HasPrefix(name, "XDG_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv("HOME", home)
	os.Setenv("USERPROFILE", home) // HOME on Windows
	if status = m.M.Run(); status != 0 {
		return status
	}
	left, err := os.ReadDir(home)
	if err != nil || len(left) > 0 {
		log.Printf("a test used the home folder instead of a KITH_HOME of its own: %v %v", left, err)
		return 1
	}
	return 0
}

// TestScripts runs the commands that need no server, as a shell would.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("KITH_HOME", env.WorkDir+"/home")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": exitStatus},
	})
}

// exitStatus runs "status N COMMAND…": the command must end with exit status N,
// print nothing on standard output and one line beginning "kith: cannot " on
// standard error.
func exitStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND…")
	}
	shell := `"$@" >out 2>err; test $? = ` + args[0]
	if err := ts.Exec("sh", append([]string{"-c", shell, "sh"}, args[1:]...)...); err != nil {
		ts.Fatalf("%v did not end with status %s; it said %s", args[1:], args[0], ts.ReadFile("err"))
	}
	if out := ts.ReadFile("out"); out != "" {
		ts.Fatalf("a failure printed on standard output: %q", out)
	}
	if err := ts.Exec("sh", "-c", `test "$(wc -l <err)" = 1 && grep -q '^kith: cannot ' err`); err != nil {
		ts.Fatalf("not one line `kith: cannot …` on standard error: %q", ts.ReadFile("err"))
	}
}
