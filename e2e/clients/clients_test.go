// Package clients_test drives kith with the official client libraries, given
// nothing but a base URL and a key. A module of its own, so that the libraries'
// dependencies stay out of kith's.
package clients_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/kith/kith/internal/assert"
)

// network is what `kith dev --json` prints of itself.
type network struct {
	*staged `json:"-"`
	Hub     string   `json:"hub"`
	Base    string   `json:"messages_base"`
	Local   string   `json:"local"`
	APIKey  string   `json:"api_key"`
	Models  []string `json:"models"`
}

// devMember owns everything in `kith dev`.
const devMember = "you"

// surfaces are the hub's and the daemon's, which has the engine, and that of a daemon
// without one.
func (n network) surfaces() []surface {
	return []surface{
		{name: "hub", base: n.Base, key: n.APIKey}, {name: "local", base: strings.TrimSuffix(n.Local, "/v1"), key: anyKey}, n.remote(devMember),
	}
}

// kithBinary is the binary under test.
func kithBinary(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("KITH_BIN")
	if binary == "" {
		binary, _ = filepath.Abs("../../bin/kith")
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("cannot find the binary under test: %v; run make build, or make test", err)
	}
	return binary
}

// dev starts a complete network and ends it with the test.
func dev(t *testing.T) network {
	t.Helper()
	s := &staged{t: t, binary: kithBinary(t), dir: shortDir(t), data: t.TempDir()}
	cmd := exec.Command(s.binary, "dev", "--json", "--data", s.data, "--listen", "127.0.0.1:0", "--local", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), "KITH_HOME="+t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	assert.OK(t, err)
	assert.OK(t, cmd.Start())
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kith dev ended badly after an interrupt: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadBytes('\n')
	assert.OK(t, err, "kith dev printed no line")
	n := network{staged: s}
	if err := json.Unmarshal(line, &n); err != nil {
		t.Fatalf("the first line is not the document promised: %v: %s", err, line)
	}
	s.hub = n.Base
	return n
}

func TestOpenAIGo(t *testing.T) {
	t.Parallel()
	n := dev(t)
	on(t, n.surfaces(), func(t *testing.T, s surface) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		client := s.openAI()
		if !s.sealed {
			t.Run("list", func(t *testing.T) { list(ctx, t, &client) })
		}
		t.Run("chat", func(t *testing.T) { chat(ctx, t, &client) })
		t.Run("stream", func(t *testing.T) { stream(ctx, t, &client) })
		t.Run("embeddings", func(t *testing.T) { embeddings(ctx, t, &client) })
		t.Run("unknown model", func(t *testing.T) { unknownModel(ctx, t, &client) })
		if s.sealed {
			t.Run("why", func(t *testing.T) { n.why(ctx, t, &client) })
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		client := openai.NewClient(option.WithBaseURL(n.Hub), option.WithAPIKey("kith_wrong"), option.WithMaxRetries(0))
		_, err := client.Chat.Completions.New(t.Context(), ask("hi"))
		var api *openai.Error
		if !errors.As(err, &api) || api.StatusCode != 401 || api.Code != "invalid_api_key" {
			t.Fatalf("a wrong key gave %v, not 401 invalid_api_key", err)
		}
	})
}

func ask(text string) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:       "tiny",
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage(text)},
		Temperature: openai.Float(0),
	}
}

func list(ctx context.Context, t *testing.T, client *openai.Client) {
	page, err := client.Models.List(ctx)
	assert.OK(t, err)
	assert.Require(t, len(page.Data) == 1 && page.Data[0].ID == "tiny", "listed", page.Data)
	one, err := client.Models.Get(ctx, "tiny")
	assert.Require(t, err == nil && one.ID == "tiny", "get", one, err)
}

func chat(ctx context.Context, t *testing.T, client *openai.Client) {
	answer := assert.Value(client.Chat.Completions.New(ctx, ask("What is the capital of France?")))(t)
	assert.Equal(t, answer.Choices[0].Message.Content, "The capital of France is Paris.", "answered")
	if answer.Choices[0].FinishReason != "stop" || answer.Model != "tiny" || answer.Usage.CompletionTokens == 0 {
		t.Errorf("finish %q, model %q, usage %+v", answer.Choices[0].FinishReason, answer.Model, answer.Usage)
	}
}

func stream(ctx context.Context, t *testing.T, client *openai.Client) {
	params := ask("Tell me a long story about an owl.")
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	events := client.Chat.Completions.NewStreaming(ctx, params)
	defer events.Close()
	var whole openai.ChatCompletionAccumulator
	chunks := 0
	for events.Next() {
		chunks++
		if !whole.AddChunk(events.Current()) {
			t.Fatalf("the accumulator refused chunk %d: %s", chunks, events.Current().RawJSON())
		}
	}
	assert.OK(t, events.Err())
	text := whole.Choices[0].Message.Content
	// Tokens that come faster than they are sent on share a chunk; the end and the usage have one each.
	if chunks < 3 || !strings.Contains(text, "owl") || whole.Choices[0].FinishReason != "stop" || whole.Usage.CompletionTokens < 20 {
		t.Errorf("%d chunks, finish %q, usage %+v, text %q", chunks, whole.Choices[0].FinishReason, whole.Usage, text)
	}
}

