package engine

import (
	"context"
	"net/http"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fleet"
)

// A kind is a row of the table: where an engine usually listens, what gives it
// away, how it tells its models, and how what it understands differs.
type kind struct {
	word  string // in offers and reports
	name  string // for people
	ports []int  // where it usually listens; a hint, never a proof
	under string // its /v1 stands below this path; mostly ""
	// sign reports whether the place is this kind, for sure.
	sign func(p *place) bool
	// list asks the place for its models.
	list func(p *place) ([]Model, error)
	// running asks how many calls the engine runs or has waiting; nil, or not
	// known: it does not tell.
	running func(p *place) (calls int, known bool)
	// oneLimit: it knows max_tokens only, not max_completion_tokens.
	oneLimit bool
	// textOnly: its embeddings are of text, not of token numbers.
	textOnly bool
	// think says a thinking control in the kind's own words; nil: it has none.
	think func(t thinking, m *Model) controls
	// begins: it does not think where the caller began the answer, and refuses a
	// call for both.
	begins bool
	// effortLate: older ones refuse some words of reasoning_effort, or all.
	effortLate bool
	// count asks the engine for the number of tokens of a rebuilt chat body; nil:
	// its tokenizer cannot be asked.
	count func(ctx context.Context, e *Engine, body []byte) (int64, error)
	// apart are the members that keep one caller's prompt cache from another.
	apart func(caller string) []member
}

// kinds is the table, in the order in which signs are tried: many engines also
// answer the routes of others. LocalAI may say that it is Ollama, so it is asked
// first.
var kinds = []*kind{
	{
		word: "llama.cpp", name: "llama.cpp server", ports: []int{8080},
		sign: llamaSign, list: llamaList, running: llamaRunning, think: templateThinking, begins: true, apart: noPromptCache,
		count: countTemplated,
	},
	{
		word: "localai", name: "LocalAI", ports: []int{8080},
		sign: localAISign, list: localAIList, think: effortThinking, oneLimit: true,
	},
	{
		word: "ollama", name: "Ollama", ports: []int{11434},
		sign: ollamaSign, list: ollamaList, think: ollamaThinking, oneLimit: true, textOnly: true,
	},
	{
		word: "lmstudio", name: "LM Studio", ports: []int{1234},
		sign: lmStudioSign, list: lmStudioList, think: lmStudioThinking, oneLimit: true, textOnly: true,
	},
	{
		word: "vllm", name: "vLLM", ports: []int{8000},
		sign: vllmSign, list: vllmList, running: vllmRunning, think: vllmThinking, effortLate: true, apart: cacheSalt,
		count: countWhole,
	},
	{
		word: "sglang", name: "SGLang", ports: []int{30000},
		sign: sglangSign, list: sglangList, running: sglangRunning, think: vllmThinking, effortLate: true,
	},
	{
		word: "dmr", name: "Docker Model Runner", ports: []int{12434}, under: "/engines",
		sign: dockerSign, list: dockerList, running: dockerRunning, think: templateThinking, begins: true,
	},
	{
		word: "llama-swap", name: "llama-swap", ports: []int{8080},
		sign: swapSign, list: swapList, think: templateThinking, begins: true, apart: noPromptCache,
	},
	{
		word: "koboldcpp", name: "KoboldCpp", ports: []int{5001},
		sign: koboldSign, list: koboldList, running: koboldRunning, oneLimit: true, textOnly: true,
	},
	{
		word: "tabbyapi", name: "TabbyAPI", ports: []int{5000},
		sign: tabbySign, list: tabbyList, think: templateThinking, oneLimit: true,
	},
	{
		word: "mlx", name: "mlx_lm.server", ports: []int{8080},
		sign: mlxSign, list: plainList, think: templateThinking,
	},
	{
		word: "jan", name: "Jan", ports: []int{1337},
		sign: janSign, list: janList, think: templateThinking, begins: true, oneLimit: true,
	},
}

// plain is a configured place of no kind known that lists models all the same.
var plain = kind{word: "openai", name: "chat-completions server", list: plainList, think: effortThinking}

// builtin speaks as llama.cpp's server does.
var builtin = kind{word: "builtin", name: "built-in engine", think: templateThinking, begins: true, apart: noPromptCache, count: countWhole}

