package dialect

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"slices"
	"strconv"

	"github.com/kith/kith/internal/fault"
)

type itemKind uint8

const (
	vendorItem itemKind = iota // only its vendor's servers understand it
	messageItem
	callItem
	customItem // a call of a custom tool
	resultItem // the result of a call
	reasoningItem
	referenceItem
)

var itemPrefixes = [...]string{vendorItem: "item_", messageItem: "msg_", callItem: "fc_", customItem: "ctc_", resultItem: "fco_", reasoningItem: "rs_", referenceItem: "ref_"}

// inputItem is one item of an input or a stored turn.
type inputItem struct {
	raw  jsontext.Value // as received
	kind itemKind
	id   string // may be empty

	role                              string
	callID, name, namespace, argument jsontext.Value
	content, summary                  []block
	text                              bool           // the content is a string
	output                            jsontext.Value // the content as received
}

func (q *ResponsesRequest) input() (err error) {
	switch q.dec.PeekKind() {
	case '"':
		text, err := q.value()
		q.inputs = []inputItem{{raw: text, kind: messageItem, role: "user", text: true, content: []block{{kind: textBlock, text: text}}}}
		return err
	case '[', 'n':
		q.inputs, err = q.items()
		return err
	}
	return q.refuseNext("must be a text or a list of items")
}

func (q *ResponsesRequest) items() (items []inputItem, err error) {
	err = q.list(func() error {
		item, err := q.item()
		items = append(items, item)
		return err
	})
	return items, err
}

// item reads one item. It checks only what the item's type needs, because items of
// vendors have other members with the same names.
func (q *ResponsesRequest) item() (item inputItem, err error) {
	var kind, role, id jsontext.Value
	start := q.dec.InputOffset()
	err = q.object(func(name []byte) (err error) {
		switch string(name) {
		case "content", "output":
			item.text = q.dec.PeekKind() == '"'
			begin := q.dec.InputOffset()
			item.content, err = q.parts()
			item.output = bytes.TrimLeft(q.body[begin:q.dec.InputOffset()], space+":")
			return err
		case "summary":
			item.summary, err = q.parts()
			return err
		}
		return q.field(name, []field{
			{"type", aString, &kind},
			{"role", aString, &role},
			{"id", aString, &id},
			{"call_id", anything, &item.callID},
			{"name", anything, &item.name},
			{"namespace", anything, &item.namespace},
			{"arguments", anything, &item.argument}, {"input", anything, &item.argument},
		})
	})
	if err != nil {
		return item, err
	}
	item.role, item.id = text(role), text(id)
	item.raw = bytes.TrimLeft(q.body[start:q.dec.InputOffset()], space+",[:")
	return item, q.checkItem(&item, text(kind))
}

// checkItem sets the kind of an item and refuses an item that lacks what its kind needs.
func (q *ResponsesRequest) checkItem(item *inputItem, word string) error {
	switch {
	case word == "message", word == "" && item.role != "":
		item.kind = messageItem
		return q.checkMessage(item)
	case word == "function_call":
		item.kind = callItem
		if item.callID.Kind() != '"' || item.name.Kind() != '"' || item.argument != nil && item.argument.Kind() != '"' {
			return q.refuse("a function_call has a call_id, a name and arguments, which are strings")
		}
	case word == "custom_tool_call":
		item.kind = customItem
		if item.callID.Kind() != '"' || item.name.Kind() != '"' || item.argument.Kind() != '"' {
			return q.refuse("a custom_tool_call has a call_id, a name and an input, which are strings")
		}
	case word == "function_call_output", word == "custom_tool_call_output":
		item.kind = resultItem
		if item.callID.Kind() != '"' {
			return q.refuse("a %s names the call that it answers in call_id", word)
		}
	case word == "reasoning":
		item.kind = reasoningItem
	case word == "item_reference", word == "" && item.id != "":
		item.kind = referenceItem
		if item.id == "" {
			return q.refuse("an item_reference has the id of an item")
		}
	case word == "":
		return q.refuse("an item has a type, or a role and a content")
	}
	return nil
}

// checkMessage refuses a message if a model here could not get every part of it.
func (q *ResponsesRequest) checkMessage(item *inputItem) error {
	switch item.role {
	case "developer":
		item.role = "system"
	case "user", "assistant", "system":
	default:
		return q.refuse("the role must be user, assistant, system or developer")
	}
	for i := range item.content {
		b := &item.content[i]
		switch {
		case b.kind == otherBlock:
			return q.refuse("content of the type %q is not taken here; send input_text or input_image", b.typeName)
		case b.kind == imageBlock && b.source.url == nil:
			return q.refuse("a picture is sent as image_url: files are not kept here")
		case b.kind == textBlock && b.text == nil:
			return q.refuse("content of the type %s has its text as a string", b.typeName)
		}
	}
	return nil
}

