package llama

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// packageVersion is the release of the packages with the libraries, as in
// scripts/fetch-llama.sh.
const packageVersion = "3.22.1"

// GPULibrary is a library that lets llama.cpp compute on graphics cards. It is downloaded
// separately from the other libraries and loaded in addition to them.
type GPULibrary struct {
	Name    string // such as "vulkan"
	Cards   string // the supported cards
	Needs   string // what the computer must have installed
	Package string // name in the npm registry
	Version string
	Size    int64  // bytes of the package
	SHA256  string // of the package
	Member  string // path of the library in the package
	Sum     string // SHA-256 of the library
	// Unpacked is the size of the library in bytes.
	Unpacked int64
}

// GPULibraries returns the libraries for this platform, in order of preference.
func GPULibraries() []GPULibrary {
	if !compiledIn || runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return nil
	}
	return []GPULibrary{{
		Name: "cuda", Cards: "NVIDIA", Needs: "NVIDIA's driver and the CUDA 13 runtime (libcudart and libcublas)",
		Package: "@node-llama-cpp/linux-x64-cuda", Version: packageVersion,
		Size: 142898030, SHA256: "d6cd3ff39a43b024816952e0bc6452d6711608d26256ff6eb0fe8cf7ff55bb2c",
		Member:   "package/bins/linux-x64-cuda/libggml-cuda.so",
		Unpacked: 158993272, Sum: "f00882ca593ddf380778f5ac835690bcdaad951cd4700829c7a03aa0c32bcf47",
	}, {
		Name: "vulkan", Cards: "AMD, Intel and NVIDIA", Needs: "the Vulkan loader (libvulkan1) and a driver of the card (mesa-vulkan-drivers, or NVIDIA's)",
		Package: "@node-llama-cpp/linux-x64-vulkan", Version: packageVersion,
		Size: 24311427, SHA256: "e10577190fc4bd1649d3b655588e5c7a85fc6b6dbf7136fee596cbe9e25521e7",
		Member:   "package/bins/linux-x64-vulkan/libggml-vulkan.so",
		Unpacked: 43255472, Sum: "5dbbe80b520118b6b71f3ea31935ba107cee9c9c68f7e7ed18b20cdb424e819b",
	}}
}

// path returns the path of the library in the folder Config.Data.
func (g GPULibrary) path(data string) string {
	return filepath.Join(data, g.Name+"-"+g.Version, path.Base(g.Member))
}

// Install unpacks the library from its package into the folder Config.Data, and removes
// other versions of it.
func (g GPULibrary) Install(data, archive string) error {
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	unzipped, err := gzip.NewReader(bufio.NewReader(in))
	if err != nil {
		return err
	}
	into := g.path(data)
	for files := tar.NewReader(unzipped); ; {
		header, err := files.Next()
		switch {
		case err == io.EOF:
			return fmt.Errorf("the package %s has no %s", filepath.Base(archive), g.Member)
		case err != nil:
			return err
		case header.Name != g.Member:
			continue
		}
		if err := os.MkdirAll(filepath.Dir(into), 0o700); err != nil {
			return err
		}
		if err := writeFile(into, g.Sum, files); err != nil {
			return err
		}
		return g.remove(data, filepath.Dir(into))
	}
}

// Remove deletes every version of the library. It returns fs.ErrNotExist if there is none.
func (g GPULibrary) Remove(data string) error {
	if len(g.versions(data)) == 0 {
		return fs.ErrNotExist
	}
	return g.remove(data, "")
}

// versions returns the folders of all installed versions of the library.
func (g GPULibrary) versions(data string) []string {
	folders, _ := filepath.Glob(filepath.Join(data, g.Name+"-*", "*")) // the pattern is valid
	for i, file := range folders {
		folders[i] = filepath.Dir(file)
	}
	return slices.Compact(folders)
}

// remove deletes all versions of the library except the folder keep.
func (g GPULibrary) remove(data, keep string) (err error) {
	for _, folder := range g.versions(data) {
		if folder != keep {
			err = errors.Join(err, os.RemoveAll(folder))
		}
	}
	return err
}

// Installed reports whether any version of the library is installed.
func (g GPULibrary) Installed(data string) bool { return len(g.versions(data)) > 0 }

// check returns why the library in the folder cannot be loaded, without loading it.
func (g GPULibrary) check(data string) error {
	sum, err := fileSum(g.path(data))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("it belongs to another version of kith; fetch it again with `kith engine add %s`", g.Name)
	case err != nil:
		return err
	case sum != g.Sum:
		return fmt.Errorf("it is damaged; fetch it again with `kith engine add %s`", g.Name)
	}
	return nil
}

// Graphics is what the built-in engine computes with.
type Graphics struct {
	// Library is the name of the GPU library in use; empty means the CPU.
	Library string `json:"library,omitempty"`
	// Cards are the names of the graphics cards in use.
	Cards []string `json:"cards,omitempty"`
	// Unused are the reasons why other installed libraries are not used, by name.
	Unused map[string]string `json:"unused,omitempty"`
}

