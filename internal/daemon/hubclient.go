package daemon

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// messagesVersion is the version of the messages dialect for requests to the hub if the
// caller named none.
const messagesVersion = "2023-06-01"

// maxError bounds how much of an error response is read, in bytes.
const maxError = 64 << 10

// hubClient sends local calls to the hub: the same path and the same bytes, with the
// machine's credential. The hub does not route such a call back to this machine.
type hubClient struct {
	credential Credential
	transport  http.RoundTripper
	home       string // of the daemon
	// reach returns what local calls can reach, mode whether they are sealed.
	reach func() fleet.KeyReach
	mode  func() sealed.Mode
	// recordError records an error that affects every call to the hub.
	recordError func(format string, args ...any)

	sealMu sync.Mutex
	seals  *sealing // nil: not made yet
}

// send sends a request to the hub with the machine's credential.
func (c *hubClient) send(req *http.Request) (*http.Response, error) {
	req.Header.Set("Authorization", "Bearer "+c.credential.Secret)
	return c.transport.RoundTrip(req)
}

// post sends the call to a route of the hub. It reaches no machine outside reach.
func (c *hubClient) post(ctx context.Context, call *gateway.Call, path string, reach fleet.KeyReach) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.credential.Hub+path, nil)
	if err != nil {
		return nil, err
	}
	for name, values := range call.Header {
		req.Header[name] = values
	}
	if call.Endpoint == fleet.Messages && req.Header.Get(dialect.VersionHeader) == "" { // the hub requires a version
		req.Header.Set(dialect.VersionHeader, messagesVersion)
	}
	call.Attach(req, call.Body)
	if reach = max(reach, c.reach(), call.Caller.Reach); reach != fleet.Everything {
		req.Header.Set(gateway.HeaderReach, reach.String())
	}
	if call.Caller.Program != "" {
		req.Header.Set(gateway.HeaderProgram, string(call.Caller.Program))
	}
	if call.Wait >= 0 {
		req.Header.Set("Prefer", "wait="+strconv.FormatInt(int64(call.Wait/time.Second), 10))
	}
	resp, err := c.send(req)
	if err != nil {
		return nil, err
	}
	call.Trace.FromHub(resp.Header)
	return resp, nil
}

// do sends the call to the hub. Every error is a fault. It never returns a 401, because
// the local caller would think that its own key was refused.
func (c *hubClient) do(ctx context.Context, call *gateway.Call, reach fleet.KeyReach) (*gateway.Answer, error) {
	resp, err := c.post(ctx, call, call.Endpoint.Path(), reach)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, c.refusal(resp)
	}
	resp.Body = &responseBody{ReadCloser: resp.Body, onError: func(err error) error {
		return fault.New(fault.CascadeExhausted, "the connection to the hub at %s broke during the answer; try again",
			c.credential.Hub).Because(err)
	}}
	return &gateway.Answer{Response: resp, Endpoint: call.Endpoint, FromHub: true, Untranslated: true}, nil
}

// count returns the number of tokens of the call's prompt as counted by the hub, or 0 if
// the hub did not count them. The only error is model_not_found.
func (c *hubClient) count(ctx context.Context, call *gateway.Call) (tokens int64, err error) {
	resp, err := c.post(ctx, call, call.Endpoint.Path()+"/count_tokens", fleet.Everything)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		if f := c.refusal(resp); f.Code == fault.ModelNotFound {
			return 0, f
		}
		return 0, nil
	}
	var count struct {
		Tokens int64 `json:"input_tokens"`
	}
	if resp.Header.Get("X-Kith-Estimate") != "" ||
		json.UnmarshalRead(io.LimitReader(resp.Body, maxError), &count) != nil {
		return 0, nil
	}
	return max(count.Tokens, 0), nil
}

// unreachable returns the fault for a hub that did not respond.
func (c *hubClient) unreachable(ctx context.Context, cause error) *fault.Fault {
	if ctx.Err() == nil {
		c.recordError("the hub at %s cannot be reached: %v", c.credential.Hub, cause)
	}
	return fault.New(fault.CascadeExhausted,
		"nothing here serves this model and the hub at %s cannot be reached; check the network and `kith status`",
		c.credential.Hub).Because(cause)
}

// refusal returns the fault in the hub's error response.
func (c *hubClient) refusal(resp *http.Response) *fault.Fault {
	document, _ := io.ReadAll(io.LimitReader(resp.Body, maxError)) // if it does not parse, there is no code
	return c.refusalIn(resp, document)
}

// refusalIn is refusal for a document that was read.
func (c *hubClient) refusalIn(resp *http.Response, document []byte) *fault.Fault {
	f, ok := dialect.ParseFault(document)
	cause := fmt.Errorf("the hub answered %d", resp.StatusCode)
	if resp.StatusCode == http.StatusUnauthorized || ok && f.Code == fault.InvalidAPIKey {
		c.recordError("the hub at %s refuses this machine's credential", c.credential.Hub)
		return fault.New(fault.CascadeExhausted,
			"nothing here serves this model and the hub at %s refuses this machine's credential; run `kith login`",
			c.credential.Hub).Because(cause)
	}
	if !ok || !passes(f.Code) {
		c.recordError("the response of %s is not a kith hub's: status %d", c.credential.Hub, resp.StatusCode)
		return fault.New(fault.CascadeExhausted, "nothing here serves this model and the response of %s (status %d) "+
			"is not a kith hub's; check the address with `kith status`", c.credential.Hub,
			resp.StatusCode).Because(cause)
	}
	f = f.Because(cause)
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds > 0 {
		f = f.WithRetryAfter(seconds)
	}
	if strings.EqualFold(resp.Header.Get("X-Should-Retry"), "false") {
		f = f.WithNoRetry()
	}
	return f
}

// passes reports whether a code of the hub means the same to the local caller. Codes
// about the route or the browser are about the daemon's own request.
func passes(code fault.Code) bool {
	switch code {
	case fault.InvalidAPIKey, fault.ForbiddenOrigin, fault.RouteNotFound, fault.MethodNotAllowed,
		fault.NoInferenceBackend:
		return false
	}
	return true
}

// responseBody calls onError with the errors of Read, and returns its result instead, and
// calls onClose at each Close. Either may be nil.
type responseBody struct {
	io.ReadCloser
	onError func(error) error
	onClose func()
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && b.onError != nil {
		err = b.onError(err)
	}
	return n, err
}

func (b *responseBody) Close() error {
	err := b.ReadCloser.Close()
	if b.onClose != nil {
		b.onClose()
	}
	return err
}
