package dialect

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// writeChat is what was asked as the body of a chat call: the pivot for engines
// that speak only that. size is about how long it becomes. Pictures that are
// addresses stay addresses: whether one may be fetched is for the machine to say
// (decisions 5). Every error is a *fault.Fault.
func writeChat(q *asked, size int) ([]byte, error) {
	c := chatBody{dst: make([]byte, 0, size+size/8+512)}
	if err := c.write(q); err != nil {
		return nil, err
	}
	for _, limit := range [...]struct {
		what       string
		there, top int
	}{{"messages", c.messages, MostMessages}, {"pictures", c.pictures, MostPictures}} {
		if limit.there > limit.top {
			return nil, fault.New(fault.InvalidRequest, "the %s holds %d %s and no more than %d are taken in one call; send fewer", q.talk, limit.there, limit.what, limit.top).WithParam(q.talk)
		}
	}
	return c.dst, nil
}

// chatBody is the body of a chat call while it is written. Text is never
// unescaped: the strings of the one body are put together from those of the
// other.
type chatBody struct {
	dst                []byte
	messages, pictures int      // in it
	origins            *origins // nil: they are not recorded
}

func (c *chatBody) raw(text string) { c.dst = append(c.dst, text...) }

// piece writes a piece of the caller's body.
func (c *chatBody) piece(value []byte) {
	c.comes(value)
	c.dst = append(c.dst, value...)
}

// comes says that what is written next is made of a piece of the caller's body.
func (c *chatBody) comes(value []byte) {
	if c.origins != nil {
		c.origins.note(len(c.dst), value)
	}
}

// comma separates what comes from what stands before it in a list.
func (c *chatBody) comma() {
	if c.dst[len(c.dst)-1] != '[' {
		c.raw(",")
	}
}

// put writes a value between two texts, and returns all that was written.
func (c *chatBody) put(before string, value jsontext.Value, after string) jsontext.Value {
	c.raw(before)
	c.piece(value)
	c.raw(after)
	return c.dst
}

// member writes a member if there is a value; name ends in a colon.
func (c *chatBody) member(name string, value jsontext.Value) {
	if value != nil {
		c.raw(name)
		c.piece(value)
	}
}

func (c *chatBody) write(q *asked) error {
	c.raw(`{"model":`)
	c.dst = appendString(c.dst, string(q.Model))
	if q.Stream {
		c.raw(`,"stream":true,"stream_options":{"include_usage":true}`)
	}
	c.member(`,"max_tokens":`, q.maxTokens)
	c.member(`,"temperature":`, q.temperature)
	c.member(`,"top_p":`, q.topP)
	c.member(`,"top_k":`, q.topK)
	c.member(`,"presence_penalty":`, q.presence)
	c.member(`,"frequency_penalty":`, q.frequency)
	c.member(`,"stop":`, q.stops)
	if q.logprobs {
		c.raw(`,"logprobs":true`)
		if q.alternatives > 0 { // some engines take 0 for none at all
			c.raw(`,"top_logprobs":` + strconv.Itoa(q.alternatives))
		}
	}
	c.tools(q)
	c.member(`,"response_format":`, q.answerFormat)
	c.raw(`,"messages":[`)
	lead := 0
	for lead < len(q.turns) && q.turns[lead].role == "system" {
		lead++
	}
	c.system(q, q.turns[:lead])
	said := len(c.dst)
	prefilled := c.talk(q.turns[lead:])
	if len(c.dst) == said {
		return fault.New(fault.InvalidRequest, "the %s holds nothing to answer: send something of the user's", q.talk).WithParam(q.talk)
	}
	c.raw(`]`)
	c.thinking(q, prefilled)
	c.raw(`}`)
	return nil
}

// thinking says the thinking controls. An answer whose beginning is given cannot
// be thought about first: some engines refuse to try.
func (c *chatBody) thinking(q *asked, prefilled bool) {
	if prefilled || q.thoughtless {
		c.raw(`,"thinking":{"type":"disabled"},"reasoning":{"exclude":true}`)
		return
	}
	for _, control := range q.controls {
		c.raw(`,"` + control.name + `":`)
		c.piece(control.value)
	}
}

// tools writes the tools, and the choice of them if there are any.
func (c *chatBody) tools(q *asked) {
	if len(q.tools) == 0 {
		return
	}
	c.raw(`,"tools":[`)
	for _, t := range q.tools {
		c.comma()
		c.tool(t)
	}
	c.raw(`]`)
	switch q.choice.kind {
	case "auto", "none":
		c.raw(`,"tool_choice":"` + q.choice.kind + `"`)
	case "any":
		c.raw(`,"tool_choice":"required"`)
	case "tool":
		if q.choice.name == nil {
			c.raw(`,"tool_choice":"required"`)
			break
		}
		c.member(`,"tool_choice":{"type":"function","function":{"name":`, q.choice.name)
		c.raw(`}}`)
	}
	if q.choice.serial {
		c.raw(`,"parallel_tool_calls":false`)
	}
}