// parts reads content: a string or a list of parts. It skips other values, which items of
// vendors may have.
func (q *ResponsesRequest) parts() ([]block, error) {
	switch q.dec.PeekKind() {
	case '"', '[':
		return q.blocks(q.part)
	}
	return nil, skip(q.dec)
}

func (q *ResponsesRequest) part() (b block, err error) {
	if q.dec.PeekKind() != '{' {
		return b, skip(q.dec)
	}
	var kind jsontext.Value
	err = q.object(func(name []byte) error {
		if string(name) == "image_url" && q.dec.PeekKind() == '{' { // as in the chat dialect
			return q.fields(field{"url", nil, &b.source.url}, field{"detail", nil, &b.source.detail})
		}
		return q.field(name, []field{
			{"type", nil, &kind},
			{"text", nil, &b.text}, {"refusal", nil, &b.text},
			{"detail", nil, &b.source.detail},
			{"image_url", nil, &b.source.url},
		})
	})
	switch b.typeName = text(kind); b.typeName {
	case "input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal":
		b.kind = textBlock
	case "input_image", "image_url":
		b.kind = imageBlock
	}
	return b, err
}

// turnOf returns the turn of the model's conversation for an item. Tools get the name
// that machines know.
func (q *ResponsesRequest) turnOf(item *inputItem) turn {
	switch item.kind {
	case messageItem:
		return turn{role: item.role, blocks: item.content}
	case callItem, customItem:
		input := item.argument
		if item.kind == customItem {
			input = customArguments(input)
		}
		return turn{role: "assistant", blocks: []block{{
			kind: toolUseBlock, id: item.callID, name: q.toolNamed(item.name, item.namespace), input: input,
		}}}
	case resultItem:
		shown := item.content[:0:0]
		for _, b := range item.content {
			if b.kind == textBlock && b.text != nil || b.kind == imageBlock && b.source.url != nil {
				shown = append(shown, b)
			}
		}
		if kind := item.output.Kind(); len(shown) == 0 && (kind == '{' || kind == '[' && len(item.output) > len(`[]`)) { // JSON instead of content
			shown = []block{{kind: textBlock, text: quote(string(item.output))}}
		}
		return turn{role: "user", blocks: []block{{kind: toolResultBlock, id: item.callID, content: shown}}}
	case reasoningItem:
		thoughts := item.content
		if len(thoughts) == 0 {
			thoughts = item.summary
		}
		blocks := make([]block, 0, len(thoughts))
		for _, b := range thoughts {
			if b.kind == textBlock && b.text != nil {
				blocks = append(blocks, block{kind: thinkingBlock, text: b.text})
			}
		}
		return turn{role: "assistant", blocks: blocks}
	}
	return turn{role: "user"}
}

// maxTurns is the most stored turns that one request may need: its previous response and
// those of its references. A turn contains everything before it, so the latest is usually
// enough.
const maxTurns = 16

// Resolve loads what the request refers to: its previous response, and the items that it
// references instead of repeating them. load returns the stored turn of a response, or
// nil if this caller has none. Resolve returns the errors of load; all others are
// *fault.Fault.
func (q *ResponsesRequest) Resolve(load func(response string) ([]byte, error)) error {
	loads := 0
	turn := func(id, param string) ([]inputItem, error) {
		if loads++; id == "" || loads > maxTurns {
			return nil, notKept(param)
		}
		kept, err := load(id)
		if err == nil && kept == nil {
			err = notKept(param)
		}
		if err != nil {
			return nil, err
		}
		return q.readTurn(kept)
	}
	if q.previous != "" {
		var err error
		if q.context, err = turn(q.previous, "previous_response_id"); err != nil {
			return err
		}
	}
	var known map[string]inputItem
	for i := len(q.inputs) - 1; i >= 0; i-- { // the newest first: its turn may contain the others
		item := &q.inputs[i]
		if item.kind != referenceItem {
			continue
		}
		if known == nil {
			known = make(map[string]inputItem)
			for _, old := range q.context {
				known[old.id] = inputItem{} // the context already contains it
			}
		}
		found, ok := known[item.id]
		if !ok {
			param := "input." + strconv.Itoa(i) + ".id"
			items, err := turn(responseOf(item.id), param)
			if err != nil {
				return err
			}
			for _, one := range items {
				if _, there := known[one.id]; !there {
					known[one.id] = one
				}
			}
			if found, ok = known[item.id]; !ok {
				return notKept(param)
			}
		}
		*item = found
	}
	return nil
}

