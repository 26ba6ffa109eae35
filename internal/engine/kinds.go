package engine

import (
	"cmp"
	"context"
	"encoding/json/jsontext"
	"net/http"
	"slices"
	"strings"

	"github.com/kith/kith/internal/fleet"
)

// kind is a kind of engine: its usual ports, how to recognize it, how to list its models,
// and how its requests differ.
type kind struct {
	id     string // in advertisements and reports
	name   string // for people
	ports  []int  // usual ports
	prefix string // path before /v1, usually ""
	// detect reports whether the probed engine is definitely of this kind.
	detect func(p *probe) bool
	// list returns the engine's models.
	list func(p *probe) ([]Model, error)
	// version returns the engine's version, or ""; nil: it reports none.
	version func(p *probe) string
	// running returns how many calls the engine runs or queues. If the engine does not
	// report that, running is nil or known is false.
	running func(p *probe) (calls int, known bool)
	// slots is the number of concurrent calls per model according to the kind's
	// documentation, for engines that do not report it; 0 means 1 (docs/engines.md).
	slots int
	// maxTokensOnly: supports max_tokens but not max_completion_tokens.
	maxTokensOnly bool
	// textOnly: embeds texts but not token numbers.
	textOnly bool
	// think converts a thinking setting to the engine's fields; nil: not supported.
	think func(t thinking, m *Model) controls
	// noThinkAfterPrefill: refuses thinking if the last message is the beginning of the
	// answer.
	noThinkAfterPrefill bool
	// effortMayFail: older versions refuse some or all values of reasoning_effort.
	effortMayFail bool
	// count returns the number of tokens in a rebuilt chat body; nil: the engine has no
	// tokenizer route.
	count func(ctx context.Context, e *Engine, body []byte) (int64, error)
	// streamed: always request a stream. llama.cpp's server only notices that the caller
	// disconnected when it sends something, so a unary answer would be computed to the
	// end.
	streamed bool
	// developer: has different roles for developer and system messages.
	developer bool
	// salts: has separate prompt caches for each value of cache_salt.
	salts bool
	// cachePrompt: supports cache_prompt, which controls whether a call may use the prompt
	// cache of earlier calls.
	cachePrompt bool
}

// kinds are tried in this order, because many engines also respond to the routes of
// others. LocalAI may respond like Ollama, so it comes before Ollama.
var kinds = []*kind{
	{
		id: "llama.cpp", name: "llama.cpp server", ports: []int{8080},
		version: versionAt("/props", "build_info"), detect: llamaDetect, list: llamaList, running: llamaRunning, think: templateThinking, noThinkAfterPrefill: true, cachePrompt: true, streamed: true,
		count: countTemplated,
	},
	{
		id: "localai", name: "LocalAI", ports: []int{8080},
		version: versionAt("/version", "version"), detect: localAIDetect, list: localAIList, think: effortThinking, maxTokensOnly: true,
	},
	{
		id: "ollama", name: "Ollama", ports: []int{11434},
		version: versionAt("/api/version", "version"), detect: ollamaDetect, list: ollamaList, think: ollamaThinking, maxTokensOnly: true, textOnly: true,
	},
	{
		id: "lmstudio", name: "LM Studio", ports: []int{1234},
		slots: 4, detect: lmStudioDetect, list: lmStudioList, think: lmStudioThinking, maxTokensOnly: true, textOnly: true,
	},
	{
		id: "vllm", name: "vLLM", ports: []int{8000},
		slots: 64, version: versionAt("/version", "version"), detect: vllmDetect, list: vllmList, running: vllmRunning, think: vllmThinking, effortMayFail: true, salts: true,
		count: countWhole,
	},
	{
		id: "sglang", name: "SGLang", ports: []int{30000},
		slots: 64, version: sglangVersion, detect: sglangDetect, list: sglangList, running: sglangRunning, think: vllmThinking, effortMayFail: true, salts: true,
	},
	{
		id: "dmr", name: "Docker Model Runner", ports: []int{12434}, prefix: "/engines",
		detect: dockerDetect, list: dockerList, running: dockerRunning, think: templateThinking, noThinkAfterPrefill: true,
		salts: true, cachePrompt: true, streamed: true, // it runs llama.cpp's server or vLLM
	},
	{
		id: "llama-swap", name: "llama-swap", ports: []int{8080},
		detect: swapDetect, list: swapList, think: templateThinking, noThinkAfterPrefill: true,
		salts: true, cachePrompt: true, streamed: true, // it runs servers of any kind
	},
	{
		id: "koboldcpp", name: "KoboldCpp", ports: []int{5001},
		version: versionAt("/api/extra/version", "version"), detect: koboldDetect, list: koboldList, running: koboldRunning, maxTokensOnly: true, textOnly: true,
	},
	{
		id: "tabbyapi", name: "TabbyAPI", ports: []int{5000},
		detect: tabbyDetect, list: tabbyList, think: templateThinking, maxTokensOnly: true,
	},
	{
		id: "mlx", name: "mlx_lm.server", ports: []int{8080},
		detect: mlxDetect, list: genericList, think: templateThinking,
	},
	{
		id: "jan", name: "Jan", ports: []int{1337},
		detect: janDetect, list: janList, think: templateThinking, noThinkAfterPrefill: true, maxTokensOnly: true,
		cachePrompt: true, streamed: true, // it runs llama.cpp's server
	},
}

