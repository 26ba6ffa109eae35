package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// writeBOM writes what the target's binary is made of, as CycloneDX JSON: the modules
// that the toolchain recorded in it, the standard library, and llama.cpp if it is
// embedded.
func (r *release) writeBOM(w io.Writer, t target) error {
	info, err := buildinfo.ReadFile(r.binary(t))
	if err != nil {
		return err
	}
	binary, err := sumOf(r.binary(t))
	if err != nil {
		return err
	}
	components := []cdx.Component{golang("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		for module.Replace != nil {
			module = module.Replace
		}
		components = append(components, golang(module.Path, module.Version))
	}
	if folder := t.libraries(); folder != "" {
		llama, err := llamaComponent(filepath.Join(r.source, folder))
		if err != nil {
			return err
		}
		components = append(components, llama)
	}
	bom := cdx.NewBOM()
	bom.SerialNumber = "urn:uuid:" + uuidOf(binary)
	bom.Metadata = &cdx.Metadata{
		Timestamp: r.date.Format(time.RFC3339),
		Component: &cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: "kith", Name: "kith", Version: r.version,
			PackageURL: purl(info.Main.Path, r.version),
			Hashes:     &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: binary}},
			Properties: properties(info.Settings, r.commit),
		},
	}
	bom.Components = &components
	out := cdx.NewBOMEncoder(w, cdx.BOMFileFormatJSON)
	return out.SetPretty(true).Encode(bom)
}

func golang(path, version string) cdx.Component {
	return cdx.Component{
		Type: cdx.ComponentTypeLibrary, BOMRef: path + "@" + version, Name: path, Version: version, PackageURL: purl(path, version),
	}
}

func purl(path, version string) string { return "pkg:golang/" + path + "@" + version }

// llamaComponent is llama.cpp, by the stamp that fetch-llama.sh leaves: the platform, the
// package's version and its hash.
func llamaComponent(folder string) (cdx.Component, error) {
	stamp, err := os.ReadFile(filepath.Join(folder, "STAMP"))
	if err != nil {
		return cdx.Component{}, err
	}
	fields := strings.Fields(string(stamp))
	if len(fields) != 3 {
		return cdx.Component{}, fmt.Errorf("%s/STAMP does not hold a platform, a version and a hash; run scripts/fetch-llama.sh", folder)
	}
	name, version := "@node-llama-cpp/"+fields[0], fields[1]
	return cdx.Component{
		Type: cdx.ComponentTypeLibrary, BOMRef: name + "@" + version, Name: name, Version: version,
		Description: "llama.cpp's shared libraries",
		PackageURL:  "pkg:npm/" + strings.Replace(name, "@", "%40", 1) + "@" + version,
	}, nil
}

// properties are the settings of the build.
func properties(settings []debug.BuildSetting, commit string) *[]cdx.Property {
	out := []cdx.Property{{Name: "kith:commit", Value: commit}}
	for _, s := range settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "-tags" || s.Key == "CGO_ENABLED" {
			out = append(out, cdx.Property{Name: "kith:build:" + s.Key, Value: s.Value})
		}
	}
	return &out
}

// uuidOf is a UUID (version 8) of a hexadecimal hash.
func uuidOf(sum string) string {
	return fmt.Sprintf("%s-%s-8%s-8%s-%s", sum[:8], sum[8:12], sum[13:16], sum[17:20], sum[20:32])
}

// sumOf is the hexadecimal SHA-256 of a file.
func sumOf(name string) (string, error) {
	in, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer in.Close()
	h := sha256.New()
	if _, err := io.Copy(h, in); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
