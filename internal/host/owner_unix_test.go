//go:build unix

package host

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestWhoseFolder: of a folder that belongs to another user, as the image's does to a
// process with another uid, the owner is named; of one's own, and none, nothing.
func TestWhoseFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "data")
	assert.OK(t, os.Mkdir(folder, 0o700))
	assert.Equal(t, WhoseFolder(filepath.Join(folder, "hub", "kith.db")), "", "of one's own")
	others := "/" // belongs to root
	if os.Getuid() == 0 {
		assert.OK(t, os.Chown(folder, 65532, 65532))
		others = folder
	}
	if got := WhoseFolder(filepath.Join(others, "none", "hub")); !strings.Contains(got, others+" belongs to user ") || !strings.Contains(got, "chown -R") {
		t.Errorf("of another user: %q", got)
	}
}
