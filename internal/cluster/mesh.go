package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/account"
)

const (
	pingEvery = 2 * time.Second // if no frame arrives
	pingWait  = 3 * time.Second

	handshakeTimeout = 5 * time.Second
	maxStreams       = 10_000 // concurrent calls on one link
	maxHeader        = 64 << 10
	maxFrame         = 16 << 10
	streamWindow     = 512 << 10
	connectionWindow = 1 << 30 // each stream has its own window; this one is large enough never to limit
)

// mesh holds this node's key and the nodes that it trusts.
//
//	node a                                          node b
//	mesh ── peer(b) ── link ─┐  TLS 1.3, HTTP/2  ┌─▶ mesh.serve ──▶ handler
//	                   link ─┴───────────────────┘
//
// There is no certificate authority and no file. At each start a node creates a key and a
// certificate in memory. The SHA-256 of its public key, its pin, is stored in the
// database with the node's name. Each end of a link accepts only public keys with a pin
// in the database: the dialing end accepts the pin of the node that it dials, the other
// end the pin of any node. The certificates' dates are ignored, so clocks do not matter.
//
// A link that does not answer a ping is closed, so that both ends detect within 5 s that
// the other is gone.
type mesh struct {
	dialer      func(ctx context.Context, address string) (net.Conn, error)
	log         *slog.Logger
	certificate tls.Certificate
	pin         string
	trusted     atomic.Pointer[map[string]bool] // the nodes' pins
	transport   *http.Transport
}

// newMesh returns a mesh with a new key. It trusts no other node yet. dial connects to a
// node's address; nil means TCP.
func newMesh(dial func(context.Context, string) (net.Conn, error), log *slog.Logger) (*mesh, error) {
	if dial == nil {
		dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make this node's key: %w", err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make this node's certificate: %w", err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cannot make this node's certificate: %w", err)
	}
	m := &mesh{dialer: dial, log: log, pin: pinOf(leaf), certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}}
	m.trusted.Store(new(map[string]bool))
	m.transport = m.newTransport()
	return m, nil
}

// pinOf returns the SHA-256 of a public key (its SubjectPublicKeyInfo), in hex.
func pinOf(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// trust replaces the set of trusted nodes. Requests of other nodes are refused from now
// on.
func (m *mesh) trust(nodes []account.Node) {
	trusted := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		if n.Pin != "" {
			trusted[n.Pin] = true
		}
	}
	m.trusted.Store(&trusted)
}

// trusts reports whether the other end of a connection is a trusted node.
func (m *mesh) trusts(state *tls.ConnectionState) bool {
	return state != nil && len(state.PeerCertificates) > 0 && (*m.trusted.Load())[pinOf(state.PeerCertificates[0])]
}

// tlsConfig returns the configuration for either end. Only check decides whether to
// accept the other end.
func (m *mesh) tlsConfig(check func(tls.ConnectionState) error) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{m.certificate},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // there is no authority; check compares the key with the node's pin
		VerifyConnection:       check,
		SessionTicketsDisabled: true,
		NextProtos:             []string{"h2"},
	}
}

// http2Config returns the HTTP/2 configuration for both ends. Each end uses the fields
// that apply to it.
func http2Config() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams:          maxStreams,
		MaxReadFrameSize:              maxFrame,
		MaxReceiveBufferPerConnection: connectionWindow,
		MaxReceiveBufferPerStream:     streamWindow,
		SendPingTimeout:               pingEvery,
		PingTimeout:                   pingWait,
	}
}

// serve serves requests of trusted nodes on the listener until ctx ends.
func (m *mesh) serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !m.trusts(r.TLS) { // the node was replaced after it connected
				http.Error(w, errNotTrusted.Error(), http.StatusForbidden)
				return
			}
			if r.URL.Path == pathHello {
				w.WriteHeader(http.StatusNoContent)
				return
			}
			handler.ServeHTTP(w, r)
		}),
		TLSConfig:         m.serverTLS(),
		Protocols:         protocols,
		HTTP2:             http2Config(),
		ReadHeaderTimeout: handshakeTimeout, // this includes the TLS handshake
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(m.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.ServeTLS(&arrivals{Listener: listener}, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve the other hub nodes: %w", err)
	}
	return nil
}

// serverTLS returns the configuration for accepting trusted nodes. A connection is an
// arrival until the node's key has been checked.
func (m *mesh) serverTLS() *tls.Config {
	check := func(state tls.ConnectionState) error {
		if !m.trusts(&state) {
			return errNotTrusted
		}
		return nil
	}
	config := m.tlsConfig(check)
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		arrived, counted := hello.Conn.(*arrival)
		if !counted {
			return nil, nil // use config unchanged
		}
		return m.tlsConfig(func(state tls.ConnectionState) error {
			err := check(state)
			if err == nil {
				arrived.leave()
			}
			return err
		}), nil
	}
	return config
}

var errNotTrusted = errors.New("the database has no hub node with this key")
