package cli

import (
	"bytes"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

const chatPath = "/v1/chat/completions"

func (s *scenario) question(stream bool) chatRequest {
	return chatRequest{Model: s.model, Stream: stream, Messages: []message{{"user", "Hello"}}}
}

// rehearsalResult is the response to a rehearsed call and the output of `kith rehearse
// --json`.
type rehearsalResult struct {
	Code   string `json:"code"`   // the required code
	Staged string `json:"staged"` // a description of the circumstances
	// The call: the caller, the path, the accepted wait and the body.
	Caller  string         `json:"caller"`
	Path    string         `json:"path"`
	Prefer  string         `json:"prefer,omitempty"`
	Request jsontext.Value `json:"request"`
	// The response, with only those headers that affect a client.
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Answer  string            `json:"answer"` // the body, or the stream
	Error   jsontext.Value    `json:"error"`  // its error; null: none
	// Wrong describes how the response differs from the required one; empty if it does
	// not.
	Wrong string `json:"wrong"`
}

// shownHeaders are the response headers that affect a client.
var shownHeaders = []string{"Content-Type", "Retry-After", "X-Should-Retry", "X-Correlation-Id"}

// resultError is the error of an answer, in a body or a frame.
type resultError struct {
	Code          string `json:"code"`
	Message       string `json:"message"`
	Type          string `json:"type"`
	CorrelationID string `json:"correlation_id"`
	Reason        string `json:"reason"` // in a body
	Details       *struct {
		Reason string `json:"reason"`
	} `json:"details"` // in a frame
}

// ask makes the scenario's call like a client.
func (s *scenarioRun) ask(ctx context.Context, stream bool) (rehearsalResult, error) {
	caller := s.members[s.caller]
	body, err := json.Marshal(s.question(stream))
	if err != nil {
		return rehearsalResult{}, err
	}
	t := rehearsalResult{Code: s.code, Staged: s.staged, Caller: s.caller, Path: chatPath, Request: body, Headers: map[string]string{}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, caller.base+chatPath, bytes.NewReader(body))
	if err != nil {
		return rehearsalResult{}, err
	}
	r.Header.Set("Authorization", "Bearer "+caller.bearer)
	r.Header.Set("Content-Type", "application/json")
	wait := s.wait[0]
	if stream {
		wait = s.wait[1]
	}
	if wait > 0 {
		t.Prefer = "wait=" + strconv.Itoa(wait)
		r.Header.Set("Prefer", t.Prefer)
	}
	response, err := caller.http.Do(r)
	if err != nil {
		return rehearsalResult{}, err
	}
	defer response.Body.Close()
	// After a frame with an error, the connection ends without HTTP's end marker.
	text, _ := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	t.Status, t.Answer = response.StatusCode, string(text)
	for _, name := range shownHeaders {
		if value := response.Header.Get(name); value != "" {
			t.Headers[name] = value
		}
	}
	t.Wrong = t.judge(s.scenario, stream && s.waits)
	return t, nil
}

// judge compares the response with the scenario, either as a status or as a frame of a
// stream. It returns "" if the response is correct.
func (t *rehearsalResult) judge(s *scenario, frame bool) string {
	var got resultError
	var problems []string
	want := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	status, kind := s.status, "application/json"
	if frame {
		status, kind = http.StatusOK, "text/event-stream"
	}
	want(t.Status == status, "status %d, not %d", t.Status, status)
	want(t.Headers["Content-Type"] == kind, "a body of type %q, not %s", t.Headers["Content-Type"], kind)
	text := t.Answer
	if frame {
		want(strings.HasPrefix(text, ":"), "no comment while the call waited")
		want(!strings.Contains(text, "[DONE]"), "an end mark after the error")
		text = lastFrame(text)
	}
	var envelope struct {
		Error jsontext.Value `json:"error"`
	}
	if json.Unmarshal([]byte(text), &envelope) != nil || json.Unmarshal(envelope.Error, &got) != nil {
		return strings.Join(append(problems, "no error in the answer"), "; ")
	}
	t.Error = envelope.Error
	want(got.Code == s.code, "code %s, not %s", got.Code, s.code)
	want(got.CorrelationID != "" && got.CorrelationID == t.Headers["X-Correlation-Id"], "the correlation id is not the header's")
	reason := got.Reason
	if frame {
		want(got.Details != nil, "no details in the frame")
		if got.Details != nil {
			reason = got.Details.Reason
		}
	} else {
		retry := t.Headers["Retry-After"] != ""
		want(retry == (s.status == http.StatusServiceUnavailable), "Retry-After %q with a %d", t.Headers["Retry-After"], t.Status)
		want((t.Headers["X-Should-Retry"] == "false") == s.noRetry, "x-should-retry %q", t.Headers["X-Should-Retry"])
	}
	want(reason == s.reason, "reason %q, not %q", reason, s.reason)
	return strings.Join(problems, "; ")
}

// lastFrame returns the data of a stream's last frame.
func lastFrame(stream string) string {
	last := ""
	for line := range strings.Lines(stream) {
		if data, ok := strings.CutPrefix(line, "data:"); ok {
			last = data
		}
	}
	return last
}

// lines returns the call and its response as a client sees them, without headers that do
// not matter.
func (t *rehearsalResult) lines() []string {
	lines := []string{fmt.Sprintf("> POST %s  %s", t.Path, t.Request)}
	if t.Prefer != "" {
		lines = append(lines, "> Prefer: "+t.Prefer)
	}
	lines = append(lines, fmt.Sprintf("< %d %s", t.Status, http.StatusText(t.Status)))
	for _, name := range shownHeaders {
		if value := t.Headers[name]; value != "" {
			lines = append(lines, "< "+name+": "+value)
		}
	}
	body := slices.DeleteFunc(strings.Split(t.Answer, "\n"), func(line string) bool { return line == "" })
	for _, line := range body {
		lines = append(lines, "< "+line)
	}
	return lines
}
