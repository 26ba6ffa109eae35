package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/Microsoft/go-winio"
	"golang.org/x/sys/windows"

	"github.com/kith/kith/internal/assert"
)

// TestPipeOfOwner: the pipe of a folder is found by each spelling of the folder, has
// one server, grants rights to its owner only, and is gone with its server.
func TestPipeOfOwner(t *testing.T) {
	folder := filepath.Join(emptyFolder(t), "kith")
	path := filepath.Join(folder, "daemon.sock")
	if _, err := DialSocket(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("before there is a server: %v", err)
	}
	l := assert.Value(ListenSocket(path))(t)
	answered := make(chan error, 1)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "kith") })}
	go func() { answered <- server.Serve(l) }()
	c := assert.Value(DialSocket(t.Context(), filepath.Join(strings.ToUpper(folder), "..", "KITH", "daemon.sock")))(t)
	me := assert.Value(currentUser())(t)
	pipe := windows.Handle(c.(interface{ Fd() uintptr }).Fd())
	rights, err := windows.GetSecurityInfo(pipe, windows.SE_KERNEL_OBJECT, windows.DACL_SECURITY_INFORMATION)
	assert.OK(t, err)
	if list := rights.String(); strings.Count(list, "(") != 1 || !strings.HasSuffix(list, ";;;"+me.String()+")") {
		t.Errorf("rights %s, want those of %s only", list, me)
	}
	fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
	got := make([]byte, 12)
	if _, err := c.Read(got); err != nil || string(got) != "HTTP/1.0 200" {
		t.Errorf("%q, %v", got, err)
	}
	c.Close()
	assert.Fails(t, assert.Err(ListenSocket(path)), "another kith", "a second server")
	other, err := ListenSocket(filepath.Join(folder, "admin.sock"))
	assert.OK(t, err)
	other.Close()
	server.Close()
	assert.Is(t, <-answered, http.ErrServerClosed)
	assert.Is(t, assert.Err(DialSocket(t.Context(), path)), fs.ErrNotExist, "after its server")
	assert.Is(t, assert.Err(os.Stat(path)), fs.ErrNotExist, "a file is left")
}

// emptyFolder is t.TempDir, which Wine 8 cannot remove with all that is in it.
func emptyFolder(t *testing.T) string {
	t.Helper()
	folder := assert.Value(os.MkdirTemp("", "kith"))(t)
	t.Cleanup(func() {
		_ = os.Remove(filepath.Join(folder, "kith"))
		if err := os.Remove(folder); err != nil {
			t.Error(err)
		}
	})
	return folder
}

// TestPipeOfAnotherUser: nothing is sent to a pipe that another user made.
func TestPipeOfAnotherUser(t *testing.T) {
	path := filepath.Join(emptyFolder(t), "daemon.sock")
	l, err := winio.ListenPipe(pipeName(path), &winio.PipeConfig{SecurityDescriptor: "O:BAD:P(A;;GA;;;WD)"})
	assert.OK(t, err)
	defer l.Close()
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			defer c.Close()
		}
	}()
	assert.Is(t, assert.Err(DialSocket(t.Context(), path)), fs.ErrPermission, "a pipe of the administrators")
}
