package engine

import (
	"bytes"
	"crypto/rand"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"net/http"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

const (
	maxChoices   = 64  // in an answer
	maxBeginning = 256 // bytes at the start of a stream that are kept for an error
)

// normalizer converts an engine's answer to canonical chat or an error
// (spec/engine-answers.md). The answer may be a stream of chunks or a document,
// regardless of the request and the media type. The result is a stream of frames or a
// document, as the caller requested. Both use the same code: a document is read as a
// single chunk that contains everything, and written from the sum of the chunks.
type normalizer struct {
	model  []byte // the advertised id as a JSON string
	stream bool   // the result is a stream of frames
	want   wants
	speech *transcript // nil for chat

	events   events
	document []byte // the answer, if it is a document; otherwise its beginning
	isObject bool
	sniffed  bool // isObject is valid

	id      jsontext.Value // of the answer
	created int64
	choices []*choice
	usage   dialect.Usage
	rest    []byte // members that the dialect does not have, unchanged, for the next frame or the document

	out    []byte // frames that are ready to be read, or the document
	size   int64  // number of bytes that a document was joined from
	frames int    // written for the current chunk
	quick  shortcut
	ended  bool // the end marker or an error was read
	now    func() time.Time
	ids    func() string // returns the unique part of a new id; nil: random
}

func newNormalizer(req *Request, want wants) *normalizer {
	m := &normalizer{model: []byte(quoted(string(req.Model))), stream: req.Stream, want: want, now: time.Now}
	if req.Form != nil {
		m.speech = new(transcript)
	}
	return m
}

// sentAnswer is an answer or a chunk as an engine sends it. Members without a field pass
// unchanged.
type sentAnswer struct {
	ID      jsontext.Value `json:"id"`
	Object  jsontext.Value `json:"object"`
	Created jsontext.Value `json:"created"`
	Model   jsontext.Value `json:"model"`
	Choices []sentChoice   `json:"choices"`
	Usage   jsontext.Value `json:"usage"`
	Error   jsontext.Value `json:"error"`
	Detail  jsontext.Value `json:"detail"`
	Message jsontext.Value `json:"message"`
	Rest    jsontext.Value `json:",embed"`
}

type sentChoice struct {
	Index    jsontext.Value `json:"index"`
	Delta    *sentMessage   `json:"delta"`
	Message  *sentMessage   `json:"message"`
	Finish   jsontext.Value `json:"finish_reason"`
	Logprobs jsontext.Value `json:"logprobs"`
	Error    jsontext.Value `json:"error"`
	Rest     jsontext.Value `json:",embed"`
}

type sentMessage struct {
	Role      jsontext.Value `json:"role"`
	Content   jsontext.Value `json:"content"`
	Thought   jsontext.Value `json:"reasoning_content"`
	Reasoning jsontext.Value `json:"reasoning"`
	Thinking  jsontext.Value `json:"thinking"`
	Details   jsontext.Value `json:"reasoning_details"`
	Refusal   jsontext.Value `json:"refusal"`
	ToolCalls jsontext.Value `json:"tool_calls"`
	Call      *sentFunction  `json:"function_call"`
	Rest      jsontext.Value `json:",embed"`
}

// lenient reads JSON from engines: clean replaces invalid UTF-8 later.
var lenient = jsontext.AllowInvalidUTF8(true)

// sentError is an error with the status 200: a document with an error member.
type sentError struct{ document []byte }

func (e *sentError) Error() string { return notChat("an error", e.document).Error() }

// status returns the status in the error, or 500.
func (e *sentError) status() int {
	var sent struct {
		Error struct{ Code, Status jsontext.Value }
	}
	_ = json.Unmarshal(e.document, &sent, lenient, json.MatchCaseInsensitiveNames(true))
	for _, v := range [...]jsontext.Value{sent.Error.Code, sent.Error.Status} {
		if n, ok := count(v); ok && n >= 400 && n < 600 {
			return int(n)
		}
	}
	return http.StatusInternalServerError
}

// failed returns the error in the document, or nil.
func (a *sentAnswer) failed(document []byte) error {
	switch a.Error.Kind() {
	case '{', '[', '"':
		if len(a.Error) > len(`""`) {
			return &sentError{document}
		}
	case 't', '0':
		return &sentError{document}
	}
	if len(a.Choices) == 0 && a.Usage.Kind() != '{' && (string(a.Object) == `"error"` || a.Detail != nil || a.Message.Kind() == '"') {
		return &sentError{[]byte(`{"error":` + string(document) + `}`)}
	}
	return nil
}

// notChat returns the fault for a part of an answer that is not chat. It quotes the
// engine's text.
func notChat(what string, sent []byte) error {
	line := bytes.Join(bytes.Fields(clean(sent)), []byte(" "))
	if len(line) > 200 {
		line = append(bytes.ToValidUTF8(line[:200:200], nil), "…"...)
	}
	if len(line) == 0 {
		return fault.New(fault.EngineError, "the engine's answer is empty")
	}
	return fault.New(fault.EngineError, "the engine sent %s: %s", what, line)
}

// read processes bytes of the answer. An error ends the answer.
func (m *normalizer) read(b []byte) error {
	if m.ended || len(b) == 0 {
		return nil
	}
	if !m.sniffed {
		m.document = append(m.document, b...)
		first := bytes.TrimLeft(bytes.TrimPrefix(m.document, []byte("\ufeff")), " \t\r\n")
		if len(first) == 0 {
			return nil
		}
		m.sniffed, m.isObject = true, first[0] == '{'
		if b = m.document; !m.isObject {
			m.document = bytes.Clone(b[:min(len(b), maxBeginning)])
		}
	} else if m.isObject {
		m.document = append(m.document, b...)
	} else if n := maxBeginning - len(m.document); n > 0 {
		m.document = append(m.document, b[:min(len(b), n)]...)
	}
	switch {
	case !m.isObject:
		return m.events.feed(b, m.event)
	case int64(len(m.document)) > dialect.MaxAnswer(fleet.ChatCompletions):
		return answerTooLong(dialect.MaxAnswer(fleet.ChatCompletions))
	}
	return nil
}

func (m *normalizer) finish() error {
	switch {
	case m.ended:
		return nil
	case m.isObject && m.speech != nil:
		var err error
		m.out, err = transcriptEvents(m.document)
		m.ended = true
		return err
	case m.isObject:
		return m.takeDocument()
	}
	if err := m.events.end(m.event); err != nil || m.ended {
		return err
	}
	switch {
	case m.speech != nil && len(m.speech.text) == 0:
		return notChat("something that is not a transcript", m.document)
	case m.speech == nil && len(m.choices) == 0:
		return notChat("something that is not a chat answer", m.document)
	case !m.stream:
		return fault.New(fault.EngineError, "the answer of the engine was cut off")
	}
	return nil // without an end marker the answer is incomplete
}

func (m *normalizer) takeDocument() error {
	var a sentAnswer
	if err := json.Unmarshal(m.document, &a, lenient); err != nil {
		return notChat("something that is not a chat answer", m.document)
	}
	if err := a.failed(m.document); err != nil {
		return err
	}
	if len(a.Choices) == 0 {
		return notChat("an answer without a choice", m.document)
	}
	if err := m.take(&a, m.document); err != nil {
		return err
	}
	return m.end()
}

func (m *normalizer) event(data []byte, failing bool) error {
	switch trimmed := bytes.TrimSpace(data); {
	case m.ended:
		return nil
	case failing && !jsontext.Value(trimmed).IsValid(lenient):
		return notChat("an error", trimmed)
	case failing && trimmed[0] != '{':
		return &sentError{[]byte(`{"error":` + string(trimmed) + `}`)}
	case m.speech != nil:
		m.out, m.ended = m.speech.frame(m.out, trimmed)
		return nil
	case string(trimmed) == "[DONE]":
		return m.end()
	}
	if m.quick.write(m, data) {
		return nil
	}
	var a sentAnswer
	if err := json.Unmarshal(data, &a, lenient); err != nil {
		return notChat("a part of its answer that is not chat", data)
	}
	err := a.failed(data)
	if failing && err == nil {
		err = &sentError{[]byte(`{"error":` + string(data) + `}`)}
	}
	if err != nil {
		return err
	}
	return m.take(&a, data)
}

func (m *normalizer) take(a *sentAnswer, sent []byte) error {
	if len(a.Choices) == 0 && a.Usage.Kind() != '{' {
		return nil // a sign of life
	}
	if m.id == nil {
		if m.id = clean(a.ID); a.ID.Kind() != '"' || len(a.ID) == len(`""`) || len(a.ID) > maxName {
			m.id = jsontext.Value(quoted(m.newID("chatcmpl-")))
		}
		if m.created, _ = count(a.Created); m.created == 0 {
			m.created = m.now().Unix()
		}
	}
	if u, ok := readUsage(a.Usage); ok {
		m.usage = u
	}
	m.rest, m.frames, m.quick = merged(m.rest, membersOf(a.Rest)), 0, shortcut{}
	for i := range a.Choices {
		c, err := m.choice(&a.Choices[i], i)
		if err != nil {
			return err
		}
		if m.size > dialect.MaxAnswer(fleet.ChatCompletions) {
			return answerTooLong(dialect.MaxAnswer(fleet.ChatCompletions))
		}
		begun := c.begun
		if err := m.takeChoice(c, &a.Choices[i]); err != nil {
			return err
		}
		if m.stream && m.frames == 1 && begun && len(a.Choices) == 1 && len(c.calls.all) == 0 {
			m.quick.learn(m.out, a.Choices[i].Delta, sent)
		}
	}
	return nil
}

// choice returns the state of a choice; at is its position in the chunk. Choices are
// numbered in the order of their first chunks (spec/engine-answers.md#choices).
func (m *normalizer) choice(sent *sentChoice, at int) (*choice, error) {
	number := int64(at)
	if n, ok := count(sent.Index); ok {
		number = n
	}
	for _, c := range m.choices {
		if c.number == number {
			return c, nil
		}
	}
	if len(m.choices) == maxChoices {
		return nil, fault.New(fault.EngineError, "the engine sent more than %d choices", maxChoices)
	}
	c := &choice{index: len(m.choices), number: number}
	m.choices = append(m.choices, c)
	return c, nil
}

// end processes the end marker or the end of a document: it writes the finish reasons and
// the token counts.
func (m *normalizer) end() error {
	if len(m.choices) == 0 {
		return fault.New(fault.EngineError, "the engine ended its answer without a choice")
	}
	for _, c := range m.choices {
		if err := m.close(c); err != nil {
			return err
		}
		switch {
		case c.called > 0 && (c.finish == "stop" || c.finish == ""):
			c.finish = "tool_calls"
		case c.finish == "" || c.called == 0 && c.finish == "tool_calls":
			c.finish = "stop"
		}
		if m.stream {
			m.write(c, &delta{finish: c.finish})
		}
	}
	m.ended = true
	if !m.stream {
		m.out = m.complete()
		return nil
	}
	if m.want.usage && m.usage.Reported {
		m.out = append(m.begin(m.out, "chat.completion.chunk"), `],"usage":`...)
		m.out = append(appendUsage(m.out, m.usage), "}\n\n"...)
	}
	m.out = append(m.out, "data: [DONE]\n\n"...)
	return nil
}

// newID returns an id for an answer or a tool call that has none.
func (m *normalizer) newID(prefix string) string {
	if m.ids != nil {
		return prefix + m.ids()
	}
	return prefix + rand.Text()
}
