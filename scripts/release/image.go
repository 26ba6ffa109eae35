package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// imageUser is the user that the hub runs as in its image.
const imageUser = 65532

// imageHome is the hub's KITH_HOME in its image; a volume belongs there.
const imageHome = "/var/lib/kith"

// imageName is the file name of the image.
func (r *release) imageName() string { return "kith-hub_" + r.version + ".oci.tar" }

// image writes the hub's image for both processors, as an OCI layout in a tar archive.
func (r *release) image(context.Context) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, t := range targets {
		if !t.slim {
			continue
		}
		one, err := r.imageOf(t)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: one, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: t.os, Architecture: t.arch},
		}})
	}
	folder := filepath.Join(r.work, "image")
	image, err := layout.Write(folder, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	// The name under which tools that read a layout find the image.
	named := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": r.version})
	if err := image.AppendIndex(index, named); err != nil {
		return err
	}
	parts, err := filesBelow(folder)
	if err != nil {
		return err
	}
	return r.create(r.imageName(), func(w io.Writer) error { return writeTar(w, parts, r.date) })
}

// imageOf is the image of a static binary, without a shell or a C library.
func (r *release) imageOf(t target) (v1.Image, error) {
	var packed bytes.Buffer
	if err := writeTarGz(&packed, r.imageFiles(r.binary(t)), r.date); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(packed.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: r.date}, CreatedBy: "make release"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = t.os, t.arch, v1.Time{Time: r.date}
	config.Config = v1.Config{
		User: "65532:65532", Env: []string{"PATH=/usr/bin", "HOME=" + imageHome, "KITH_HOME=" + imageHome}, WorkingDir: imageHome,
		Entrypoint: []string{"/usr/bin/kith"}, Cmd: []string{"hub", "--listen", ":8700"},
		ExposedPorts: map[string]struct{}{"8700/tcp": {}, "8702/tcp": {}, "8703/tcp": {}}, Volumes: map[string]struct{}{imageHome: {}},
		Healthcheck: &v1.HealthConfig{
			Test: []string{"CMD", "/usr/bin/kith", "admin", "health"}, Interval: 10 * time.Second, Timeout: 5 * time.Second, StartPeriod: 30 * time.Second, Retries: 3,
		},
		Labels: map[string]string{
			"org.opencontainers.image.title": "kith hub", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.revision": r.commit, "org.opencontainers.image.licenses": "Apache-2.0",
			"org.opencontainers.image.source": "https://github.com/kith/kith",
		},
	}
	return mutate.ConfigFile(image, config)
}

// imageFiles are all files of the image: the binary, the certificates of the authorities
// that Mozilla trusts, the user, the licences, and folders for data and temporary files.
func (r *release) imageFiles(binary string) []file {
	return []file{
		{name: "etc/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, text: []byte("root:x:0:0:root:/:/sbin/nologin\nkith:x:65532:65532:kith:" + imageHome + ":/sbin/nologin\n")},
		{name: "etc/group", mode: 0o644, text: []byte("root:x:0:\nkith:x:65532:\n")},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, text: authorities()},
		{name: "tmp/", mode: 0o1777},
		{name: "usr/", mode: 0o755},
		{name: "usr/bin/", mode: 0o755},
		{name: "usr/bin/kith", from: binary, mode: 0o755},
		{name: "usr/share/", mode: 0o755},
		{name: "usr/share/doc/", mode: 0o755},
		{name: "usr/share/doc/kith/", mode: 0o755},
		{name: "usr/share/doc/kith/LICENSE", from: filepath.Join(r.source, "LICENSE"), mode: 0o644},
		{name: "usr/share/doc/kith/" + licensesName, from: r.licensesFile(), mode: 0o644},
		{name: "var/", mode: 0o755},
		{name: "var/lib/", mode: 0o755},
		{name: "var/lib/kith/", mode: 0o700, owner: imageUser},
	}
}

// authorities are the certificates in PEM. Those that are trusted only for certificates
// up to a date are left out: a file of certificates cannot hold that bound.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return out.Bytes()
}

// filesBelow are the files and folders in a folder.
func filesBelow(folder string) ([]file, error) {
	var out []file
	err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == folder {
			return err
		}
		inside, err := filepath.Rel(folder, name)
		f := file{name: filepath.ToSlash(inside), from: name, mode: 0o644}
		if entry.IsDir() {
			f = file{name: f.name + "/", mode: os.FileMode(0o755)}
		}
		out = append(out, f)
		return err
	})
	return out, err
}
