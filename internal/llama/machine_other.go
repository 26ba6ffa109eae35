//go:build !linux

package llama

import "syscall"

// childAttributes are none here: the worker ends when its standard input does.
func childAttributes() *syscall.SysProcAttr { return nil }
