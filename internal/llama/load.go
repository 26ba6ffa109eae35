//go:build llama

package llama

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/ebitengine/purego"
)

// compiledIn reports whether this build can load llama.cpp. A build without the tag llama
// does not link purego, so on Linux it is static.
const compiledIn = true

// open loads the three libraries in dir, binds the functions, and rejects a llama.cpp
// with a different layout of structs. Then it loads one of the GPU libraries; without
// one, the CPU computes.
func open(dir string, gpus []gpuFile) (*library, error) {
	lib := new(library)
	var handles [len(libraryNames)]uintptr
	for i, name := range libraryNames {
		h, err := dlopen(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("cannot load the inference library %s: %w", name, err)
		}
		handles[i] = h
	}
	if err := lib.bind(handles); err != nil {
		return nil, err
	}
	lib.llama_log_set(purego.NewCallback(lib.errors.record), 0)
	if err := lib.checkLayout(); err != nil {
		return nil, err
	}
	lib.llama_backend_init()
	lib.ggml_backend_load_all_from_path(dir)
	lib.loadGPU(gpus)
	return lib, nil
}

// bind binds each function to the symbol with its field's name. It recovers from the
// panic for a missing symbol.
func (lib *library) bind(handles [len(libraryNames)]uintptr) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot use the inference library: %v; it is not llama.cpp %s", p, libraryVersion)
		}
	}()
	base, ggml, llama := handles[0], handles[1], handles[2]
	fields := reflect.ValueOf(lib).Elem()
	for i := range fields.NumField() {
		name, field := fields.Type().Field(i).Name, fields.Field(i)
		from := llama
		switch {
		case name == "ggml_backend_dev_count", name == "ggml_backend_dev_get", strings.HasPrefix(name, "ggml_backend_load"):
			from = ggml // the registry of devices
		case strings.HasPrefix(name, "ggml_"):
			from = base
		case !strings.HasPrefix(name, "llama_"):
			continue
		}
		purego.RegisterLibFunc(reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Interface(), from, name)
	}
	return nil
}
