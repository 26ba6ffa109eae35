// Package certificate has the certificate of a hub's public address: Files reads it from
// files, again when they change, and ACME gets it from an ACME server and renews it there. New handshakes use a new certificate at once;
// connections that are open stay open.
package certificate

import "crypto/tls"

// configured returns the configuration of a listener with certificates from get.
func configured(get func(*tls.ClientHelloInfo) (*tls.Certificate, error), protocols ...string) *tls.Config {
	return &tls.Config{GetCertificate: get, MinVersion: tls.VersionTLS12, NextProtos: protocols}
}
