package outbound

import (
	"net"
	"testing"
)

// TestErrors: the errors of this system are recognized, also on Windows.
func TestErrors(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := net.Listen("tcp", first.Addr().String()); !IsInUse(err) || IsRefused(err) {
		t.Errorf("a second program: %v", err)
	}
	first.Close()
	if _, err := net.Dial("tcp", first.Addr().String()); !IsRefused(err) || IsInUse(err) {
		t.Errorf("nothing listens: %v", err)
	}
}
