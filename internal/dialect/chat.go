package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// chatRequest is the body of a chat call as this package writes it. Its values alias the
// caller's body.
type chatRequest struct {
	Model             fleet.ModelID  `json:"model"`
	Stream            bool           `json:"stream,omitzero"`
	StreamOptions     jsontext.Value `json:"stream_options,omitzero"`
	MaxTokens         jsontext.Value `json:"max_tokens,omitzero"`
	Temperature       jsontext.Value `json:"temperature,omitzero"`
	TopP              jsontext.Value `json:"top_p,omitzero"`
	TopK              jsontext.Value `json:"top_k,omitzero"`
	Presence          jsontext.Value `json:"presence_penalty,omitzero"`
	Frequency         jsontext.Value `json:"frequency_penalty,omitzero"`
	Stop              jsontext.Value `json:"stop,omitzero"`
	Logprobs          bool           `json:"logprobs,omitzero"`
	TopLogprobs       jsontext.Value `json:"top_logprobs,omitzero"`
	Tools             []chatTool     `json:"tools,omitzero"`
	ToolChoice        any            `json:"tool_choice,omitzero"` // a word, or a chatTool
	ParallelToolCalls *bool          `json:"parallel_tool_calls,omitzero"`
	Format            *chatFormat    `json:"response_format,omitzero"`
	Messages          []chatMessage  `json:"messages"`
	Thinking          any            `json:"thinking,omitzero"` // a chatThinking, or a value from the caller
	Effort            jsontext.Value `json:"reasoning_effort,omitzero"`
	Reasoning         jsontext.Value `json:"reasoning,omitzero"`
	TemplateArguments jsontext.Value `json:"chat_template_kwargs,omitzero"`
}

// chatTool is a tool, or the choice of one.
type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name        jsontext.Value `json:"name,omitzero"`
	Description jsontext.Value `json:"description,omitzero"`
	Parameters  jsontext.Value `json:"parameters,omitzero"`
	Strict      jsontext.Value `json:"strict,omitzero"`
}

type chatFormat struct {
	Type   string      `json:"type"`
	Schema *chatSchema `json:"json_schema,omitzero"`
}

type chatSchema struct {
	Name        jsontext.Value `json:"name"`
	Description jsontext.Value `json:"description,omitzero"`
	Strict      jsontext.Value `json:"strict,omitzero"`
	Schema      jsontext.Value `json:"schema"`
}

type chatThinking struct {
	Type   string         `json:"type"`
	Budget jsontext.Value `json:"budget_tokens,omitzero"`
}

type chatMessage struct {
	Role       string         `json:"role"`
	ToolCallID jsontext.Value `json:"tool_call_id,omitzero"`
	Content    any            `json:"content"` // a prose, or a list of chatPart
	Reasoning  prose          `json:"reasoning_content,omitzero"`
	ToolCalls  []chatCall     `json:"tool_calls,omitzero"`
}

type chatPart struct {
	Type    string   `json:"type"`
	Text    prose    `json:"text,omitzero"`
	Picture *picture `json:"image_url,omitzero"`
}

type picture struct {
	URL    prose          `json:"url"`
	Detail jsontext.Value `json:"detail,omitzero"`
}

type chatCall struct {
	ID       jsontext.Value `json:"id"`
	Type     string         `json:"type"`
	Function struct {
		Name      jsontext.Value `json:"name"`
		Arguments jsontext.Value `json:"arguments"` // a JSON string
	} `json:"function"`
}

// prose is several JSON strings that are written as one, each as a paragraph. The prefix
// comes before the first.
type prose struct {
	prefix string // already escaped
	texts  []jsontext.Value
}

// MarshalJSONTo implements json.MarshalerTo. It copies the strings without decoding them.
func (p prose) MarshalJSONTo(enc *jsontext.Encoder) error {
	if len(p.texts) == 1 && p.prefix == "" {
		return enc.WriteValue(p.texts[0])
	}
	out := append(append(enc.AvailableBuffer(), '"'), p.prefix...)
	for i, text := range p.texts {
		if i > 0 {
			out = append(out, `\n\n`...)
		}
		out = append(out, text[1:len(text)-1]...)
	}
	return enc.WriteValue(append(out, '"'))
}

