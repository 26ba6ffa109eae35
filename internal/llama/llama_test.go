package llama

import (
	"cmp"
	"context"
	"encoding/json/v2"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// TestMain makes the test binary the worker that the supervisors start.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == WorkerArg {
		os.Exit(Worker(memoryUnknown))
	}
	if len(os.Args) > 1 && os.Args[1] == orphanArg {
		os.Exit(orphanParent())
	}
	dir, err := os.MkdirTemp("", "kith-llama-")
	if err != nil {
		panic(err)
	}
	testData = dir
	status := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		panic(err)
	}
	os.Exit(status)
}

// testData is where all tests unpack the libraries.
var testData string

// needLibraries fails the test if the libraries are missing, instead of skipping
// it silently.
func needLibraries(t testing.TB) {
	t.Helper()
	if err := Available(); err != nil {
		t.Fatalf("%v: the tests run llama.cpp itself; use `make test`, or scripts/fetch-llama.sh and go test -tags llama", err)
	}
}

var testModels = []ModelFile{{ID: "tiny", Path: "data/tiny.gguf"}, {ID: "random", Path: "data/random.gguf"}}

// engine is a supervised worker for one test.
type engine struct {
	*Supervisor
	t      testing.TB
	client *http.Client
}

func startEngine(t testing.TB, c Config) *engine {
	t.Helper()
	needLibraries(t)
	if c.Models == nil {
		c.Models = testModels
	}
	c.Data = cmp.Or(c.Data, testData)
	c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	s := NewSupervisor(c)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-done:
		done <- err
		t.Fatalf("Run ended: %v", err)
	case <-time.After(2 * time.Minute):
		_, _, err := s.current()
		t.Fatalf("the worker does not get ready: %v", err)
	}
	return &engine{Supervisor: s, t: t, client: &http.Client{Transport: s.Transport()}}
}

// post sends a JSON body and returns the status and the answer.
func (e *engine) post(path string, body any) (int, []byte) {
	e.t.Helper()
	res := e.open(context.Background(), path, body)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	assert.OK(e.t, err, path)
	return res.StatusCode, b
}

func (e *engine) open(ctx context.Context, path string, body any) *http.Response {
	e.t.Helper()
	res, err := e.try(ctx, path, body)
	assert.OK(e.t, err, path)
	return res
}

func (e *engine) try(ctx context.Context, path string, body any) (*http.Response, error) {
	text, isText := body.(string)
	if !isText {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		text = string(b)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://engine"+path, strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	return e.client.Do(req)
}

// object is a JSON object.
type object = map[string]any

// ask returns a chat request with one user message at temperature 0.
func ask(text string, more ...object) object {
	q := object{
		"model":       "tiny",
		"messages":    []object{{"role": "user", "content": text}},
		"temperature": 0,
	}
	for _, m := range more {
		for k, v := range m {
			q[k] = v
		}
	}
	return q
}

// completion is a unary answer.
type completion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []struct {
		Index   int `json:"index"`
		Message struct {
			Role      string     `json:"role"`
			Content   string     `json:"content"`
			ToolCalls []toolCall `json:"tool_calls"`
		} `json:"message"`
		Logprobs     *logprobs `json:"logprobs"`
		FinishReason string    `json:"finish_reason"`
		StopReason   string    `json:"stop_reason"`
	} `json:"choices"`
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	} `json:"usage"`
}

func (e *engine) chat(q object) completion {
	e.t.Helper()
	status, b := e.post("/v1/chat/completions", q)
	assert.Require(e.t, status == http.StatusOK, "status", status, b)
	var c completion
	assert.OK(e.t, json.Unmarshal(b, &c), b)
	assert.Require(e.t, len(c.Choices) == 1, len(c.Choices), "choices", b)
	return c
}

// say returns the text of the answer to a chat request.
func (e *engine) say(q object) string {
	e.t.Helper()
	return e.chat(q).Choices[0].Message.Content
}

// refused returns the code and message of a failed request.
func (e *engine) refused(path string, body any, status int) (code, message string) {
	e.t.Helper()
	got, b := e.post(path, body)
	assert.Require(e.t, got == status, "status", got, status, b)
	var x errorBody
	assert.OK(e.t, json.Unmarshal(b, &x), b)
	return x.Error.Code, x.Error.Message
}
