package site

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json/v2"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// tryData is what /try shows. The browser alone holds the conversation: each form or
// call brings all of it, and it is neither kept nor logged here.
type tryData struct {
	Models []tryModel
	Model  fleet.ModelID
	Said   []said
	Ask    string      // what was typed and not answered
	Failed *chatAnswer // why not
	Titles string      // of the codes, as JSON, for the script
}

// titles are those of all codes, as JSON.
var titles = sync.OnceValue(func() string {
	all := map[fault.Code]string{}
	for code := range fault.Codes() {
		all[code] = code.Title()
	}
	return string(must(json.Marshal(all, json.Deterministic(true))))
})

// tryModel is a model to choose.
type tryModel struct {
	ID     fleet.ModelID
	Vision bool // it takes images
	Whose  string
}

// said is one message of the conversation, as the chat dialect has it.
type said struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (s *Site) tryData(v *visit) (tryData, error) {
	models, err := call(s, v, api.ListModels, api.None{})
	data := tryData{Titles: titles(), Said: conversation(v), Ask: lines(v.form.Get("ask")), Model: fleet.ModelID(cmp.Or(v.form.Get("model"), v.URL.Query().Get("model")))}
	for _, m := range models.Data {
		data.Models = append(data.Models, tryModel{m.ID, slices.Contains(m.Capabilities, "vision"), m.Whose()})
	}
	if first := api.FirstChoice(models.Data); data.Model == "" && first != nil {
		data.Model = first.ID
	}
	if !data.Model.Valid() {
		data.Model = ""
	}
	if data.Model != "" && !slices.ContainsFunc(data.Models, func(m tryModel) bool { return m.ID == data.Model }) {
		data.Models = append(data.Models, tryModel{ID: data.Model}) // one that was here a moment ago; the call says what became of it
	}
	return data, err
}

// conversation is what was said before, by turns: the member first.
func conversation(v *visit) []said {
	var all []said
	for i, text := range v.form["said"] {
		all = append(all, said{[]string{"user", "assistant"}[i%2], lines(text)})
	}
	return all[:len(all)/2*2]
}

// lines has the line ends that were typed; browsers send them as CRLF.
func lines(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// chatRequest is a call in the chat dialect.
type chatRequest struct {
	Model     fleet.ModelID `json:"model"`
	Stream    bool          `json:"stream"`
	MaxTokens int           `json:"max_tokens,omitzero"`
	Messages  []said        `json:"messages"`
}

// chatCall is the call as a client sends it.
func chatCall(ctx context.Context, call chatRequest) (*http.Request, error) {
	body, err := json.Marshal(call)
	if err != nil {
		return nil, fault.New(fault.InvalidRequest, "the form holds text that is not UTF-8").Because(err)
	}
	return chatPost(ctx, bytes.NewReader(body))
}

// chatPost is a call with that body.
func chatPost(ctx context.Context, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fleet.ChatCompletions.String(), body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.RequestURI = r.URL.RequestURI()
	return r, nil
}

// tryCall is the form's question and all before it as a client's call.
func tryCall(v *visit) (*http.Request, error) {
	model, question := fleet.ModelID(v.form.Get("model")), lines(v.form.Get("ask"))
	switch {
	case !model.Valid():
		return nil, fault.New(fault.InvalidRequest, "choose a model that you reach").WithParam("model")
	case strings.TrimSpace(question) == "":
		return nil, fault.New(fault.InvalidRequest, "type something to say to the model").WithParam("ask")
	}
	return chatCall(v.Context(), chatRequest{Model: model, Messages: append(conversation(v), said{"user", question})})
}

// tryPage is GET /try. What a model wrote becomes elements of the page only through the
// policy of DOMPurify, and no link in it has a name looked up before it is followed.
func (s *Site) tryPage(v *visit) (reply, error) {
	data, err := s.tryData(v)
	v.header.Set("Content-Security-Policy", v.header.Get("Content-Security-Policy")+"; worker-src 'self'; require-trusted-types-for 'script'; trusted-types dompurify chat-worker")
	v.header.Set("X-DNS-Prefetch-Control", "off")
	return reply{page: "try", title: "Chat", data: data}, err
}

// tryLive is POST /try/stream: a call in the chat dialect as the page's script makes it,
// and its answer as a client's, event by event.
func (s *Site) tryLive(v *visit) (reply, error) {
	return s.whileSignedIn(v, func(ctx context.Context, w http.ResponseWriter) error {
		if kind, _, _ := strings.Cut(v.Header.Get("Content-Type"), ";"); !strings.EqualFold(strings.TrimSpace(kind), "application/json") {
			return fault.New(fault.InvalidRequest, "a call comes as application/json")
		}
		r, err := chatPost(ctx, v.Body)
		if err != nil {
			return err
		}
		r.ContentLength = v.ContentLength
		s.Call(w, r, v.caller())
		return nil
	}), nil
}

// tryOnce is POST /try: the same for a browser without a script, in one piece.
func (s *Site) tryOnce(v *visit) (reply, error) {
	r, err := tryCall(v)
	if err != nil {
		return reply{}, err
	}
	ctx, release, err := s.tie(v)
	if err != nil {
		return reply{}, err
	}
	defer release()
	answer := answerOf(func(w http.ResponseWriter) { s.Call(w, r.WithContext(ctx), v.caller()) })
	data, err := s.tryData(v)
	if err != nil {
		return reply{}, err
	}
	if answer.answered {
		data.Said = append(data.Said, said{"user", data.Ask}, said{"assistant", answer.Text})
		data.Ask = ""
	} else {
		answer.Message = cmp.Or(answer.Message, "the answer could not be read")
		data.Failed = &answer
	}
	return reply{page: "try", title: "Chat", data: data}, nil
}

// chatAnswer is what a call that is not streamed came to.
type chatAnswer struct {
	Status                       int
	Code, Message, CorrelationID string // of a refusal
	Text                         string // of the answer
	answered                     bool
	header                       http.Header
}

// answerOf reads the answer that serve writes.
func answerOf(serve func(http.ResponseWriter)) chatAnswer {
	b := &buffer{header: http.Header{}}
	serve(b)
	var read struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
		Choices []struct {
			Message said `json:"message"`
		} `json:"choices"`
	}
	_ = json.Unmarshal(b.body.Bytes(), &read) // where it is no JSON, the status says enough
	a := chatAnswer{
		Status: cmp.Or(b.status, http.StatusOK), Code: read.Error.Code, Message: read.Error.Message,
		CorrelationID: b.header.Get("X-Correlation-ID"), header: b.header,
	}
	if len(read.Choices) > 0 {
		a.Text, a.answered = read.Choices[0].Message.Content, a.Status == http.StatusOK
	}
	return a
}

// buffer takes an answer into memory.
type buffer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header satisfies http.ResponseWriter.
func (b *buffer) Header() http.Header { return b.header }

// WriteHeader satisfies http.ResponseWriter.
func (b *buffer) WriteHeader(status int) { b.status = cmp.Or(b.status, status) }

// Write satisfies http.ResponseWriter.
func (b *buffer) Write(p []byte) (int, error) { return b.body.Write(p) }