// generic is an unknown server at a configured address that lists models.
var generic = kind{id: "openai", name: "chat-completions server", list: genericList, think: effortThinking}

// builtin accepts the same requests as llama.cpp's server, and cache_salt like vLLM.
var builtin = kind{id: "builtin", name: "built-in engine", think: builtinThinking, noThinkAfterPrefill: true, salts: true, count: countWhole}

// chatModel returns a chat model without capabilities.
func chatModel(id string, context int) Model {
	return Model{
		ID: fleet.ModelID(id), ContextLength: max(context, 0),
		Families:  []fleet.Family{fleet.Chat},
		Endpoints: []fleet.Endpoint{fleet.ChatCompletions},
	}
}

// setEmbeds adds embeddings to what m is for if embeds is true, and removes everything
// else unless chats is true, too.
func (m *Model) setEmbeds(embeds, chats bool) {
	if embeds && !chats {
		m.Families, m.Endpoints = nil, nil
	}
	if embeds {
		m.Families = append(m.Families, fleet.Embeddings)
		m.Endpoints = append(m.Endpoints, fleet.EmbeddingsEndpoint)
	}
}

// setCapability adds the capability to the sorted list if has is true.
func (m *Model) setCapability(capability string, has bool) {
	if i, found := slices.BinarySearch(m.Capabilities, capability); has && !found {
		m.Capabilities = slices.Insert(m.Capabilities, i, capability)
	}
}

// modelList is the answer of GET /v1/models, including fields that engines add.
type modelList struct {
	Object string   `json:"object"`
	Data   []listed `json:"data"`
}

type listed struct {
	ID          string `json:"id"`
	OwnedBy     string `json:"owned_by"`
	MaxModelLen int    `json:"max_model_len"` // vLLM
	Meta        struct {
		Ctx      int              `json:"n_ctx"`
		CtxTrain int              `json:"n_ctx_train"`
		Params   optional[int64]  `json:"n_params"`
		Size     optional[int64]  `json:"size"`
		FileType optional[string] `json:"ftype"` // missing in older versions
		Swap     struct {
			Peer string `json:"peerID"`
		} `json:"llamaswap"`
	} `json:"meta"` // llama.cpp, llama-swap
	Status struct {
		Value  string   `json:"value"`
		Args   []string `json:"args"`
		Failed bool     `json:"failed"`
	} `json:"status"` // llama.cpp as a router
	Architecture struct {
		Inputs []string `json:"input_modalities"`
	} `json:"architecture"` // the same
	Docker struct {
		Context      int    `json:"context_window"`
		Architecture string `json:"architecture"`
	} `json:"dmr"` // Docker Model Runner
}

// each returns the models that describe returns for the entries of /v1/models with ok.
func (p *probe) each(describe func(d listed) (m Model, ok bool)) ([]Model, error) {
	l, err := p.models()
	return l.each(describe), err
}

