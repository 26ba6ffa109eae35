package dialect

import (
	"encoding/json/jsontext"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

type messagesRequest struct {
	request
	thinking struct{ kind, budget, display jsontext.Value }
	schema   jsontext.Value // of output_config.format
	// vendorNames are the names of the vendor's tools, one for each of vendorTools.
	vendorNames []jsontext.Value
	mcp         bool // mcp_servers lists servers whose tools the vendor calls
}

// MessagesToChat decodes the body of a call in the messages dialect, as strictly as
// ReadHead, and translates it to the body of a chat call for engines that support only
// that. docs/dialects.md lists the translation of each member. Every error is a
// *fault.Fault.
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
	if q.mcp && len(q.tools) == 0 && q.choice.kind != "none" {
		return Head{}, nil, vendorToolFault("mcp_servers", `"mcp"`)
	}
	chat, err := writeChat(&q.request, len(body))
	if err != nil {
		return Head{}, nil, err
	}
	return q.Head, chat, nil
}

// readMessages decodes a body of the messages dialect, as strictly as ReadHead does for
// the chat dialect. Every error is a *fault.Fault.
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

// conclude translates the thinking controls and the format of the answer to the chat
// dialect, which every machine's adapters support.
func (q *messagesRequest) conclude() {
	for i, name := range q.vendorNames {
		if q.choice.kind == "tool" && string(name) == string(q.choice.name) {
			q.choice.vendorType = q.vendorTools[i]
		}
	}
	switch text(q.thinking.kind) {
	case "disabled":
		q.noThinking = true
	case "enabled":
		q.chat.Thinking = chatThinking{"enabled", q.thinking.budget}
	}
	if string(q.thinking.display) == `"omitted"` {
		q.chat.Reasoning = jsontext.Value(`{"exclude":true}`)
	}
	if q.schema != nil {
		q.chat.Format = &chatFormat{"json_schema", &chatSchema{Name: jsontext.Value(`"answer"`), Strict: jsontext.Value("true"), Schema: q.schema}}
	}
}

// Values of this dialect.
var (
	messageRole    = oneOf("must be user, assistant or system", "user", "assistant", "system")
	toolChoiceType = oneOf("must be auto, any, tool or none", "auto", "any", "tool", "none")
	thinkingType   = oneOf("must be one of enabled, disabled, adaptive, between_tools, auto", "enabled", "disabled", "adaptive", "between_tools", "auto")
)

// effortWord allows null and the values of reasoning_effort.
func effortWord(value jsontext.Value) string {
	if value != nil && (value.Kind() != '"' || !slices.Contains(efforts, text(value))) {
		return "must be one of " + strings.Join(efforts, ", ")
	}
	return ""
}

// member reads one member of the body; it skips members that are not supported.
func (q *messagesRequest) member(name []byte) (err error) {
	switch string(name) {
	case "system":
		q.system, err = q.content()
		for i := range q.system {
			if q.system[i].kind != textBlock && err == nil {
				err = q.refuse("the system prompt is a string or a list of text blocks")
			}
		}
		return err
	case "messages":
		begin := q.dec.InputOffset()
		err := q.list(q.turn)
		q.Text = int(q.dec.InputOffset() - begin)
		return err
	case "tools":
		return q.list(q.tool)
	case "mcp_servers":
		if q.dec.PeekKind() != '[' {
			return skip(q.dec)
		}
		return q.list(func() error { q.mcp = true; return skip(q.dec) })
	case "tool_choice":
		var kind, serial jsontext.Value
		err := q.fields(field{"type", toolChoiceType, &kind}, field{"name", aString, &q.choice.name}, field{"disable_parallel_tool_use", aBoolean, &serial})
		q.choice.kind, q.choice.serial = text(kind), serial.Kind() == 't'
		return err
	case "thinking":
		t := &q.thinking
		return q.fields(field{"type", thinkingType, &t.kind}, field{"budget_tokens", aCount, &t.budget}, field{"display", anything, &t.display})
	case "output_config":
		return q.object(func(name []byte) error {
			if string(name) == "format" {
				return q.format()
			}
			return q.field(name, []field{{"effort", effortWord, &q.chat.Effort}})
		})
	case "output_format": // the former name of output_config
		return q.format()
	}
	return q.field(name, []field{
		{"max_tokens", aCount, &q.chat.MaxTokens},
		{"temperature", anything, &q.chat.Temperature},
		{"top_p", anything, &q.chat.TopP},
		{"top_k", anything, &q.chat.TopK},
		{"stop_sequences", anything, &q.chat.Stop},
	})
}