// gpuFile is an installed GPU library, for the worker.
type gpuFile struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	Needs string `json:"needs"`
}

// installedGPUs returns the usable libraries in order of preference, and why other
// installed ones are not usable.
func installedGPUs(data string, all []GPULibrary) (usable []gpuFile, unused map[string]string) {
	unused = map[string]string{}
	for _, g := range all {
		if !g.Installed(data) {
			continue
		}
		if err := g.check(data); err != nil {
			unused[g.Name] = err.Error()
			continue
		}
		usable = append(usable, gpuFile{g.Name, g.path(data), g.Needs})
	}
	return usable, unused
}

// The kinds of devices, enum ggml_backend_dev_type.
const (
	deviceGPU        = 1
	deviceIntegrated = 2 // it uses the main memory
)

// loadGPU loads the first library that finds a graphics card. With two libraries,
// llama.cpp would use the same card twice.
func (lib *library) loadGPU(files []gpuFile) {
	for _, file := range files {
		lib.errors.take()
		var why string
		if lib.ggml_backend_load(file.Path) == 0 {
			why = loadFailure(lib.errors.take(), file)
		} else if lib.findCards(); len(lib.graphics.Cards) == 0 {
			why = "it finds no graphics card; it needs " + file.Needs
		} else {
			lib.graphics.Library = file.Name
			why = "kith uses " + file.Name + ", which comes first"
		}
		if lib.graphics.Library != file.Name {
			lib.note(file.Name, why)
			continue
		}
		for _, other := range files[slices.Index(files, file)+1:] {
			lib.note(other.Name, why)
		}
		return
	}
}

// note records why a library is not used.
func (lib *library) note(name, why string) {
	if lib.graphics.Unused == nil {
		lib.graphics.Unused = map[string]string{}
	}
	lib.graphics.Unused[name] = why
}

// loadFailure returns why a library could not be loaded: the messages of llama.cpp,
// without function names and paths.
func loadFailure(logged []string, file gpuFile) string {
	cause := strings.TrimSpace(strings.Join(logged, "; "))
	if at := strings.LastIndex(cause, file.Path+": "); at >= 0 {
		cause = cause[at+len(file.Path)+2:]
	}
	if cause == "" {
		cause = "it cannot be loaded"
	}
	return cause + "; it needs " + file.Needs
}

// findCards finds the graphics cards: those with their own memory or, if there are none,
// the integrated ones, like llama.cpp does.
func (lib *library) findCards() {
	byType := map[int32][]cDevice{}
	for i := range lib.ggml_backend_dev_count() {
		d := lib.ggml_backend_dev_get(i)
		kind := lib.ggml_backend_dev_type(d)
		byType[kind] = append(byType[kind], d)
	}
	lib.cards, lib.integrated = byType[deviceGPU], false
	if len(lib.cards) == 0 {
		lib.cards, lib.integrated = byType[deviceIntegrated], true
	}
	lib.graphics.Cards = nil
	for _, card := range lib.cards {
		lib.graphics.Cards = append(lib.graphics.Cards, lib.ggml_backend_dev_description(card))
	}
}

// spareOnCard is how much of a card's free memory is reserved for needs of a model other
// than its weights and contexts.
const spareOnCard = 1 << 30

// allLayers is a number of layers that puts the complete model on the cards.
const allLayers = 999

// placement returns how many of the model's layers to put on the cards, and how much main
// memory the model then needs. Without cards it returns 0 and everything.
func (s *modelSpec) placement() (layers int32, needs uint64) {
	if len(s.lib.cards) == 0 || s.needs == 0 {
		return 0, s.needs
	}
	if s.lib.integrated {
		return allLayers, s.needs
	}
	return share(s.needs, s.lib.freeOnCards(), s.blocks)
}

// freeOnCards returns the free memory of the graphics cards without spareOnCard.
func (lib *library) freeOnCards() (free uint64) {
	for _, card := range lib.cards {
		var here, total uintptr
		lib.ggml_backend_dev_memory(card, &here, &total)
		free += max(uint64(here), spareOnCard) - spareOnCard
	}
	return free
}

// share returns how many of a model's layers fit into the free bytes on the cards, and
// how much memory the others need. The output layer counts in addition to the blocks.
func share(needs, free, blocks uint64) (layers int32, rest uint64) {
	if needs <= free {
		return allLayers, 0
	}
	each := needs / (blocks + 1)
	if each == 0 {
		return 0, needs
	}
	fit := min(free/each, blocks)
	return int32(fit), needs - fit*each
}

// merge adds the reasons in more to those in g.
func (g Graphics) merge(more map[string]string) Graphics {
	if len(more) == 0 {
		return g
	}
	all := maps.Clone(more)
	maps.Copy(all, g.Unused)
	g.Unused = all
	return g
}
