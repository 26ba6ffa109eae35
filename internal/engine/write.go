package engine

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/kith/kith/internal/dialect"
)

// Canonical chat is written by appending to a buffer, because a jsontext.Encoder would
// validate each value again.

// begin appends the beginning of a document or a frame, up to its choices.
func (m *normalizer) begin(out []byte, object string) []byte {
	if m.stream {
		out = append(out, "data: "...)
	}
	out = append(append(out, `{"id":`...), m.id...)
	out = append(append(append(out, `,"object":"`...), object...), `","created":`...)
	out = strconv.AppendInt(out, m.created, 10)
	return append(append(append(out, `,"model":`...), m.model...), `,"choices":[`...)
}

// write writes a frame with the delta of a choice, or adds the delta to the document.
func (m *normalizer) write(c *choice, d *delta) {
	m.frames++
	if !m.stream {
		m.size += c.add(d)
		return
	}
	out := strconv.AppendInt(append(m.begin(m.out, "chat.completion.chunk"), `{"index":`...), int64(c.index), 10)
	out = append(out, `,"delta":{`...)
	from := len(out)
	if !c.begun {
		c.begun = true
		out = append(out, `,"role":"assistant"`...)
	}
	out = appendTexts(out, d.texts)
	if len(d.calls) > 0 {
		out = append(append(append(out, `,"tool_calls":[`...), d.calls...), ']')
	}
	out = appendMembers(out, d.rest)
	if len(out) > from { // without the first comma
		out = append(out[:from], out[from+1:]...)
	}
	out = append(out, '}')
	if d.logprobs.Kind() == '{' {
		out = append(append(out, `,"logprobs":`...), clean(d.logprobs)...)
	}
	out = append(appendMembers(out, d.extra), `,"finish_reason":`...)
	if d.finish == "" {
		out = append(out, "null"...)
	} else {
		out = append(append(append(out, '"'), d.finish...), '"')
	}
	m.out = append(appendMembers(append(out, "}]"...), m.rest), "}\n\n"...)
	m.rest = nil
}

// appendTexts appends the texts of a message. The reasoning is written under both of its
// names.
func appendTexts(out []byte, texts [textKinds]jsontext.Value) []byte {
	for _, t := range [...]struct {
		name  string
		value jsontext.Value
	}{{"content", texts[content]}, {"reasoning_content", texts[thought]}, {"reasoning", texts[thought]}, {"refusal", texts[refusal]}} {
		if t.value != nil {
			out = append(append(append(append(out, `,"`...), t.name...), `":`...), t.value...)
		}
	}
	return out
}

// appendMembers appends members, unchanged, to an object that already has some.
func appendMembers(out, members []byte) []byte {
	if len(members) > 0 {
		out = append(append(out, ','), clean(members)...)
	}
	return out
}

// add adds a delta to a choice of a document and returns the delta's size in bytes.
func (c *choice) add(d *delta) (size int64) {
	size = int64(len(d.calls) + len(d.rest) + len(d.extra) + len(d.logprobs))
	for i, t := range d.texts {
		if t != nil {
			c.texts[i].whole, c.texts[i].said = append(c.texts[i].whole, inner(t)...), true
			size += int64(len(t))
		}
	}
	c.toolCalls = appendList(c.toolCalls, d.calls)
	c.rest, c.extra = merged(c.rest, d.rest), merged(c.extra, d.extra)
	c.logprobs.add(d.logprobs)
	return size
}

