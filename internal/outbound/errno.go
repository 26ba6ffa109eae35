package outbound

import (
	"errors"
	"syscall"
)

// Windows' numbers of what syscall.EADDRINUSE and syscall.ECONNREFUSED are elsewhere: no call
// returns those two there. The errors of other systems have smaller numbers.
const (
	wsaAddressInUse      = syscall.Errno(10048)
	wsaConnectionRefused = syscall.Errno(10061)
)

// IsRefused reports whether a connection failed because nothing listens at its address.
func IsRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, wsaConnectionRefused)
}

// IsInUse reports whether a program could not listen because another one does.
func IsInUse(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, wsaAddressInUse)
}
