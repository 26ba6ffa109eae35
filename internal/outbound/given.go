package outbound

import (
	"context"
	"net"
	"net/http"
)

// givenKey is the context key of the connection of ClientConn.
type givenKey struct{}

// ClientConn begins HTTP on a connection, by a transport that dials with Given.
func ClientConn(ctx context.Context, t *http.Transport, conn net.Conn, scheme, address string) (*http.ClientConn, error) {
	return t.NewClientConn(context.WithValue(ctx, givenKey{}, conn), scheme, address)
}

// Given is the DialContext or DialTLSContext of a transport that dials nothing: it returns the
// connection that ClientConn got.
func Given(ctx context.Context, _, _ string) (net.Conn, error) {
	return ctx.Value(givenKey{}).(net.Conn), nil
}
