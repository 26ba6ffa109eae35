// Package tunnel is the protocol between a hub and a daemon: HTTP with the
// roles of the ends reversed. The daemon dials the hub and upgrades one HTTP/1.1
// request. From then on the connection carries HTTP/2 with prior knowledge, and
// the hub is the HTTP/2 client. A call is the same HTTP request at every hop;
// streams, flow control, cancellation and trailers are those of HTTP/2.
//
//	daemon                                     hub
//	Dialer ── GET /tunnel, Upgrade ──────────▶ Upgrade
//	       ◀── 101, Kith-Generation ──────────
//	       ◀── GET /offers ─────────────────── Client.Offers
//	       ─── a JSON line at each change ───▶
//	       ◀── POST /ack ───────────────────── Client.Ack: the machine is routable
//	       ◀── POST /v1/chat/completions, … ── Client.RoundTrip
//
// The hub's end is a [Client], which [Upgrade] returns; the machine's end is a
// [Dialer]. Both use net/http's HTTP/2 with larger connection windows: a stalled
// upload fills only the 512 KiB window of its stream and does not delay other streams.
//
// If a network refuses the upgrade, the Dialer requests the same tunnel in a WebSocket at
// its next attempt.
//
// The package does not know who may use which machine.
package tunnel

import (
	"net/http"
	"time"
)

const (
	// pingEvery and pingWait determine when a dead peer is detected: a ping is sent after
	// 10 s without a frame and has to be answered within 5 s.
	pingEvery = 10 * time.Second
	pingWait  = 5 * time.Second

	// streamWindow is the flow-control window of one stream, in both directions.
	streamWindow = 512 << 10
	// connectionWindow is so large that only the streams' windows matter. Values over 4
	// MiB are outside the documented range of http.HTTP2Config, but are accepted
	// (TestWindows).
	connectionWindow = 1 << 30
	// maxStreams is the maximum number of concurrent calls on one tunnel. Machines have
	// far fewer slots.
	maxStreams = 1000
	// maxFrame is the maximum size of a frame in bytes, in both directions. It is the
	// default of HTTP/2. Streams take turns after each frame, so small frames keep delays
	// short, even on a slow connection.
	maxFrame = 16 << 10
	// maxHeader is the maximum size of a request's or response's header in bytes.
	maxHeader = 64 << 10
)

// http2Config returns the HTTP/2 configuration of both ends. Each end uses the fields
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

// priorKnowledge allows HTTP/2 without its own TLS and no other protocol.
func priorKnowledge() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}
