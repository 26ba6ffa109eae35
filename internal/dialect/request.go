package dialect

import (
	"bytes"
	"encoding/json/jsontext"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// maxBlocks is the most messages, content blocks and tools of one body together. It is
// necessary because the shortest of them take more space in memory than in the body.
const maxBlocks = 3 * MaxMessages

// request is a decoded body of the messages or responses dialect. Its values alias the
// body: nothing is copied or unescaped. A nil value was absent or null. writeChat
// translates a request.
type request struct {
	headReader
	body    []byte
	counted int // number of elements, for maxBlocks

	chat         chatRequest // the members that need no translation
	alternatives int         // how many alternatives are wanted with the logprobs of each token
	noThinking   bool        // thinking is disabled, regardless of the controls
	system       []block
	turns        []turn
	tools        []tool
	vendorTools  []string // types of tools that only their vendor runs
	choice       toolChoice
	turnsMember  string // the name of the member with the turns
}

type turn struct {
	role   string // user, assistant or system
	blocks []block
}

// tool is a tool that the caller runs itself.
type tool struct {
	name, description, schema, strict jsontext.Value
	// The caller's name of the tool, if it differs from the name for machines, and the
	// caller's namespace.
	callerName, namespace jsontext.Value
	// custom is set if this function represents a tool of the type custom, with this
	// format. callerDescription is its original description, if that was extended.
	custom                    bool
	format, callerDescription jsontext.Value
}

// toolChoice is the tool_choice; kind is empty if there was none.
type toolChoice struct {
	kind       string
	name       jsontext.Value
	serial     bool   // disable_parallel_tool_use
	vendorType string // type of the chosen tool, if only the vendor runs it
}

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
	// vendorBlock is a block that only its vendor's servers understand: encrypted
	// thinking, or the calls and results of tools that ran there.
	vendorBlock
)

type block struct {
	kind     blockKind
	typeName string         // its type, if kind is otherBlock
	text     jsontext.Value // of text and thinking blocks, and of a document
	title    jsontext.Value
	id       jsontext.Value // of a tool call, or the call that a result answers
	name     jsontext.Value
	input    jsontext.Value
	source   source
	content  []block // of a tool's result, a search result, a document
	failed   bool    // is_error
}

// source is the location of the content of an image or document.
type source struct{ kind, media, data, url, detail jsontext.Value }

// runnable refuses a request that needs tools that only their vendor can run: search,
// code, tool servers. If the model can do without them they are ignored, because agents
// list them in every request.
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

func (q *request) value() (jsontext.Value, error) { return valueIn(q.body, q.dec) }

// A rule checks the value of a member; the value is nil for null. It returns "" if the
// value is valid, else the rest of a sentence: what the value must be.
type rule func(value jsontext.Value) string

func anything(jsontext.Value) string { return "" }

// requiredString allows strings, but not null.
func requiredString(value jsontext.Value) string {
	if value.Kind() != '"' {
		return "must be a string"
	}
	return ""
}

// oneOf allows these strings; must describes them.
func oneOf(must string, words ...string) rule {
	return func(value jsontext.Value) string {
		if wrong := requiredString(value); wrong != "" {
			return wrong
		}
		if !slices.Contains(words, text(value)) {
			return must
		}
		return ""
	}
}

// optional allows null and what r allows.
func optional(r rule) rule {
	return func(value jsontext.Value) string {
		if value == nil {
			return ""
		}
		return r(value)
	}
}

// kinds allows null and values of these kinds.
func kinds(allowed, must string) rule {
	return optional(func(value jsontext.Value) string {
		if strings.IndexByte(allowed, byte(value.Kind())) < 0 {
			return must
		}
		return ""
	})
}

// integer allows null and integers of at least least.
func integer(least int64) rule {
	return optional(func(value jsontext.Value) string {
		if n, err := strconv.ParseInt(string(value), 10, 64); err != nil || n < least { // Integral has removed any fraction
			return fmt.Sprintf("must be a whole number of at least %d", least)
		}
		return ""
	})
}

var (
	aString   = optional(requiredString)
	aBoolean  = kinds("tf", "must be true or false")
	aNumber   = kinds("0", "must be a number")
	anObject  = kinds("{", "must be an object")
	aCount    = integer(1)
	anInteger = integer(0)
)

// field is a member of an object: its name, the rule for its value, and the destination
// of the value, nil for null. Without a rule, values other than strings are ignored.
type field struct {
	name string
	rule rule
	into *jsontext.Value
}

// field reads the value of a member into the field of that name, or skips it if there is
// none.
func (q *request) field(name []byte, fields []field) error {
	for _, f := range fields {
		if f.name != string(name) {
			continue
		}
		value, err := q.value()
		if err != nil || f.rule == nil && value.Kind() != '"' {
			return err
		}
		switch value.Kind() {
		case 'n':
			value = nil
		case '0':
			value = Integral(value)
		}
		if f.rule != nil {
			if wrong := f.rule(value); wrong != "" {
				return q.refuse("%s", wrong)
			}
		}
		*f.into = value
		return nil
	}
	return skip(q.dec)
}

// fields reads the next value, an object, into these fields. null is an empty object.
func (q *request) fields(fields ...field) error {
	return q.object(func(name []byte) error { return q.field(name, fields) })
}

// blocks reads a string, which becomes a text block, or a list of blocks with one.
func (q *request) blocks(one func() (block, error)) (blocks []block, err error) {
	if q.dec.PeekKind() == '"' {
		text, err := q.value()
		return []block{{kind: textBlock, text: text}}, err
	}
	err = q.list(func() error {
		b, err := one()
		blocks = append(blocks, b)
		return err
	})
	return blocks, err
}

// object reads the next value, an object, and calls member for each member. null is an
// empty object.
func (q *request) object(member func(name []byte) error) error {
	switch q.dec.PeekKind() {
	case '{':
		return Members(q.dec, member)
	case 'n':
		return skip(q.dec)
	}
	return q.refuseNext("must be an object")
}

// list reads the next value, a list, and calls one for each element. null is an empty
// list.
func (q *request) list(one func() error) error {
	switch q.dec.PeekKind() {
	case '[':
		return Elements(q.dec, func() error {
			if q.counted++; q.counted > maxBlocks {
				return q.refuse("more than %d messages, content blocks and tools are not taken in one request", maxBlocks)
			}
			return one()
		})
	case 'n':
		return skip(q.dec)
	}
	return q.refuseNext("must be a list")
}

// Integral returns an integral number without fraction and exponent: 4096.0 becomes 4096.
// It returns other values unchanged.
func Integral(number jsontext.Value) jsontext.Value {
	if bytes.ContainsAny(number, ".eE") && number.Kind() == '0' {
		if x, err := strconv.ParseFloat(string(number), 64); err == nil && x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return strconv.AppendInt(nil, int64(x), 10)
		}
	}
	return number
}

// refuseNext skips the next value and returns the fault for it.
func (q *request) refuseNext(rule string) error {
	if err := skip(q.dec); err != nil {
		return err
	}
	return q.refuse("%s", rule)
}

// refuse returns the fault for the value that was read last.
func (q *request) refuse(format string, args ...any) error {
	where := strings.ReplaceAll(strings.TrimPrefix(string(q.dec.StackPointer()), "/"), "/", ".")
	return fault.New(fault.InvalidRequest, "%s: "+format, append([]any{where}, args...)...).WithParam(where)
}