// tool writes one tool.
func (c *chatBody) tool(t tool) {
	c.member(`{"type":"function","function":{"name":`, t.name)
	c.member(`,"description":`, t.description)
	c.member(`,"parameters":`, t.schema)
	c.member(`,"strict":`, t.strict)
	c.raw(`}}`)
}

// attribution begins the system block that a coding agent writes anew for each
// prompt. Before a prompt that stays the same it would spoil every cache.
var attribution = []byte(`"x-anthropic-billing-header:`)

// system writes the system prompt, with what the first turns add to it, as one
// message: many templates take only one, and only at the beginning.
func (c *chatBody) system(q *asked, turns []turn) {
	mark := len(c.dst)
	c.messages++
	c.raw(`{"role":"system","content":"`)
	p := prose{chatBody: c}
	for i := range q.system {
		if b := &q.system[i]; !bytes.HasPrefix(b.text, attribution) {
			p.block(b)
		}
	}
	for _, t := range turns {
		for i := range t.blocks {
			p.block(&t.blocks[i])
		}
	}
	if !p.wrote {
		c.dst, c.messages = c.dst[:mark], c.messages-1
		return
	}
	c.raw(`"}`)
}

// talk writes the turns, those of one side after another as one message, and
// reports whether the last begins the answer.
func (c *chatBody) talk(turns []turn) (prefilled bool) {
	turns = slices.DeleteFunc(turns, turn.silent)
	for i := 0; i < len(turns); {
		from, assistant := i, turns[i].role == "assistant"
		for i < len(turns) && (turns[i].role == "assistant") == assistant {
			i++
		}
		if assistant {
			prefilled = c.assistant(turns[from:i]) && i == len(turns)
		} else {
			c.user(turns[from:i])
			prefilled = false
		}
	}
	return prefilled
}

// silent reports whether the turn says nothing to an engine here.
func (t turn) silent() bool {
	return !slices.ContainsFunc(t.blocks, func(b block) bool {
		return b.kind != vendorBlock && (b.kind != textBlock || len(b.text) > len(`""`))
	})
}

// assistant writes what the model said; it reports whether that was text alone.
func (c *chatBody) assistant(turns []turn) (text bool) {
	mark := len(c.dst)
	c.comma()
	c.messages++
	c.raw(`{"role":"assistant","content":"`)
	said := prose{chatBody: c}
	said.only(turns, textBlock)
	c.raw(`"`)
	before := len(c.dst)
	c.raw(`,"reasoning_content":"`)
	thought := prose{chatBody: c}
	if thought.only(turns, thinkingBlock); thought.wrote {
		c.raw(`"`)
	} else {
		c.dst = c.dst[:before]
	}
	called := false
	for _, t := range turns {
		for i := range t.blocks {
			if b := &t.blocks[i]; b.kind == toolUseBlock {
				c.call(b, !called)
				called = true
			}
		}
	}
	switch {
	case called:
		c.raw(`]`)
	case !said.wrote && !thought.wrote:
		c.dst, c.messages = c.dst[:mark], c.messages-1
		return false
	}
	c.raw(`}`)
	return !called
}

// call writes a tool call; its arguments are a string that holds JSON.
func (c *chatBody) call(b *block, first bool) {
	if first {
		c.raw(`,"tool_calls":[`)
	}
	c.comma()
	c.member(`{"id":`, b.id)
	c.member(`,"type":"function","function":{"name":`, b.name)
	c.raw(`,"arguments":`)
	switch {
	case len(b.input) <= len(`""`):
		c.raw(`"{}"`)
	case b.input.Kind() == '"':
		c.piece(b.input)
	default:
		c.comes(b.input)
		c.dst = appendString(c.dst, string(b.input))
	}
	c.raw(`}}`)
}

