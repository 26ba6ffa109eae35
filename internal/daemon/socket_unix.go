//go:build !windows

package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
)

// DialSocket connects to the socket that ListenSocket created at path. The error is a
// *net.OpError: fs.ErrNotExist or syscall.ECONNREFUSED if no process serves the socket,
// fs.ErrPermission if it belongs to another user.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

func listenSocket(path string) (net.Listener, error) {
	_ = os.Remove(path) // if this fails, Listen fails too
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; the path of a socket has about 100 bytes", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("cannot restrict access to %s: %w", path, err)
	}
	return l, nil
}
