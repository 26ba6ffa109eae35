package enginetest

import (
	"cmp"
	"encoding/json/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

type object = map[string]any

func (e *Engine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch e.kind {
	case LlamaCpp:
		w = &llamaWriter{ResponseWriter: w}
		w.Header().Set("Server", "llama.cpp")
	case MLX:
		w.Header().Set("Server", "BaseHTTP/0.6 Python/3.12.4")
	}
	open := r.URL.Path == "/openapi.json" || r.URL.Path == "/health"
	if e.key != "" && !open && r.Header.Get("Authorization") != "Bearer "+e.key && r.Header.Get("X-Api-Key") != e.key {
		e.refuse(w, http.StatusUnauthorized, "a key is wanted, and it is not "+r.Header.Get("Authorization")+r.Header.Get("X-Api-Key"))
		return
	}
	e.mux.ServeHTTP(w, r)
}

// routes returns the routes of the kind.
func (e *Engine) routes() *http.ServeMux {
	mux := http.NewServeMux()
	page := func(pattern string, what func() any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, what()) })
	}
	prefix := ""
	if e.kind == Docker {
		prefix = "/engines"
	}
	if e.kind == Speech {
		mux.HandleFunc("POST /v1/audio/transcriptions", e.inference((*run).transcribe))
	} else {
		mux.HandleFunc("POST "+prefix+"/v1/chat/completions", e.inference((*run).chat))
		if e.kind != MLX {
			mux.HandleFunc("POST "+prefix+"/v1/embeddings", e.inference((*run).embeddings))
		}
	}
	if e.kind == Service {
		mux.HandleFunc("POST /v1/messages/count_tokens", e.counting(countInput))
		mux.HandleFunc("POST /v1/messages", e.inference((*run).messages))
		mux.HandleFunc("POST /v1/responses", e.inference((*run).responses))
	}
	page("GET "+prefix+"/v1/models", e.list)
	mux.HandleFunc("/", e.unknown)
	switch e.kind {
	case LlamaCpp:
		mux.HandleFunc("POST /apply-template", e.counting(applyTemplate))
		mux.HandleFunc("POST /tokenize", e.counting(tokenizeText))
	case Ollama:
		mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("Ollama is running")) })
		mux.HandleFunc("POST /api/show", e.show)
	case VLLM:
		mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
		mux.HandleFunc("POST /tokenize", e.counting(tokenizeChat))
		mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(e.metrics()) })
	}
	for path, what := range e.pages() {
		page("GET "+path, what)
	}
	return mux
}

func writeJSON(w http.ResponseWriter, status int, what any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, what) // fails only if the caller left
}

// owners are the owned_by of the models that a kind lists, if it has its own.
var owners = map[Kind]string{
	LlamaCpp: "llamacpp", Ollama: "library", VLLM: "vllm", SGLang: "sglang", Docker: "docker",
	LlamaSwap: "llama-swap", KoboldCpp: "koboldcpp", TabbyAPI: "tabbyAPI", Jan: "user",
}

// list answers GET /v1/models with the fields that the kind adds.
func (e *Engine) list() any {
	var data []any
	for _, m := range e.models {
		d := object{"id": m.ID, "object": "model", "created": created, "owned_by": cmp.Or(owners[e.kind], "organization_owner")}
		switch e.kind {
		case LlamaCpp:
			d["meta"] = object{"n_ctx": m.ContextLength, "n_ctx_train": 2 * m.ContextLength, "n_vocab": 32000}
		case VLLM, SGLang:
			d["root"], d["max_model_len"] = m.ID, m.ContextLength
		case Docker:
			d["dmr"] = object{"context_window": m.ContextLength}
		case LocalAI, MLX:
			delete(d, "owned_by")
		case LlamaSwap:
			d["meta"] = object{"llamaswap": object{"type": "model"}}
		}
		data = append(data, d)
	}
	return object{"object": "list", "data": data}
}

func (e *Engine) any(has func(Model) bool) bool { return slices.ContainsFunc(e.models, has) }

func (e *Engine) props() any {
	return object{
		"default_generation_settings": object{"id": 0, "n_ctx": e.models[0].ContextLength},
		"total_slots":                 e.slots,
		"modalities":                  object{"vision": e.any(func(m Model) bool { return m.Vision }), "audio": e.any(func(m Model) bool { return m.Audio })},
		"chat_template_caps":          object{"supports_tools": e.any(func(m Model) bool { return m.Tools })},
	}
}

