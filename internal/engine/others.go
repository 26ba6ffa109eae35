package engine

import (
	"bytes"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fleet"
)

// The kinds that tell less of themselves than the four that kinds.go reads.
// What was written from memory and not from their source or documentation is
// marked so.

func sglangSign(p *place) bool {
	_, ok := p.sglang()
	return ok
}

// sglang is what SGLang says of its one model, under the older path or the
// newer.
func (p *place) sglang() (generates, ok bool) {
	for _, path := range []string{"/get_model_info", "/model_info"} {
		var info struct {
			Generates *bool `json:"is_generation"`
		}
		if p.get(path).into(&info) == nil && info.Generates != nil {
			return *info.Generates, true
		}
	}
	return false, false
}

func sglangList(p *place) ([]Model, error) {
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	var server struct {
		Context int `json:"context_length"`
		Slots   int `json:"max_running_requests"`
	}
	if p.get("/get_server_info").into(&server) != nil {
		_ = p.get("/server_info").into(&server) // then nothing more is known
	}
	generates, _ := p.sglang()
	var out []Model
	for _, d := range l.Data {
		m := chatModel(d.ID, d.MaxModelLen)
		if m.ContextLength == 0 {
			m.ContextLength = max(server.Context, 0)
		}
		m.Slots = max(server.Slots, 1)
		if !generates {
			m.embedding()
		}
		out = append(out, m)
	}
	return out, nil
}