// chatModel is a model for chat; capabilities may be refined by the caller.
func chatModel(id string, context int) Model {
	return Model{
		ID: fleet.ModelID(id), ContextLength: max(context, 0), Slots: 1,
		Families:  []fleet.Family{fleet.Chat},
		Endpoints: []fleet.Endpoint{fleet.ChatCompletions},
	}
}

// embedding makes m a model for embeddings only.
func (m *Model) embedding() {
	m.Families = []fleet.Family{fleet.Embeddings}
	m.Endpoints = []fleet.Endpoint{fleet.EmbeddingsEndpoint}
}

// alsoEmbeds adds embeddings to what m does.
func (m *Model) alsoEmbeds() {
	m.Families = append(m.Families, fleet.Embeddings)
	m.Endpoints = append(m.Endpoints, fleet.EmbeddingsEndpoint)
}

// able notes a capability, each once and sorted.
func (m *Model) able(capability string, is bool) {
	if i, found := slices.BinarySearch(m.Capabilities, capability); is && !found {
		m.Capabilities = slices.Insert(m.Capabilities, i, capability)
	}
}

// A modelList is the answer of GET /v1/models, with what kinds add to it.
type modelList struct {
	Object string `json:"object"`
	Data   []struct {
		ID          string `json:"id"`
		OwnedBy     string `json:"owned_by"`
		MaxModelLen int    `json:"max_model_len"` // vLLM
		Meta        *struct {
			Ctx      int `json:"n_ctx"`
			CtxTrain int `json:"n_ctx_train"`
			Swap     struct {
				Peer string `json:"peerID"`
			} `json:"llamaswap"`
		} `json:"meta"` // llama.cpp, llama-swap
		Status struct {
			Value string `json:"value"`
		} `json:"status"` // llama.cpp as a router
		Docker struct {
			Context      int    `json:"context_window"`
			Architecture string `json:"architecture"`
		} `json:"dmr"` // Docker Model Runner
	} `json:"data"`
}

func (p *place) models() (*modelList, error) {
	var l modelList
	return &l, p.get("/v1/models").into(&l)
}

func (p *place) ownedBy(owner string) bool {
	l, err := p.models()
	return err == nil && len(l.Data) > 0 && l.Data[0].OwnedBy == owner
}

func llamaSign(p *place) bool {
	return strings.HasPrefix(p.get("/v1/models").header.Get("Server"), "llama.cpp") || p.ownedBy("llamacpp")
}

