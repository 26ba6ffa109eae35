package clients_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"reflect"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// A program that shares no code with kith opens the recorded call, its answer and the
// approval of a machine, by docs/spec/sealed.md alone.
func TestSealedVectors(t *testing.T) {
	const file = "../../docs/spec/testdata/sealed-vectors.json"
	cmd := exec.Command("node", "node/sealed.mjs", file)
	cmd.Stderr = os.Stderr
	out := assert.Value(cmd.Output())(t)
	var got map[string]any
	assert.OK(t, json.Unmarshal(out, &got), string(out))
	var v struct {
		Account, Fingerprint string
		Statement            struct {
			Machine string
			KeyID   string `json:"key_id"`
		}
		Call   struct{ Head, Routing, Cache, Body string }
		Answer struct{ Texts []any }
	}
	assert.OK(t, json.Unmarshal(assert.Value(os.ReadFile(file))(t), &v))
	delete(got, "made")
	want := map[string]any{
		"machine": v.Statement.Machine, "fingerprint": v.Fingerprint, "keyID": v.Statement.KeyID, "head": v.Call.Head, "routing": v.Call.Routing,
		"cache": v.Call.Cache, "body": v.Call.Body, "texts": v.Answer.Texts, "seed": v.Account,
	}
	assert.That(t, reflect.DeepEqual(got, want), got, want)
}
