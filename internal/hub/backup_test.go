package hub

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/account"
)

// TestBackup: the operator's API copies the database, and refuses in words what it
// will not do; the audit log names what was made, and only that.
func TestBackup(t *testing.T) {
	r := newRig(t, Config{})
	file := filepath.Join(t.TempDir(), "copy.db")
	made := r.ok("POST", "/backups", `{"file":"`+file+`"}`)
	about, err := os.Stat(file)
	if err != nil || float64(about.Size()) != made.Body["bytes"] || made.Body["file"] != file {
		t.Errorf("%v, %v of %v", err, about, made.Body)
	}
	for body, want := range map[string]string{
		`{"file":"` + file + `"}`: "is there already", `{"file":"copy.db"}`: "absolute path", `{}`: "absolute path",
		`{"file":"` + filepath.Join(file, "x") + `"}`: "cannot", `{"file":"/none/x"}`: "its folder has to be there",
	} {
		a := r.admin("POST", "/backups", body)
		e, _ := a.Body["error"].(map[string]any)
		if message, _ := e["message"].(string); a.Status < 400 || !strings.Contains(message, want) && a.Status != 500 || strings.Contains(message, "invalid:") {
			t.Errorf("%s: %d %v", body, a.Status, a.Body)
		}
	}
	acts, err := r.kept.Acts(t.Context(), account.Place{}, account.ActFilter{}, 9)
	if err != nil || len(acts) != 1 || acts[0].What != "back up the database" || acts[0].Subject != file {
		t.Errorf("the log says %+v, %v", acts, err)
	}
	if last, err := r.kept.LastBackup(t.Context()); err != nil || last.File != file || last.Fault != "" {
		t.Errorf("the last backup is %+v, %v", last, err)
	}
}