func (l *modelList) each(describe func(d listed) (m Model, ok bool)) []Model {
	var out []Model
	for _, d := range l.Data {
		if m, ok := describe(d); ok {
			out = append(out, m)
		}
	}
	return out
}

func (p *probe) models() (*modelList, error) {
	var l modelList
	return &l, p.get("/v1/models").into(&l)
}

// ownedBy reports whether the first model in the list has this owner.
func (p *probe) ownedBy(owner string) bool {
	l, err := p.models()
	return err == nil && len(l.Data) > 0 && l.Data[0].OwnedBy == owner
}

func llamaDetect(p *probe) bool {
	return strings.HasPrefix(p.get("/v1/models").header.Get("Server"), "llama.cpp") || p.ownedBy("llamacpp")
}

func llamaList(p *probe) ([]Model, error) {
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	var props struct {
		Sleeping   bool `json:"is_sleeping"`
		TotalSlots int  `json:"total_slots"`
		Settings   struct {
			Ctx int `json:"n_ctx"`
		} `json:"default_generation_settings"`
		Modalities struct {
			Vision bool `json:"vision"`
			Audio  bool `json:"audio"`
		} `json:"modalities"`
		Template struct {
			Tools     bool `json:"supports_tools"`
			ToolCalls bool `json:"supports_tool_calls"`
		} `json:"chat_template_caps"`
	}
	_ = p.get("/props").into(&props) // may be disabled
	// A request without a model is refused at no cost: with 501 if embeddings are
	// disabled, otherwise with 400. A sleeping server would load its model.
	asked := p.known[embeddingsPath]
	if !props.Sleeping {
		asked = Model{}
		asked.setEmbeds(p.post(embeddingsPath, `{}`).status == http.StatusBadRequest, false)
		p.known[embeddingsPath] = asked
	}
	embeds := len(asked.Families) > 0
	if len(l.Data) > 0 && l.Data[0].Status.Value != "" {
		return l.each(routed), nil
	}
	return l.each(func(d listed) (Model, bool) {
		m := chatModel(d.ID, cmp.Or(max(d.Meta.Ctx, 0), max(props.Settings.Ctx, 0), d.Meta.CtxTrain))
		m.Slots = max(props.TotalSlots, 0)
		m.setCapability("tools", props.Template.Tools || props.Template.ToolCalls)
		m.setCapability("vision", props.Modalities.Vision)
		m.setCapability("audio", props.Modalities.Audio)
		m.setEmbeds(embeds, true)
		m.ModelFacts = d.llamaFacts()
		return m, true
	}), nil
}

// routed returns a model of llama.cpp's server as a router, which loads models on demand.
// Everything is derived from the arguments that it loads the model with, because a
// request would load it.
func routed(d listed) (m Model, ok bool) {
	argument := func(names ...string) int {
		for i, arg := range d.Status.Args[:max(len(d.Status.Args)-1, 0)] {
			if slices.Contains(names, arg) {
				return max(atoi(jsontext.Value(d.Status.Args[i+1])), 0)
			}
		}
		return 0
	}
	context, slots := argument("-c", "--ctx-size"), argument("-np", "--parallel")
	if slots > 0 && !slices.Contains(d.Status.Args, "--kv-unified") {
		context /= slots // the slots share it
	}
	m = byName(d.ID, cmp.Or(max(d.Meta.Ctx, 0), context))
	m.Slots, m.ModelFacts = slots, d.llamaFacts()
	m.setEmbeds(slices.Contains(d.Status.Args, "--embeddings") || slices.Contains(d.Status.Args, "--embedding"), false)
	m.setCapability("vision", slices.Contains(d.Architecture.Inputs, "image"))
	m.setCapability("audio", slices.Contains(d.Architecture.Inputs, "audio"))
	return m, !d.Status.Failed
}

func llamaRunning(p *probe) (calls int, known bool) {
	if p.value("/props", "is_sleeping").Kind() == 't' {
		return 0, true // requesting the list of slots would wake it
	}
	// The metrics come first, although they may be disabled: the list of slots may contain
	// other programs' prompts.
	if calls, known = p.gauges("llamacpp:requests_processing", "llamacpp:requests_deferred"); known {
		return calls, true
	}
	var slots []struct {
		Busy bool `json:"is_processing"`
	}
	if p.get("/slots").into(&slots) != nil {
		return 0, false
	}
	for _, s := range slots {
		if s.Busy {
			calls++
		}
	}
	return calls, true
}

