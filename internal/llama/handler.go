package llama

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/kith/kith/internal/llama/chatform"
)

// maxTokenBytes limits the length of a text before it is tokenized: the average length of
// a token is lower in every vocabulary.
const maxTokenBytes = 64

// server is the worker's HTTP server for its models.
type server struct {
	inspect func(ModelFile) (*runner, error) // returns the runner for a usable model
	started time.Time
	prompts *promptStore

	setting sync.Mutex // held while models are set
	mu      sync.Mutex
	runners map[string]*runner // by id
	files   []ModelFile
	models  []Model // of files, in their order
}

// handler returns the worker's routes.
func (s *server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", orRefuse(s.chat))
	mux.HandleFunc("POST /v1/embeddings", orRefuse(s.embeddings))
	mux.HandleFunc("GET /v1/models", s.list)
	mux.HandleFunc("POST /tokenize", orRefuse(s.tokenize))
	mux.HandleFunc("POST "+pathModels, orRefuse(s.changeModels))
	mux.HandleFunc("GET "+pathLoaded, s.listLoaded)
	mux.HandleFunc("POST "+pathLoad, orRefuse(s.order))
	mux.HandleFunc("POST "+pathUnload, orRefuse(s.order))
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, map[string]string{"status": "ok"})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, &refusal{status: http.StatusNotFound, code: "not_found_error", message: "no such route"})
	})
	return mux
}

// orRefuse returns a handler that responds with the error of handle.
func orRefuse(handle func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
			refuse(w, err)
		}
	}
}

