package dialect

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fault"
)

// maxBlocks bounds the messages, content blocks and tools of one body all
// together: what is kept of each is larger than the shortest of them.
const maxBlocks = 3 * MaxMessages

// request is a body of the messages or responses dialect as it was read, in one pass. Its values are parts of the body:
// nothing is copied or unescaped. A value that is nil was absent or null. writeChat translates a request.
type request struct {
	headReader
	body    []byte
	counted int // towards maxBlocks

	chat         chatRequest // the members that need no translation
	alternatives int         // how many other tokens are wanted with the logprobs of each token
	noThinking   bool        // thinking is switched off, whatever the controls say
	system       []block
	turns        []turn
	tools        []tool
	vendorTools  []string // types of tools that only their vendor runs
	choice       toolChoice
	turnsMember  string // the name of the member that holds the turns
}

// turn is one message.
type turn struct {
	role   string // user, assistant or system
	blocks []block
}

// tool is a tool that the caller runs itself.
type tool struct {
	name, description, schema, strict jsontext.Value
	// Where its caller knows it by another name than machines do: that name, and
	// its namespace.
	callerName, namespace jsontext.Value
	// custom: it represents a tool of the type custom, with this format; where its
	// description was added to, described is what it was.
	custom                    bool
	format, callerDescription jsontext.Value
}

// toolChoice is the tool_choice; kind is empty where there was none.
type toolChoice struct {
	kind       string
	name       jsontext.Value
	serial     bool   // disable_parallel_tool_use
	vendorType string // the type of the vendor's tool that was chosen
}

// blockKind is what a content block is.
type blockKind uint8

const (
	otherBlock blockKind = iota // of an unknown type
	textBlock
	imageBlock
	documentBlock
	searchBlock
	toolUseBlock
	toolResultBlock
	thinkingBlock
	// vendorBlock is one whose meaning only its maker's servers know: sealed
	// thinking, the calls and results of tools that ran there.
	vendorBlock
)

// block is one content block.
type block struct {
	kind     blockKind
	typeName string         // its type, where that is otherBlock's
	text     jsontext.Value // of text and thinking blocks, and a document's own
	title    jsontext.Value
	id       jsontext.Value // of a tool's use, or the use that a result answers
	name     jsontext.Value
	input    jsontext.Value
	source   source
	content  []block // of a tool's result, a search result, a document
	failed   bool    // is_error
}

// source says where the content of an image or document is.
type source struct{ kind, media, data, url, detail jsontext.Value }

// runnable refuses a request that can only be answered with tools that run at
// their vendor's: search, code, servers of tools. They are passed over where the
// model can do without, because agents list them in every request.
func (q *request) runnable() error {
	switch {
	case len(q.vendorTools) == 0:
		return nil
	case q.choice.vendorType != "":
		return vendorToolFault("tool_choice", q.choice.vendorType)
	case len(q.tools) == 0 && q.choice.kind != "none":
		return vendorToolFault("tools", strings.Join(q.vendorTools, ", "))
	}
	return nil
}

func vendorToolFault(param, types string) error {
	return fault.New(fault.InvalidRequest, "%s: no machine here can run %s, which is its vendor's own; send tools of the type function or custom, and run them yourself", param, types).WithParam(param)
}

// value is the next value.
func (q *request) value() (jsontext.Value, error) {
	value, err := q.dec.ReadValue()
	if err != nil {
		return nil, err
	}
	end := q.dec.InputOffset()
	return q.body[end-int64(len(value)) : end], nil
}

// optionalValue is the next value, nil for null.
func (q *request) optionalValue() (jsontext.Value, error) {
	value, err := q.value()
	if err != nil || value.Kind() == 'n' {
		return nil, err
	}
	return value, nil
}

// requiredString is the text of the next value, which must be a string.
func (q *request) requiredString() (string, error) {
	value, err := q.value()
	if err != nil {
		return "", err
	}
	if value.Kind() != '"' {
		return "", q.refuse("must be a string")
	}
	return string(unquote(value)), nil
}

// boolean is the next value, which must be a boolean; null is false.
func (q *request) boolean() (bool, error) {
	value, err := q.optionalBoolean()
	return value.Kind() == 't', err
}

// optionalNumber is the next value, which must be a number; nil for null.
func (q *request) optionalNumber() (jsontext.Value, error) {
	value, err := q.optionalValue()
	if err == nil && value != nil && value.Kind() != '0' {
		return nil, q.refuse("must be a number")
	}
	return value, err
}

// optionalString is the next value, which must be a string; nil for null.
func (q *request) optionalString() (jsontext.Value, error) {
	value, err := q.optionalValue()
	if err == nil && value != nil && value.Kind() != '"' {
		return nil, q.refuse("must be a string")
	}
	return value, err
}

// optionalBoolean is the next value, which must be a boolean; nil for null.
func (q *request) optionalBoolean() (jsontext.Value, error) {
	value, err := q.optionalValue()
	if err == nil && value != nil && value.Kind() != 't' && value.Kind() != 'f' {
		return nil, q.refuse("must be true or false")
	}
	return value, err
}

// optionalInteger is the next value, an integer of at least that; nil for null.
func (q *request) optionalInteger(least int64) (jsontext.Value, error) {
	value, err := q.optionalValue()
	if err != nil || value == nil {
		return nil, err
	}
	if n, err := strconv.ParseInt(string(value), 10, 64); err != nil || n < least {
		return nil, q.refuse("must be a whole number of at least %d", least)
	}
	return value, nil
}

// object reads the object that comes next; null is an empty one.
func (q *request) object(member func(name []byte) error) error {
	if q.dec.PeekKind() == '{' {
		return members(q.dec, member)
	}
	if value, err := q.optionalValue(); err != nil || value == nil {
		return err
	}
	return q.refuse("must be an object")
}

// list reads the list that comes next, each of its elements by one; null is an
// empty one.
func (q *request) list(one func() error) error {
	if q.dec.PeekKind() != '[' {
		if value, err := q.optionalValue(); err != nil || value == nil {
			return err
		}
		return q.refuse("must be a list")
	}
	if _, err := q.dec.ReadToken(); err != nil {
		return err
	}
	for q.dec.PeekKind() != ']' {
		if q.counted++; q.counted > maxBlocks {
			return q.refuse("more than %d messages, content blocks and tools are not taken in one request", maxBlocks)
		}
		if err := one(); err != nil {
			return err
		}
	}
	_, err := q.dec.ReadToken()
	return err
}

// refuse is the fault of the value that was read last.
func (q *request) refuse(format string, args ...any) error {
	where := strings.ReplaceAll(strings.TrimPrefix(string(q.dec.StackPointer()), "/"), "/", ".")
	return fault.New(fault.InvalidRequest, "%s: "+format, append([]any{where}, args...)...).WithParam(where)
}
