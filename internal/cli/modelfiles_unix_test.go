//go:build unix

package cli

import (
	"path/filepath"
	"syscall"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestPipesAreNoModels: a pipe that is named as a model is left out: opening it would wait
// for its writer.
func TestPipesAreNoModels(t *testing.T) {
	folder := t.TempDir()
	write(t, filepath.Join(folder, "words.gguf"), "GGUF")
	for _, name := range []string{"pipe.gguf", "mmproj-pipe.gguf"} {
		assert.OK(t, syscall.Mkfifo(filepath.Join(folder, name), 0o600))
	}
	files, err := modelFiles([]string{folder})
	assert.That(t, err == nil && len(files) == 1 && files[0].ID == "words" && files[0].Projector == "", files, err)
	if _, err := modelFiles([]string{filepath.Join(folder, "pipe.gguf")}); err == nil {
		t.Error("a pipe is taken by its name")
	}
}
