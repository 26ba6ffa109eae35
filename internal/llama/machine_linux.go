package llama

import "syscall"

// childAttributes make the kernel end the worker with the thread that started it,
// in case it does not notice the end of its standard input.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
