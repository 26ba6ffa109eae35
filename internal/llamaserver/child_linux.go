package llamaserver

import "syscall"

// childAttributes make the kernel end a server when the thread that started it
// ends: nothing of this program outlives it.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