// user writes what the user's side said, with what the system said in between.
// The results of tools come first, each a message of its own: chat engines want
// them right behind the calls.
func (c *chatBody) user(turns []turn) {
	for _, t := range turns {
		for i := range t.blocks {
			if b := &t.blocks[i]; b.kind == toolResultBlock {
				c.result(b)
			}
		}
	}
	mark := len(c.dst)
	c.comma()
	c.messages++
	p := prose{chatBody: c, parts: pictured(turns)}
	if p.parts {
		c.raw(`{"role":"user","content":[`)
	} else {
		c.raw(`{"role":"user","content":"`)
	}
	p.resultPictures(turns)
	for _, t := range turns {
		system := t.role == "system"
		if system {
			p.text([]byte(`<system-reminder>`))
		}
		for i := range t.blocks {
			p.block(&t.blocks[i])
		}
		if system {
			p.text([]byte(`</system-reminder>`))
		}
	}
	switch p.close(); {
	case !p.wrote:
		c.dst, c.messages = c.dst[:mark], c.messages-1
	case p.parts:
		c.raw(`]}`)
	default:
		c.raw(`"}`)
	}
}

// result writes the result of a tool. Chat engines take it as text: its
// pictures follow in the user's own message.
func (c *chatBody) result(b *block) {
	c.comma()
	c.messages++
	c.member(`{"role":"tool","tool_call_id":`, b.id)
	c.raw(`,"content":"`)
	p := prose{chatBody: c}
	if b.failed {
		c.raw(`Error: `)
	}
	pictures := false
	for i := range b.content {
		p.block(&b.content[i])
		pictures = pictures || b.content[i].kind == imageBlock
	}
	switch {
	case pictures:
		p.text([]byte(`[its pictures follow]`))
	case b.failed && !p.wrote:
		p.text([]byte(`the tool gave no reason`))
	}
	c.raw(`"}`)
}

// pictured reports whether there is a picture to show in the turns.
func pictured(turns []turn) bool {
	for _, t := range turns {
		for i := range t.blocks {
			b := &t.blocks[i]
			if b.kind == imageBlock {
				return true
			}
			for j := range b.content {
				if b.content[j].kind == imageBlock {
					return true
				}
			}
		}
	}
	return false
}

// prose writes content: the inside of one string or, with parts, of a list in
// which pictures stand between the texts. Pieces of text that follow each other
// become paragraphs of one: some engines take each part for a message.
type prose struct {
	*chatBody
	parts bool
	open  bool // the text of a part is open
	wrote bool
}

// text adds the inside of a JSON string.
func (p *prose) text(inside []byte) {
	switch {
	case len(inside) == 0:
		return
	case p.parts && !p.open:
		p.comma()
		p.raw(`{"type":"text","text":"`)
		p.open = true
	case p.wrote:
		p.raw(`\n\n`)
	}
	p.piece(inside)
	p.wrote = true
}

// quoted adds a JSON string; what is none adds nothing.
func (p *prose) quoted(text jsontext.Value) {
	if text.Kind() == '"' {
		p.text(text[1 : len(text)-1])
	}
}

// close ends the text of a part.
func (p *prose) close() {
	if p.open {
		p.raw(`"}`)
		p.open = false
	}
}

// block adds what a block says to a reader; tools and thoughts are not said.
func (p *prose) block(b *block) {
	switch b.kind {
	case textBlock:
		p.quoted(b.text)
	case imageBlock:
		p.image(&b.source)
	case documentBlock, searchBlock:
		p.quoted(b.title)
		p.quoted(b.source.url)
		p.quoted(b.text)
		for i := range b.content {
			p.block(&b.content[i])
		}
	}
}

// image adds a picture where there is room for one.
func (p *prose) image(s *source) {
	if !p.parts {
		return
	}
	p.close()
	p.comma()
	p.pictures++
	p.raw(`{"type":"image_url","image_url":{"url":"`)
	if s.data != nil {
		p.raw(`data:`)
		p.piece(s.media[1 : len(s.media)-1])
		p.raw(`;base64,`)
		p.piece(s.data[1 : len(s.data)-1])
	} else {
		p.piece(s.url[1 : len(s.url)-1])
	}
	p.raw(`"`)
	switch string(s.detail) {
	case `"auto"`, `"low"`, `"high"`:
		p.member(`,"detail":`, s.detail)
	}
	p.raw(`}}`)
	p.wrote = true
}

// only adds the text of the blocks of one kind.
func (p *prose) only(turns []turn, kind blockKind) {
	for _, t := range turns {
		for i := range t.blocks {
			if b := &t.blocks[i]; b.kind == kind {
				p.quoted(b.text)
			}
		}
	}
}

// resultPictures adds the pictures of tools' results.
func (p *prose) resultPictures(turns []turn) {
	for _, t := range turns {
		for i := range t.blocks {
			b := &t.blocks[i]
			if b.kind != toolResultBlock {
				continue
			}
			for j := range b.content {
				if b.content[j].kind == imageBlock {
					p.image(&b.content[j].source)
				}
			}
		}
	}
}
