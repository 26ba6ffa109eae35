package llamaserver

import "syscall"

// childAttributes make the kernel kill a server when the thread that started it ends, so
// that it does not outlive this program.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
