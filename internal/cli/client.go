package cli

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/outbound"
)

// maxAnswer limits answers that are read into memory, in bytes.
const maxAnswer = 16 << 20

// client is an HTTP client for a hub, this machine's daemon or a hub's operator socket.
type client struct {
	base   string // without a trailing slash
	bearer string // sent as Authorization: Bearer; empty: not sent
	http   *http.Client
	// unreachable is what to do if there is no answer, for the error.
	unreachable string
	// refused is why the hub refuses bearer and what to do, for the error. If it is empty,
	// the error quotes the hub's message, which is about API keys.
	refused string
	// who describes the other end, for the error: "the hub at …".
	who string
	// within limits requests to the management API and for the list of models; 0: no
	// limit.
	within time.Duration
}

// hubPatience is the value of within for a hub's public address.
const hubPatience = 30 * time.Second

// overSocket returns a client for a program that listens on a socket in this machine's
// data folder.
func overSocket(socket, who, unreachable string) *client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return daemon.DialSocket(ctx, socket)
	}
	return &client{
		base: "http://localhost", who: who, unreachable: unreachable,
		http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
	}
}

// toHub returns a client for a hub's public address.
func toHub(address, bearer string) *client {
	return &client{
		base: address, bearer: bearer, http: &http.Client{CheckRedirect: noRedirect, Transport: outbound.NewTransport()},
		who: "the hub at " + address, unreachable: "check its address and the network", within: hubPatience,
	}
}

// asMachine returns a client for the hub that uses a machine's credential.
func asMachine(saved daemon.Credential) *client {
	hub := toHub(saved.Hub, saved.Secret)
	hub.refused = "the hub refuses this machine's credential: it was revoked, or the member is disabled; sign in again with `kith login --hub " + saved.Hub + "`"
	return hub
}

// noRedirect does not follow redirects, so that a secret is not sent to other addresses.
func noRedirect(to *http.Request, _ []*http.Request) error {
	return fmt.Errorf("it points to %s://%s, and a secret is sent only where it was meant to go: use that address if it is right", to.URL.Scheme, to.URL.Host)
}

// unreachable is the error of a request without an answer.
type unreachable struct{ error }

func (u unreachable) Unwrap() error { return u.error }

// refusal is an answer with an error status.
type refusal struct {
	status  int
	code    string
	message string
}

func (r *refusal) Error() string {
	if r.message == "" {
		return fmt.Sprintf("what answers there does not speak as kith does (status %d); check the address, and any proxy between", r.status)
	}
	return r.message
}

// exit returns the program's exit status for this answer.
func (r *refusal) exit() int {
	switch r.code {
	case "model_not_found", "NOT_IN_CIRCLE", "CASCADE_EXHAUSTED", "CAPACITY_FULL", "machine_offline",
		"outside_sharing_hours", "no_inference_backend":
		return exitNoCapacity
	case "invalid_api_key":
		return exitNotSignedIn
	}
	return exitFailed
}

// messagesPath is the route of the messages dialect. Its clients send their version with
// every call.
const (
	messagesPath    = "/v1/messages"
	messagesVersion = "2023-06-01"
)

// send makes a request with in as its JSON body (nil: none). It returns the response if
// it is successful; the caller must close its body.
func (c *client) send(ctx context.Context, method, path string, in any) (*http.Response, error) {
	res, err := c.try(ctx, method, path, in)
	if err != nil || res.StatusCode < 300 {
		return res, err
	}
	defer res.Body.Close()
	refused := readRefusal(res)
	if c.refused != "" && refused.code == "invalid_api_key" {
		refused.message = c.refused
	}
	return nil, refused
}

