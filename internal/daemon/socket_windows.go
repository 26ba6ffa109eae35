package daemon

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"
)

// pipeTimeout limits dialing a pipe whose process does not accept. Such a pipe is opened
// again and again until ctx ends.
const pipeTimeout = 5 * time.Second

// DialSocket connects to the pipe that ListenSocket created for path. The error is a
// *net.OpError: fs.ErrNotExist if no process serves the pipe, fs.ErrPermission if it
// belongs to another user.
func DialSocket(ctx context.Context, path string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, pipeTimeout)
	defer cancel()
	c, err := winio.DialPipeContext(ctx, pipeName(path))
	if err == nil {
		if err = checkPipeOwner(c); err == nil {
			return c, nil
		}
		c.Close()
	}
	return nil, &net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"}, Err: err}
}

func listenSocket(path string) (net.Listener, error) {
	var l net.Listener
	me, err := currentUser()
	if err == nil { // O: its owner, D:P: no inherited rights, GA: everything, for this user
		rights := fmt.Sprintf("O:%[1]sD:P(A;;GA;;;%[1]s)", me)
		l, err = winio.ListenPipe(pipeName(path), &winio.PipeConfig{SecurityDescriptor: rights})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on the pipe of %s: %w; end the program that has it", path, err)
	}
	return l, nil
}

// pipeName returns the name of the pipe for a path. Pipes are in one namespace for all
// users and have no folders, so the name contains a hash of the path. The spelling of a
// path is normalized first: the same folder can be written in capitals, with its short
// name or through a link.
func pipeName(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	folder, file := filepath.Split(path)
	if real, err := filepath.EvalSymlinks(folder); err == nil {
		folder = real
	}
	hash := sha256.Sum256([]byte(strings.ToLower(filepath.Join(folder, file))))
	return fmt.Sprintf(`\\.\pipe\kith-%x`, hash[:16])
}

// checkPipeOwner returns fs.ErrPermission if the pipe was not created by this user. While
// kith is not running, any user can create a pipe of that name and would receive the
// requests.
func checkPipeOwner(c net.Conn) error {
	me, err := currentUser()
	if err != nil {
		return err
	}
	pipe := windows.Handle(c.(interface{ Fd() uintptr }).Fd())
	rights, err := windows.GetSecurityInfo(pipe, windows.SE_KERNEL_OBJECT, windows.OWNER_SECURITY_INFORMATION)
	if err != nil {
		return err
	}
	if owner, _, err := rights.Owner(); err != nil || !owner.Equals(me) {
		return fs.ErrPermission
	}
	return nil
}

// currentUser returns the id of the user of this process.
func currentUser() (*windows.SID, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	return user.User.Sid, nil
}