func ollamaDetect(p *probe) bool {
	return strings.TrimSpace(string(p.get("/").body)) == "Ollama is running" && p.get("/api/version").status == http.StatusOK
}

func ollamaList(p *probe) ([]Model, error) {
	var tags struct {
		Models []struct {
			Name       string `json:"name"`
			Digest     string `json:"digest"`
			RemoteHost string `json:"remote_host"`

			Size optional[int64] `json:"size"`
		} `json:"models"`
	}
	if err := p.get("/api/tags").into(&tags); err != nil {
		return nil, err
	}
	var loaded struct {
		Models []struct {
			Name    string `json:"name"`
			Context int    `json:"context_length"`
		} `json:"models"`
	}
	_ = p.get("/api/ps").into(&loaded) // older versions do not report the context
	var out []Model
	for _, t := range tags.Models {
		if t.RemoteHost != "" {
			continue // runs in Ollama's cloud, not on this machine
		}
		key := t.Name + "@" + t.Digest
		m, known := p.known[key]
		if !known {
			var err error
			if m, err = ollamaShow(p, t.Name); err != nil {
				continue // its endpoints are unknown until the next probe
			}
			m.Size = t.Size.value
			p.known[key] = m
		}
		for _, l := range loaded.Models {
			if l.Name == t.Name && l.Context > 0 {
				m.ContextLength = l.Context
			}
		}
		out = append(out, m)
	}
	return out, nil
}

// ollamaShow reads the details of a model, to find out whether it is for chat or
// embeddings.
func ollamaShow(p *probe, name string) (Model, error) {
	m := chatModel(name, 0)
	var show struct {
		Capabilities []string `json:"capabilities"`
		Parameters   string   `json:"parameters"` // from its Modelfile, one per line
		Details      struct {
			Family       optional[string] `json:"family"`
			Parameters   optional[string] `json:"parameter_size"`
			Quantization optional[string] `json:"quantization_level"`
		} `json:"details"`
		Info struct {
			Architecture optional[string] `json:"general.architecture"`
			Parameters   optional[int64]  `json:"general.parameter_count"`
		} `json:"model_info"` // from its file
	}
	if err := p.post("/api/show", `{"model":`+quoted(name)+`}`).into(&show); err != nil {
		return m, err
	}
	// Ollama does not use the context in the model's file. The actual one is in the
	// Modelfile, or known once the model is loaded.
	for line := range strings.Lines(show.Parameters) {
		if words := strings.Fields(line); len(words) == 2 && words[0] == "num_ctx" {
			m.ContextLength = max(atoi(jsontext.Value(words[1])), 0)
		}
	}
	m.Architecture = cmp.Or(show.Info.Architecture.value, show.Details.Family.value)
	m.Parameters = cmp.Or(show.Info.Parameters.value, parameters(show.Details.Parameters.value))
	m.Quantization = quantization(show.Details.Quantization.value)
	m.setEmbeds(slices.Contains(show.Capabilities, "embedding"), slices.Contains(show.Capabilities, "completion"))
	for _, word := range []string{"tools", "vision", "audio", "thinking"} {
		m.setCapability(word, slices.Contains(show.Capabilities, word))
	}
	return m, nil
}

