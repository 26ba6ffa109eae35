package cli

import (
	"context"
	"os"
	"os/signal"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/llama"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == llama.WorkerArg {
		os.Exit(Worker()) // the supervisor starts its own program again
	}
	testscript.Main(m, map[string]func(){
		"kith": func() {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			defer stop()
			os.Exit(Main(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
		},
	})
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
