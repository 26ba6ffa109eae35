// Package tunnel is the protocol between hub and daemon (decisions 8): HTTP
// reversed. The daemon dials out and upgrades one HTTP/1.1 request; from there
// the connection speaks HTTP/2 with prior knowledge and the hub is the client.
// So a call is the same HTTP request at every hop, and streams, flow control,
// cancellation and trailers are HTTP/2's.
//
// The hub's end is a [Line], an http.RoundTripper made by [Upgrade]; the
// machine's end is a [Dialer]; what they speak is package h2's. A stalled upload
// holds 512 KiB of one stream and nothing of the others, which the usual 1 MiB a
// connection would not grant.
//
// Where a network refuses the upgrade, the Dialer asks for the same in a
// WebSocket at its next attempt.
//
// The package knows nothing of who may use what.
package tunnel

// maxHead bounds the header of an upgrade's answer, in bytes.
const maxHead = 64 << 10
