package enginetest

import (
	"net/http"
	"strconv"
)

// pages returns the pages that describe the kind, by path.
func (e *Engine) pages() map[string]func() any {
	var first Model
	if len(e.models) > 0 {
		first = e.models[0]
	}
	always := func(what any) func() any { return func() any { return what } }
	switch e.kind {
	case LlamaCpp:
		return map[string]func() any{"/health": always(object{"status": "ok"}), "/props": e.props, "/slots": e.slotList}
	case Ollama:
		return map[string]func() any{
			"/api/version": always(object{"version": "0.32.9"}), "/api/tags": e.tags, "/api/ps": always(object{"models": []any{}}),
		}
	case LMStudio:
		return map[string]func() any{"/api/v1/models": e.lmStudio}
	case VLLM:
		return map[string]func() any{"/version": always(object{"version": "0.15.1"}), "/openapi.json": e.openAPI}
	case SGLang:
		return map[string]func() any{
			"/get_model_info":  always(object{"model_path": first.ID, "tokenizer_path": first.ID, "is_generation": !first.Embeddings}),
			"/get_server_info": always(object{"version": "0.5.6", "model_path": first.ID, "max_running_requests": e.slots}),
			"/get_load": func() any {
				return []any{object{"dp_rank": 0, "num_reqs": e.Counts().Running, "num_waiting_reqs": 0, "num_tokens": 0}}
			},
			"/version": always(object{"version": "0.5.6"}),
		}
	case Docker:
		return map[string]func() any{
			"/engines/status": always(object{"llama.cpp": "running llama.cpp version: c22473b", "vllm": "not installed"}),
			"/engines/ps": func() any {
				return []any{object{"backend_name": "llama.cpp", "model_name": first.ID, "mode": "completion", "in_use": e.Counts().Running > 0}}
			},
		}
	case LocalAI:
		return map[string]func() any{
			"/readyz":  always("OK"),
			"/version": always(object{"version": "v3.9.0 (abc1234)"}),
			"/system":  always(object{"backends": []string{"llama-cpp"}, "loaded_models": []any{object{"id": first.ID}}}),
		}
	case LlamaSwap:
		return map[string]func() any{
			"/running": always(object{"running": []any{object{"model": first.ID, "state": "ready", "ttl": 300}}}),
		}
	case KoboldCpp:
		return map[string]func() any{
			"/api/extra/version": always(object{
				"result": "KoboldCpp", "version": "1.101", "protected": e.key != "", "llm": true, "txt2img": false,
				"vision": first.Vision, "audio": first.Audio, "transcribe": false, "embeddings": false,
			}),
			"/api/extra/true_max_context_length": always(object{"value": first.ContextLength}),
			"/api/extra/perf":                    e.perf,
			"/api/version":                       always(object{"version": "0.7.0"}), // it also supports Ollama's API
			"/api/tags":                          e.tags,
		}
	case TabbyAPI:
		return map[string]func() any{
			"/health":       always(object{"status": "healthy", "issues": []any{}}),
			"/openapi.json": always(object{"openapi": "3.1.0", "info": object{"title": "TabbyAPI", "version": "0.1.0"}}),
			"/v1/model": always(object{
				"id": first.ID, "object": "model", "created": created, "owned_by": "tabbyAPI",
				"parameters": object{"max_seq_len": first.ContextLength, "cache_mode": "FP16", "use_vision": first.Vision},
			}),
		}
	case MLX:
		return map[string]func() any{"/health": always(object{"status": "ok"})}
	case Jan:
		return map[string]func() any{
			"/openapi.json": always(object{"openapi": "3.0.0", "info": object{"title": "Jan API Server Endpoints", "version": "1.0"}}),
		}
	}
	return nil
}

func (e *Engine) perf() any {
	running := e.Counts().Running
	return object{"last_process": 0.1, "total_gens": e.Counts().Completed, "queue": running, "idle": max(1-running, 0), "uptime": 60}
}

func (e *Engine) slotList() any {
	running := e.Counts().Running
	slots := make([]any, e.slots)
	for i := range slots {
		slots[i] = object{"id": i, "n_ctx": e.models[0].ContextLength, "is_processing": i < running}
	}
	return slots
}

func (e *Engine) metrics() []byte {
	running := strconv.Itoa(e.Counts().Running)
	return []byte("# HELP vllm:num_requests_running Number of requests in model execution batches.\n" +
		"# TYPE vllm:num_requests_running gauge\n" +
		`vllm:num_requests_running{engine="0",model_name="` + e.models[0].ID + `"} ` + running + ".0\n" +
		`vllm:num_requests_waiting{engine="0",model_name="` + e.models[0].ID + `"} 0.0` + "\n")
}

// unknown answers an unknown path.
func (e *Engine) unknown(w http.ResponseWriter, r *http.Request) {
	switch e.kind {
	case LMStudio: // status 200 for every unknown path
		writeJSON(w, http.StatusOK, object{"error": "Unexpected endpoint or method. (" + r.Method + " " + r.URL.Path + ")"})
	case SGLang, VLLM, TabbyAPI:
		writeJSON(w, http.StatusNotFound, object{"detail": "Not Found"})
	case Docker:
		http.Error(w, "not found", http.StatusNotFound)
	default:
		e.refuse(w, http.StatusNotFound, "File Not Found")
	}
}

// Service is the kind of a service elsewhere, which also serves the responses and
// messages dialects, with the answers below.
const Service Kind = "service"

// The unary answers of a Service.
const (
	Message = `{"type":"message", "id":"msg_1","role":"assistant","model":"theirs","content":[{"type":"text","text":"Hello"}],` +
		`"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":7,"cache_read_input_tokens":4,"output_tokens":3}}`
	Response = `{"id":"resp_1", "object":"response","status":"completed","error":null,"model":"theirs",` +
		`"output":[{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hello","annotations":[]}]}],` +
		`"usage":{"input_tokens":11,"output_tokens":3,"total_tokens":14}}`
)

// MessageStream is the events of a streamed message.
var MessageStream = []string{
	"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"theirs\",\"usage\":{\"input_tokens\":7,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\n",
	"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
	"event: ping\ndata: {\"type\": \"ping\"}\n\n",
	"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n",
	"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
	"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":3}}\n\n",
	"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
}

// ResponseStream is the events of a streamed response.
var ResponseStream = []string{
	"event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_1\",\"object\":\"response\",\"status\":\"in_progress\",\"output\":[],\"usage\":null}}\n\n",
	"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0,\"delta\":\"Hello\"}\n\n",
	"event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":2,\"response\":" + Response + "}\n\n",
}

func (r *run) messages() error { return r.fixed(Message, MessageStream) }

func (r *run) responses() error { return r.fixed(Response, ResponseStream) }

// fixed answers with the given texts.
func (r *run) fixed(answer string, events []string) error {
	if r.call.Stream {
		return r.stream(nil, events, nil)
	}
	return r.unary(answer)
}