// notKept returns the fault for a response, or an item of one, that is not stored for
// this caller.
func notKept(param string) error {
	return fault.New(fault.PreviousResponseNotFound, "no such response is stored for you: it is unknown, has expired, was not stored or was deleted; send the complete input").WithParam(param)
}

// readTurn reads the items of a stored turn: its input, then its output.
func (q *ResponsesRequest) readTurn(kept []byte) ([]inputItem, error) {
	var items []inputItem
	r := ResponsesRequest{request: request{body: kept, counted: q.counted}}
	r.dec = jsontext.NewDecoder(bytes.NewBuffer(kept))
	var member func(name []byte) error
	member = func(name []byte) error {
		switch string(name) {
		case "input", "output":
			more, err := r.items()
			items = append(items, more...)
			return err
		case "response":
			return r.object(member)
		}
		return skip(r.dec)
	}
	err := r.object(member)
	q.counted = r.counted
	return items, err
}

// stored returns the items in the form of a stored turn: each with a type, an id, and a
// list as content. own is the shared part of the response's ids.
func (q *ResponsesRequest) stored(own string) (items []jsontext.Value) {
	for _, item := range q.context {
		items = append(items, item.raw)
	}
	for i := range q.inputs {
		if item := &q.inputs[i]; item.raw != nil {
			items = append(items, item.stored(own, i))
		}
	}
	return items
}

func (item *inputItem) stored(own string, number int) jsontext.Value {
	out := append([]byte(`{"id":`), quote(cmp.Or(item.id, itemPrefixes[item.kind]+own+"_i"+strconv.Itoa(number)))...)
	add := func(name string, value []byte) {
		out = append(append(append(append(out, ','), quote(name)...), ':'), value...)
	}
	raw := item.raw
	if raw.Kind() == '"' {
		raw = slices.Concat([]byte(`{"type":"message","role":"user","status":"completed","content":`), raw, []byte{'}'})
	}
	typed, stated := false, false
	dec := jsontext.NewDecoder(bytes.NewBuffer(raw))
	_ = Members(dec, func(name []byte) error { // it was read before
		key := string(name)
		value, err := dec.ReadValue()
		if key == "id" || value.Kind() == 'n' {
			return err
		}
		typed = typed || key == "type"
		stated = stated || key == "status"
		if item.kind == messageItem && key == "content" && value.Kind() == '"' {
			part := outputPart{Type: "input_text", Text: value} // the form that the text abbreviates
			if item.role == "assistant" {
				part.Type, part.Annotations = "output_text", []struct{}{}
			}
			value = encode([]outputPart{part})
		}
		add(key, value)
		return err
	})
	if !typed {
		add("type", []byte(`"message"`))
	}
	if !stated {
		add("status", []byte(`"completed"`))
	}
	return append(out, '}')
}

// KeptResponse returns the response object of a stored turn.
func KeptResponse(turn []byte) ([]byte, error) {
	var kept struct {
		Response jsontext.Value `json:"response"`
	}
	err := json.Unmarshal(turn, &kept)
	return kept.Response, err
}

// InputPage selects which input items of a stored turn to list.
type InputPage struct {
	After     string // the id of the item before the first one listed
	Limit     int
	Ascending bool
}

// InputItems returns a list of a stored turn's input items, newest first unless
// page.Ascending is set. The list is empty if the turn has no item After.
func InputItems(turn []byte, page InputPage) ([]byte, error) {
	var kept struct {
		Input []jsontext.Value `json:"input"`
	}
	if err := json.Unmarshal(turn, &kept); err != nil {
		return nil, err
	}
	items := kept.Input
	if !page.Ascending {
		slices.Reverse(items)
	}
	idOf := func(item jsontext.Value) string {
		var named struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(item, &named) // every item has an id
		return named.ID
	}
	if page.After != "" {
		at := slices.IndexFunc(items, func(item jsontext.Value) bool { return idOf(item) == page.After })
		if at < 0 {
			at = len(items) - 1
		}
		items = items[at+1:]
	}
	list := struct {
		Object string           `json:"object"`
		Data   []jsontext.Value `json:"data"`
		First  *string          `json:"first_id"`
		Last   *string          `json:"last_id"`
		More   bool             `json:"has_more"`
	}{Object: "list", Data: items[:min(page.Limit, len(items))], More: len(items) > page.Limit}
	if n := len(list.Data); n > 0 {
		list.First, list.Last = new(idOf(items[0])), new(idOf(items[n-1]))
	}
	return encode(list), nil
}
