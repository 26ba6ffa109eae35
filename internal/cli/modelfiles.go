package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/llamaserver"
	"github.com/kith/kith/internal/pull"
)

// modelFile is a model in one or more GGUF files on this machine. Path is that of its first
// part.
type modelFile = llamaserver.File

// modelFiles returns the models at the configured paths. A model's id is the file name
// without extension and part; of two models with the same id the first one is used.
// Folders are searched with their subfolders. In a folder, a file whose name starts with
// mmproj belongs to the models next to it. Folders may be missing, files may not.
func modelFiles(paths []string) ([]modelFile, error) {
	var files []modelFile
	add := func(path, projector string) {
		m := modelFile{ID: pull.ModelID(filepath.Base(path)), Path: path, Projector: projector, Version: versionOf(path) + versionOf(projector)}
		if !slices.ContainsFunc(files, func(other modelFile) bool { return other.ID == m.ID }) {
			files = append(files, m)
		}
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && filepath.Ext(path) != ".gguf":
			continue
		case err != nil:
			return nil, fmt.Errorf("cannot use a path of [engine] models: %w", err)
		case info.Mode().IsRegular():
			add(path, "")
			continue
		case !info.IsDir():
			return nil, fmt.Errorf("cannot use a path of [engine] models: %s is neither a file nor a folder", path)
		}
		folders, err := modelFolders(path)
		if err != nil {
			return nil, fmt.Errorf("cannot look for models: %w", err)
		}
		for _, folder := range folders {
			models, projector := ggufIn(folder)
			for _, m := range models {
				add(m, projector)
			}
		}
	}
	return files, nil
}

// modelFolders returns a folder and its subfolders.
func modelFolders(path string) ([]string, error) {
	folders := []string{path}
	entries, err := os.ReadDir(path)
	for _, entry := range entries {
		if name := filepath.Join(path, entry.Name()); !strings.HasPrefix(entry.Name(), ".") && isFolder(name) {
			folders = append(folders, name)
		}
	}
	return folders, err
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// ggufIn returns the first file of each model in a folder, and the folder's projector. If
// the folder cannot be read it returns none.
func ggufIn(folder string) (models []string, projector string) {
	entries, _ := os.ReadDir(folder)
	for _, entry := range entries {
		path := filepath.Join(folder, entry.Name())
		switch {
		case filepath.Ext(path) != ".gguf", !isFile(path): // opening a pipe would block until it has a writer
		case pull.IsProjector(entry.Name()):
			projector = path
		case pull.IsFirstPart(entry.Name()):
			models = append(models, path)
		}
	}
	return models, projector
}

// versionOf returns a string that changes when a file's content does.
func versionOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return ""
	}
	return strconv.FormatInt(info.Size(), 10) + " " + info.ModTime().UTC().Format(time.RFC3339Nano) + ";"
}
