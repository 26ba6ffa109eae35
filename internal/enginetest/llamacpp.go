package enginetest

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// What the simulated llama.cpp server has in common with the real one, apart from its
// answers. e2e/realengine compares the two.

// llamaWriter writes headers as the real server does.
type llamaWriter struct{ http.ResponseWriter }

func (w *llamaWriter) WriteHeader(status int) {
	h := w.Header()
	if h.Get("Content-Type") == "application/json" {
		h.Set("Content-Type", "application/json; charset=utf-8")
	}
	if status < 400 {
		h.Set("Keep-Alive", "timeout=5, max=100")
	} else {
		h.Set("Connection", "close")
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *llamaWriter) Write(p []byte) (int, error) {
	if w.Header().Get("Keep-Alive") == "" && w.Header().Get("Connection") == "" {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap is for http.ResponseController.
func (w *llamaWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// connection is a connection of a started server; last reports that it is closed after
// the current answer.
type connection struct {
	net.Conn
	last atomic.Bool
}

type connectionKey struct{}

// closeAfter closes the connection of a request after its answer without announcing that,
// which is how the real server ends each stream.
func closeAfter(r *http.Request) {
	if c, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		c.last.Store(true)
	}
}

// connections makes server close those connections.
func connections(server *http.Server) {
	server.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		return context.WithValue(ctx, connectionKey{}, c)
	}
	server.ConnState = func(c net.Conn, state http.ConnState) {
		if own, ok := c.(*connection); ok && state == http.StateIdle && own.last.Load() {
			own.Close()
		}
	}
}

// listener makes each connection a *connection.
type listener struct{ net.Listener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{Conn: c}, nil
}

// tooLong returns the number of tokens in a prompt if that exceeds the context, and
// otherwise 0.
func (e *Engine) tooLong(c Call) int {
	for _, m := range e.models {
		if n := len(strings.Fields(c.Input)); m.ID == c.Model && n > m.ContextLength {
			return n
		}
	}
	return 0
}
