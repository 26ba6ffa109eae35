//go:build !linux

package llamaserver

import "syscall"

// childAttributes are none here.
func childAttributes() *syscall.SysProcAttr { return nil }
