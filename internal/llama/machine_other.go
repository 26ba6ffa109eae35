//go:build !linux

package llama

import "syscall"

// childAttributes returns none: the worker exits at the end of its standard input.
func childAttributes() *syscall.SysProcAttr { return nil }
