package outbound

import (
	"net"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestErrors: the errors of this system are recognized, also on Windows.
func TestErrors(t *testing.T) {
	first := assert.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	if _, err := net.Listen("tcp", first.Addr().String()); !IsInUse(err) || IsRefused(err) {
		t.Errorf("a second program: %v", err)
	}
	first.Close()
	if _, err := net.Dial("tcp", first.Addr().String()); !IsRefused(err) || IsInUse(err) {
		t.Errorf("nothing listens: %v", err)
	}
}
