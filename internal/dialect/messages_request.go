package dialect

import (
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// messagesRequest is a body of the messages dialect as it was read.
type messagesRequest struct {
	request
	thinking struct {
		kind   string
		budget jsontext.Value
		hidden bool
	}
	schema jsontext.Value // of output_config.format
	// vendorNames are the names of the vendor's tools, one for each of hosted.
	vendorNames []jsontext.Value
}

// MessagesToChat reads the body of a call in the messages dialect, as strictly
// as ReadHead, and writes it as the body of a chat call: the pivot for engines that
// speak only that. docs/dialects.md says what becomes of each member. Every error
// is a *fault.Fault.
func MessagesToChat(body []byte) (Head, []byte, error) {
	q, err := readMessages(body)
	if err != nil {
		return Head{}, nil, err
	}
	if q.chat.MaxTokens == nil {
		return Head{}, nil, fault.New(fault.InvalidRequest, "the body has no max_tokens: say how long the answer may become").WithParam("max_tokens")
	}
	if err := q.runnable(); err != nil {
		return Head{}, nil, err
	}
	chat, err := writeChat(&q.request, len(body))
	if err != nil {
		return Head{}, nil, err
	}
	return q.Head, chat, nil
}

// readMessages reads a body of the messages dialect, as strictly as ReadHead reads
// one of the chat dialect. Every error is a *fault.Fault.
func readMessages(body []byte) (*messagesRequest, error) {
	q := &messagesRequest{request: request{body: body, turnsMember: "messages"}}
	if err := q.read(body, q.member); err != nil {
		return nil, err
	}
	if len(q.turns) == 0 {
		return nil, fault.New(fault.InvalidRequest, "the body holds no messages: send at least one of the user").WithParam("messages")
	}
	q.conclude()
	return q, nil
}

// conclude says the thinking controls and the format of the answer in the words
// of the chat dialect, which every machine's adapters read.
func (q *messagesRequest) conclude() {
	for i, name := range q.vendorNames {
		if q.choice.kind == "tool" && string(name) == string(q.choice.name) {
			q.choice.vendorType = q.vendorTools[i]
		}
	}
	q.noThinking = q.thinking.kind == "disabled"
	if q.thinking.kind == "enabled" {
		q.chat.Thinking = chatThinking{"enabled", q.thinking.budget}
	}
	if q.thinking.hidden {
		q.chat.Reasoning = jsontext.Value(`{"exclude":true}`)
	}
	if q.schema != nil {
		q.chat.Format = &chatFormat{"json_schema", &chatSchema{Name: jsontext.Value(`"answer"`), Strict: jsontext.Value("true"), Schema: q.schema}}
	}
}

// member reads one member of the body; those without a meaning here are passed
// over.
func (q *messagesRequest) member(name []byte) (err error) {
	switch string(name) {
	case "model":
		return q.model()
	case "stream":
		return q.stream()
	case "max_tokens":
		q.chat.MaxTokens, err = q.optionalInteger(1)
	case "temperature":
		q.chat.Temperature, err = q.optionalValue()
	case "top_p":
		q.chat.TopP, err = q.optionalValue()
	case "top_k":
		q.chat.TopK, err = q.optionalValue()
	case "stop_sequences":
		q.chat.Stop, err = q.optionalValue()
	case "system":
		q.system, err = q.content()
		for i := range q.system {
			if q.system[i].kind != textBlock && err == nil {
				err = q.refuse("the system prompt is a string or a list of text blocks")
			}
		}
	case "messages":
		return q.list(q.turn)
	case "tools":
		return q.list(q.tool)
	case "tool_choice":
		return q.object(q.toolChoice)
	case "thinking":
		return q.object(q.think)
	case "output_config":
		return q.object(func(name []byte) error {
			switch string(name) {
			case "effort":
				return q.readEffort()
			case "format":
				return q.object(q.format)
			}
			return q.dec.SkipValue()
		})
	case "output_format": // its name before output_config
		return q.object(q.format)
	default:
		return q.other(name)
	}
	return err
}

// turn reads one message.
func (q *messagesRequest) turn() error {
	var t turn
	told := false
	err := q.object(func(name []byte) (err error) {
		switch string(name) {
		case "role":
			if t.role, err = q.requiredString(); err == nil && t.role != "user" && t.role != "assistant" && t.role != "system" {
				err = q.refuse("must be user, assistant or system")
			}
		case "content":
			kind := q.dec.PeekKind()
			told = kind == '"' || kind == '['
			t.blocks, err = q.content()
		default:
			err = q.dec.SkipValue()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case t.role == "" || !told:
		return q.refuse("a message has a role and a content")
	}
	for i := range t.blocks {
		if b := &t.blocks[i]; b.kind == otherBlock {
			return q.refuse("content blocks of the type %q are not known here; send text, image, document, tool_use or tool_result", b.typeName)
		}
	}
	q.turns = append(q.turns, t)
	return nil
}

// content reads a string, or a list of content blocks. What else tools of the
// vendor put into that place means nothing here.
func (q *messagesRequest) content() ([]block, error) {
	switch q.dec.PeekKind() {
	case '"':
		text, err := q.value()
		return []block{{kind: textBlock, text: text}}, err
	case '[':
		var blocks []block
		err := q.list(func() error {
			b, err := q.block()
			blocks = append(blocks, b)
			return err
		})
		return blocks, err
	case '{', 'n':
		return nil, q.dec.SkipValue()
	default:
		if _, err := q.value(); err != nil {
			return nil, err
		}
		return nil, q.refuse("must be a string or a list of content blocks")
	}
}

// block reads one content block.
func (q *messagesRequest) block() (b block, err error) {
	err = q.object(func(name []byte) (err error) {
		switch string(name) {
		case "type":
			if b.typeName, err = q.requiredString(); err == nil {
				b.kind = kindOf(b.typeName)
			}
		case "text", "thinking":
			b.text, err = q.optionalValue()
		case "title":
			b.title, err = q.optionalValue()
		case "id", "tool_use_id":
			b.id, err = q.optionalValue()
		case "name":
			b.name, err = q.optionalValue()
		case "input":
			b.input, err = q.optionalValue()
		case "is_error":
			b.failed, err = q.boolean()
		case "content":
			b.content, err = q.content()
		case "source":
			if q.dec.PeekKind() == '"' { // of a search result
				b.source.url, err = q.value()
				return err
			}
			err = q.object(func(name []byte) error { return q.source(name, &b) })
		default:
			err = q.dec.SkipValue()
		}
		return err
	})
	if err == nil {
		err = q.checkBlock(&b)
	}
	return b, err
}

// kindOf is the kind of a content block's type.
func kindOf(word string) blockKind {
	switch word {
	case "text":
		return textBlock
	case "image":
		return imageBlock
	case "document":
		return documentBlock
	case "search_result":
		return searchBlock
	case "tool_use":
		return toolUseBlock
	case "tool_result":
		return toolResultBlock
	case "thinking":
		return thinkingBlock
	case "redacted_thinking", "server_tool_use", "mcp_tool_use", "container_upload", "compaction", "tool_reference":
		return vendorBlock
	}
	if strings.HasSuffix(word, "_tool_result") {
		return vendorBlock
	}
	return otherBlock
}

// source reads one member of an image's or document's source.
func (q *messagesRequest) source(name []byte, b *block) (err error) {
	switch string(name) {
	case "type":
		b.source.kind, err = q.optionalValue()
	case "media_type":
		b.source.media, err = q.optionalValue()
	case "data":
		b.source.data, err = q.optionalValue()
	case "url":
		b.source.url, err = q.optionalValue()
	case "content":
		b.content, err = q.content()
	default:
		err = q.dec.SkipValue()
	}
	return err
}

// checkBlock refuses a block that lacks what its type needs. A document is
// taken as the text it holds: no engine here reads the files.
func (q *messagesRequest) checkBlock(b *block) error {
	s := &b.source
	switch kind := string(s.kind); {
	case (b.kind == textBlock || b.kind == thinkingBlock) && b.text.Kind() != '"':
		return q.refuse("a block of the type %s has its text as a string", b.typeName)
	case b.kind == imageBlock && kind == `"base64"` && s.media.Kind() == '"' && s.data.Kind() == '"':
	case b.kind == imageBlock && kind == `"url"` && s.url.Kind() == '"':
		s.data = nil
	case b.kind == imageBlock:
		return q.refuse("an image has a source of the type base64, with media_type and data, or url, with url")
	case b.kind == documentBlock && kind == `"text"` && s.data.Kind() == '"':
		b.text = s.data
	case b.kind == documentBlock && kind == `"content"` && b.content != nil:
	case b.kind == documentBlock:
		return q.refuse("documents are taken as text only: a source of the type text, with data, or content, with content")
	case b.kind == toolUseBlock && (b.id.Kind() != '"' || b.name.Kind() != '"' || b.input != nil && b.input.Kind() != '{'):
		return q.refuse("a tool_use has an id and a name, which are strings, and an input, which is an object")
	case b.kind == toolResultBlock && b.id.Kind() != '"':
		return q.refuse("a tool_result names the tool_use that it answers in tool_use_id")
	}
	return nil
}

// tool reads one tool. Those that the vendor's servers or models bring along
// have a type of their own and no schema: no model here knows them.
func (q *messagesRequest) tool() error {
	var t tool
	kind := "custom"
	err := q.object(func(name []byte) (err error) {
		switch string(name) {
		case "type":
			if q.dec.PeekKind() == 'n' {
				return q.dec.SkipValue()
			}
			kind, err = q.requiredString()
		case "name":
			t.name, err = q.optionalValue()
		case "description":
			t.description, err = q.optionalValue()
		case "input_schema":
			t.schema, err = q.optionalValue()
		case "strict":
			t.strict, err = q.optionalValue()
		default:
			err = q.dec.SkipValue()
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case kind != "custom":
		q.vendorTools = append(q.vendorTools, strconv.Quote(kind))
		q.vendorNames = append(q.vendorNames, t.name)
		return nil
	case t.name.Kind() != '"':
		return q.refuse("a tool has a name, which is a string")
	}
	q.tools = append(q.tools, t)
	return nil
}

// toolChoice reads one member of tool_choice.
func (q *messagesRequest) toolChoice(name []byte) (err error) {
	switch string(name) {
	case "type":
		if q.choice.kind, err = q.requiredString(); err == nil && !slices.Contains([]string{"auto", "any", "tool", "none"}, q.choice.kind) {
			err = q.refuse("must be auto, any, tool or none")
		}
	case "name":
		if q.choice.name, err = q.optionalValue(); err == nil && q.choice.name != nil && q.choice.name.Kind() != '"' {
			err = q.refuse("must be a string")
		}
	case "disable_parallel_tool_use":
		q.choice.serial, err = q.boolean()
	default:
		err = q.dec.SkipValue()
	}
	return err
}

// messagesThinking are the words of this dialect's thinking.type.
var messagesThinking = []string{"enabled", "disabled", "adaptive", "between_tools", "auto"}

// think reads one member of the thinking control.
func (q *messagesRequest) think(name []byte) (err error) {
	switch string(name) {
	case "type":
		if q.thinking.kind, err = q.requiredString(); err == nil && !slices.Contains(messagesThinking, q.thinking.kind) {
			err = q.refuse("must be one of %s", strings.Join(messagesThinking, ", "))
		}
	case "budget_tokens":
		q.thinking.budget, err = q.optionalInteger(1)
	case "display":
		var display jsontext.Value
		display, err = q.optionalValue()
		q.thinking.hidden = string(display) == `"omitted"`
	default:
		err = q.dec.SkipValue()
	}
	return err
}

// readEffort reads output_config.effort.
func (q *messagesRequest) readEffort() (err error) {
	if q.chat.Effort, err = q.optionalValue(); err != nil || q.chat.Effort == nil {
		return err
	}
	if q.chat.Effort.Kind() != '"' || !slices.Contains(efforts, string(unquote(q.chat.Effort))) {
		return q.refuse("must be one of %s", strings.Join(efforts, ", "))
	}
	return nil
}

// format reads one member of output_config.format.
func (q *messagesRequest) format(name []byte) (err error) {
	if string(name) != "schema" {
		return q.dec.SkipValue()
	}
	if q.schema, err = q.optionalValue(); err == nil && q.schema != nil && q.schema.Kind() != '{' {
		err = q.refuse("must be an object")
	}
	return err
}
