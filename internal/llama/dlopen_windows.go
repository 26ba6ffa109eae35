//go:build llama

package llama

import "syscall"

// dlopen loads a library; those opened after it find it by its module name.
func dlopen(path string) (uintptr, error) {
	h, err := syscall.LoadLibrary(path)
	return uintptr(h), err
}
