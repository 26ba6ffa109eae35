package enginetest

import (
	"context"
	"io"
	"net/http"
	"sync"
)

// Transport connects to the engine without a socket, whatever the address, for synctest
// bubbles. It streams, and the engine notices if the caller closes the body or ends the
// context.
func (e *Engine) Transport() http.RoundTripper { return inMemory{e} }

type inMemory struct{ handler http.Handler }

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
			// A server breaks the connection after this panic.
			switch p := recover(); p {
			case nil:
				w.WriteHeader(http.StatusOK)
				pipe.Close()
			case http.ErrAbortHandler:
				w.abort()
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

// pipeBody ends the handler's context when it is closed.
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

// abort breaks off the answer, before its first byte if none was written.
func (w *pipeWriter) abort() {
	w.once.Do(func() { close(w.begun) })
	w.pipe.CloseWithError(io.ErrUnexpectedEOF)
}

func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(p)
}

func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }
