package clients_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"

	"github.com/kith/kith/internal/assert"
)

func askResponse(model, text string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model, Temperature: openai.Float(0), Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)},
	}
}

// withItems is the request with those items for its input.
func withItems(params responses.ResponseNewParams, items ...responses.ResponseInputItemUnionParam) responses.ResponseNewParams {
	params.Input = responses.ResponseNewParamsInputUnion{OfInputItemList: items}
	return params
}

// checkResponseError checks an error as the library returns it.
func checkResponseError(t *testing.T, err error, status int, code, member string) {
	t.Helper()
	var api *openai.Error
	if !errors.As(err, &api) || api.StatusCode != status || api.Code != code || api.Param != member || api.Message == "" {
		t.Errorf("gave %v, not %d %s at %q", err, status, code, member)
	}
}

// streamResponse streams the answer and returns the response that the last event
// returns, having checked it against what the library put together from the others.
func streamResponse(ctx context.Context, t *testing.T, client *openai.Client, params responses.ResponseNewParams) (whole responses.Response, events int) {
	t.Helper()
	stream := client.Responses.NewStreaming(ctx, params)
	defer stream.Close()
	text := ""
	for ; stream.Next(); events++ {
		event := stream.Current()
		assert.Equal(t, event.SequenceNumber, int64(events), "event", events, "has the number")
		switch event.Type {
		case "response.output_text.delta":
			text += event.Delta
		case "response.completed", "response.incomplete":
			whole = event.Response
		}
	}
	assert.OK(t, stream.Err())
	if whole.ID == "" || whole.OutputText() != text {
		t.Errorf("the deltas say %q, the response %q", text, whole.OutputText())
	}
	return whole, events
}

