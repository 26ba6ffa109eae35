package clients_test

import (
	"context"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

// openAIResponses asks in the responses dialect.
func (n *libraries) openAIResponses(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := n.clients["ada"]
	for _, streamed := range []bool{false, true} {
		once := func(t *testing.T, params responses.ResponseNewParams) *responses.Response {
			answer, _, err := respond(ctx, &client, params, streamed)
			if err != nil {
				t.Fatal(err)
			}
			return answer
		}
		name := map[bool]string{false: "unary", true: "streamed"}[streamed]
		t.Run(name, func(t *testing.T) {
			answer := once(t, askResponse("tiny", "What is the capital of France?"))
			if answer.OutputText() != "The capital of France is Paris." || answer.Status != "completed" || answer.Model != "tiny" ||
				answer.Usage.InputTokens == 0 || answer.Usage.OutputTokens == 0 {
				t.Errorf("%s", answer.RawJSON())
			}
		})
		t.Run("tools, "+name, func(t *testing.T) {
			params := askResponse("test-model", askTool)
			params.Tools = []responses.ToolUnionParam{{OfFunction: &responses.FunctionToolParam{
				Name: "read", Parameters: map[string]any{"type": "object", "properties": map[string]any{"path": map[string]any{"type": "string"}}},
			}}}
			first := once(t, params)
			call := first.Output[len(first.Output)-1].AsFunctionCall()
			if call.Name != "read" || call.Arguments != `{"path":"a b.txt"}` || first.Usage.InputTokens != 11 {
				t.Fatalf("%s", first.RawJSON())
			}
			params.PreviousResponseID = param.NewOpt(first.ID)
			params.Input.OfString = param.Opt[string]{}
			result := responses.ResponseInputItemParamOfFunctionCallOutput("hello")
			result.OfFunctionCallOutput.CallID = param.NewOpt(call.CallID)
			params.Input.OfInputItemList = responses.ResponseInputParam{result}
			if second := once(t, params); second.OutputText() != "The file says hello." {
				t.Errorf("%s", second.RawJSON())
			}
			if kept, err := client.Responses.Get(ctx, first.ID, responses.ResponseGetParams{}); err != nil || kept.ID != first.ID {
				t.Errorf("%+v, %v", kept, err)
			}
		})
	}
	t.Run("a stream that breaks", func(t *testing.T) {
		if _, said, err := respond(ctx, &client, askResponse("test-model", askBroken), true); err == nil || said != "one two " {
			t.Errorf("said %q, then %v", said, err)
		}
	})
	n.refused(t, func(r refusal, streamed bool) error {
		client := openai.NewClient(option.WithBaseURL(r.hub+"/v1"), option.WithAPIKey(r.key), option.WithMaxRetries(0))
		_, _, err := respond(ctx, &client, askResponse(r.model, r.text), streamed)
		return err
	}, checkOpenAI)
}

func askResponse(model, text string) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: shared.ResponsesModel(model), Temperature: openai.Float(0),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(text)},
	}
}

// respond is the response and, of a stream, the text of its deltas.
func respond(ctx context.Context, client *openai.Client, params responses.ResponseNewParams, streamed bool) (answer *responses.Response, said string, err error) {
	if !streamed {
		answer, err = client.Responses.New(ctx, params)
		return answer, "", err
	}
	events := client.Responses.NewStreaming(ctx, params)
	defer events.Close()
	for events.Next() {
		switch event := events.Current(); event.Type {
		case "response.output_text.delta":
			said += event.Delta
		case "response.completed":
			answer = &event.Response
		}
	}
	return answer, said, events.Err()
}
