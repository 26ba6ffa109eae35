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

// tryData is the content of /try. Only the browser keeps the conversation: each form or
// call contains all of it, and the hub neither stores nor logs it.
type tryData struct {
	Models []tryModel
	Shape  shape // of the live content of the models in reach
	Model  fleet.ModelID
	Said   []said
	Ask    string      // the question that was not answered
	Failed *chatAnswer // the refusal
	Titles string      // of all codes, as JSON, for the script
	Parts  string      // the paths of what the script loads when it needs it, as JSON
}

// chatParts returns the paths of what the chat's script loads when it needs it, by the script's
// names, as JSON.
var chatParts = sync.OnceValue(func() string {
	parts := map[string]string{}
	for name, file := range map[string]string{
		"worker": "stream.js", "marked": "marked.js", "purify": "purify.js", "markdown": "markdown.js", "code": "code.js", "files": "files.js", "transfer": "transfer.js", "palette": "palette.js", "rich": "rich.js",
		"math": "temml.js", "highlight": "highlight.js", "pdf": "pdf.js", "pdfworker": "pdf.worker.js",
	} {
		parts[name] = assetPaths()[file]
	}
	return string(must(json.Marshal(parts, json.Deterministic(true))))
})

// titles returns the titles of all codes as JSON.
var titles = sync.OnceValue(func() string {
	all := map[fault.Code]string{}
	for code := range fault.Codes() {
		all[code] = code.Title()
	}
	return string(must(json.Marshal(all, json.Deterministic(true))))
})

// tryModel is a model that can be chosen.
type tryModel struct {
	ID      fleet.ModelID
	Vision  bool // it accepts images
	Audio   bool // it accepts audio
	Thinks  bool // it knows reasoning effort
	Context int  // tokens; 0: unknown
	Whose   string
	State   string // availability
	Speed   string // on the fastest machine; empty: not measured
	N       int    // index in the live content of the models in reach
}

// Facts describes the model in a list to choose from.
func (m tryModel) Facts() string {
	facts := []string{m.Whose, availabilityWords(m.State).text, m.Speed}
	return strings.Join(slices.DeleteFunc(facts, func(fact string) bool { return fact == "" }), " · ")
}

// said is one message of the conversation in the chat dialect.
type said struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

func (s *Site) tryData(v *visit) (tryData, error) {
	models, err := call(s, v, api.ListModels, api.None{})
	data := tryData{Titles: titles(), Parts: chatParts(), Said: conversation(v), Ask: lines(v.form.Get("ask")),
		Model: fleet.ModelID(cmp.Or(v.form.Get("model"), v.URL.Query().Get("model")))}
	models.Data = s.markSpent(models.Data, v.caller())
	reached, speeds := s.withOffline(models.Data, v.caller()), s.speeds(v.caller())
	data.Shape = contentOfModels(reached).shape
	place := map[fleet.ModelID]int{}
	for i, m := range reached {
		place[m.ID] = i
	}
	offered := models.Data
	if !slices.ContainsFunc(offered, func(m api.Model) bool { return m.Chat }) {
		offered = reached // so that the kept chats are there while every machine is offline
	}
	for _, m := range slices.SortedStableFunc(slices.Values(offered), online) {
		if !m.Chat {
			if m.ID == data.Model {
				data.Model = ""
			}
			continue
		}
		listed := tryModel{ID: m.ID, Vision: slices.Contains(m.Capabilities, "vision"), Audio: slices.Contains(m.Capabilities, "audio"), Thinks: slices.Contains(m.Capabilities, "thinking"),
			Context: m.ContextLength, Whose: m.Whose(), State: m.Availability, N: place[m.ID]}
		if speed := speeds[m.ID]; speed > 0 {
			listed.Speed = rate(speed) + " tokens/s"
		}
		data.Models = append(data.Models, listed)
	}
	if first := api.FirstChoice(models.Data); data.Model == "" && first != nil {
		data.Model = first.ID
	}
	if !data.Model.Valid() {
		data.Model = ""
	}
	if data.Model != "" && !slices.ContainsFunc(data.Models, func(m tryModel) bool { return m.ID == data.Model }) {
		// it was there a moment ago; the call will fail if not
		data.Models = append(data.Models, tryModel{ID: data.Model, N: -1})
	}
	return data, err
}

// speeds returns the tokens per second of each model on the fastest machine that is online
// and was measured for the caller.
func (s *Site) speeds(who fleet.Caller) map[fleet.ModelID]float64 {
	all, now := map[fleet.ModelID]float64{}, s.DB.Now()
	for m, access := range s.Snapshot().Reach(who.Member, who.Reach) {
		if !m.Online {
			continue
		}
		for i := range m.Offers {
			offer := &m.Offers[i]
			seen, ok := access.State(m, offer, now)
			if !ok {
				continue
			}
			if speed := offer.Load.Speed(seen.Circle()); speed != nil && speed.Decode[0] > 0 {
				all[offer.ID] = max(all[offer.ID], 1/speed.Decode[0])
			}
		}
	}
	return all
}

// conversation returns the earlier messages. They alternate, and the member's comes
// first.
func conversation(v *visit) []said {
	var all []said
	for i, text := range v.form["said"] {
		all = append(all, said{[]string{"user", "assistant"}[i%2], lines(text)})
	}
	return all[:len(all)/2*2]
}