// The network that a newcomer starts, with its small model.
func TestResponsesGo(t *testing.T) {
	t.Parallel()
	n := dev(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := openai.NewClient(option.WithBaseURL(n.Hub), option.WithAPIKey(n.APIKey), option.WithMaxRetries(0))
	const question, answer = "What is the capital of France?", "The capital of France is Paris."
	first := assert.Value(client.Responses.New(ctx, askResponse("tiny", question)))(t)
	if first.OutputText() != answer || first.Status != responses.ResponseStatusCompleted || first.Model != "tiny" || !strings.HasPrefix(first.ID, "resp_") ||
		first.Usage.InputTokens == 0 || first.Usage.TotalTokens != first.Usage.InputTokens+first.Usage.OutputTokens || first.CompletedAt < first.CreatedAt {
		t.Errorf("%s", first.RawJSON())
	}
	t.Run("items", func(t *testing.T) {
		params := withItems(askResponse("tiny", ""),
			responses.ResponseInputItemParamOfMessage("Be kind.", responses.EasyInputMessageRoleDeveloper),
			responses.ResponseInputItemParamOfMessage(responses.ResponseInputMessageContentListParam{responses.ResponseInputContentParamOfInputText(question)}, responses.EasyInputMessageRoleUser))
		if got, err := client.Responses.New(ctx, params); err != nil || got.OutputText() == "" {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("stream", func(t *testing.T) {
		whole, events := streamResponse(ctx, t, &client, askResponse("tiny", "Tell me a long story about an owl."))
		if events < 9 || !strings.Contains(whole.OutputText(), "owl") || whole.Status != responses.ResponseStatusCompleted || whole.Usage.OutputTokens < 20 {
			t.Errorf("%d events: %s", events, whole.RawJSON())
		}
	})
	t.Run("limit", func(t *testing.T) {
		params := askResponse("tiny", "Tell me a long story about an owl.")
		params.MaxOutputTokens = openai.Int(3)
		got, err := client.Responses.New(ctx, params)
		if err != nil || got.Status != responses.ResponseStatusIncomplete || got.IncompleteDetails.Reason != "max_output_tokens" {
			t.Errorf("%+v, %v", got, err)
		}
		if whole, _ := streamResponse(ctx, t, &client, params); whole.Status != responses.ResponseStatusIncomplete {
			t.Errorf("streamed: %s", whole.RawJSON())
		}
	})
	t.Run("state", func(t *testing.T) {
		again := askResponse("tiny", "What is the capital of Spain?")
		again.PreviousResponseID = openai.String(first.ID)
		second, err := client.Responses.New(ctx, again)
		if err != nil || second.PreviousResponseID != first.ID || second.Usage.InputTokens <= first.Usage.InputTokens {
			t.Fatalf("%+v, %v", second, err)
		}
		got, err := client.Responses.Get(ctx, second.ID, responses.ResponseGetParams{})
		assert.That(t, err == nil && got.RawJSON() == second.RawJSON(), err, got.RawJSON())
		var items []string
		pages := client.Responses.InputItems.ListAutoPaging(ctx, second.ID, responses.InputItemListParams{Limit: openai.Int(1), Order: responses.InputItemListParamsOrderAsc})
		for pages.Next() {
			item := pages.Current()
			items = append(items, item.Type+" "+item.Role+" "+item.RawJSON())
		}
		if err := pages.Err(); err != nil || len(items) != 3 || !strings.Contains(items[0], question) || !strings.HasPrefix(items[1], "message assistant") || !strings.Contains(items[1], answer) || !strings.Contains(items[2], "Spain") {
			t.Errorf("%v: %q", err, items)
		}
		if err := client.Responses.Delete(ctx, second.ID); err != nil {
			t.Error(err)
		}
		_, err = client.Responses.Get(ctx, second.ID, responses.ResponseGetParams{})
		checkResponseError(t, err, 400, "previous_response_not_found", "response_id")
		again.PreviousResponseID = openai.String(second.ID)
		_, err = client.Responses.New(ctx, again)
		checkResponseError(t, err, 400, "previous_response_not_found", "previous_response_id")
		unstored := askResponse("tiny", question)
		unstored.Store = openai.Bool(false)
		gone, err := client.Responses.New(ctx, unstored)
		assert.OK(t, err)
		checkResponseError(t, client.Responses.Delete(ctx, gone.ID), 400, "previous_response_not_found", "response_id")
	})
	wrong := openai.NewClient(option.WithBaseURL(n.Hub), option.WithAPIKey("kith_wrong"), option.WithMaxRetries(0))
	local := openai.NewClient(option.WithBaseURL(n.Local), option.WithAPIKey("anything"), option.WithMaxRetries(0))
	for name, c := range map[string]struct {
		client *openai.Client
		params responses.ResponseNewParams
		status int
		code   string
		member string
	}{
		"wrong key":     {&wrong, askResponse("tiny", "hi"), 401, "invalid_api_key", ""},
		"unknown model": {&client, askResponse("gpt-6", "hi"), 404, "model_not_found", "model"},
		"no input":      {&client, responses.ResponseNewParams{Model: "tiny"}, 400, "invalid_request", "input"},
		"too large":     {&client, askResponse("tiny", strings.Repeat("x", 33<<20)), 413, "request_too_large", ""},
		"local":         {&local, askResponse("tiny", "hi"), 404, "model_not_found", "model"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.client.Responses.New(ctx, c.params)
			checkResponseError(t, err, c.status, c.code, c.member)
		})
	}
}

// openAIResponses makes a round trip with a tool, streamed and not, resent, gone
// on from, and by reference, over a machine whose engine speaks only chat.
func (n *libraries) openAIResponses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := n.clients["ada"]
	params := askResponse("test-model", askTool)
	params.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("read", map[string]any{
		"type": "object", "properties": map[string]any{"path": map[string]any{"type": "string"}}, "required": []string{"path"},
	}, true)}
	params.Reasoning.Effort = "high"
	for _, streamed := range []bool{false, true} {
		t.Run(map[bool]string{false: "unary", true: "streamed"}[streamed], func(t *testing.T) {
			ask := func(params responses.ResponseNewParams) responses.Response {
				if streamed {
					answer, _ := streamResponse(ctx, t, &client, params)
					return answer
				}
				answer := assert.Value(client.Responses.New(ctx, params))(t)
				return *answer
			}
			first := ask(params)
			assert.Require(t, len(first.Output) == 3, first.RawJSON())
			thought, said, call := first.Output[0], first.Output[1], first.Output[2]
			if thought.Type != "reasoning" || thought.Summary[0].Text != "A file." || said.Content[0].Text != "I look." ||
				call.Type != "function_call" || call.Name != "read" || call.CallID != "call_1" || call.Arguments.OfString != `{"path":"a b.txt"}` || call.ID == call.CallID ||
				first.Usage.InputTokens != 11 || first.Usage.OutputTokens != 7 {
				t.Fatalf("%s", first.RawJSON())
			}
			output := responses.ResponseInputItemParamOfFunctionCallOutput("hello")
			output.OfFunctionCallOutput.CallID = openai.String(call.CallID)
			reference := func(id string) responses.ResponseInputItemUnionParam {
				return responses.ResponseInputItemUnionParam{OfItemReference: &responses.ResponseInputItemItemReferenceParam{ID: id}}
			}
			question := responses.ResponseInputItemParamOfMessage("What does the file say?", responses.EasyInputMessageRoleUser)
			on := withItems(params, output)
			on.PreviousResponseID = openai.String(first.ID)
			for way, again := range map[string]responses.ResponseNewParams{
				"gone on": on,
				"resent": withItems(params, question,
					responses.ResponseInputItemParamOfReasoning(thought.ID, []responses.ResponseReasoningItemSummaryParam{{Text: "A file."}}),
					responses.ResponseInputItemParamOfMessage("I look.", responses.EasyInputMessageRoleAssistant),
					responses.ResponseInputItemParamOfFunctionCall(call.Arguments.OfString, call.CallID, call.Name), output),
				"by reference": withItems(params, question, reference(thought.ID), reference(said.ID), reference(call.ID), output),
			} {
				second := ask(again)
				if second.OutputText() != "The file says hello." || second.Status != responses.ResponseStatusCompleted {
					t.Errorf("%s: %s", way, second.RawJSON())
				}
				asked := string(n.engine.Last().Body)
				for _, part := range []string{
					`{"role":"user","content":"What does the file say?"}`, `"content":"I look.","reasoning_content":"A file."`,
					`"tool_calls":[{"id":"call_1","type":"function","function":{"name":"read","arguments":"{\"path\":\"a b.txt\"}"}}]`,
					`{"role":"tool","tool_call_id":"call_1","content":"hello"}`, `"reasoning_effort":"high"`, `"strict":true`,
				} {
					assert.Contains(t, asked, part, way, "the engine was not told")
				}
			}
		})
	}
	t.Run("another member", func(t *testing.T) {
		first, err := client.Responses.New(ctx, params)
		assert.OK(t, err)
		n.member("ben")
		ben := n.clients["ben"]
		_, err = ben.Responses.Get(ctx, first.ID, responses.ResponseGetParams{})
		checkResponseError(t, err, 400, "previous_response_not_found", "response_id")
		on := params
		on.PreviousResponseID = param.NewOpt(first.ID)
		_, err = ben.Responses.New(ctx, on)
		checkResponseError(t, err, 400, "previous_response_not_found", "previous_response_id")
		if _, err := client.Responses.Get(ctx, first.ID, responses.ResponseGetParams{}); err != nil {
			t.Errorf("it is gone for its own member: %v", err)
		}
	})
	t.Run("a stream that breaks", func(t *testing.T) {
		stream := client.Responses.NewStreaming(ctx, askResponse("test-model", askBroken))
		defer stream.Close()
		said := ""
		for stream.Next() {
			said += stream.Current().Delta
		}
		if stream.Err() == nil || said != "one two " || !strings.Contains(stream.Err().Error(), "engine_error") {
			t.Errorf("said %q, then %v", said, stream.Err())
		}
	})
	n.places().refused(t, func(r refusal, streamed bool) error {
		client := r.at.openAI()
		if !streamed {
			_, err := client.Responses.New(ctx, askResponse(r.model, r.text))
			return err
		}
		stream := client.Responses.NewStreaming(ctx, askResponse(r.model, r.text))
		defer stream.Close()
		for stream.Next() {
		}
		return stream.Err()
	}, checkOpenAI)
}
