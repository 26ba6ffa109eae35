package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLicenses: each module of a binary has an entry with a licence text, and a missing
// entry is found.
func TestLicenses(t *testing.T) {
	data := value(os.ReadFile(built(t)))(t)
	r := fakeRelease(t, "1.2.3")
	r.source = repository(t)
	var here []target // without those whose libraries were not fetched
	for _, target := range targets {
		write(t, r.binary(target), string(data), 0o755)
		if _, err := os.Stat(filepath.Join(r.source, target.libraries(), "LICENSE")); err == nil {
			here = append(here, target)
		}
	}
	ok(t, r.writeLicenses(t.Context(), here))
	if err := r.checkLicenses(); err != nil {
		t.Error(err)
	}
	text := value(os.ReadFile(r.licensesFile()))(t)
	for _, part := range []string{
		"github.com/ebitengine/purego v", "@node-llama-cpp/linux-", "MIT License\n\nCopyright (c) 2023-2026 The ggml authors\n\nPermission is hereby granted",
		"Copyright 2024 Mozilla Foundation", "Copyright (c) 2024 Gilad S.", "SIL OPEN FONT LICENSE", "marked",
		"Redistribution and use in source and binary forms", "its library  [1] [2]\n", "==== [1]\n\nCopyright 2009 The Go Authors.",
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("there is no %q", part)
		}
	}
	write(t, r.licensesFile(), strings.Replace(string(text), "\ngithub.com/spf13/cobra ", "\nelse ", 1), 0o644)
	if err := r.checkLicenses(); err == nil || !strings.Contains(err.Error(), "no licence of github.com/spf13/cobra") {
		t.Errorf("without an entry: %v", err)
	}
}

// TestLlamaLicense: each archive with llama.cpp's libraries has llama.cpp's own licence
// beside them.
func TestLlamaLicense(t *testing.T) {
	r := fakeRelease(t, "1.2.3")
	for _, target := range targets {
		files := value(r.archiveFiles(target))(t)
		text := ""
		for _, f := range files {
			if filepath.Base(f.name) == "LICENSE.llama.cpp" {
				data := value(os.ReadFile(f.from))(t)
				text = string(data)
			}
		}
		if strings.Contains(text, "The ggml authors") != (target.libraries() != "") {
			t.Errorf("%s has as llama.cpp's licence %q", target, text)
		}
	}
}

// TestLicenseFiles: what is a licence, by its name.
func TestLicenseFiles(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{"LICENSE", "LICENSE-MIT", "License.txt", "COPYING", "NOTICE", "license.go", "licenses.md", "LICENSING-notes of mine", "README"} {
		write(t, filepath.Join(folder, name), "x", 0o644)
	}
	var found []string
	for _, file := range licenseFiles(folder) {
		found = append(found, filepath.Base(file))
	}
	if got, want := strings.Join(found, " "), "COPYING LICENSE LICENSE-MIT License.txt NOTICE licenses.md"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}
