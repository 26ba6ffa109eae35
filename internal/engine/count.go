package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"

	"github.com/kith/kith/internal/fleet"
)

// ErrNoTokenizer reports that the engine has no tokenizer route.
var ErrNoTokenizer = errors.New("the engine has no tokenizer to ask")

// maxCountAnswer bounds an engine's list of tokens or its templated prompt.
const maxCountAnswer = 64 << 20

// Count returns the number of tokens in a call's prompt according to the engine's own
// tokenizer. For a chat call it uses the model's template, with the call's tools and
// thinking settings. It does not run the model. An untrusted call is rebuilt as in Do. A
// call in the messages dialect is counted by its upstream. The error is ErrNoTokenizer, a
// *fault.Fault if the call is invalid, or another error if the engine fails.
func (e *Engine) Count(ctx context.Context, req Request) (tokens int64, err error) {
	model, err := e.modelFor(&req)
	switch {
	case err != nil:
		return 0, err
	case req.Endpoint == fleet.Messages && e.upstream && req.Trusted:
		return e.countAt(ctx, e.target(req.Endpoint)+"/count_tokens", req.Header, req.Body)
	case req.Endpoint != fleet.ChatCompletions || e.kind.count == nil:
		return 0, ErrNoTokenizer
	}
	req.Stream = false
	body, _, err := e.request(&req, model)
	if err != nil {
		return 0, err
	}
	return e.kind.count(ctx, e, body)
}

// countWhole is for engines whose tokenizer accepts the call itself: vLLM and the
// built-in engine.
func countWhole(ctx context.Context, e *Engine, body []byte) (int64, error) {
	return e.countAt(ctx, e.base+"/tokenize", nil, body)
}

// countTemplated is for llama.cpp's server, which applies the chat template and
// tokenizes in two requests.
func countTemplated(ctx context.Context, e *Engine, body []byte) (tokens int64, err error) {
	var form struct {
		Prompt string `json:"prompt"`
	}
	err = e.post(ctx, e.base+"/apply-template", nil, body, func(answer io.Reader) error {
		return json.UnmarshalRead(answer, &form)
	})
	if err != nil {
		return 0, err
	}
	var call struct {
		Model string `json:"model"`
	}
	if err := json.Unmarshal(body, &call); err != nil {
		return 0, err
	}
	// With the same settings as for a chat call: the start tokens are added to every text,
	// and control tokens are recognized by name.
	text, err := json.Marshal(struct {
		Model   string `json:"model"`
		Add     bool   `json:"add_special"`
		Parse   bool   `json:"parse_special"`
		Content string `json:"content"`
	}{call.Model, true, true, form.Prompt})
	if err != nil {
		return 0, err
	}
	return e.countAt(ctx, e.base+"/tokenize", nil, text)
}

func (e *Engine) countAt(ctx context.Context, url string, header http.Header, body []byte) (tokens int64, err error) {
	err = e.post(ctx, url, header, body, func(answer io.Reader) error {
		tokens, err = readCount(answer)
		return err
	})
	return tokens, err
}

// post sends body to the engine and passes a bounded answer to read.
func (e *Engine) post(ctx context.Context, url string, header http.Header, body []byte, read func(io.Reader) error) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("cannot make the request for %s: %w", e.name, err)
	}
	if header != nil {
		r.Header = header.Clone()
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "kith")
	resp, err := e.rt.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("cannot ask %s to count: %w", e.name, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		return read(io.LimitReader(resp.Body, maxCountAnswer))
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return ErrNoTokenizer // an older version
	default:
		return fmt.Errorf("%s answered a count with status %d", e.name, resp.StatusCode)
	}
}

var errNoCount = errors.New("the engine's answer has no count")

// readCount returns the count in an answer, or the length of its list of tokens.
func readCount(answer io.Reader) (tokens int64, err error) {
	var sent struct {
		Count  *int64           `json:"count"`
		Input  *int64           `json:"input_tokens"`
		Tokens []jsontext.Value `json:"tokens"`
	}
	if err := json.UnmarshalRead(answer, &sent, jsontext.AllowDuplicateNames(true)); err != nil {
		return 0, err
	}
	n := cmp.Or(sent.Count, sent.Input)
	if n == nil && sent.Tokens != nil {
		return int64(len(sent.Tokens)), nil
	}
	if n == nil || *n < 0 || *n > math.MaxInt32 {
		return 0, errNoCount
	}
	return *n, nil
}