func (q *messagesRequest) format() error { return q.fields(field{"schema", anObject, &q.schema}) }

func (q *messagesRequest) turn() error {
	var t turn
	var role jsontext.Value
	hasContent := false
	err := q.object(func(name []byte) (err error) {
		if string(name) == "content" {
			kind := q.dec.PeekKind()
			hasContent = kind == '"' || kind == '['
			t.blocks, err = q.content()
			return err
		}
		return q.field(name, []field{{"role", messageRole, &role}})
	})
	switch t.role = text(role); {
	case err != nil:
		return err
	case role == nil || !hasContent:
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

// content reads a string or a list of content blocks. It skips anything else, which tools
// of the vendor may send.
func (q *messagesRequest) content() ([]block, error) {
	switch q.dec.PeekKind() {
	case '"', '[', 'n':
		return q.blocks(q.block)
	case '{': // the result of a tool as JSON
		value, err := q.value()
		return []block{{kind: textBlock, text: quote(string(value))}}, err
	}
	return nil, q.refuseNext("must be a string or a list of content blocks")
}

func (q *messagesRequest) block() (b block, err error) {
	var kind, failed jsontext.Value
	source := []field{
		{"type", anything, &b.source.kind}, {"media_type", anything, &b.source.media}, {"data", anything, &b.source.data}, {"url", anything, &b.source.url},
	}
	err = q.object(func(name []byte) (err error) {
		switch string(name) {
		case "content":
			b.content, err = q.content()
			return err
		case "source":
			if q.dec.PeekKind() == '"' { // of a search result
				return q.field(name, []field{{"source", nil, &b.source.url}})
			}
			return q.object(func(name []byte) (err error) {
				if string(name) != "content" {
					return q.field(name, source)
				}
				b.content, err = q.content()
				return err
			})
		}
		return q.field(name, []field{
			{"type", requiredString, &kind},
			{"text", anything, &b.text}, {"thinking", anything, &b.text},
			{"title", anything, &b.title},
			{"id", anything, &b.id}, {"tool_use_id", anything, &b.id},
			{"name", anything, &b.name},
			{"input", anything, &b.input},
			{"is_error", aBoolean, &failed},
		})
	})
	if err != nil {
		return b, err
	}
	b.failed = failed.Kind() == 't'
	if b.typeName = text(kind); kind != nil {
		b.kind = kindOf(b.typeName)
	}
	return b, q.checkBlock(&b)
}

func kindOf(word string) blockKind {
	if kind, known := blockKinds[word]; known || !strings.HasSuffix(word, "_tool_result") {
		return kind
	}
	return vendorBlock
}

// blockKinds maps the types of content blocks to kinds, except the results of vendors'
// tools.
var blockKinds = map[string]blockKind{
	"text": textBlock, "image": imageBlock, "document": documentBlock, "search_result": searchBlock,
	"tool_use": toolUseBlock, "tool_result": toolResultBlock, "thinking": thinkingBlock,
	"redacted_thinking": vendorBlock, "server_tool_use": vendorBlock, "mcp_tool_use": vendorBlock,
	"container_upload": vendorBlock, "compaction": vendorBlock, "tool_reference": vendorBlock,
}

// checkBlock refuses a block that lacks what its type requires. Only the text of a
// document is used: engines cannot read the files.
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

// tool reads one tool. Tools that run on the vendor's servers or are built into its
// models have another type and no schema; models here do not know them.
func (q *messagesRequest) tool() error {
	var t tool
	var kind jsontext.Value
	members := []field{{"type", aString, &kind}, {"name", anything, &t.name}, {"description", anything, &t.description}, {"input_schema", anything, &t.schema}, {"strict", anything, &t.strict}}
	err := q.object(func(name []byte) error {
		if string(name) == "function" { // a tool as in the chat dialect
			return q.fields(append(members[1:], field{"parameters", anything, &t.schema})...)
		}
		return q.field(name, members)
	})
	switch {
	case err != nil:
		return err
	case kind != nil && text(kind) != "custom" && (text(kind) != "function" || t.name == nil):
		q.vendorTools = append(q.vendorTools, strconv.Quote(text(kind)))
		q.vendorNames = append(q.vendorNames, t.name)
		return nil
	case t.name.Kind() != '"':
		return q.refuse("a tool has a name, which is a string")
	}
	q.tools = append(q.tools, t)
	return nil
}
