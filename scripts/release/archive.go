package main

import (
	"archive/tar"
	"archive/zip"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// file is a file or a folder of an archive.
type file struct {
	name  string // with slashes; a folder's ends with one
	mode  fs.FileMode
	owner int    // the user's and the group's id
	from  string // the file with its content; or
	text  []byte
}

// content returns the file's bytes.
func (f file) content() ([]byte, error) {
	if f.from == "" {
		return f.text, nil
	}
	return os.ReadFile(f.from)
}

// isDir reports whether it is a folder.
func (f file) isDir() bool { return f.name[len(f.name)-1] == '/' }

// writeTar writes the files, sorted by name, all of one date.
func writeTar(w io.Writer, files []file, date time.Time) error {
	out := tar.NewWriter(w)
	for _, f := range sorted(files) {
		data, err := f.content()
		if err != nil {
			return err
		}
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: f.name, Mode: int64(f.mode), Uid: f.owner, Gid: f.owner,
			Size: int64(len(data)), ModTime: date.Truncate(time.Second), Format: tar.FormatPAX,
		}
		if f.isDir() {
			header.Typeflag = tar.TypeDir
		}
		if err := out.WriteHeader(header); err != nil {
			return err
		}
		if _, err := out.Write(data); err != nil {
			return err
		}
	}
	return out.Close()
}

// writeTarGz is writeTar, compressed.
func writeTarGz(w io.Writer, files []file, date time.Time) error {
	return compress(w, func(w io.Writer) error { return writeTar(w, files, date) })
}

// compress compresses what write writes. The header of gzip holds no date.
func compress(w io.Writer, write func(io.Writer) error) error {
	packed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(write(packed), packed.Close())
}

// writeZip writes the files, sorted by name, all of one date.
func writeZip(w io.Writer, files []file, date time.Time) error {
	out := zip.NewWriter(w)
	for _, f := range sorted(files) {
		data, err := f.content()
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: date.UTC()}
		header.SetMode(f.mode)
		part, err := out.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := part.Write(data); err != nil {
			return err
		}
	}
	return out.Close()
}

func sorted(files []file) []file {
	return slices.SortedFunc(slices.Values(files), func(a, b file) int { return cmp.Compare(a.name, b.name) })
}

// create writes an artifact.
func (r *release) create(name string, write func(io.Writer) error) error {
	out, err := os.Create(filepath.Join(r.out, name))
	if err != nil {
		return err
	}
	if err := errors.Join(write(out), out.Close()); err != nil {
		return fmt.Errorf("cannot write %s: %w", name, err)
	}
	return nil
}

// baseName is the name of the target's artifacts, without an extension.
func (r *release) baseName(t target) string {
	name := "kith"
	if t.slim {
		name = "kith-slim"
	}
	return fmt.Sprintf("%s_%s_%s_%s", name, r.version, t.os, t.arch)
}

// archiveName is the file name of the target's archive.
func (r *release) archiveName(t target) string {
	if t.os == "windows" {
		return r.baseName(t) + ".zip"
	}
	return r.baseName(t) + ".tar.gz"
}

// archive writes the target's archive, and beside it what the build is made of.
func (r *release) archive(t target) error {
	if err := r.writeArchive(t); err != nil {
		return err
	}
	return r.create(r.baseName(t)+".cdx.json", func(w io.Writer) error { return r.writeBOM(w, t) })
}

func (r *release) writeArchive(t target) error {
	files, err := r.archiveFiles(t)
	if err != nil {
		return err
	}
	write := writeTarGz
	if t.os == "windows" {
		write = writeZip
	}
	return r.create(r.archiveName(t), func(w io.Writer) error { return write(w, files, r.date) })
}

// archiveFiles are the files of the target's archive, in one folder.
func (r *release) archiveFiles(t target) ([]file, error) {
	folder := r.baseName(t) + "/"
	var files []file
	add := func(name, from string, mode fs.FileMode) {
		files = append(files, file{name: folder + name, from: from, mode: mode})
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md"} {
		add(name, filepath.Join(r.source, name), 0o644)
	}
	add(licensesName, r.licensesFile(), 0o644)
	if t.libraries() != "" {
		add("LICENSE.llama.cpp", r.llamaLicense(), 0o644)
	}
	if t.os == "windows" {
		add("kith.exe", r.binary(t), 0o755)
		add("kith.ps1", filepath.Join(r.work, "completions", "kith.ps1"), 0o644)
		return files, nil
	}
	add("kith", r.binary(t), 0o755)
	for _, name := range []string{"kith.bash", "_kith", "kith.fish"} {
		add("completions/"+name, filepath.Join(r.work, "completions", name), 0o644)
	}
	pages, err := r.manPages()
	for _, page := range pages {
		add("man/man1/"+path.Base(filepath.ToSlash(page)), page, 0o644)
	}
	return files, err
}

// manPages are the files of the man pages.
func (r *release) manPages() ([]string, error) {
	pages, err := filepath.Glob(filepath.Join(r.work, "man", "*.1"))
	if err == nil && len(pages) == 0 {
		err = errors.New("there are no man pages")
	}
	return pages, err
}
