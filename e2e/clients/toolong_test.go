package clients_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

// A prompt over the small model's context, as programs see it through the official
// libraries: coding agents shorten their talk by it. With truncation auto the
// oldest turns are left out.
func TestPromptTooLong(t *testing.T) {
	t.Parallel()
	n := dev(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const code, says = "context_length_exceeded", "prompt is too long: "
	long := strings.Repeat("All that glitters is not gold. ", 400)
	client := openai.NewClient(option.WithBaseURL(n.Hub), option.WithAPIKey(n.APIKey), option.WithMaxRetries(0))
	check := func(name string, err error, param string) {
		t.Helper()
		var api *openai.Error
		if !errors.As(err, &api) || api.StatusCode != 400 || api.Code != code || api.Param != param || !strings.HasPrefix(api.Message, says) || !strings.HasSuffix(api.Message, " maximum") {
			t.Errorf("%s: %v", name, err)
		}
	}
	sealed := n.remote(devMember)
	chat := openai.ChatCompletionNewParams{Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(long)}}
	_, err := client.Chat.Completions.New(ctx, chat)
	check("chat", err, "messages")
	local := openai.NewClient(option.WithBaseURL(n.Local), option.WithAPIKey("any"), option.WithMaxRetries(0))
	_, err = local.Chat.Completions.New(ctx, chat)
	check("chat, on the daemon", err, "messages")
	remote := sealed.openAI()
	_, err = remote.Chat.Completions.New(ctx, chat)
	check("chat, sealed", err, "messages")
	_, err = accumulateChat(ctx, &remote, chat)
	check("chat, sealed and streamed", err, "messages")
	_, err = client.Responses.New(ctx, askResponse("tiny", long))
	check("responses", err, "input")

	stream := client.Responses.NewStreaming(ctx, askResponse("tiny", long))
	defer stream.Close()
	failed := false
	for stream.Next() {
		if e := stream.Current(); e.Type == "response.failed" {
			failed = string(e.Response.Error.Code) == code && strings.HasPrefix(e.Response.Error.Message, says)
		}
	}
	if err := stream.Err(); !failed && (err == nil || !strings.Contains(err.Error(), code)) { // some read no further than the error event
		t.Errorf("responses, streamed: %v", err)
	}

	params := withItems(askResponse("tiny", ""),
		responses.ResponseInputItemParamOfMessage(long, responses.EasyInputMessageRoleUser),
		responses.ResponseInputItemParamOfMessage("Gold.", responses.EasyInputMessageRoleAssistant),
		responses.ResponseInputItemParamOfMessage("What is the capital of France?", responses.EasyInputMessageRoleUser))
	params.Truncation = responses.ResponseNewParamsTruncationAuto
	if got, err := client.Responses.New(ctx, params); err != nil || got.OutputText() != "The capital of France is Paris." {
		t.Errorf("truncation auto: %+v, %v", got, err)
	}

	for name, base := range map[string]string{"the hub": n.Base, "the daemon": strings.TrimSuffix(n.Local, "/v1"), "a daemon, sealed": sealed.base} {
		messages := messagesClient(base, n.APIKey)
		_, err := messages.Messages.New(ctx, askAnthropic("tiny", long))
		var api *anthropic.Error
		if !errors.As(err, &api) || api.StatusCode != 400 || !strings.Contains(api.RawJSON(), `"type":"invalid_request_error"`) || !strings.Contains(api.RawJSON(), `"message":"`+says) {
			t.Errorf("messages, at %s: %v", name, err)
		}
		answer, err := messages.Messages.New(ctx, askAnthropic("tiny", "What is the capital of France?"))
		if err != nil || answer.Content[0].Text != "The capital of France is Paris." {
			t.Errorf("messages, at %s: %+v, %v", name, answer, err)
		}
	}
}

// The functions of before tools, with a library that still has them.
func TestLegacyFunctions(t *testing.T) {
	t.Parallel()
	n := dev(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	on(t, n.surfaces(), func(t *testing.T, s surface) {
		client := s.openAI()
		answer, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
			Model: "tiny", Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is the capital of France?")},
			Functions: []openai.ChatCompletionNewParamsFunction{{Name: "weather"}},
		})
		if err != nil || answer.Choices[0].Message.Content != "The capital of France is Paris." || answer.Choices[0].FinishReason != "stop" {
			t.Errorf("%+v, %v", answer, err)
		}
	})
}
