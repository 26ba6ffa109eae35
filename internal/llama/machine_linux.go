package llama

import "syscall"

// childAttributes make the kernel kill the worker when the thread that started it ends,
// in case the worker does not notice the end of its standard input.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
