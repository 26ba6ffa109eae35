//go:build llama && !windows

package llama

import "github.com/ebitengine/purego"

// dlopen loads a library so that those opened after it find its symbols.
func dlopen(path string) (uintptr, error) {
	return purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_GLOBAL)
}