// why checks what `kith why` shows of a sealed call on the machine that made it.
func (n network) why(ctx context.Context, t *testing.T, client *openai.Client) {
	var response *http.Response
	_, err := client.Chat.Completions.New(ctx, ask("hi"), option.WithResponseInto(&response))
	assert.OK(t, err)
	n.until("kith why shows that the call was sealed", func() error {
		text, err := n.at(remoteOf(devMember), "why", response.Header.Get("X-Correlation-Id"))
		if err == nil && !regexp.MustCompile(`(?m)^ *sealed +yes: the hub could not read it$`).Match(text) {
			err = fmt.Errorf("it shows %s", text)
		}
		return err
	})
}

func embeddings(ctx context.Context, t *testing.T, client *openai.Client) {
	answer, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{
		Model: "tiny", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"What is the capital of France?", "What is the capital of Spain?"}},
	})
	assert.OK(t, err)
	if len(answer.Data) != 2 || len(answer.Data[0].Embedding) != 128 || answer.Data[1].Index != 1 {
		t.Errorf("%d embeddings of %d dimensions", len(answer.Data), len(answer.Data[0].Embedding))
	}
}

func unknownModel(ctx context.Context, t *testing.T, client *openai.Client) {
	params := ask("hi")
	params.Model = "no-such-model"
	_, err := client.Chat.Completions.New(ctx, params)
	var api *openai.Error
	if !errors.As(err, &api) || api.StatusCode != 404 || api.Code != "model_not_found" {
		t.Fatalf("an unknown model gave %v, not 404 model_not_found", err)
	}
}

// openAI asks over a machine that calls tools and breaks streams.
func (n *libraries) openAI(t *testing.T, at places) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := at.ada.openAI()
	for _, streamed := range []bool{false, true} {
		t.Run(map[bool]string{false: "tools", true: "tools, streamed"}[streamed], func(t *testing.T) {
			toolsRoundTrip(ctx, t, &client, streamed)
		})
	}
	t.Run("a stream that breaks", func(t *testing.T) {
		params := ask(askBroken)
		params.Model = "test-model"
		whole, err := accumulateChat(ctx, &client, params)
		if len(whole.Choices) == 0 || whole.Choices[0].Message.Content != "one two " || err == nil || !strings.Contains(err.Error(), "engine_error") {
			t.Errorf("said %+v, then %v", whole.Choices, err)
		}
	})
	at.refused(t, func(r refusal, streamed bool) error {
		client, params := r.at.openAI(), ask(r.text)
		params.Model = r.model
		if !streamed {
			_, err := client.Chat.Completions.New(ctx, params)
			return err
		}
		_, err := accumulateChat(ctx, &client, params)
		return err
	}, checkOpenAI)
}

// checkOpenAI checks a refusal as the library returns it.
func checkOpenAI(t *testing.T, r refusal, err error) {
	var api *openai.Error
	if !errors.As(err, &api) || api.StatusCode != r.status || api.Code != r.code {
		t.Errorf("gave %v, not %d %s", err, r.status, r.code)
	}
}

// toolsRoundTrip lets the model call a tool, answers it, and asks again.
func toolsRoundTrip(ctx context.Context, t *testing.T, client *openai.Client, streamed bool) {
	params := ask(askTool)
	params.Model = "test-model"
	params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{
		Name: "read", Parameters: openai.FunctionParameters{"type": "object", "properties": map[string]any{"path": map[string]any{"type": "string"}}},
	})}
	once := func() *openai.ChatCompletion {
		if streamed {
			params.StreamOptions.IncludeUsage = openai.Bool(true)
			whole := assert.Value(accumulateChat(ctx, client, params))(t)
			return &whole.ChatCompletion
		}
		answer := assert.Value(client.Chat.Completions.New(ctx, params))(t)
		return answer
	}
	first := once()
	choice := first.Choices[0]
	if len(choice.Message.ToolCalls) != 1 || choice.FinishReason != "tool_calls" || first.Usage.PromptTokens != 11 || first.Usage.CompletionTokens != 7 {
		t.Fatalf("%+v", first)
	}
	call := choice.Message.ToolCalls[0]
	if call.ID != "call_1" || call.Function.Name != "read" || call.Function.Arguments != `{"path":"a b.txt"}` {
		t.Fatalf("%+v", call)
	}
	params.Messages = append(params.Messages, choice.Message.ToParam(), openai.ToolMessage("hello", call.ID))
	if second := once(); second.Choices[0].Message.Content != "The file says hello." || second.Choices[0].FinishReason != "stop" {
		t.Errorf("%+v", second)
	}
}

// accumulateChat streams the answer through the library's own accumulator.
func accumulateChat(ctx context.Context, client *openai.Client, params openai.ChatCompletionNewParams) (whole openai.ChatCompletionAccumulator, err error) {
	events := client.Chat.Completions.NewStreaming(ctx, params)
	defer events.Close()
	for events.Next() {
		if chunk := events.Current(); !whole.AddChunk(chunk) {
			return whole, fmt.Errorf("the accumulator refused %s", chunk.RawJSON())
		}
	}
	return whole, events.Err()
}
