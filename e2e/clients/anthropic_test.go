package clients_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"

	"github.com/kith/kith/internal/assert"
)

// messagesClient is a client that has nothing but the base and the key.
func messagesClient(base, key string) anthropic.Client {
	return anthropic.NewClient(option.WithoutEnvironmentDefaults(), option.WithBaseURL(base), option.WithAPIKey(key), option.WithMaxRetries(0))
}

func askAnthropic(model, text string) anthropic.MessageNewParams {
	return anthropic.MessageNewParams{
		Model: anthropic.Model(model), MaxTokens: 200, Temperature: anthropic.Float(0),
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(text))},
	}
}

// The network that a newcomer starts, with its small model.
func TestAnthropicGo(t *testing.T) {
	t.Parallel()
	n := dev(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	on(t, n.surfaces(), func(t *testing.T, s surface) { messagesGo(ctx, t, s) })
	t.Run("bearer", func(t *testing.T) {
		client := anthropic.NewClient(option.WithoutEnvironmentDefaults(), option.WithBaseURL(n.Base), option.WithAuthToken(n.APIKey), option.WithMaxRetries(0))
		if _, err := client.Messages.New(ctx, askAnthropic("tiny", "hi")); err != nil {
			t.Error(err)
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		client := messagesClient(n.Base, "kith_wrong")
		_, err := client.Messages.New(ctx, askAnthropic("tiny", "hi"))
		checkAnthropic(t, err, 401, "authentication_error", "invalid_api_key")
	})
}

// messagesGo is what the library must see at each surface.
func messagesGo(ctx context.Context, t *testing.T, s surface) {
	client := s.messages()
	if !s.sealed {
		t.Run("list", func(t *testing.T) {
			page, err := client.Models.List(ctx, anthropic.ModelListParams{})
			if err != nil || len(page.Data) != 1 || page.Data[0].ID != "tiny" || page.HasMore {
				t.Fatalf("%+v, %v", page, err)
			}
			assert.Equal(t, assert.Value(client.Models.Get(ctx, "tiny", anthropic.ModelGetParams{}))(t).ID, "tiny")
		})
	}
	t.Run("message", func(t *testing.T) {
		answer := assert.Value(client.Messages.New(ctx, askAnthropic("tiny", "What is the capital of France?")))(t)
		if answer.Content[0].Text != "The capital of France is Paris." || answer.StopReason != anthropic.StopReasonEndTurn || answer.Model != "tiny" ||
			answer.Usage.InputTokens == 0 || answer.Usage.OutputTokens == 0 || !strings.HasPrefix(answer.ID, "msg_") {
			t.Errorf("%s", answer.RawJSON())
		}
	})
	t.Run("stream", func(t *testing.T) {
		whole, events := accumulate(ctx, t, &client, askAnthropic("tiny", "Tell me a long story about an owl."))
		if events < 6 || !strings.Contains(whole.Content[0].Text, "owl") || whole.StopReason != anthropic.StopReasonEndTurn || whole.Usage.OutputTokens < 20 || whole.Usage.InputTokens == 0 {
			t.Errorf("%d events: %+v", events, whole)
		}
	})
	t.Run("limit", func(t *testing.T) {
		params := askAnthropic("tiny", "Tell me a long story about an owl.")
		params.MaxTokens = 3
		assert.Equal(t, assert.Value(client.Messages.New(ctx, params))(t).StopReason, anthropic.StopReasonMaxTokens)
	})
	t.Run("count", func(t *testing.T) {
		params := askAnthropic("tiny", "What is the capital of France?")
		answer, err := client.Messages.New(ctx, params)
		assert.OK(t, err)
		var response *http.Response
		count, err := client.Messages.CountTokens(ctx, anthropic.MessageCountTokensParams{Model: "tiny", Messages: params.Messages}, option.WithResponseInto(&response))
		assert.OK(t, err)
		if s.sealed { // nothing of the prompt leaves the machine to be counted: docs/spec/sealed.md#counts
			assert.That(t, count.InputTokens > 0 && response.Header.Get("X-Kith-Estimate") == "true", count, response.Header)
			return
		}
		sent := answer.Usage.InputTokens + answer.Usage.CacheReadInputTokens // counted by the model's tokenizer, not estimated
		if count.InputTokens != sent || response.Header.Get("X-Kith-Estimate") != "" {
			t.Errorf("%+v; the same as a message has %d", count, sent)
		}
	})
	nothing := askAnthropic("tiny", "")
	nothing.Messages = nil
	for name, c := range map[string]struct {
		params anthropic.MessageNewParams
		status int
		kind   string
		code   string
	}{
		"unknown model": {askAnthropic("claude-opus-5", "hi"), 404, "not_found_error", "model_not_found"},
		"no messages":   {nothing, 400, "invalid_request_error", "invalid_request"},
		"too large":     {askAnthropic("tiny", strings.Repeat("x", 33<<20)), 413, "request_too_large", "request_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := client.Messages.New(ctx, c.params)
			checkAnthropic(t, err, c.status, c.kind, c.code)
		})
	}
}

// checkAnthropic checks an error as the library returns it.
func checkAnthropic(t *testing.T, err error, status int, kind, code string) {
	t.Helper()
	var api *anthropic.Error
	var response struct {
		Error struct {
			Code          string `json:"code"`
			CorrelationID string `json:"correlation_id"`
		} `json:"error"`
	}
	if !errors.As(err, &api) || json.Unmarshal([]byte(api.RawJSON()), &response) != nil {
		t.Fatalf("%v, want %d %s", err, status, code)
	}
	if api.StatusCode != status || string(api.Type()) != kind || response.Error.Code != code || response.Error.CorrelationID == "" || api.RequestID != response.Error.CorrelationID {
		t.Errorf("%v: type %q, request id %q; want %d %s %s", err, api.Type(), api.RequestID, status, kind, code)
	}
}

// accumulate streams the answer through the library's own accumulator.
func accumulate(ctx context.Context, t *testing.T, client *anthropic.Client, params anthropic.MessageNewParams) (whole anthropic.Message, events int) {
	t.Helper()
	stream := client.Messages.NewStreaming(ctx, params)
	defer stream.Close()
	for ; stream.Next(); events++ {
		assert.OK(t, whole.Accumulate(stream.Current()), "event", events)
	}
	assert.OK(t, stream.Err())
	return whole, events
}

// anthropic asks over a machine whose engine speaks only chat.
func (n *libraries) anthropic(t *testing.T, at places) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := at.ada.messages()
	params := askAnthropic("test-model", askTool)
	params.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{
		Properties: map[string]any{"path": map[string]any{"type": "string"}}, Required: []string{"path"},
	}, "read")}
	params.Thinking = anthropic.ThinkingConfigParamOfEnabled(1024)
	params.MaxTokens, params.Temperature = 4096, anthropic.Float(1)
	for _, streamed := range []bool{false, true} {
		t.Run(map[bool]string{false: "unary", true: "streamed"}[streamed], func(t *testing.T) {
			ask := func(params anthropic.MessageNewParams) *anthropic.Message {
				if streamed {
					answer, _ := accumulate(ctx, t, &client, params)
					return &answer
				}
				answer := assert.Value(client.Messages.New(ctx, params))(t)
				return answer
			}
			first := ask(params)
			if len(first.Content) != 3 || first.Content[0].Thinking != "A file." || first.Content[0].Signature == "" || first.Content[1].Text != "I look." ||
				first.Content[2].Name != "read" || first.Content[2].ID != "call_1" || string(first.Content[2].Input) != `{"path":"a b.txt"}` ||
				first.StopReason != anthropic.StopReasonToolUse || first.Usage.InputTokens != 11 || first.Usage.OutputTokens != 7 {
				t.Fatalf("%+v", first)
			}
			again := params
			again.Messages = append(append([]anthropic.MessageParam{}, params.Messages...), first.ToParam(),
				anthropic.NewUserMessage(anthropic.NewToolResultBlock("call_1", "hello", false)))
			second := ask(again)
			if second.Content[0].Text != "The file says hello." || second.StopReason != anthropic.StopReasonEndTurn {
				t.Errorf("%+v", second)
			}
			asked := string(n.engine.Last().Body)
			for _, part := range []string{
				`"reasoning_content":"A file."`, `"tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"path\":\"a b.txt\"}"}}]`,
				`{"role":"tool","tool_call_id":"call_1","content":"hello"}`, `"max_tokens":4096`, `"enable_thinking":true`, `"thinking_token_budget":1024`,
			} {
				assert.Contains(t, asked, part, "the engine did not get")
			}
		})
	}
	t.Run("a stream that breaks", func(t *testing.T) {
		stream := client.Messages.NewStreaming(ctx, askAnthropic("test-model", askBroken))
		defer stream.Close()
		said := ""
		for stream.Next() {
			said += stream.Current().Delta.Text
		}
		assert.That(t, stream.Err() != nil && said == "one two ", said, "then", stream.Err())
		assert.Contains(t, stream.Err().Error(), "engine_error", "the code is lost", stream.Err())
	})
	at.refused(t, func(r refusal, streamed bool) error {
		client := r.at.messages()
		if !streamed {
			_, err := client.Messages.New(ctx, askAnthropic(r.model, r.text))
			return err
		}
		stream := client.Messages.NewStreaming(ctx, askAnthropic(r.model, r.text))
		defer stream.Close()
		for stream.Next() {
		}
		return stream.Err()
	}, func(t *testing.T, r refusal, err error) { checkAnthropic(t, err, r.status, r.kind, r.code) })
}