func llamaList(p *place) ([]Model, error) {
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	var props struct {
		TotalSlots int `json:"total_slots"`
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
	_ = p.get("/props").into(&props) // may be switched off: then nothing more is known
	// Without its model a call can only be refused: 501 where embeddings are
	// off, else 400; nothing is computed.
	embeds := p.post("/v1/embeddings", `{}`).status == http.StatusBadRequest
	var out []Model
	for _, d := range l.Data {
		if d.Status.Value != "" && d.Status.Value != "loaded" {
			continue // a router's model that would have to be loaded first
		}
		m := chatModel(d.ID, props.Settings.Ctx)
		if d.Meta != nil && d.Meta.Ctx > 0 {
			m.ContextLength = d.Meta.Ctx
		} else if d.Meta != nil && m.ContextLength == 0 {
			m.ContextLength = d.Meta.CtxTrain
		}
		m.Slots = max(props.TotalSlots, 1)
		m.able("tools", props.Template.Tools || props.Template.ToolCalls)
		m.able("vision", props.Modalities.Vision)
		m.able("audio", props.Modalities.Audio)
		if embeds {
			m.alsoEmbeds()
		}
		out = append(out, m)
	}
	return out, nil
}

func ollamaSign(p *place) bool {
	return strings.TrimSpace(string(p.get("/").body)) == "Ollama is running" && p.get("/api/version").status == http.StatusOK
}

func ollamaList(p *place) ([]Model, error) {
	var tags struct {
		Models []struct {
			Name       string `json:"name"`
			Digest     string `json:"digest"`
			RemoteHost string `json:"remote_host"`
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
	_ = p.get("/api/ps").into(&loaded) // older ones have no context there
	var out []Model
	for _, t := range tags.Models {
		if t.RemoteHost != "" {
			continue // runs in Ollama's cloud, not on this machine
		}
		m, err := p.recall(t.Name+"@"+t.Digest, func() (Model, error) { return ollamaShow(p, t.Name) })
		if err != nil {
			continue // what it can do is not known yet; the next look asks again
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

// ollamaShow asks for one model's details: without them nobody knows whether it
// chats or embeds.
func ollamaShow(p *place, name string) (Model, error) {
	m := chatModel(name, 0)
	asked, err := jsontext.AppendQuote([]byte(`{"model":`), name)
	if err != nil {
		return m, err
	}
	var show struct {
		Capabilities []string                  `json:"capabilities"`
		Info         map[string]jsontext.Value `json:"model_info"`
	}
	if err := p.post("/api/show", string(append(asked, '}'))).into(&show); err != nil {
		return m, err
	}
	for name, value := range show.Info {
		if strings.HasSuffix(name, ".context_length") {
			m.ContextLength = max(atoi(value), 0)
		}
	}
	if slices.Contains(show.Capabilities, "embedding") {
		if slices.Contains(show.Capabilities, "completion") {
			m.alsoEmbeds()
		} else {
			m.embedding()
		}
	}
	for _, word := range []string{"tools", "vision", "audio", "thinking"} {
		m.able(word, slices.Contains(show.Capabilities, word))
	}
	return m, nil
}

// lmStudioModels is GET /api/v1/models of LM Studio 0.4 and later, and with
// Data instead of Models GET /api/v0/models of 0.3.6 and later.
type lmStudioModels struct {
	Models []struct {
		Key        string `json:"key"`
		Type       string `json:"type"`
		MaxContext int    `json:"max_context_length"`
		Loaded     []struct {
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
		ID         string `json:"id"`
		Type       string `json:"type"`
		State      string `json:"state"`
		MaxContext int    `json:"max_context_length"`
		Context    int    `json:"loaded_context_length"`
	} `json:"data"`
}

func lmStudioSign(p *place) bool {
	// It answers 200 with an error to paths it does not know: only what a list
	// holds is a sign, or that it is one and empty.
	var l lmStudioModels
	if p.get("/api/v1/models").into(&l) == nil && l.Models != nil {
		return len(l.Models) == 0 || l.Models[0].Key != ""
	}
	return p.get("/api/v0/models").into(&l) == nil && len(l.Data) > 0 && l.Data[0].ID != "" && l.Data[0].State != ""
}

func lmStudioList(p *place) ([]Model, error) {
	served, err := p.models()
	if err != nil {
		return nil, err
	}
	// /v1/models holds every downloaded model where loading on demand is
	// allowed, else the loaded ones: just those a call may name.
	allowed := func(id string) bool {
		for _, d := range served.Data {
			if d.ID == id {
				return true
			}
		}
		return false
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
		m := chatModel(d.ID, d.MaxContext)
		if d.Context > 0 {
			m.ContextLength = d.Context
		}
		m.able("vision", d.Type == "vlm")
		if d.Type == "embeddings" {
			m.embedding()
		}
		out = append(out, m)
	}
	for _, d := range l.Models {
		if !allowed(d.Key) {
			continue
		}
		m := chatModel(d.Key, d.MaxContext)
		for _, loaded := range d.Loaded {
			m.ContextLength = max(loaded.Config.Context, 0)
			m.Slots = max(loaded.Config.Parallel, 1)
		}
		m.able("vision", d.Capabilities.Vision)
		m.able("tools", d.Capabilities.Tools)
		m.able("thinking", len(d.Capabilities.Reasoning.Allowed) > 0)
		m.efforts = d.Capabilities.Reasoning.Allowed
		if d.Type == "embedding" {
			m.embedding()
		}
		out = append(out, m)
	}
	return out, nil
}

func vllmSign(p *place) bool {
	var version struct {
		Version string `json:"version"`
	}
	return p.ownedBy("vllm") && p.get("/version").into(&version) == nil && version.Version != ""
}

func vllmList(p *place) ([]Model, error) {
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	// It has the routes of what its model can do. The description is large and
	// may be switched off; then it is a chat model as most are.
	var routes struct {
		Paths map[string]jsontext.Value `json:"paths"`
	}
	described := p.get("/openapi.json").into(&routes) == nil
	_, chats := routes.Paths[fleet.ChatCompletions.Path()]
	_, embeds := routes.Paths[fleet.EmbeddingsEndpoint.Path()]
	var out []Model
	for _, d := range l.Data {
		m := chatModel(d.ID, d.MaxModelLen)
		switch {
		case described && embeds && chats:
			m.alsoEmbeds()
		case described && embeds:
			m.embedding()
		}
		out = append(out, m)
	}
	return out, nil
}
