package engine

import (
	"bytes"
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/kith/kith/internal/fleet"
)

// The adapters for kinds that report less about themselves than those in kinds.go.
// "Unverified" marks what was found neither in their source code nor in their
// documentation.

func sglangDetect(p *probe) bool {
	_, ok := p.sglang()
	return ok
}

// sglang reads SGLang's page about its one model, at the older or the newer path.
func (p *probe) sglang() (generates, ok bool) {
	for _, path := range []string{"/get_model_info", "/model_info"} {
		if kind := p.value(path, "is_generation").Kind(); kind == 't' || kind == 'f' {
			return kind == 't', true
		}
	}
	return false, false
}

func sglangList(p *probe) ([]Model, error) {
	var server struct {
		Context int `json:"context_length"`
		Slots   int `json:"max_running_requests"`

		Quantization optional[string] `json:"quantization"`
	}
	if p.get("/get_server_info").into(&server) != nil {
		_ = p.get("/server_info").into(&server) // optional
	}
	generates, _ := p.sglang()
	return p.each(func(d listed) (Model, bool) {
		m := chatModel(d.ID, cmp.Or(max(d.MaxModelLen, 0), server.Context))
		m.Slots, m.Quantization = max(server.Slots, 0), server.Quantization.value
		m.setEmbeds(!generates, generates)
		return m, true
	})
}

func sglangVersion(p *probe) string {
	return cmp.Or(textIn(p.value("/get_server_info", "version")), textIn(p.value("/server_info", "version")))
}

func sglangRunning(p *probe) (calls int, known bool) {
	var loads []struct {
		Requests int `json:"num_reqs"`
	}
	if p.get("/get_load").into(&loads) != nil {
		return p.gauges("sglang:num_running_reqs", "sglang:num_queue_reqs")
	}
	for _, l := range loads {
		calls += l.Requests
	}
	return calls, true
}

// dockerDetect: no other kind has this path.
func dockerDetect(p *probe) bool {
	status := p.get("/engines/status")
	if status.err != nil || status.status != http.StatusOK {
		return false
	}
	var l modelList
	return p.get("/engines/v1/models").into(&l) == nil && l.Object == "list"
}

func dockerList(p *probe) ([]Model, error) {
	var l modelList
	if err := p.get("/engines/v1/models").into(&l); err != nil {
		return nil, err
	}
	return l.each(func(d listed) (Model, bool) {
		if strings.Contains(d.Docker.Architecture, "bert") { // these models only embed
			m := chatModel(d.ID, d.Docker.Context)
			m.setEmbeds(true, false)
			m.Architecture = d.Docker.Architecture
			return m, true
		}
		m, ok := p.byName("/engines"+embeddingsPath, d.ID, d.Docker.Context)
		m.Architecture = d.Docker.Architecture
		return m, ok
	}), nil
}

func dockerRunning(p *probe) (calls int, known bool) {
	var runners []struct {
		InUse *bool `json:"in_use"`
	}
	if p.get("/engines/ps").into(&runners) != nil {
		return 0, false
	}
	for _, r := range runners {
		known = true
		if r.InUse != nil && *r.InUse {
			calls++
		}
	}
	return calls, known
}

func localAIDetect(p *probe) bool {
	return p.get("/readyz").status == http.StatusOK && textIn(p.value("/version", "version")) != "" &&
		(p.value("/system", "backends").Kind() == '[' || p.value("/system", "loaded_models").Kind() == '[')
}

// localAIList lists LocalAI's models. Newer versions report what each model is for;
// models that only speak, listen or draw are omitted. For older versions only the id is
// known, because a request for more would load the model.
func localAIList(p *probe) ([]Model, error) {
	var detailed struct {
		Data []struct {
			ID  string   `json:"id"`
			Can []string `json:"capabilities"`
		} `json:"data"`
	}
	_ = p.get("/v1/models/capabilities").into(&detailed)
	can := map[string][]string{}
	for _, d := range detailed.Data {
		can[d.ID] = d.Can
	}
	return p.each(func(d listed) (Model, bool) {
		words := can[d.ID]
		if words == nil {
			return byName(d.ID, 0), true
		}
		m := chatModel(d.ID, 0)
		embeds, chats := slices.Contains(words, "embeddings"), slices.Contains(words, "chat") || slices.Contains(words, "completion")
		m.setEmbeds(embeds, chats)
		m.setCapability("vision", slices.Contains(words, "vision"))
		return m, embeds || chats
	})
}

func swapDetect(p *probe) bool {
	return p.value("/running", "running").Kind() == '['
}

// swapList lists the models that llama-swap starts on demand, except those that it
// forwards to another computer.
func swapList(p *probe) ([]Model, error) {
	return p.listByName(func(d listed) (context int, ok bool) { return d.Meta.Ctx, d.Meta.Swap.Peer == "" })
}

// koboldVersion is the answer of GET /api/extra/version in KoboldCpp.
type koboldVersion struct {
	Result     string `json:"result"`
	Protected  bool   `json:"protected"`
	Vision     bool   `json:"vision"`
	Audio      bool   `json:"audio"`
	Embeddings bool   `json:"embeddings"`
}

