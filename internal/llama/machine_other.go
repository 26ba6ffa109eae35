//go:build !linux

package llama

import "syscall"

// physicalCores is not known here.
func physicalCores() int { return 0 }

// childAttributes are none here: the worker ends when its standard input does.
func childAttributes() *syscall.SysProcAttr { return nil }
