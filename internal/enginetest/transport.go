package enginetest

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// Transport reaches the double without a socket, whatever the address: for
// synctest bubbles, where only what a bubble made may be waited for. It
// streams, and a caller who closes the body or ends the context is noticed.
func (e *Engine) Transport() http.RoundTripper { return inMemory{e} }

type inMemory struct{ handler http.Handler }

// RoundTrip satisfies http.RoundTripper.
func (t inMemory) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(req.Context())
	r := req.Clone(ctx)
	r.RequestURI = req.URL.RequestURI()
	if r.Body == nil {
		r.Body = http.NoBody
	}
	body, pipe := io.Pipe()
	w := &pipeWriter{header: http.Header{}, pipe: pipe, begun: make(chan struct{})}
	context.AfterFunc(ctx, func() { pipe.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer cancel()
		defer func() {
			// What a server does of this panic: break the connection.
			switch p := recover(); p {
			case nil:
				w.WriteHeader(http.StatusOK)
				pipe.Close()
			case http.ErrAbortHandler:
				w.die()
			default:
				panic(p)
			}
		}()
		t.handler.ServeHTTP(w, r)
	}()
	select {
	case <-w.begun:
	case <-ctx.Done():
	}
	if err := req.Context().Err(); err != nil {
		cancel()
		return nil, err
	}
	if w.status == 0 {
		cancel()
		return nil, io.EOF
	}
	return &http.Response{
		Status: http.StatusText(w.status), StatusCode: w.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: &pipeBody{body, cancel}, ContentLength: -1, Request: req,
	}, nil
}

// pipeBody tells the handler when its reader leaves.
type pipeBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

func (b *pipeBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}

// pipeWriter is the handler's end.
type pipeWriter struct {
	header, sent http.Header
	pipe         *io.PipeWriter
	once         sync.Once
	status       int
	begun        chan struct{}
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

// die breaks the answer off, before its first byte if none was written.
func (w *pipeWriter) die() {
	w.once.Do(func() { close(w.begun) })
	w.pipe.CloseWithError(io.ErrUnexpectedEOF)
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(p)
}

// Flush satisfies http.Flusher: nothing is held back.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }
