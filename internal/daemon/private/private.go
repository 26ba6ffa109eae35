// Package private reads and writes the daemon's files that only their owner may read.
package private

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kith/kith/internal/host"
)

// Read decodes the JSON file at path into v. It refuses a file that other users can read
// or change. The error is fs.ErrNotExist if there is no file.
func Read(path string, v any) error {
	if err := host.CheckSecretFile(path); errors.Is(err, fs.ErrNotExist) {
		return err
	} else if err != nil {
		return fmt.Errorf("cannot use %s: %w", path, err)
	}
	text, err := host.ReadText(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("cannot read %s: %w", path, err)
	}
	return nil
}

// Write writes v as JSON to path with mode 0600. It syncs and renames a temporary file,
// so that after a crash the file has either its old or its new content.
func Write(path string, v any) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot write %s: %w", path, err)
		}
	}()
	data, err := json.Marshal(v, jsontext.WithIndent("  "))
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // has mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(data, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
