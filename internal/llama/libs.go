package llama

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// libraryVersion is the llama.cpp release of the header that abi.go mirrors.
const libraryVersion = "v0.5.0"

// Version is the llama.cpp release of the libraries.
const Version = libraryVersion

// libraryEnv names a folder with the libraries. It has priority over other locations.
const libraryEnv = "KITH_LLAMA_LIB"

// ErrNoBackend reports a build without the tag llama, or without libraries embedded in it
// or next to the binary. Clients receive its text (spec/api.md#no-backend).
var ErrNoBackend = errors.New("no inference backend compiled in")

// libraryNames are the libraries in the order of their dependencies.
var libraryNames = platformNames(runtime.GOOS)

func platformNames(goos string) [3]string {
	switch goos {
	case "windows":
		return [3]string{"ggml-base.dll", "ggml.dll", "llama.dll"}
	case "darwin":
		return [3]string{"libggml-base.dylib", "libggml." + libraryVersion + ".dylib", "libllama." + libraryVersion + ".dylib"}
	default:
		return [3]string{"libggml-base.so", "libggml." + libraryVersion + ".so", "libllama." + libraryVersion + ".so"}
	}
}

// Available reports whether the libraries can be found: in the folder KITH_LLAMA_LIB, in
// this binary, or next to it. It does not load them. The error is ErrNoBackend or
// describes the problem with the folder.
func Available() error {
	dir, err := libraryFolder()
	if err != nil || dir != "" {
		return err
	}
	if _, err := embedded.ReadFile(embeddedDir + "/SHA256SUMS"); err != nil {
		return ErrNoBackend
	}
	return nil
}

// libraryFolder returns an existing folder of libraries, or "" if there are only the
// embedded ones. The error is ErrNoBackend in a build that cannot load any.
func libraryFolder() (string, error) {
	if !compiledIn {
		return "", ErrNoBackend
	}
	if dir := os.Getenv(libraryEnv); dir != "" {
		if !holdsLibraries(dir) {
			return "", fmt.Errorf("cannot find %s in %s, which %s names", libraryNames[2], dir, libraryEnv)
		}
		return dir, nil
	}
	if _, err := embedded.ReadFile(embeddedDir + "/SHA256SUMS"); err == nil {
		return "", nil
	}
	exe, err := os.Executable()
	if err != nil {
		return "", nil
	}
	if dir := filepath.Join(filepath.Dir(exe), "llama-lib"); holdsLibraries(dir) {
		return dir, nil
	}
	return "", nil
}

func holdsLibraries(dir string) bool {
	for _, name := range libraryNames {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	return true
}

// libraries returns the folder to load from. It first unpacks the embedded libraries into
// a folder below data, whose name is the hash of the checksums, so that each build has
// its own. Each start checks every file and replaces damaged ones.
func libraries(data string) (string, error) {
	dir, err := libraryFolder()
	if err != nil || dir != "" {
		return dir, err
	}
	sums, err := embedded.ReadFile(embeddedDir + "/SHA256SUMS")
	if err != nil {
		return "", ErrNoBackend
	}
	id := sha256.Sum256(sums)
	dir = filepath.Join(data, "llama-"+hex.EncodeToString(id[:6]))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot unpack the inference libraries: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(sums))
	for lines.Scan() {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok || name != filepath.Base(name) {
			return "", fmt.Errorf("cannot unpack the inference libraries: bad line in SHA256SUMS; build again after scripts/fetch-llama.sh")
		}
		if err := unpack(dir, name, sum); err != nil {
			return "", fmt.Errorf("cannot unpack the inference library %s: %w", name, err)
		}
	}
	return dir, nil
}

// unpack writes the embedded file to dir/name unless it already exists.
func unpack(dir, name, sum string) error {
	path := filepath.Join(dir, name)
	if have, err := fileSum(path); err == nil && have == sum {
		return nil
	}
	packed, err := embedded.Open(embeddedDir + "/" + name + ".gz")
	if err != nil {
		return err
	}
	defer packed.Close()
	r, err := gzip.NewReader(packed)
	if err != nil {
		return err
	}
	return writeFile(path, sum, r)
}

// writeFile writes r to path through a temporary file, so that no process sees an
// incomplete one. It fails if the content has a different checksum.
func writeFile(path, sum string, r io.Reader) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails after the rename
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(tmp, h), r)
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if got := hex.EncodeToString(h.Sum(nil)); got != sum {
		return fmt.Errorf("its sha256 is %s, not %s", got, sum)
	}
	return os.Rename(tmp.Name(), path)
}

// fileSum returns the hexadecimal SHA-256 of a file.
func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
