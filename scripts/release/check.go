package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// check reads every artifact again, as those who download it do: the checksums, each
// archive unpacked, `kith version` if this computer can run it, a static binary if one is
// promised, the packages' members, the image's layers.
func (r *release) check(ctx context.Context) error {
	if err := r.checkSums(); err != nil {
		return err
	}
	for _, t := range targets {
		if err := r.checkArchive(ctx, t); err != nil {
			return fmt.Errorf("%s: %w", r.archiveName(t), err)
		}
	}
	if err := r.checkLicenses(); err != nil {
		return err
	}
	if err := r.checkImage(); err != nil {
		return fmt.Errorf("%s: %w", r.imageName(), err)
	}
	for _, pattern := range []string{"*.deb", "*.rpm"} {
		found, err := filepath.Glob(filepath.Join(r.out, pattern))
		if err != nil || len(found) != 2 {
			return fmt.Errorf("%d packages %s, not 2", len(found), pattern)
		}
	}
	return nil
}

// checkSums compares every file with its checksum.
func (r *release) checkSums() error {
	text, err := os.ReadFile(filepath.Join(r.out, sumsFile))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if got, err := sumOf(filepath.Join(r.out, name)); err != nil || got != sum {
			return fmt.Errorf("%s has the checksum %s, not %s (%w)", name, got, sum, err)
		}
	}
	return nil
}

// checkArchive unpacks an archive and checks its binary.
func (r *release) checkArchive(ctx context.Context, t target) error {
	folder, err := os.MkdirTemp(r.work, "archive-")
	if err != nil {
		return err
	}
	name, program := filepath.Join(r.out, r.archiveName(t)), "kith"
	unpack := unpackTarGz
	if t.os == "windows" {
		unpack, program = unpackZip, "kith.exe"
	}
	if err := unpack(name, folder); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(folder, r.baseName(t), licensesName)); err != nil {
		return err
	}
	program = filepath.Join(folder, r.baseName(t), program)
	if t.slim {
		if err := checkStatic(program); err != nil {
			return err
		}
	}
	if t.os != runtime.GOOS || t.arch != runtime.GOARCH {
		return nil
	}
	return runVersion(ctx, program, r.version)
}

// runVersion runs `kith version` and compares the version.
func runVersion(ctx context.Context, program, version string) error {
	out, err := exec.CommandContext(ctx, program, "version", "--json").CombinedOutput()
	var got struct{ Version string }
	if err != nil || json.Unmarshal(out, &got) != nil || got.Version != version {
		return fmt.Errorf("`kith version` printed %q (%w), and not version %s", out, err, version)
	}
	return nil
}

// checkStatic reports an error unless the program is a Linux binary without a dynamic
// loader, which runs where there is no C library.
func checkStatic(program string) error {
	binary, err := elf.Open(program)
	if err != nil {
		return err
	}
	defer binary.Close()
	for _, header := range binary.Progs {
		if header.Type == elf.PT_INTERP || header.Type == elf.PT_DYNAMIC {
			return fmt.Errorf("the binary is not static: it has a program header %s", header.Type)
		}
	}
	return nil
}

// checkImage reads the image again and checks all of its hashes.
func (r *release) checkImage() error {
	folder, err := os.MkdirTemp(r.work, "image-")
	if err != nil {
		return err
	}
	index, err := r.readImage(folder)
	if err != nil {
		return err
	}
	return validate.Index(index)
}

// readImage unpacks the image's archive to a folder and returns the index of the images,
// one for each processor.
func (r *release) readImage(folder string) (v1.ImageIndex, error) {
	in, err := os.Open(filepath.Join(r.out, r.imageName()))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	if err := unpackTar(in, folder); err != nil {
		return nil, err
	}
	top, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return nil, err
	}
	indexes, err := partial.FindIndexes(top, anything)
	if err != nil || len(indexes) != 1 {
		return nil, fmt.Errorf("the layout does not hold one image (%w)", err)
	}
	return indexes[0], nil
}

// anything matches every part of an index.
func anything(v1.Descriptor) bool { return true }

func unpackTarGz(name, folder string) error {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	packed, err := gzip.NewReader(in)
	if err != nil {
		return err
	}
	return unpackTar(packed, folder)
}

// unpackTar unpacks files and folders. The owner is kept where this user may set it.
func unpackTar(in io.Reader, folder string) error {
	for r := tar.NewReader(in); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("the archive holds %q, which is outside of it", header.Name)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		name := filepath.Join(folder, header.Name)
		if err := put(name, header.FileInfo().Mode(), data); err != nil {
			return err
		}
		if os.Getuid() == 0 {
			if err := os.Chown(name, header.Uid, header.Gid); err != nil {
				return err
			}
		}
	}
}

func unpackZip(name, folder string) error {
	in, err := zip.OpenReader(name)
	if err != nil {
		return err
	}
	defer in.Close()
	return os.CopyFS(folder, in)
}

// put writes a file or makes a folder.
func put(name string, mode os.FileMode, data []byte) error {
	if mode.IsDir() {
		return os.MkdirAll(name, mode.Perm())
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return os.WriteFile(name, data, mode.Perm())
}
