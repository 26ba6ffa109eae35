package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// ListenSocket listens on a socket that only this user can connect to: a unix socket with
// mode 0600 or, on Windows, a named pipe whose name is derived from path. It creates the
// socket's folder and replaces a socket that no process serves.
func ListenSocket(path string) (net.Listener, error) {
	if c, err := DialSocket(context.Background(), path); err == nil {
		c.Close()
		return nil, fmt.Errorf("cannot listen on %s: another kith is listening there; end it, or use another folder",
			path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot create the folder of %s: %w", path, err)
	}
	return listenSocket(path)
}