func (m *normalizer) complete() []byte {
	out := m.begin(nil, "chat.completion")
	for i, c := range m.choices {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(append(out, `{"index":`...), int64(c.index), 10)
		out = append(out, `,"message":{"role":"assistant"`...)
		var texts [textKinds]jsontext.Value
		for i := range c.texts {
			if c.texts[i].said {
				texts[i] = stringOf(c.texts[i].whole)
			}
		}
		if len(c.texts[content].whole) == 0 {
			texts[content] = jsontext.Value(`""`)
			if c.called > 0 {
				texts[content] = jsontext.Value("null")
			}
		}
		out = appendTexts(out, texts)
		if len(c.toolCalls) > 0 {
			out = append(append(append(out, `,"tool_calls":[`...), c.toolCalls...), ']')
		}
		out = append(c.logprobs.append(append(appendMembers(out, c.rest), '}')), `,"finish_reason":"`...)
		out = append(appendMembers(append(append(out, c.finish...), '"'), c.extra), '}')
	}
	out = append(out, ']')
	if m.usage.Reported {
		out = appendUsage(append(out, `,"usage":`...), m.usage)
	}
	return append(appendMembers(out, m.rest), '}')
}

// inner returns the content of a JSON string without its quotes, or of another value
// without its brackets.
func inner(value jsontext.Value) []byte {
	if len(value) < 2 {
		return nil
	}
	return value[1 : len(value)-1]
}

// membersOf returns the members of a JSON object or the elements of a list.
func membersOf(value jsontext.Value) []byte { return bytes.TrimSpace(inner(value)) }

func stringOf(inside []byte) jsontext.Value {
	return append(append([]byte{'"'}, inside...), '"')
}

// appendList joins two lists of members or elements with a comma.
func appendList(list, more []byte) []byte {
	if len(list) > 0 && len(more) > 0 {
		list = append(list[:len(list):len(list)], ',')
	}
	return append(list, more...)
}

// merged returns the members of both. If names are equal, it uses those of more.
func merged(members, more []byte) []byte {
	switch {
	case len(members) == 0:
		return more
	case len(more) == 0 || bytes.Equal(members, more):
		return members
	}
	all := map[string]jsontext.Value{}
	for _, object := range [...][]byte{members, more} {
		_ = json.Unmarshal(append(append([]byte{'{'}, object...), '}'), &all, lenient) // they were parsed before
	}
	text, _ := json.Marshal(all, json.Deterministic(true), lenient)
	return membersOf(text)
}

// logprobs are the joined logprobs of a document.
type logprobs struct {
	reported         bool
	content, refusal []byte // elements separated by commas
}

func (l *logprobs) add(value jsontext.Value) {
	var sent struct{ Content, Refusal jsontext.Value }
	if value.Kind() == '{' && json.Unmarshal(value, &sent, lenient, json.MatchCaseInsensitiveNames(true)) == nil {
		l.reported = true
		if sent.Content.Kind() == '[' {
			l.content = appendList(l.content, membersOf(sent.Content))
		}
		if sent.Refusal.Kind() == '[' {
			l.refusal = appendList(l.refusal, membersOf(sent.Refusal))
		}
	}
}

func (l *logprobs) append(out []byte) []byte {
	if !l.reported {
		return out
	}
	out = append(append(append(out, `,"logprobs":{"content":[`...), clean(l.content)...), `],"refusal":`...)
	if l.refusal == nil {
		return append(out, "null}"...)
	}
	return append(append(append(out, '['), clean(l.refusal)...), "]}"...)
}

