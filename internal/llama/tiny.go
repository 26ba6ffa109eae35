package llama

import (
	"bytes"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
)

//go:embed data/tiny.gguf
var tinyModel []byte

// TinyID is the id of the small model that every build contains.
const TinyID = "tiny"

const tinySum = "fcb1ef0ea00cc182134d33a2310d98bce0196ccbe567541d3582b11a6fa6f9bb"

// Tiny writes the embedded small chat model (1.25 M parameters, 2.5 MB) to dir, unless it
// exists, and returns it.
func Tiny(dir string) (ModelFile, error) {
	file := ModelFile{ID: TinyID, Path: filepath.Join(dir, "tiny.gguf")}
	if have, err := fileSum(file.Path); err == nil && have == tinySum {
		return file, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return ModelFile{}, fmt.Errorf("cannot unpack the small model: %w", err)
	}
	if err := writeFile(file.Path, tinySum, bytes.NewReader(tinyModel)); err != nil {
		return ModelFile{}, fmt.Errorf("cannot unpack the small model: %w", err)
	}
	return file, nil
}
