// Package certificate provides the TLS certificate of a hub's public address. Files loads
// it from files and reloads it when they change; ACME obtains it from an ACME server and
// renews it. A new certificate applies to new handshakes at once, and open connections
// stay open.
package certificate

import "crypto/tls"

// configured returns the configuration for a listener that gets its certificates from
// get.
func configured(get func(*tls.ClientHelloInfo) (*tls.Certificate, error), protocols ...string) *tls.Config {
	return &tls.Config{GetCertificate: get, MinVersion: tls.VersionTLS12, NextProtos: protocols}
}