// try is send, but returns any response.
func (c *client) try(ctx context.Context, method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in, json.Deterministic(true))
		if err != nil {
			return nil, fmt.Errorf("cannot write the request: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, fmt.Errorf("cannot address %s: %w", c.who, err)
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if path == messagesPath {
		req.Header.Set("Anthropic-Version", messagesVersion)
	}
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	return c.do(req)
}

// The reasons why a process cannot be reached over its socket.
var (
	errNotRunning   = errors.New("it does not run")
	errOthersSocket = errors.New("it runs as another user; run this command as that user")
)

// silentError ends a request that took longer than this.
type silentError time.Duration

func (s silentError) Error() string {
	return fmt.Sprintf("it did not answer within %v", time.Duration(s))
}

// do makes the request. The error names who could not be reached.
func (c *client) do(req *http.Request) (*http.Response, error) {
	res, err := c.http.Do(req)
	if err == nil {
		return res, nil
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		err = wrapped.Err // the message already contains the method and address
	}
	if err := req.Context().Err(); errors.Is(err, context.Canceled) {
		return nil, err
	}
	if silent, ok := errors.AsType[silentError](context.Cause(req.Context())); ok {
		err = silent
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Net == "unix" {
		switch {
		case errors.Is(err, fs.ErrNotExist), outbound.IsRefused(err):
			err = errNotRunning
		case errors.Is(err, fs.ErrPermission):
			err = errOthersSocket
		}
	}
	next := "; " + c.unreachable
	if outbound.IsProxyFailure(err) {
		next = "; correct HTTPS_PROXY and NO_PROXY, or ask the proxy's operator"
	}
	if errors.Is(err, errOthersSocket) {
		next = "" // the error already says what to do
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		next = "; ask its operator to renew the certificate, and check this computer's clock"
	}
	return nil, unreachable{fmt.Errorf("cannot reach %s: %w%s", c.who, err, next)}
}

// readRefusal reads the error from an answer in the chat dialect's format.
func readRefusal(res *http.Response) *refusal {
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return refusalIn(res.StatusCode, text)
}

func refusalIn(status int, text []byte) *refusal {
	refused := &refusal{status: status}
	var envelope struct {
		Error struct {
			Code          string `json:"code"`
			Message       string `json:"message"`
			CorrelationID string `json:"correlation_id"`
		} `json:"error"`
	}
	if json.Unmarshal(text, &envelope) == nil {
		refused.code, refused.message = envelope.Error.Code, envelope.Error.Message
	}
	if id := envelope.Error.CorrelationID; refused.code == "internal_error" && id != "" {
		refused.message = "something went wrong on that side; its log says what, at " + id
	}
	return refused
}

// request is a request for any route. A nil body means none.
type request struct {
	method, path string
	body         any
}

// call makes a request and reads the complete answer; unless out is nil it also decodes
// it. doing completes "cannot …" in the error.
func (c *client) call(ctx context.Context, doing string, r request, out any) ([]byte, error) {
	if c.within > 0 && (strings.HasPrefix(r.path, "/api/") || r.path == "/v1/models") { // not a call to a model
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.within, silentError(c.within))
		defer cancel()
	}
	res, err := c.send(ctx, r.method, r.path, r.body)
	if err != nil {
		err = callFailure(doing, err)
		refused, ok := errors.AsType[*refusal](err)
		if ok && refused.status == http.StatusBadRequest && strings.HasPrefix(r.path, "/api/") {
			err = failure{exitWrongUse, err} // caused by the command's arguments
		}
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil && out != nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot %s: cannot understand the answer of %s: %w", doing, c.who, err)
	}
	return bytes.TrimSpace(text), nil
}

// fetch makes a typed request to the management API. It returns the decoded answer and
// its original text.
func fetch[Out any](ctx context.Context, at *client, doing string, r api.Request[Out]) (out Out, text []byte, err error) {
	text, err = at.call(ctx, doing, request{r.Method, r.Path, r.Body}, &out)
	return out, text, err
}

// requester makes requests to the surface that to returns. doing completes "cannot …" in
// the error.
type requester struct {
	*app
	to    func() (*client, error)
	doing string
}

// account returns a requester for the hub, as the member.
func (a *app) account(doing string) requester { return requester{a, a.toAccount, doing} }

// ask makes one request. With --json it prints the original answer, otherwise it calls
// show.
func ask[Out any](ctx context.Context, c requester, r api.Request[Out], show func(Out)) error {
	_, err := answer(ctx, c, r, show)
	return err
}

// confirm does the same as ask, and prints a line if the request succeeds.
func confirm[Out any](ctx context.Context, c requester, r api.Request[Out], format string, args ...any) error {
	return ask(ctx, c, r, func(Out) { c.say(format+"\n", args...) })
}

// answer does the same as ask, and returns the answer.
func answer[Out any](ctx context.Context, c requester, r api.Request[Out], show func(Out)) (out Out, err error) {
	at, err := c.to()
	if err != nil {
		return out, err
	}
	out, text, err := fetch(ctx, at, c.doing, r)
	switch {
	case err != nil:
	case c.json:
		err = c.writeJSON(text)
	default:
		show(out)
	}
	return out, err
}

// callFailure turns an error into a message for people, with the matching exit status.
func callFailure(doing string, err error) error {
	var refused *refusal
	if !errors.As(err, &refused) {
		return err
	}
	return failure{refused.exit(), fmt.Errorf("cannot %s: %w", doing, refused)}
}

// hubAddress parses a hub's address as people write it, with or without the /v1 of its
// base URL. Plain HTTP is only accepted for this machine, because secrets are sent there.
func hubAddress(text string) (string, error) {
	var address web
	if err := address.UnmarshalText([]byte(text)); err != nil || text == "" {
		return "", wrongUse("cannot use %q as a hub: it %w", text, errors.New("takes "+address.takes()))
	}
	u, _ := url.Parse(address.Text)
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return "", wrongUse("cannot use %s: a secret never goes over plain http to another machine; use https", text)
	}
	return strings.TrimSuffix(strings.TrimSuffix(address.Text, "/v1"), "/"), nil
}

// wait waits, or returns an error if ctx ends before.
func wait(ctx context.Context, length time.Duration) error {
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
