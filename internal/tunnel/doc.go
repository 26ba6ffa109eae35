// Package tunnel is the protocol between hub and daemon (decisions 8): HTTP
// reversed. The daemon dials out and upgrades one HTTP/1.1 request; from there
// the connection speaks HTTP/2 with prior knowledge and the hub is the client.
// So a call is the same HTTP request at every hop, and streams, flow control,
// cancellation and trailers are HTTP/2's.
//
// The hub's end is a [Line], an http.RoundTripper made by [Upgrade]; the
// machine's end is a [Dialer]. Both are net/http's HTTP/2 with other windows: a
// stalled upload holds 512 KiB of one stream and nothing of the others, which
// the usual 1 MiB a connection would not grant.
//
// Where a network refuses the upgrade, the Dialer asks for the same in a
// WebSocket at its next attempt.
//
// The package knows nothing of who may use what.
package tunnel

import (
	"net/http"
	"time"
)

const (
	// pingEvery and pingWait bound how long a dead peer goes unseen: a ping
	// after 10 s without a frame, 5 s to answer it.
	pingEvery = 10 * time.Second
	pingWait  = 5 * time.Second

	// streamWindow is what one stalled stream may hold in memory, either way.
	streamWindow = 512 << 10
	// connectionWindow is so large that only the windows of streams count.
	// Values over 4 MiB are outside the documented range of http.HTTP2Config,
	// but taken as they are (TestWindows).
	connectionWindow = 1 << 30
	// maxStreams is how many calls one tunnel carries at once; slots end far below.
	maxStreams = 1000
	// maxFrame is the most bytes of a frame, either way: what each end of HTTP/2
	// accepts by default. The streams take turns by the frame, and one so small is
	// sent soon, on a slow line too.
	maxFrame = 16 << 10
	// maxHead bounds the header of a request or an answer, in bytes.
	maxHead = 64 << 10
)

// http2Config is one configuration for both ends; each reads what concerns it.
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

// priorKnowledge is HTTP/2 without TLS of its own and nothing else.
func priorKnowledge() *http.Protocols {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return p
}
