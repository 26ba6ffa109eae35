package clients_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/responses"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/llama/llamatest"
)

// A coding agent's conversation on the built-in engine: the model calls the tool, gets its
// result, and answers.
const (
	agentAsks   = "What is the password in note.txt?"
	agentResult = "The password is heron."
	agentAnswer = "7 + 5 = 12."
)

var agentSchema = map[string]any{
	"type": "object", "properties": map[string]any{"filePath": map[string]any{"type": "string"}}, "required": []string{"filePath"},
}

// agentWay is how the conversation is held.
type agentWay struct {
	streamed bool
	demands  bool // a call in the first answer
}

// TestAgentGo holds that conversation in each dialect by its official library, through a
// hub, in clear and sealed.
func TestAgentGo(t *testing.T) {
	t.Parallel()
	n := startNetwork(t, "")
	small := assert.Value(os.ReadFile("../../internal/llama/data/tiny.gguf"))(t)
	file := filepath.Join(n.dir, "agent.gguf")
	assert.OK(t, os.WriteFile(file, llamatest.Agent(small, "note.txt"), 0o600))
	n.daemon("box", fmt.Sprintf("[engine]\nmodels = [%q]\n[discovery]\nenabled = false\n", file))
	n.eventually("ada", "agent", "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	on(t, []surface{n.atHub("ada"), n.remote("ada")}, func(t *testing.T, s surface) {
		dialects := map[string]func(context.Context, *testing.T, surface, agentWay){"chat": agentChat, "messages": agentMessages, "responses": agentResponses}
		if s.sealed {
			delete(dialects, "responses") // it is not sealed
		}
		for name, talk := range dialects {
			for _, way := range []agentWay{{}, {streamed: true}, {demands: true}, {streamed: true, demands: true}} {
				t.Run(fmt.Sprintf("%s/%+v", name, way), func(t *testing.T) { talk(ctx, t, s, way) })
			}
		}
	})
}

// checkCall checks the call of a first answer, which has no text.
func checkCall(t *testing.T, id, name, arguments, text, finish, want string) {
	t.Helper()
	var input struct{ FilePath string }
	err := json.Unmarshal([]byte(arguments), &input)
	assert.Require(t, err == nil && id != "" && name == "read" && input.FilePath == "note.txt", id, name, arguments, err)
	assert.Equal(t, text, "")
	assert.Equal(t, finish, want)
}

func agentChat(ctx context.Context, t *testing.T, s surface, way agentWay) {
	client, params := s.openAI(), ask(agentAsks)
	params.Model = "agent"
	params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openai.FunctionDefinitionParam{Name: "read", Parameters: agentSchema})}
	if way.demands {
		params.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")}
	}
	once := func() openai.ChatCompletionChoice {
		if way.streamed {
			return assert.Value(accumulateChat(ctx, &client, params))(t).Choices[0]
		}
		return assert.Value(client.Chat.Completions.New(ctx, params))(t).Choices[0]
	}
	first := once()
	assert.Require(t, len(first.Message.ToolCalls) == 1, first)
	call := first.Message.ToolCalls[0]
	checkCall(t, call.ID, call.Function.Name, call.Function.Arguments, first.Message.Content, first.FinishReason, "tool_calls")
	params.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{}
	params.Messages = append(params.Messages, first.Message.ToParam(), openai.ToolMessage(agentResult, call.ID))
	second := once()
	assert.Equal(t, second.Message.Content, agentAnswer)
	assert.Equal(t, second.FinishReason, "stop")
}

func agentMessages(ctx context.Context, t *testing.T, s surface, way agentWay) {
	client, params := s.messages(), askAnthropic("agent", agentAsks)
	params.Tools = []anthropic.ToolUnionParam{anthropic.ToolUnionParamOfTool(anthropic.ToolInputSchemaParam{
		Properties: agentSchema["properties"], Required: []string{"filePath"},
	}, "read")}
	if way.demands {
		params.ToolChoice = anthropic.ToolChoiceUnionParam{OfAny: &anthropic.ToolChoiceAnyParam{}}
	}
	once := func() anthropic.Message {
		if way.streamed {
			answer, _ := accumulate(ctx, t, &client, params)
			return answer
		}
		return *assert.Value(client.Messages.New(ctx, params))(t)
	}
	first := once()
	assert.Require(t, len(first.Content) == 1 && first.Content[0].Type == "tool_use", first)
	call := first.Content[0]
	checkCall(t, call.ID, call.Name, string(call.Input), "", string(first.StopReason), "tool_use")
	params.ToolChoice = anthropic.ToolChoiceUnionParam{}
	params.Messages = append(params.Messages, first.ToParam(), anthropic.NewUserMessage(anthropic.NewToolResultBlock(call.ID, agentResult, false)))
	second := once()
	assert.Require(t, len(second.Content) == 1, second)
	assert.Equal(t, second.Content[0].Text, agentAnswer)
	assert.Equal(t, second.StopReason, anthropic.StopReasonEndTurn)
}

func agentResponses(ctx context.Context, t *testing.T, s surface, way agentWay) {
	client, params := s.openAI(), askResponse("agent", agentAsks)
	params.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("read", agentSchema, false)}
	if way.demands {
		params.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{OfToolChoiceMode: openai.Opt(responses.ToolChoiceOptionsRequired)}
	}
	once := func() responses.Response {
		if way.streamed {
			answer, _ := streamResponse(ctx, t, &client, params)
			return answer
		}
		return *assert.Value(client.Responses.New(ctx, params))(t)
	}
	first := once()
	assert.Require(t, len(first.Output) == 1 && first.Output[0].Type == "function_call", first.RawJSON())
	call := first.Output[0]
	checkCall(t, call.CallID, call.Name, call.Arguments.OfString, first.OutputText(), string(first.Status), "completed")
	params.ToolChoice = responses.ResponseNewParamsToolChoiceUnion{}
	result := responses.ResponseInputItemParamOfFunctionCallOutput(agentResult)
	result.OfFunctionCallOutput.CallID = openai.String(call.CallID)
	resent := withItems(params,
		responses.ResponseInputItemParamOfMessage(agentAsks, responses.EasyInputMessageRoleUser),
		responses.ResponseInputItemParamOfFunctionCall(call.Arguments.OfString, call.CallID, call.Name), result)
	params = withItems(params, result)
	params.PreviousResponseID = openai.String(first.ID)
	for range 2 { // gone on with the kept turn, and sent again as Codex does
		second := once()
		assert.Equal(t, second.OutputText(), agentAnswer)
		assert.Equal(t, second.Status, responses.ResponseStatusCompleted)
		params = resent
	}
}
