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
				"vision": first.Vision, "audio": false, "transcribe": false, "embeddings": false,
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
	idle := 1
	if running > 0 {
		idle = 0
	}
	return object{"last_process": 0.1, "total_gens": e.Counts().Completed, "queue": running, "idle": idle, "uptime": 60}
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