// lmStudioModels is the answer of GET /api/v1/models in LM Studio 0.4 and later (Models),
// or of GET /api/v0/models in 0.3.6 and later (Data).
type lmStudioModels struct {
	Models []struct {
		Key          string           `json:"key"`
		Type         string           `json:"type"`
		MaxContext   int              `json:"max_context_length"`
		Architecture optional[string] `json:"architecture"`
		Parameters   optional[string] `json:"params_string"`
		Size         optional[int64]  `json:"size_bytes"`
		Quantization optional[struct {
			Name string `json:"name"`
		}] `json:"quantization"`
		Loaded []struct {
			Config struct {
				Context  int `json:"context_length"`
				Parallel int `json:"parallel"`
			} `json:"config"`
		} `json:"loaded_instances"`
		Capabilities struct {
			Vision    bool `json:"vision"`
			Tools     bool `json:"trained_for_tool_use"`
			Reasoning struct {
				Allowed []string `json:"allowed_options"`
			} `json:"reasoning"`
		} `json:"capabilities"`
	} `json:"models"`
	Data []struct {
		ID           string           `json:"id"`
		Type         string           `json:"type"`
		State        string           `json:"state"`
		MaxContext   int              `json:"max_context_length"`
		Context      int              `json:"loaded_context_length"`
		Architecture optional[string] `json:"arch"`
		Quantization optional[string] `json:"quantization"`
	} `json:"data"`
}

func lmStudioDetect(p *probe) bool {
	// LM Studio responds to unknown paths with status 200, so only the content matters: an
	// empty list, or one with the expected fields.
	var l lmStudioModels
	if p.get("/api/v1/models").into(&l) == nil && l.Models != nil {
		return len(l.Models) == 0 || l.Models[0].Key != ""
	}
	return p.get("/api/v0/models").into(&l) == nil && len(l.Data) > 0 && l.Data[0].ID != "" && l.Data[0].State != ""
}

func lmStudioList(p *probe) ([]Model, error) {
	served, err := p.models()
	if err != nil {
		return nil, err
	}
	// /v1/models lists the models that a call may name: all downloaded ones if loading on
	// demand is enabled, otherwise the loaded ones.
	allowed := func(id string) bool {
		return slices.ContainsFunc(served.Data, func(d listed) bool { return d.ID == id })
	}
	var l lmStudioModels
	if err := p.get("/api/v1/models").into(&l); err != nil || l.Models == nil {
		if err := p.get("/api/v0/models").into(&l); err != nil {
			return nil, err
		}
	}
	var out []Model
	for _, d := range l.Data {
		if !allowed(d.ID) {
			continue
		}
		m := chatModel(d.ID, cmp.Or(max(d.Context, 0), d.MaxContext))
		m.Architecture, m.Quantization = d.Architecture.value, quantization(d.Quantization.value)
		m.setCapability("vision", d.Type == "vlm")
		m.setEmbeds(d.Type == "embeddings", false)
		out = append(out, m)
	}
	for _, d := range l.Models {
		if !allowed(d.Key) {
			continue
		}
		m := chatModel(d.Key, d.MaxContext)
		for _, loaded := range d.Loaded {
			m.ContextLength = max(loaded.Config.Context, 0)
			m.Slots = max(loaded.Config.Parallel, 0)
		}
		m.ModelFacts = fleet.ModelFacts{
			Architecture: d.Architecture.value, Parameters: parameters(d.Parameters.value),
			Quantization: quantization(d.Quantization.value.Name), Size: d.Size.value,
		}
		m.setCapability("vision", d.Capabilities.Vision)
		m.setCapability("tools", d.Capabilities.Tools)
		m.setCapability("thinking", len(d.Capabilities.Reasoning.Allowed) > 0)
		m.efforts = d.Capabilities.Reasoning.Allowed
		m.setEmbeds(d.Type == "embedding", false)
		out = append(out, m)
	}
	return out, nil
}

func vllmDetect(p *probe) bool {
	return p.ownedBy("vllm") && textIn(p.value("/version", "version")) != ""
}

func vllmList(p *probe) ([]Model, error) {
	// The OpenAPI description lists the routes that the model supports. It may be
	// disabled; then the model counts as a chat model.
	var routes struct {
		Paths map[string]jsontext.Value `json:"paths"`
	}
	described := p.get("/openapi.json").into(&routes) == nil
	_, chats := routes.Paths[fleet.ChatCompletions.Path()]
	_, embeds := routes.Paths[fleet.EmbeddingsEndpoint.Path()]
	return p.each(func(d listed) (Model, bool) {
		m := chatModel(d.ID, d.MaxModelLen)
		m.setEmbeds(described && embeds, chats)
		return m, true
	})
}

func vllmRunning(p *probe) (calls int, known bool) {
	return p.gauges("vllm:num_requests_running", "vllm:num_requests_waiting")
}