// lines returns the text with the line ends that were typed. Browsers send them as CRLF.
func lines(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// chatRequest is a call in the chat dialect.
type chatRequest struct {
	Model     fleet.ModelID `json:"model"`
	Stream    bool          `json:"stream"`
	MaxTokens int           `json:"max_tokens,omitzero"`
	Messages  []said        `json:"messages"`
}

// chatCall returns the HTTP request of a call.
func chatCall(ctx context.Context, call chatRequest) (*http.Request, error) {
	body, err := json.Marshal(call)
	if err != nil {
		return nil, fault.New(fault.InvalidRequest, "the form holds text that is not UTF-8").Because(err)
	}
	return chatPost(ctx, bytes.NewReader(body))
}

// chatPost returns the HTTP request with a given body.
func chatPost(ctx context.Context, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fleet.ChatCompletions.String(), body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.RequestURI = r.URL.RequestURI()
	return r, nil
}

// tryCall returns the form's question, with the earlier conversation, as a client's
// request.
func tryCall(v *visit) (*http.Request, error) {
	model, question := fleet.ModelID(v.form.Get("model")), lines(v.form.Get("ask"))
	switch {
	case !model.Valid():
		return nil, fault.New(fault.InvalidRequest, "choose a model that you can use").WithParam("model")
	case strings.TrimSpace(question) == "":
		return nil, fault.New(fault.InvalidRequest, "type something to say to the model").WithParam("ask")
	}
	return chatCall(v.Context(), chatRequest{Model: model, Messages: append(conversation(v), said{"user", question})})
}

// tryPage handles GET /try, and /try/CHAT, whose chat is only in the browser. DOMPurify
// sanitizes what a model wrote before it becomes part of the page, and the browser does not
// prefetch DNS for links in it.
func (s *Site) tryPage(v *visit) (reply, error) {
	data, err := s.tryData(v)
	v.header.Set("Content-Security-Policy", v.header.Get("Content-Security-Policy")+"; worker-src 'self'; "+
		"require-trusted-types-for 'script'; trusted-types dompurify chat-worker")
	v.header.Set("X-DNS-Prefetch-Control", "off")
	return reply{page: "try", title: "Chat", data: data}, err
}

// tryLive handles POST /try/stream, a chat call from the page's script. It responds with
// the same event stream that a client would get.
func (s *Site) tryLive(v *visit) (reply, error) {
	return s.whileSignedIn(v, func(ctx context.Context, w http.ResponseWriter) error {
		if !hasType(v.Request, "application/json") {
			return fault.New(fault.InvalidRequest, "send the call as application/json")
		}
		r, err := chatPost(ctx, v.Body)
		if err != nil {
			return err
		}
		r.ContentLength = v.ContentLength
		unreset(func() { s.Call(w, r, v.caller()) })
		return nil
	}), nil
}

// unreset calls serve and recovers the panic by which it resets a response that broke off, so
// that the response ends. A browser drops what it has not read yet of one that is reset, such
// as the error at its end. The chat's script notices the missing [DONE].
func unreset(serve func()) {
	defer func() {
		if v := recover(); v != nil && v != http.ErrAbortHandler { //nolint:errorlint // a panic's value
			panic(v)
		}
	}()
	serve()
}

// tryOnce handles POST /try, the same without streaming for browsers without scripts.
func (s *Site) tryOnce(v *visit) (reply, error) {
	r, err := tryCall(v)
	if err != nil {
		return reply{}, err
	}
	ctx, release, err := s.useSession(v)
	if err != nil {
		return reply{}, err
	}
	defer release()
	answer := answerOf(func(w http.ResponseWriter) { s.Call(w, r.WithContext(ctx), v.caller()) })
	data, err := s.tryData(v)
	if err != nil {
		return reply{}, err
	}
	if answer.Answered {
		data.Said = append(data.Said, said{"user", data.Ask}, said{"assistant", answer.Text})
		data.Ask = ""
	} else {
		data.Failed = &answer
	}
	return reply{page: "try", title: "Chat", data: data}, nil
}

// chatAnswer is the result of a call that is not streamed.
type chatAnswer struct {
	Status                       int
	Code, Message, CorrelationID string // of a refusal
	Text                         string // of the answer
	Answered                     bool   // the answer is complete
	header                       http.Header
}

// answerOf returns the response that serve writes.
func answerOf(serve func(http.ResponseWriter)) chatAnswer {
	b := &buffer{header: http.Header{}}
	unreset(func() { serve(b) })
	var read struct {
		Error struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
		Choices []struct {
			Message said `json:"message"`
		} `json:"choices"`
	}
	err := json.Unmarshal(b.body.Bytes(), &read) // of what is not JSON the status is enough
	a := chatAnswer{
		Status: cmp.Or(b.status, http.StatusOK), Code: read.Error.Code, Message: read.Error.Message,
		CorrelationID: b.header.Get("X-Correlation-ID"), header: b.header,
	}
	if err == nil && len(read.Choices) > 0 {
		a.Text, a.Answered = read.Choices[0].Message.Content, a.Status == http.StatusOK
	}
	if !a.Answered {
		a.Message = cmp.Or(a.Message, "the answer could not be read")
	}
	return a
}

// buffer is an http.ResponseWriter that keeps the response in memory.
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
