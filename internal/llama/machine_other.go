//go:build !linux

package llama

import "syscall"

// availableMemory is not known here; the loader itself says when it fails.
func availableMemory() (bytes uint64, known bool) { return 0, false }

// physicalCores is not known here.
func physicalCores() int { return 0 }

// childAttributes are none here: the worker ends when its standard input does.
func childAttributes() *syscall.SysProcAttr { return nil }