func sglangRunning(p *place) (calls int, known bool) {
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

// dockerSign: nobody else has this path.
func dockerSign(p *place) bool {
	status := p.get("/engines/status")
	if status.err != nil || status.status != http.StatusOK {
		return false
	}
	var l modelList
	return p.get("/engines/v1/models").into(&l) == nil && l.Object == "list"
}

func dockerList(p *place) ([]Model, error) {
	var l modelList
	if err := p.get("/engines/v1/models").into(&l); err != nil {
		return nil, err
	}
	var out []Model
	for _, d := range l.Data {
		if strings.Contains(d.Docker.Architecture, "bert") { // such weights embed and do nothing else
			m := chatModel(d.ID, d.Docker.Context)
			m.embedding()
			out = append(out, m)
			continue
		}
		out = p.appendSilent(out, "/engines"+embeddingsPath, d.ID, d.Docker.Context)
	}
	return out, nil
}

func dockerRunning(p *place) (calls int, known bool) {
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

func localAISign(p *place) bool {
	var version struct {
		Version string `json:"version"`
	}
	var system struct {
		Backends *[]string `json:"backends"`
		Loaded   *[]any    `json:"loaded_models"`
	}
	return p.get("/readyz").status == http.StatusOK &&
		p.get("/version").into(&version) == nil && version.Version != "" &&
		p.get("/system").into(&system) == nil && (system.Backends != nil || system.Loaded != nil)
}

// localAIList is what LocalAI lists. Newer ones say what each model is for: what
// only speaks, listens or draws is left out. Of older ones only the names tell:
// a call without a model, asked to learn more, would load one.
func localAIList(p *place) ([]Model, error) {
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	var told struct {
		Data []struct {
			ID  string   `json:"id"`
			Can []string `json:"capabilities"`
		} `json:"data"`
	}
	_ = p.get("/v1/models/capabilities").into(&told)
	can := map[string][]string{}
	for _, d := range told.Data {
		can[d.ID] = d.Can
	}
	var out []Model
	for _, d := range l.Data {
		words := can[d.ID]
		if words == nil {
			out = append(out, byName(d.ID, 0))
			continue
		}
		m := chatModel(d.ID, 0)
		embeds, chats := slices.Contains(words, "embeddings"), slices.Contains(words, "chat") || slices.Contains(words, "completion")
		switch {
		case embeds && chats:
			m.alsoEmbeds()
		case embeds:
			m.embedding()
		case !chats:
			continue
		}
		m.able("vision", slices.Contains(words, "vision"))
		out = append(out, m)
	}
	return out, nil
}

func swapSign(p *place) bool {
	var l struct {
		Running *[]struct {
			Model string `json:"model"`
		} `json:"running"`
	}
	return p.get("/running").into(&l) == nil && l.Running != nil
}

// swapList is what its owner told it to start on request, without what it would
// pass on to another computer.
func swapList(p *place) ([]Model, error) {
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	var out []Model
	for _, d := range l.Data {
		if d.Meta != nil && d.Meta.Swap.Peer != "" {
			continue
		}
		context := 0
		if d.Meta != nil {
			context = d.Meta.Ctx
		}
		out = p.appendSilent(out, embeddingsPath, d.ID, context)
	}
	return out, nil
}

// koboldVersion is GET /api/extra/version of KoboldCpp.
type koboldVersion struct {
	Result     string `json:"result"`
	Protected  bool   `json:"protected"`
	Vision     bool   `json:"vision"`
	Audio      bool   `json:"audio"`
	Embeddings bool   `json:"embeddings"`
}

func koboldSign(p *place) bool {
	var v koboldVersion
	return p.get("/api/extra/version").into(&v) == nil && v.Result == "KoboldCpp"
}

func koboldList(p *place) ([]Model, error) {
	var v koboldVersion
	if err := p.get("/api/extra/version").into(&v); err != nil {
		return nil, err
	}
	if v.Protected {
		return nil, errLocked
	}
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	var context struct {
		Value int `json:"value"`
	}
	_ = p.get("/api/extra/true_max_context_length").into(&context) // older ones have it not
	var out []Model
	for _, d := range l.Data {
		if strings.HasSuffix(d.ID, "inactive") {
			continue // no text model is loaded
		}
		m := chatModel(d.ID, context.Value)
		m.able("vision", v.Vision)
		m.able("audio", v.Audio)
		if v.Embeddings {
			m.alsoEmbeds()
		}
		out = append(out, m)
	}
	return out, nil
}

func koboldRunning(p *place) (calls int, known bool) {
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

// tabbyCard is GET /v1/model of TabbyAPI: the model that is loaded.
type tabbyCard struct {
	ID         string `json:"id"`
	OwnedBy    string `json:"owned_by"`
	Parameters struct {
		Context int  `json:"max_seq_len"`
		Vision  bool `json:"use_vision"`
	} `json:"parameters"`
}

// tabbySign: the card, or, where a key is asked for, the title of the
// description (the title from memory).
func tabbySign(p *place) bool {
	var card tabbyCard
	if err := p.get("/v1/model").into(&card); err == nil {
		return card.OwnedBy == "tabbyAPI"
	}
	return p.ownedBy("tabbyAPI") || p.titled("TabbyAPI")
}

func tabbyList(p *place) ([]Model, error) {
	card := p.get("/v1/model")
	if card.err == nil && card.status == http.StatusServiceUnavailable || card.status == http.StatusBadRequest || card.status == http.StatusNotFound {
		return nil, nil // no model is loaded
	}
	var c tabbyCard
	if err := card.into(&c); err != nil {
		return nil, err
	}
	m := chatModel(c.ID, c.Parameters.Context)
	m.able("vision", c.Parameters.Vision)
	return []Model{m}, nil
}

// mlxSign: Python's own small server, with the one other page it has.
func mlxSign(p *place) bool {
	var health struct {
		Status string `json:"status"`
	}
	l, err := p.models()
	return err == nil && len(l.Data) > 0 && l.Data[0].OwnedBy == "" &&
		strings.HasPrefix(p.get("/v1/models").header.Get("Server"), "BaseHTTP/") &&
		p.get("/health").into(&health) == nil && health.Status == "ok"
}

func janSign(p *place) bool { return p.titled("Jan API") }

// janList leaves out what Jan would pass on to a service elsewhere.
func janList(p *place) ([]Model, error) {
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	var out []Model
	for _, d := range l.Data {
		if d.OwnedBy != "remote" {
			out = p.appendSilent(out, embeddingsPath, d.ID, 0)
		}
	}
	return out, nil
}

// titled reports whether the place describes itself under a title that begins
// so.
func (p *place) titled(title string) bool {
	var described struct {
		Info struct {
			Title string `json:"title"`
		} `json:"info"`
	}
	return p.get("/openapi.json").into(&described) == nil && strings.HasPrefix(described.Info.Title, title)
}

const embeddingsPath = "/v1/embeddings"

// byName is a model of which its engine tells no more than the id: what has
// "embed" in its name is for embeddings, all else for chat.
func byName(id string, context int) Model {
	m := chatModel(id, context)
	if strings.Contains(strings.ToLower(id), "embed") {
		m.embedding()
	}
	return m
}

// appendSilent adds a model by its name. One for embeddings is left out where
// the engine has no such route: a call that names no model can only be refused,
// and nothing is loaded or computed for it.
func (p *place) appendSilent(models []Model, embeddings, id string, context int) []Model {
	m := byName(id, context)
	if slices.Contains(m.Families, fleet.Embeddings) {
		switch told := p.post(embeddings, `{}`); {
		case told.err != nil, told.status == http.StatusNotFound, told.status == http.StatusMethodNotAllowed, told.status == http.StatusNotImplemented:
			return models
		}
	}
	return append(models, m)
}

func plainList(p *place) ([]Model, error) {
	l, err := p.models()
	if err != nil {
		return nil, err
	}
	var out []Model
	for _, d := range l.Data {
		out = p.appendSilent(out, embeddingsPath, d.ID, d.MaxModelLen)
	}
	return out, nil
}

func llamaRunning(p *place) (calls int, known bool) {
	// The metrics first, which have to be switched on: the list of slots may hold
	// what others ask.
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

func vllmRunning(p *place) (calls int, known bool) {
	return p.gauges("vllm:num_requests_running", "vllm:num_requests_waiting")
}

// gauges is the sum of those gauges over all their labels at /metrics; known
// only if the first is there.
func (p *place) gauges(names ...string) (sum int, known bool) {
	metrics := p.get("/metrics")
	if metrics.err != nil || metrics.status != http.StatusOK {
		return 0, false
	}
	for line := range bytes.Lines(metrics.body) {
		for i, name := range names {
			rest, ok := strings.CutPrefix(string(line), name)
			if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
				continue
			}
			fields := strings.Fields(rest[strings.LastIndexByte(rest, '}')+1:])
			if len(fields) == 0 {
				continue
			}
			value, err := strconv.ParseFloat(fields[0], 64)
			if err == nil && value >= 0 && value < 1e6 {
				sum += int(value)
				known = known || i == 0
			}
		}
	}
	return sum, known
}

// errLocked is an engine that serves only those who know its key.
var errLocked = errors.New("it asks for a key; name it as an [[upstream]] with that key instead")

// errStranger is a place where something answers that is no engine.
var errStranger = errors.New("what answers there is no engine kith knows; if it serves /v1/models, add the place to endpoints")

// identify finds out what listens at the place, configured or not, and what it
// offers. The kind is known even where its models could not be had.
func (p *place) identify(configured bool) (*kind, []Model, error) {
	first := p.get("/v1/models")
	if first.err != nil {
		return nil, nil, first.err
	}
	for _, k := range kinds {
		if k.sign(p) {
			models, err := k.list(p)
			return k, models, err
		}
	}
	if !configured {
		return nil, nil, errStranger
	}
	models, err := plainList(p)
	if err != nil {
		return nil, nil, err
	}
	return &plain, models, nil
}