func (e *Engine) tags() any {
	var models []any
	for i, m := range e.models {
		models = append(models, object{"name": m.ID, "model": m.ID, "digest": "d" + strconv.Itoa(i), "size": 4_920_753_328})
	}
	return object{"models": models}
}

func (e *Engine) show(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Model string `json:"model"`
	}
	_ = json.UnmarshalRead(r.Body, &asked) // without a model: not found
	i := slices.IndexFunc(e.models, func(m Model) bool { return m.ID == asked.Model })
	if i < 0 {
		writeJSON(w, http.StatusNotFound, object{"error": "model '" + asked.Model + "' not found"})
		return
	}
	m := e.models[i]
	words := []string{"completion"}
	if m.Embeddings {
		words = []string{"embedding"}
	}
	for word, has := range map[string]bool{"tools": m.Tools, "vision": m.Vision, "audio": m.Audio, "thinking": m.Thinking} {
		if has {
			words = append(words, word)
		}
	}
	writeJSON(w, http.StatusOK, object{
		"capabilities": words,
		"details":      object{"family": "llama", "parameter_size": "8.0B", "quantization_level": "Q4_K_M"},
		"model_info":   object{"general.architecture": "llama", "general.parameter_count": 8_030_261_248, "llama.context_length": m.ContextLength},
	})
}

func (e *Engine) lmStudio() any {
	var models []any
	for _, m := range e.models {
		d := object{"type": "llm", "key": m.ID, "max_context_length": 2 * m.ContextLength}
		config := object{"context_length": m.ContextLength}
		if m.Embeddings {
			d["type"] = "embedding"
		} else {
			config["parallel"] = e.slots
			abilities := object{"vision": m.Vision, "trained_for_tool_use": m.Tools}
			if m.Thinking {
				abilities["reasoning"] = object{"allowed_options": []string{"off", "low", "medium", "high"}, "default": "medium"}
			}
			d["capabilities"] = abilities
		}
		d["loaded_instances"] = []any{object{"id": m.ID, "config": config}}
		models = append(models, d)
	}
	return object{"models": models}
}

func (e *Engine) openAPI() any {
	paths := object{"/v1/models": object{}, "/version": object{}}
	if e.any(func(m Model) bool { return !m.Embeddings }) {
		paths["/v1/chat/completions"] = object{}
	}
	if e.any(func(m Model) bool { return m.Embeddings }) {
		paths["/v1/embeddings"] = object{}
	}
	return object{"openapi": "3.1.0", "paths": paths}
}

// check returns the status and text of a refusal that the kind would give, or 0.
func (e *Engine) check(c Call) (int, string) {
	embeds := strings.HasSuffix(c.Path, "/v1/embeddings")
	i := slices.IndexFunc(e.models, func(m Model) bool { return m.ID == c.Model })
	switch {
	case e.kind == LlamaCpp && !embeds && !c.hasMessages:
		return http.StatusBadRequest, "'messages' is required"
	case e.kind == LlamaCpp && embeds && !e.any(func(m Model) bool { return m.Embeddings }):
		return http.StatusNotImplemented, "This server does not support embeddings. Start it with `--embeddings`"
	case embeds && c.Input == "":
		return http.StatusBadRequest, `"input" must be provided`
	case i < 0 && e.kind != LlamaCpp: // which ignores the name
		return http.StatusNotFound, "model '" + c.Model + "' not found"
	}
	return 0, ""
}

// refuse answers with an error in the kind's form.
func (e *Engine) refuse(w http.ResponseWriter, status int, text string) {
	answer := object{"message": text, "type": "invalid_request_error", "code": "an_engine_code"}
	switch e.kind {
	case LlamaCpp:
		answer["code"] = status
	case Ollama:
		answer["type"], answer["param"], answer["code"] = "api_error", nil, nil
	case VLLM:
		answer["type"], answer["param"], answer["code"] = "BadRequestError", nil, status
	}
	writeJSON(w, status, object{"error": answer})
}

// reasoningName returns the name that the kind has for reasoning.
func (e *Engine) reasoningName() string {
	if e.kind == Ollama || e.kind == VLLM {
		return "reasoning"
	}
	return "reasoning_content"
}
