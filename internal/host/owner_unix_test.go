//go:build unix

package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhoseFolder: of a folder that belongs to another user, as the image's does to a
// process with another uid, the owner is named; of one's own, and none, nothing.
func TestWhoseFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if got := WhoseFolder(filepath.Join(folder, "hub", "kith.db")); got != "" {
		t.Errorf("of one's own: %q", got)
	}
	others := "/" // belongs to root
	if os.Getuid() == 0 {
		if err := os.Chown(folder, 65532, 65532); err != nil {
			t.Fatal(err)
		}
		others = folder
	}
	if got := WhoseFolder(filepath.Join(others, "none", "hub")); !strings.Contains(got, others+" belongs to user ") || !strings.Contains(got, "chown -R") {
		t.Errorf("of another user: %q", got)
	}
}
