package e2e_test

import (
	"os"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/llama/llamatest"
)

// agentmodel MODEL FILE writes a model for the built-in engine that reads FILE by whichever
// tool a coding agent has for that, and then says what 7 and 5 are.
func agentmodel(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2, "agentmodel MODEL FILE")
	small, err := os.ReadFile("../internal/llama/data/tiny.gguf")
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), llamatest.Agent(small, ts.MkAbs(args[1])), 0o600))
}