func koboldDetect(p *probe) bool {
	var v koboldVersion
	return p.get("/api/extra/version").into(&v) == nil && v.Result == "KoboldCpp"
}

func koboldList(p *probe) ([]Model, error) {
	var v koboldVersion
	if err := p.get("/api/extra/version").into(&v); err != nil {
		return nil, err
	}
	if v.Protected {
		return nil, errLocked
	}
	context := atoi(p.value("/api/extra/true_max_context_length", "value")) // missing in older versions
	return p.each(func(d listed) (Model, bool) {
		m := chatModel(d.ID, context)
		m.setCapability("vision", v.Vision)
		m.setCapability("audio", v.Audio)
		m.setEmbeds(v.Embeddings, true)
		return m, !strings.HasSuffix(d.ID, "inactive") // no text model is loaded
	})
}

func koboldRunning(p *probe) (calls int, known bool) {
	var perf struct {
		Idle  *int `json:"idle"`
		Queue int  `json:"queue"`
	}
	if p.get("/api/extra/perf").into(&perf) != nil || perf.Idle == nil {
		return 0, false
	}
	calls = max(perf.Queue, 0)
	if *perf.Idle == 0 {
		calls = max(calls, 1)
	}
	return calls, true
}

// tabbyCard is the answer of GET /v1/model of TabbyAPI: the loaded model.
type tabbyCard struct {
	ID         string `json:"id"`
	OwnedBy    string `json:"owned_by"`
	Parameters struct {
		Context int  `json:"max_seq_len"`
		Vision  bool `json:"use_vision"`
	} `json:"parameters"`
}

// tabbyDetect reads the model card or, if that needs a key, the title of the
// OpenAPI description (the title is unverified).
func tabbyDetect(p *probe) bool {
	var card tabbyCard
	if err := p.get("/v1/model").into(&card); err == nil {
		return card.OwnedBy == "tabbyAPI"
	}
	return p.ownedBy("tabbyAPI") || p.titled("TabbyAPI")
}

func tabbyList(p *probe) ([]Model, error) {
	card := p.get("/v1/model")
	if slices.Contains([]int{http.StatusServiceUnavailable, http.StatusBadRequest, http.StatusNotFound}, card.status) {
		return nil, nil // no model is loaded
	}
	var c tabbyCard
	if err := card.into(&c); err != nil {
		return nil, err
	}
	m := chatModel(c.ID, c.Parameters.Context)
	m.setCapability("vision", c.Parameters.Vision)
	return []Model{m}, nil
}

// mlxDetect recognizes Python's http.server by its other page.
func mlxDetect(p *probe) bool {
	l, err := p.models()
	return err == nil && len(l.Data) > 0 && l.Data[0].OwnedBy == "" &&
		strings.HasPrefix(p.get("/v1/models").header.Get("Server"), "BaseHTTP/") &&
		textIn(p.value("/health", "status")) == "ok"
}

func janDetect(p *probe) bool { return p.titled("Jan API") }

// janList omits models that Jan forwards to an upstream.
func janList(p *probe) ([]Model, error) {
	return p.listByName(func(d listed) (context int, ok bool) { return 0, d.OwnedBy != "remote" })
}

// titled reports whether the title of the OpenAPI description starts with the prefix.
func (p *probe) titled(title string) bool {
	return strings.HasPrefix(textIn(p.value("/openapi.json", "info", "title")), title)
}

const embeddingsPath = "/v1/embeddings"

// byName returns a model of which only the id is known. If the id contains "embed" the
// model is for embeddings, otherwise for chat.
func byName(id string, context int) Model {
	m := chatModel(id, context)
	m.setEmbeds(strings.Contains(strings.ToLower(id), "embed"), false)
	return m
}

// byName is the function byName for an engine with embeddings at the given path. ok is
// false for an embedding model if the engine lacks that route. The check is free, because
// a request without a model is refused.
func (p *probe) byName(embeddings, id string, context int) (m Model, ok bool) {
	m = byName(id, context)
	if !slices.Contains(m.Families, fleet.Embeddings) {
		return m, true
	}
	refusal := p.post(embeddings, `{}`)
	missing := []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusNotImplemented}
	// llama-swap responds with 404 that the request names no model.
	return m, refusal.err == nil && (!slices.Contains(missing, refusal.status) || bytes.Contains(refusal.body, []byte("no model id")))
}

// listByName lists models for which only the ids are known, and possibly the context.
func (p *probe) listByName(about func(d listed) (context int, ok bool)) ([]Model, error) {
	return p.each(func(d listed) (m Model, ok bool) {
		context, ok := about(d)
		if ok {
			m, ok = p.byName(embeddingsPath, d.ID, context)
		}
		return m, ok
	})
}

func genericList(p *probe) ([]Model, error) {
	return p.listByName(func(d listed) (context int, ok bool) { return d.MaxModelLen, true })
}
