package gateway

import (
	"log/slog"
	"net/http"
	"time"
)

// NewServer returns an http.Server that limits what a hostile client can hold
// (spec/security.md#slow-clients, spec/security.md#floods): 5 s for the headers, 16 KiB
// of headers, two minutes idle, and on HTTP/2 (over TLS only) 100 streams with windows of
// 64 KiB and 1 MiB. The handler that New returns limits bodies and writes itself; any
// other handler must do the same. Messages of net/http are logged at debug level.
func NewServer(handler http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          100,
			MaxReceiveBufferPerStream:     64 << 10,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReadFrameSize:              16 << 10,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   15 * time.Second,
			WriteByteTimeout:              writeLimit,
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
