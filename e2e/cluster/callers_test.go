//go:build linux

package cluster_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// caller makes one call after another at one node.
type caller struct {
	last   atomic.Int64 // when the last byte of an answer came, in Unix nanoseconds
	served atomic.Int64
	failed atomic.Int64
	fault  atomic.Pointer[error] // of the last call that failed
}

// client makes a connection for each call, so that none waits on one that is cut.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// The kinds of calls, which are what they say to the machine: answered at once, streamed
// for less than a second, streamed for a minute.
const (
	unary    = "unary"
	streamed = "streamed"
	endless  = "endless"
)

// call makes a call and reads its answer. It returns the call's id. seen, if there is
// one, is called when a part of a good answer came.
func (c *cluster) call(n *node, k key, kind string, seen ...func()) (id string, err error) {
	return c.callUntil(c.t.Context(), n, k, kind, seen...)
}

// callUntil is call that ends with ctx.
func (c *cluster) callUntil(ctx context.Context, n *node, k key, kind string, seen ...func()) (id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":%q}]}`, model, kind != unary, kind)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, n.base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + k.Secret}, "Prefer": {"wait=2"}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	var text bytes.Buffer
	buffer := make([]byte, 4<<10)
	for {
		n, err := response.Body.Read(buffer)
		text.Write(buffer[:n])
		if part := buffer[:n]; response.StatusCode == http.StatusOK && bytes.Contains(part, []byte(`"choices"`)) {
			for _, f := range seen {
				f()
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", err
		}
	}
	switch {
	case response.StatusCode != http.StatusOK:
		return "", fmt.Errorf("%w: %d: %s", errRefused, response.StatusCode, text.Bytes())
	case kind != unary && !bytes.HasSuffix(text.Bytes(), []byte("data: [DONE]\n\n")):
		return "", fmt.Errorf("no end mark: %s", text.Bytes()[max(0, text.Len()-300):])
	}
	id = response.Header.Get("X-Correlation-Id")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answered = append(c.answered, id)
	return id, nil
}

// load makes calls of those kinds by turns at a node, until ctx ends.
func (c *cluster) load(ctx context.Context, running *sync.WaitGroup, n *node, k key, kinds ...string) *caller {
	by := new(caller)
	running.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			_, err := c.call(n, k, kinds[i%len(kinds)], func() { by.last.Store(time.Now().UnixNano()) })
			if err == nil {
				by.served.Add(1)
				continue
			}
			by.failed.Add(1)
			by.fault.Store(&err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	return by
}
