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

	"github.com/kith/kith/internal/fleet"
)

const (
	pingEvery = 2 * time.Second // without a frame
	pingWait  = 3 * time.Second

	handshakeTimeout = 5 * time.Second
	maxStreams       = 10_000 // calls at once on one link
	maxHeader        = 64 << 10
	maxFrame         = 16 << 10
	streamWindow     = 512 << 10
	connectionWindow = 1 << 30 // each stream has its own window; this one never limits
)

// mesh is this node among its peers: its key, and the nodes that it trusts.
//
//	node a                                          node b
//	mesh ── peer(b) ── link ─┐  TLS 1.3, HTTP/2  ┌─▶ mesh.serve ──▶ handler
//	                   link ─┴───────────────────┘
//
// There is no certificate authority and no file. At each start a node makes a key and a
// certificate in memory. The SHA-256 of its public key, its pin, is in the database
// beside the node's name. Each end of a link accepts only a public key whose pin the
// database gives for a node: the dialling end that of the node it dials, the other end
// any of them. The certificates' dates are not looked at, so clocks do not matter.
//
// A link that does not answer a ping is closed: both ends notice within 5 s that the
// other is gone.
type mesh struct {
	dialer      func(ctx context.Context, address string) (net.Conn, error)
	log         *slog.Logger
	certificate tls.Certificate
	pin         string
	trusted     atomic.Pointer[map[string]bool] // the pins of the nodes
	transport   *http.Transport
}

// newMesh returns a mesh with a new key that trusts no node yet. dial opens a connection to
// a node's address; nil: by TCP.
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

// trust replaces the nodes whose requests are served. Requests of a node that is left
// out are refused from now on.
func (m *mesh) trust(nodes []fleet.Node) {
	trusted := make(map[string]bool, len(nodes))
	for _, n := range nodes {
		if n.Pin != "" {
			trusted[n.Pin] = true
		}
	}
	m.trusted.Store(&trusted)
}

// trusts reports whether the node at the other end of a connection is trusted.
func (m *mesh) trusts(state *tls.ConnectionState) bool {
	return state != nil && len(state.PeerCertificates) > 0 && (*m.trusted.Load())[pinOf(state.PeerCertificates[0])]
}

// tlsConfig returns the configuration of either end, which accepts the other end by
// check alone.
func (m *mesh) tlsConfig(check func(tls.ConnectionState) error) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{m.certificate},
		ClientAuth:             tls.RequireAnyClientCert,
		InsecureSkipVerify:     true, // there is no authority; check compares the key with its pin
		VerifyConnection:       check,
		SessionTicketsDisabled: true,
		NextProtos:             []string{"h2"},
	}
}

// http2Config returns the HTTP/2 configuration of both ends. Each reads the members
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

// serve serves the requests of trusted nodes that arrive at the listener, until ctx
// ends.
func (m *mesh) serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !m.trusts(r.TLS) { // it was replaced since it connected
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
		ReadHeaderTimeout: handshakeTimeout, // also of the TLS handshake
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

// serverTLS returns the configuration of the end that accepts trusted nodes. A connection
// counts as an arrival until the node's key is checked.
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
			return nil, nil // config as it is
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

var errNotTrusted = errors.New("the database knows no hub node of this key")