// reply writes v as JSON. It ignores write errors, which mean that the client
// disconnected.
func reply(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		status, body = http.StatusInternalServerError, []byte(`{"error":{"code":"server_error","message":"cannot write the answer","type":"server_error"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(body)
}

// errorBody is the error object of both dialects.
type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Type    string `json:"type"`
	Param   string `json:"param,omitzero"`
}

// errorResponse returns the status and body for an error.
func errorResponse(err error) (int, errorBody) {
	var r *refusal
	var load *loadError
	switch {
	case errors.As(err, &r):
	case errors.As(err, &load), errors.Is(err, errTooMany):
		r = &refusal{status: http.StatusServiceUnavailable, code: "unavailable_error", message: err.Error()}
	default:
		r = &refusal{status: http.StatusInternalServerError, code: "server_error", message: err.Error()}
	}
	kind := "invalid_request_error"
	if r.status >= 500 {
		kind = "server_error"
	}
	return r.status, errorBody{errorDetail{r.code, r.message, kind, r.param}}
}

func refuse(w http.ResponseWriter, err error) {
	status, body := errorResponse(err)
	reply(w, status, body)
}

// body reads a request's body of at most maxBody (spec/api.md#limit-body).
func body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return nil, &refusal{status: http.StatusRequestEntityTooLarge, code: "invalid_request_error", message: "the request is larger than 32 MiB"}
	}
	if err != nil {
		return nil, badRequest("cannot read the request to its end")
	}
	return b, nil
}

// model returns the runner for the model.
func (s *server) model(id string) (*runner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.runners[id]; ok {
		return r, nil
	}
	return nil, errRemoved
}

// read decodes a request's body, and returns the runner for the model in it.
func (s *server) read(w http.ResponseWriter, r *http.Request, into any, model *string) (*runner, error) {
	b, err := body(w, r)
	if err == nil {
		err = decode(b, into)
	}
	if err != nil {
		return nil, err
	}
	return s.model(*model)
}

// prompt renders a conversation with the model's template, and returns what follows the
// last message, and the tokens.
func (r *runner) prompt(ctx context.Context, c *chatform.Conversation) (tail string, tokens []token, err error) {
	prompt, err := r.template.render(ctx, c)
	switch {
	case ctx.Err() != nil:
		return "", nil, context.Cause(ctx)
	case err != nil:
		return "", nil, badRequest("%v", err)
	}
	size := 0
	for _, p := range prompt.Pieces {
		size += len(p.Text)
	}
	if size > r.ContextLength*maxTokenBytes {
		return "", nil, tooLong(size/maxTokenBytes, r.ContextLength)
	}
	if tokens, err = r.vocab.prompt(prompt.Pieces); err != nil {
		return "", nil, badRequest("%v", err)
	}
	return prompt.Tail, tokens, nil
}

// tokens tokenizes text. It first rejects a text that is too long for limit tokens.
func (r *runner) tokens(text string, limit int) ([]token, error) {
	if len(text) > limit*maxTokenBytes {
		return nil, tooLong(len(text)/maxTokenBytes, limit)
	}
	list, err := r.vocab.tokenize(text, true, false)
	if err != nil {
		return nil, badRequest("%v", err)
	}
	return list, nil
}

// start validates a chat request for the model and queues it.
func (r *runner) start(ctx context.Context, c *chat) (*job, error) {
	if !r.Chat {
		return nil, badRequest("this model only makes embeddings; use /v1/embeddings")
	}
	if len(c.tools) > 0 && !r.Tools {
		return nil, badMember("tools", "this model cannot call tools: %s; leave out the tools, or use another model", r.ToolProblem)
	}
	tail, prompt, err := r.prompt(ctx, &c.conversation)
	if err != nil {
		return nil, err
	}
	if len(prompt) >= r.ContextLength {
		return nil, tooLong(len(prompt), r.ContextLength)
	}
	if len(prompt) == 0 {
		return nil, badMember("messages", "the messages hold no text")
	}
	for _, b := range c.sampling.biases {
		if b.token < 0 || int(b.token) >= r.vocab.size {
			return nil, badMember("logit_bias."+strconv.Itoa(int(b.token)), "logit_bias names token %d; the model has tokens 0 to %d", b.token, r.vocab.size-1)
		}
	}
	form := r.template.form()
	j := &job{
		ctx: ctx, caller: c.caller, prompt: prompt, limit: r.ContextLength, text: stopFilter{stops: c.stops}, out: newOutbox(),
		wantLogprobs: c.wantLogprobs, alternatives: c.alternatives, tail: tail, digest: r.template.digest, sampler: newSampler(r.vocab, c.sampling, int32(r.ContextLength)),
		reader: form.NewReader(chatform.ReaderOptions{Tools: c.tools, Prompt: tail}),
	}
	if c.limit > 0 {
		j.limit = min(j.limit, c.limit)
	}
	if err := j.setGrammar(r.vocab, form, c); err != nil {
		j.reader.Close("")
		j.sampler.free()
		return nil, err
	}
	return j, r.submit(j)
}

// setGrammar gives the sampler of a job its grammar: for the whole answer if the request
// decides it, or for the calls that the prompt begins. Otherwise the answer has a grammar
// from the first call on.
func (j *job) setGrammar(v *vocab, form *chatform.Form, c *chat) error {
	calls := func(plain bool) string { return callRules(form, c.tools, c.parallel, plain) }
	canCall := len(c.tools) > 0 && form.Tools()
	switch {
	case canCall && j.reader.InCall():
		if !j.constrain(v, calls, nil, 0) && c.mustCall {
			return errNoGrammar
		}
	case c.mustCall:
		if !canCall || !j.decide(nil, func(plain bool) string { return answerGrammar(form, j.tail, calls(plain), "") }) {
			return errNoGrammar
		}
	case c.format != "":
		if !j.decide(nil, func(plain bool) string { return answerGrammar(form, j.tail, calls(plain), c.format) }) {
			return badMember("response_format", "response_format: cannot use the schema: it is infinitely recursive")
		}
	case canCall:
		j.calls = calls
	}
	return nil
}

// decide makes a grammar decide the answer, which begins with the tokens written. If
// llama.cpp refuses the grammar, the one with plain calls does. It reports false if neither can.
func (j *job) decide(written []token, grammar func(plain bool) string) bool {
	return j.sampler.constrain(grammar(false), written) || j.sampler.constrain(grammar(true), written)
}

var errNoGrammar = badMember("tool_choice", "this engine cannot make the model call a tool; use tool_choice auto or none")

func (s *server) chat(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel() // frees the slot in all cases
	b, err := body(w, r)
	if err != nil {
		return err
	}
	c, err := parseChat(b)
	if err != nil {
		return err
	}
	run, err := s.model(c.model)
	if err != nil {
		return err
	}
	j, err := run.start(ctx, c)
	if err != nil {
		return err
	}
	a := answer{ID: "chatcmpl-" + rand.Text(), Created: time.Now().Unix(), Model: c.model}
	if c.stream {
		a.stream(w, j, c.usage)
		return nil
	}
	return a.unary(w, j)
}

func (s *server) list(w http.ResponseWriter, _ *http.Request) {
	type meta struct {
		Context    int  `json:"n_ctx"`
		Slots      int  `json:"n_slots"`
		Dimensions int  `json:"n_embd"`
		Chat       bool `json:"chat"`
		Embeddings bool `json:"embeddings"`
	}
	type entry struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Created int64  `json:"created"`
		OwnedBy string `json:"owned_by"`
		Meta    meta   `json:"meta"`
	}
	data := []entry{}
	s.mu.Lock()
	models := s.models
	s.mu.Unlock()
	for _, m := range models {
		if m.Problem == "" {
			data = append(data, entry{m.ID, "model", s.started.Unix(), "kith", meta{m.ContextLength, m.Slots, m.Dimensions, m.Chat, m.Embeddings}})
		}
	}
	reply(w, http.StatusOK, map[string]any{"object": "list", "data": data})
}

// tokenize counts the tokens of {"model", "content"}, or of a chat request {"model",
// "messages"} in the model's template.
func (s *server) tokenize(w http.ResponseWriter, r *http.Request) error {
	var q struct {
		Model    string           `json:"model"`
		Content  string           `json:"content"`
		Messages []chatTurn       `json:"messages"`
		Tools    []jsontext.Value `json:"tools"`
		Kwargs   templateKwargs   `json:"chat_template_kwargs"`
	}
	run, err := s.read(w, r, &q, &q.Model)
	if err != nil {
		return err
	}
	var tokens []token
	if len(q.Messages) == 0 {
		tokens, err = run.tokens(q.Content, max(run.ContextLength, maxBody/maxTokenBytes))
	} else {
		var c chatform.Conversation
		if c, err = conversationOf(q.Messages, q.Kwargs); err == nil {
			c.Tools = q.Tools
			_, tokens, err = run.prompt(r.Context(), &c)
		}
	}
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, map[string][]token{"tokens": tokens})
	return nil
}

func (s *server) embeddings(w http.ResponseWriter, r *http.Request) error {
	type item struct {
		Object    string         `json:"object"`
		Index     int            `json:"index"`
		Embedding jsontext.Value `json:"embedding"`
	}
	type counts struct {
		PromptTokens int `json:"prompt_tokens"`
		TotalTokens  int `json:"total_tokens"`
	}
	type list struct {
		Object string `json:"object"`
		Data   []item `json:"data"`
		Model  string `json:"model"`
		Usage  counts `json:"usage"`
	}
	var q embeddingsRequest
	run, err := s.read(w, r, &q, &q.Model)
	if err != nil {
		return err
	}
	dimensions, err := run.checkEmbeddings(&q)
	if err != nil {
		return err
	}
	inputs, total, err := run.embeddingInputs(q.Input)
	if err != nil {
		return err
	}
	vectors, err := run.embed(r.Context(), inputs)
	if err != nil {
		return err
	}
	l := &list{Object: "list", Model: q.Model, Data: make([]item, len(vectors)), Usage: counts{total, total}}
	for i, v := range vectors {
		encoded, err := encodeVector(normalize(v, dimensions), q.EncodingFormat == "base64")
		if err != nil {
			return err
		}
		l.Data[i] = item{"embedding", i, encoded}
	}
	reply(w, http.StatusOK, l)
	return nil
}

// checkEmbeddings validates a request except its input, and returns the number of
// dimensions.
func (r *runner) checkEmbeddings(q *embeddingsRequest) (int, error) {
	if !r.Embeddings {
		return 0, badRequest("this model makes no embeddings")
	}
	switch q.EncodingFormat {
	case "", "float", "base64":
	default:
		return 0, badMember("encoding_format", "encoding_format must be float or base64")
	}
	if q.Dimensions == nil {
		return r.Dimensions, nil
	}
	if *q.Dimensions < 1 || *q.Dimensions > r.Dimensions {
		return 0, badMember("dimensions", "dimensions must be from 1 to %d for this model", r.Dimensions)
	}
	return *q.Dimensions, nil
}

// embeddingInputs returns the inputs of a request as tokens, and their number.
func (r *runner) embeddingInputs(v jsontext.Value) (lists [][]token, total int, err error) {
	inputs, err := parseInputs(v)
	if err != nil {
		return nil, 0, err
	}
	for _, in := range inputs {
		list := in.tokens
		if list == nil {
			if list, err = r.tokens(in.text, r.embedContext); err != nil {
				return nil, 0, err
			}
		}
		for _, t := range list {
			if t < 0 || int(t) >= r.vocab.size {
				return nil, 0, badMember("input", "input holds a token that this model does not have; it knows 0 to %d", r.vocab.size-1)
			}
		}
		if len(list) > r.embedContext {
			return nil, 0, tooLong(len(list), r.embedContext)
		}
		if len(list) == 0 {
			return nil, 0, badMember("input", "input holds no text")
		}
		lists, total = append(lists, list), total+len(list)
	}
	return lists, total, nil
}

// encodeVector returns a vector as a JSON list or as the base64 of little-endian float32,
// which the official clients request.
func encodeVector(v []float32, asBase64 bool) (jsontext.Value, error) {
	if !asBase64 {
		return json.Marshal(v)
	}
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return json.Marshal(raw)
}
