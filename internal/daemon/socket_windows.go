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

// pipeTimeout is for a pipe whose process does not accept: the call that opens it neither
// waits nor fails, and is made again until then.
const pipeTimeout = 5 * time.Second

// DialSocket connects to the pipe of ListenSocket for path. Its error is a *net.OpError:
// fs.ErrNotExist if no process serves it, fs.ErrPermission if another user's does.
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

// pipeName returns the name of the pipe for a path. Pipes have one namespace for all users
// and no folders, so that a hash of the path keeps apart the pipes of two folders. One
// folder has several spellings: in capitals, by its short name, through a link.
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

// checkPipeOwner returns fs.ErrPermission if the pipe was not made by this user. Any user
// can make a pipe of that name while kith does not run, and would be sent its requests.
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

// currentUser returns the id of the user whose process this is.
func currentUser() (*windows.SID, error) {
	user, err := windows.GetCurrentProcessToken().GetTokenUser()
	if err != nil {
		return nil, err
	}
	return user.User.Sid, nil
}