// count parses a count or an index from an engine: an integer, possibly with a fraction
// of 0 or in a string.
func count(value jsontext.Value) (n int64, ok bool) {
	text := string(value)
	if value.Kind() == '"' {
		text = textIn(value)
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil || !(x >= 0 && x < 1<<53) {
		return 0, false
	}
	return int64(math.Round(x)), true
}

// readUsage reads the token counts of an answer; ok is false if there are none.
func readUsage(value jsontext.Value) (u dialect.Usage, ok bool) {
	var sent struct {
		Prompt     jsontext.Value `json:"prompt_tokens"`
		Completion jsontext.Value `json:"completion_tokens"`
		In         jsontext.Value `json:"input_tokens"`
		Out        jsontext.Value `json:"output_tokens"`
		PromptHas  jsontext.Value `json:"prompt_tokens_details"`
		InHas      jsontext.Value `json:"input_tokens_details"`
		OutHas     jsontext.Value `json:"completion_tokens_details"`
	}
	if value.Kind() != '{' || json.Unmarshal(value, &sent, lenient) != nil {
		return u, false
	}
	either := func(a, b jsontext.Value) int64 {
		n, known := count(a)
		if !known {
			n, known = count(b)
		}
		ok = ok || known
		return n
	}
	var details struct {
		Cached    jsontext.Value `json:"cached_tokens"`
		Reasoning jsontext.Value `json:"reasoning_tokens"`
	}
	for _, v := range [...]jsontext.Value{sent.PromptHas, sent.InHas, sent.OutHas} {
		if v.Kind() == '{' {
			_ = json.Unmarshal(v, &details, lenient) // an object
		}
	}
	u.In, u.Out = either(sent.Prompt, sent.In), either(sent.Completion, sent.Out)
	cached, _ := count(details.Cached)
	thoughts, _ := count(details.Reasoning)
	u.Cached, u.Reasoning, u.Reported = min(cached, u.In), min(thoughts, u.Out), ok
	return u, ok
}

// appendUsage appends token counts in the dialect's format.
func appendUsage(out []byte, u dialect.Usage) []byte {
	out = strconv.AppendInt(append(out, `{"prompt_tokens":`...), u.In, 10)
	out = strconv.AppendInt(append(out, `,"completion_tokens":`...), u.Out, 10)
	out = strconv.AppendInt(append(out, `,"total_tokens":`...), u.In+u.Out, 10)
	if u.Cached > 0 {
		out = append(strconv.AppendInt(append(out, `,"prompt_tokens_details":{"cached_tokens":`...), u.Cached, 10), '}')
	}
	if u.Reasoning > 0 {
		out = append(strconv.AppendInt(append(out, `,"completion_tokens_details":{"reasoning_tokens":`...), u.Reasoning, 10), '}')
	}
	return append(out, '}')
}

// shortcut rewrites a frame that only differs from the previous one in a plain text, like
// most frames of a stream. It stores what surrounds that text, both in the engine's frame
// and in the result.
type shortcut struct {
	before, after []byte
	out           [][]byte
}

// learn sets the shortcut from a frame and its result, the last frame of out.
func (s *shortcut) learn(out []byte, message *sentMessage, frame []byte) {
	if message == nil {
		return
	}
	for _, value := range [...]jsontext.Value{message.Content, message.Thought, message.Reasoning} {
		if len(value) <= len(`""`) || !isPlain(inner(value)) || bytes.Count(frame, value) != 1 {
			continue
		}
		last := out[bytes.LastIndex(out, []byte("data: {")):]
		if n := bytes.Count(last, value); n == 1 || n == 2 {
			before, after, _ := bytes.Cut(bytes.Clone(frame), value)
			*s = shortcut{before, after, bytes.Split(bytes.Clone(last), value)}
		}
		return
	}
}

func (s *shortcut) write(m *normalizer, frame []byte) bool {
	n := len(frame) - len(s.after)
	if len(s.before) == 0 || n < len(s.before)+len(`""`) || !bytes.HasPrefix(frame, s.before) || !bytes.HasSuffix(frame, s.after) {
		return false
	}
	value := frame[len(s.before):n]
	if len(value) == len(`""`) || value[0] != '"' || value[len(value)-1] != '"' || !isPlain(value[1:len(value)-1]) {
		return false
	}
	for i, piece := range s.out {
		if i > 0 {
			m.out = append(m.out, value...)
		}
		m.out = append(m.out, piece...)
	}
	return true
}

func isPlain(inside []byte) bool {
	for _, b := range inside {
		if b < ' ' || b == '"' || b == '\\' {
			return false
		}
	}
	return utf8.Valid(inside)
}