// writeChat translates the request to the body of a chat call, the form that every engine
// accepts. size is the expected length of the body. URLs of images are passed on: the
// machine decides whether to fetch them (spec/security.md#pictures). Every error is a
// *fault.Fault.
func writeChat(q *request, size int) ([]byte, error) {
	chat, pictures, err := newChatRequest(q)
	if err != nil {
		return nil, err
	}
	for _, limit := range [...]struct {
		what       string
		there, top int
	}{{"messages", len(chat.Messages), MaxMessages}, {"pictures", pictures, MaxPictures}} {
		if limit.there > limit.top {
			return nil, fault.New(fault.InvalidRequest, "the %s holds %d %s and no more than %d are taken in one call; send fewer", q.turnsMember, limit.there, limit.what, limit.top).WithParam(q.turnsMember)
		}
	}
	var out bytes.Buffer
	out.Grow(size + size/2 + 1024) // the encoder doubles a buffer that is three quarters full
	if err := json.MarshalWrite(&out, chat, encoding); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func newChatRequest(q *request) (chat *chatRequest, pictures int, err error) {
	chat = new(q.chat)
	if chat.Model = q.Model; q.Stream {
		chat.Stream, chat.StreamOptions = true, jsontext.Value(`{"include_usage":true}`)
	}
	for _, t := range q.tools {
		chat.Tools = append(chat.Tools, t.chat())
	}
	if chat.Tools != nil {
		switch name := q.choice.name; {
		case q.choice.kind == "auto", q.choice.kind == "none":
			chat.ToolChoice = q.choice.kind
		case q.choice.kind == "tool" && name != nil:
			chat.ToolChoice = chatTool{Type: "function", Function: chatFunction{Name: name}}
		case q.choice.kind != "":
			chat.ToolChoice = "required"
		}
		if q.choice.serial {
			chat.ParallelToolCalls = new(false)
		}
	}
	lead := 0
	for lead < len(q.turns) && q.turns[lead].role == "system" {
		lead++
	}
	t := translation{}
	t.system(q.system, q.turns[:lead])
	said := len(t.messages)
	prefilled := t.talk(q.turns[lead:])
	if len(t.messages) == said {
		return nil, 0, fault.New(fault.InvalidRequest, "the %s holds nothing to answer: send something of the user's", q.turnsMember).WithParam(q.turnsMember)
	}
	chat.Messages = t.messages
	// A model cannot think before an answer whose beginning is given; some engines reject
	// the attempt.
	if prefilled || q.noThinking {
		chat.Thinking, chat.Reasoning = chatThinking{Type: "disabled"}, jsontext.Value(`{"exclude":true}`)
		chat.Effort, chat.TemplateArguments = nil, nil
	}
	return chat, t.pictures, nil
}

func (t *tool) chat() chatTool {
	return chatTool{"function", chatFunction{t.name, t.description, t.schema, t.strict}}
}

type translation struct {
	messages []chatMessage
	pictures int
}

// attribution is the prefix of a system block that a coding agent changes with each
// prompt. At the beginning of an otherwise unchanged prompt it would defeat every cache.
var attribution = []byte(`"x-anthropic-billing-header:`)

// system adds the system prompt and the leading system turns as one message: many
// templates accept only one, and only at the beginning.
func (t *translation) system(system []block, turns []turn) {
	c := content{}
	for i := range system {
		if b := &system[i]; !bytes.HasPrefix(b.text, attribution) {
			c.block(b)
		}
	}
	for _, turn := range turns {
		for i := range turn.blocks {
			c.block(&turn.blocks[i])
		}
	}
	if c.said() {
		t.messages = append(t.messages, chatMessage{Role: "system", Content: c.prose()})
	}
}

// talk adds the turns. It merges successive turns of the same side into one message. It
// reports whether the last message is the beginning of the answer.
func (t *translation) talk(turns []turn) (prefilled bool) {
	turns = slices.DeleteFunc(slices.Clone(turns), turn.silent)
	for i := 0; i < len(turns); {
		from, assistant := i, turns[i].role == "assistant"
		for i < len(turns) && (turns[i].role == "assistant") == assistant {
			i++
		}
		if assistant {
			prefilled = t.assistant(turns[from:i]) && i == len(turns)
		} else {
			t.user(turns[from:i])
			prefilled = false
		}
	}
	return prefilled
}

// silent reports whether the turn has no content for an engine.
func (t turn) silent() bool {
	return !slices.ContainsFunc(t.blocks, func(b block) bool {
		return b.kind != vendorBlock && (b.kind != textBlock || len(b.text) > len(`""`))
	})
}

// assistant adds turns of the model as one message and reports whether the message has no
// tool calls. It adds no empty message.
func (t *translation) assistant(turns []turn) (text bool) {
	said, thought := content{}, content{}
	m := chatMessage{Role: "assistant"}
	for _, turn := range turns {
		for i := range turn.blocks {
			switch b := &turn.blocks[i]; b.kind {
			case textBlock:
				said.text(b.text)
			case thinkingBlock:
				thought.text(b.text)
			case toolUseBlock:
				m.ToolCalls = append(m.ToolCalls, newChatCall(b))
			}
		}
	}
	if m.ToolCalls == nil && !said.said() && !thought.said() {
		return false
	}
	m.Content, m.Reasoning = said.prose(), thought.prose()
	t.messages = append(t.messages, m)
	return m.ToolCalls == nil
}

// newChatCall returns a tool call. Its arguments are a string of JSON.
func newChatCall(b *block) chatCall {
	call := chatCall{ID: b.id, Type: "function"}
	call.Function.Name = b.name
	switch {
	case len(b.input) <= len(`""`):
		call.Function.Arguments = jsontext.Value(`"{}"`)
	case b.input.Kind() == '"':
		call.Function.Arguments = b.input
	default:
		call.Function.Arguments = quote(string(b.input))
	}
	return call
}

// user adds turns of the user, and system turns between them. The results of tools come
// first, one message each, because chat engines require them directly after the calls.
// Images in the results follow in the user's message.
func (t *translation) user(turns []turn) {
	c := content{pictures: true}
	for _, turn := range turns {
		for i := range turn.blocks {
			if b := &turn.blocks[i]; b.kind == toolResultBlock {
				t.messages = append(t.messages, result(b))
				for j := range b.content {
					if b.content[j].kind == imageBlock {
						c.block(&b.content[j])
					}
				}
			}
		}
	}
	for _, turn := range turns {
		if turn.role == "system" {
			c.text(jsontext.Value(`"<system-reminder>"`))
		}
		for i := range turn.blocks {
			c.block(&turn.blocks[i])
		}
		if turn.role == "system" {
			c.text(jsontext.Value(`"</system-reminder>"`))
		}
	}
	pictures := 0
	for _, p := range c.parts {
		if p.Picture != nil {
			pictures++
		}
	}
	switch {
	case pictures > 0:
		t.pictures += pictures
		t.messages = append(t.messages, chatMessage{Role: "user", Content: c.parts})
	case c.said():
		t.messages = append(t.messages, chatMessage{Role: "user", Content: c.prose()})
	}
}

// result returns the message with the result of a tool. Chat engines accept only text
// there.
func result(b *block) chatMessage {
	c := content{}
	pictures := false
	for i := range b.content {
		c.block(&b.content[i])
		pictures = pictures || b.content[i].kind == imageBlock
	}
	switch {
	case pictures:
		c.text(jsontext.Value(`"[its pictures follow]"`))
	case b.failed && !c.said():
		c.text(jsontext.Value(`"the tool gave no reason"`))
	}
	text := c.prose()
	if b.failed {
		text.prefix = "Error: "
	}
	return chatMessage{Role: "tool", ToolCallID: b.id, Content: text}
}

// content is the content of a message: texts and, if allowed, images. Successive texts
// become paragraphs of one part, because some engines treat each part as a message.
type content struct {
	parts    []chatPart
	pictures bool // images are allowed
}

func (c *content) said() bool { return len(c.parts) > 0 }

// prose returns the text of a content without images.
func (c *content) prose() prose {
	if len(c.parts) == 0 {
		return prose{}
	}
	return c.parts[0].Text
}

// text adds a JSON string. It ignores other values and empty strings.
func (c *content) text(text jsontext.Value) {
	if text.Kind() != '"' || len(text) == len(`""`) {
		return
	}
	if last := len(c.parts) - 1; last < 0 || c.parts[last].Picture != nil {
		c.parts = append(c.parts, chatPart{Type: "text"})
	}
	p := &c.parts[len(c.parts)-1].Text
	p.texts = append(p.texts, text)
}

// block adds the text and images of a block. Tool calls and thinking add nothing.
func (c *content) block(b *block) {
	switch b.kind {
	case textBlock:
		c.text(b.text)
	case imageBlock:
		if c.pictures {
			c.parts = append(c.parts, chatPart{Type: "image_url", Picture: newPicture(&b.source)})
		}
	case documentBlock, searchBlock:
		for _, text := range [...]jsontext.Value{b.title, b.source.url, b.text} {
			c.text(text)
		}
		for i := range b.content {
			c.block(&b.content[i])
		}
	}
}

func newPicture(s *source) *picture {
	p := &picture{URL: prose{texts: []jsontext.Value{s.url}}}
	if s.data != nil {
		p.URL = prose{"data:" + string(s.media[1:len(s.media)-1]) + ";base64,", []jsontext.Value{s.data}}
	}
	switch string(s.detail) {
	case `"auto"`, `"low"`, `"high"`:
		p.Detail = s.detail
	}
	return p
}
