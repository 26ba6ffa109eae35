//go:build !windows

package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
)

// DialSocket connects to the socket that ListenSocket made at path. Its error is a
// *net.OpError: fs.ErrNotExist or syscall.ECONNREFUSED if no process serves it,
// fs.ErrPermission if another user's does.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", path)
}

func listenSocket(path string) (net.Listener, error) {
	_ = os.Remove(path) // if that fails, so does Listen
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; the path of a socket has about 100 bytes", path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, fmt.Errorf("cannot close %s to others: %w", path, err)
	}
	return l, nil
}
