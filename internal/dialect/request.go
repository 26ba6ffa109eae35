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

func (q *request) value() (jsontext.Value, error) { return valueIn(q.body, q.dec) }

// A rule checks the value of a member, which is nil for null. It returns what the value must be, as the end of a
// sentence, or "" if it fits.
type rule func(value jsontext.Value) string

func anything(jsontext.Value) string { return "" }

// requiredString allows strings, and not null.
func requiredString(value jsontext.Value) string {
	if value.Kind() != '"' {
		return "must be a string"
	}
	return ""
}

// oneOf allows these strings.
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

// kinds allows null and these kinds of values.
func kinds(allowed, must string) rule {
	return optional(func(value jsontext.Value) string {
		if strings.IndexByte(allowed, byte(value.Kind())) < 0 {
			return must
		}
		return ""
	})
}

// integer allows null and integers of at least that.
func integer(least int64) rule {
	return optional(func(value jsontext.Value) string {
		if n, err := strconv.ParseInt(string(value), 10, 64); err != nil || n < least { // Integral wrote it without a fraction
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

// field is a member of an object: its name, the rule for its value, and where the value is kept, nil for null.
type field struct {
	name string
	rule rule
	into *jsontext.Value
}

// field reads the value of the member of that name; it skips a member that is not among the fields.
func (q *request) field(name []byte, fields []field) error {
	for _, f := range fields {
		if f.name != string(name) {
			continue
		}
		value, err := q.value()
		if err != nil {
			return err
		}
		switch value.Kind() {
		case 'n':
			value = nil
		case '0':
			value = Integral(value)
		}
		if wrong := f.rule(value); wrong != "" {
			return q.refuse("%s", wrong)
		}
		*f.into = value
		return nil
	}
	return skip(q.dec)
}

// fields reads the object that comes next, of which these members are kept; null is an empty one.
func (q *request) fields(fields ...field) error {
	return q.object(func(name []byte) error { return q.field(name, fields) })
}

// stringInto keeps the next value if it is a string.
func (q *request) stringInto(into *jsontext.Value) error {
	value, err := q.value()
	if value.Kind() == '"' {
		*into = value
	}
	return err
}

// object reads the object that comes next; null is an empty one.
func (q *request) object(member func(name []byte) error) error {
	switch q.dec.PeekKind() {
	case '{':
		return Members(q.dec, member)
	case 'n':
		return skip(q.dec)
	}
	return q.refuseNext("must be an object")
}

// list reads the list that comes next, each of its elements by one; null is an empty one.
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

// Integral returns a number that is whole, however it is written, without a fraction and an exponent: 4096.0 is 4096.
// Other values stay as they are.
func Integral(number jsontext.Value) jsontext.Value {
	if bytes.ContainsAny(number, ".eE") && number.Kind() == '0' {
		if x, err := strconv.ParseFloat(string(number), 64); err == nil && x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return strconv.AppendInt(nil, int64(x), 10)
		}
	}
	return number
}

// refuseNext is the fault of the next value.
func (q *request) refuseNext(rule string) error {
	if err := skip(q.dec); err != nil {
		return err
	}
	return q.refuse("%s", rule)
}

// refuse is the fault of the value that was read last.
func (q *request) refuse(format string, args ...any) error {
	where := strings.ReplaceAll(strings.TrimPrefix(string(q.dec.StackPointer()), "/"), "/", ".")
	return fault.New(fault.InvalidRequest, "%s: "+format, append([]any{where}, args...)...).WithParam(where)
}
