//go:build !linux

package llamaserver

import "syscall"

// childAttributes returns none on this system.
func childAttributes() *syscall.SysProcAttr { return nil }
