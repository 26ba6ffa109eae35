package engine

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/fleet"
)

// mender makes an engine's answer canonical (decisions 5): the advertised id
// as `model`, one id in every chunk, reasoning under both its names or none,
// tool calls with index and type and arguments as text, the finish reason that
// goes with them, the token counts only for those who asked. It is the one place where answers are
// rewritten: objects are walked once and written anew member by member, what
// needs no mending as raw bytes.
//
// It does not judge: what is not JSON passes as it is, for the edge to refuse.
type mender struct {
	model  []byte // the advertised id, quoted
	exact  []byte // `"model":` and model
	chat   bool
	stream bool // chunks, not an unary answer
	want   wants
	speech *speech // of a transcript; nil: it is chat or embeddings

	id, exactID        []byte        // of the answer, quoted, and with `"id":` before it; nil: not known yet
	before, after      []byte        // around the text of the last canonical frame
	calls              [][]toolState // by choice: the tool calls so far, of a stream
	indexes            []int         // of this chunk's choices, where it holds tool calls
	halves             halves        // of characters, that the next chunk may complete
	ids                func() string // what makes an id of ours unlike others; nil: chance
	counted            bool          // the engine told its counts
	prompt, completion int64

	in  bytes.Buffer
	dec jsontext.Decoder
	out []byte
}

func newMender(req *Request, want wants) *mender {
	model := []byte(quoted(string(req.Model)))
	m := &mender{
		model:  model,
		exact:  append([]byte(`"model":`), model...),
		chat:   req.Endpoint == fleet.ChatCompletions,
		stream: req.Stream,
		want:   want,
	}
	if req.Form != nil {
		m.speech = new(speech)
	}
	return m
}

// What a frame may hold that has to be looked at. In good JSON none of these
// can stand inside a string, where the quotes would be escaped.
var (
	dataObject  = []byte("data: {")
	newline     = []byte("\n")
	noChoices   = []byte(`"choices":[]`)
	usageObject = []byte(`"usage":{`)
	errorName   = []byte(`"error"`)
	idText      = []byte(`"id":"`)
	emptyID     = []byte(`"id":""`)
	toolCalls   = []byte(`"tool_calls"`)
	reasoning   = []byte(`"reasoning`) // the start of two names
	contentText = []byte(`"content":"`)
	finishText  = []byte(`"finish_reason":"`)
	finishStop  = []byte(`stop"`)
)

// canonical reports whether the whole frame may pass as it is: one line of
// data that has the model's and the answer's ids and holds nothing to mend; the
// first of a stream, whose id is not known, is none. The chunks of a
// stream differ in little but their text: one that is like the last good one
// around a plain text is as good.
func (m *mender) canonical(frame []byte) bool {
	if len(m.calls) > 0 || len(m.halves.held) > 0 || m.speech != nil || m.id == nil || loneHalf(frame) {
		return false
	}
	if n := len(frame) - len(m.after); len(m.before) > 0 && n >= len(m.before) &&
		bytes.HasPrefix(frame, m.before) && bytes.HasSuffix(frame, m.after) {
		if text := frame[len(m.before):n]; bytes.IndexByte(text, '"') < 0 && bytes.IndexByte(text, '\n') < 0 {
			return true
		}
	}
	good := bytes.HasPrefix(frame, dataObject) &&
		bytes.Index(frame, newline) == len(frame)-2 &&
		bytes.Contains(frame, m.exact) &&
		bytes.Contains(frame, m.exactID) &&
		!bytes.Contains(frame, reasoning) &&
		!bytes.Contains(frame, usageObject) &&
		!bytes.Contains(frame, toolCalls) &&
		!bytes.Contains(frame, noChoices) &&
		!bytes.Contains(frame, errorName)
	if i := bytes.Index(frame, finishText); good && i >= 0 && !bytes.HasPrefix(frame[i+len(finishText):], finishStop) {
		return false // few frames: most of a stream have none
	}
	if good {
		m.learn(frame)
	}
	return good
}

// learn remembers what stands around the text of a canonical frame.
func (m *mender) learn(frame []byte) {
	i := bytes.Index(frame, contentText)
	if i < 0 {
		return
	}
	i += len(contentText)
	end := bytes.IndexByte(frame[i:], '"')
	if end < 0 || bytes.IndexByte(frame[i:i+end], '\\') >= 0 {
		return // an escape: where the text ends is not worth finding out
	}
	m.before = append(m.before[:0], frame[:i]...)
	m.after = append(m.after[:0], frame[i+end:]...)
}

// frame appends the frame to dst as the caller gets it, if at all, and reports
// whether it was the last: an end mark or an error.
func (m *mender) frame(dst, frame []byte) ([]byte, bool) {
	if m.canonical(frame) {
		return append(dst, frame...), false
	}
	data, comment := fields(frame)
	switch {
	case data == nil && comment:
		return append(dst, frame...), false
	case data == nil: // an event without data would break readers
		return dst, false
	case m.speech != nil:
		return m.speech.frame(dst, data)
	case string(data) == "[DONE]":
		return append(m.lost(dst, m.halves.rest()), "data: [DONE]\n\n"...), true
	}
	data, lost := m.halves.join(data)
	dst = m.lost(dst, lost)
	mended, keep, failed := m.chunk(data)
	if !keep {
		return dst, false
	}
	dst = append(dst, "data: "...)
	dst = append(dst, mended...)
	return append(dst, "\n\n"...), failed
}

// lost appends chunks of ours, made canonical.
func (m *mender) lost(dst []byte, chunks [][]byte) []byte {
	for _, chunk := range chunks {
		mended, _, _ := m.chunk(chunk)
		dst = append(append(append(dst, "data: "...), mended...), "\n\n"...)
	}
	return dst
}

// fields is the data of a frame, its lines joined, and whether it holds a
// comment; the other fields have no meaning in this dialect.
func fields(frame []byte) (data []byte, comment bool) {
	for line := range bytes.Lines(frame) {
		line = bytes.TrimRight(line, "\r\n")
		if len(line) > 0 && line[0] == ':' {
			comment = true
		}
		value, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok {
			continue
		}
		value = bytes.TrimPrefix(value, []byte(" "))
		if data == nil {
			data = value
			continue
		}
		data = append(append(bytes.Clone(data), ' '), value...) // a line break in JSON is a space
	}
	return data, comment
}

// chunk mends one chunk; keep is false for one the caller did not ask for.
func (m *mender) chunk(data []byte) (mended []byte, keep, failed bool) {
	a, err := m.answer(data)
	switch {
	case err != nil:
		return data, true, false
	case a.failed:
		return data, true, true
	case a.counts && !a.choices && !m.want.usage:
		return nil, false, false
	}
	return m.out, true, false
}

// unary mends a whole answer. Errors are *fault.Fault.
func (m *mender) unary(body []byte) ([]byte, error) {
	if !m.chat {
		return m.vectors(body)
	}
	if bytes.Contains(body, m.exact) && bytes.Contains(body, idText) && !bytes.Contains(body, emptyID) && !bytes.Contains(body, reasoning) && !bytes.Contains(body, toolCalls) {
		return body, nil
	}
	if _, err := m.answer(body); err != nil {
		return body, nil
	}
	return m.out, nil
}

// seen is what an answer was found to hold.
type seen struct{ failed, counts, choices bool }

// answer writes the object in src anew to m.out.
func (m *mender) answer(src []byte) (a seen, err error) {
	m.in = *bytes.NewBuffer(src)
	m.dec.Reset(&m.in)
	m.out = m.out[:0]
	m.number(src)
	named, identified := false, false
	err = m.object(func(name []byte) error {
		switch string(name) {
		case "id":
			identified = true
			value, err := m.dec.ReadValue()
			if err != nil {
				return err
			}
			m.put(name, m.identify(value))
			return nil
		case "model":
			named = true
			if err := m.dec.SkipValue(); err != nil {
				return err
			}
			m.put(name, m.model)
			return nil
		case "choices":
			m.name(name)
			return m.array(func(i int) error {
				a.choices = true
				return m.choice(i)
			})
		case "error":
			a.failed = m.dec.PeekKind() != 'n'
		case "usage":
			a.counts = m.dec.PeekKind() == '{'
			if a.counts && m.stream && !m.want.usage {
				value, err := m.dec.ReadValue()
				if err != nil {
					return err
				}
				return m.count(value)
			}
			value, err := m.copy(name)
			if err != nil || !a.counts {
				return err
			}
			return m.count(value)
		}
		_, err := m.copy(name)
		return err
	}, func() {
		if !identified {
			m.put([]byte("id"), m.identify(nil))
		}
		if !named {
			m.put([]byte("model"), m.model)
		}
	})
	return a, err
}

// identify is the answer's id, where told is the one in the object that is
// walked: the first that the engine told, or ours where it began without.
// Readers drop a chunk of another id, and with it the token counts.
func (m *mender) identify(told jsontext.Value) []byte {
	if m.id == nil {
		if m.id = bytes.Clone(told); told.Kind() != '"' || len(told) == len(`""`) || len(told) > longestName {
			m.id = []byte(quoted(m.newID("chatcmpl-")))
		}
		m.exactID = append([]byte(`"id":`), m.id...)
	}
	return m.id
}

// count takes the engine's own token counts.
func (m *mender) count(value jsontext.Value) error {
	var usage struct {
		Prompt     int64 `json:"prompt_tokens"`
		Completion int64 `json:"completion_tokens"`
	}
	if err := json.Unmarshal(value, &usage); err != nil {
		return err
	}
	m.counted, m.prompt, m.completion = true, max(usage.Prompt, 0), max(usage.Completion, 0)
	return nil
}

// choice mends one choice of an answer or chunk. The finish reason is written
// last, when it is known whether tools were called.
func (m *mender) choice(at int) error {
	var reason []byte
	index, numbered, called := at, false, false
	if at < len(m.indexes) {
		index = m.indexes[at]
	}
	return m.object(func(name []byte) error {
		switch string(name) {
		case "finish_reason":
			value, err := m.dec.ReadValue()
			reason = bytes.Clone(value)
			return err
		case "index":
			if m.dec.PeekKind() != '0' {
				return m.dec.SkipValue()
			}
			numbered = true
		case "delta", "message":
			if m.dec.PeekKind() == '{' {
				m.name(name)
				var err error
				called, err = m.message(index)
				return err
			}
		}
		_, err := m.copy(name)
		return err
	}, func() {
		if !numbered {
			m.put([]byte("index"), strconv.AppendInt(nil, int64(at), 10))
		}
		called = called || m.stream && index < len(m.calls) && len(m.calls[index]) > 0
		m.put([]byte("finish_reason"), finish(reason, called))
	})
}

// number finds the indexes of a chunk's choices before it is walked, where tool
// calls have to be put to their choice. A choice without one is where it stands.
func (m *mender) number(chunk []byte) {
	m.indexes = m.indexes[:0]
	if !bytes.Contains(chunk, toolCalls) && len(m.calls) == 0 {
		return
	}
	var told struct {
		Choices []struct {
			Index *int `json:"index"`
		} `json:"choices"`
	}
	if json.Unmarshal(chunk, &told) != nil {
		return // the walk will find out
	}
	for i, c := range told.Choices {
		if c.Index != nil {
			i = *c.Index
		}
		m.indexes = append(m.indexes, min(max(i, 0), maxChoices-1))
	}
}

// message mends a message or delta of that choice: both names of the reasoning or none, no
// empty tool calls.
func (m *mender) message(choice int) (called bool, err error) {
	var thought []byte
	err = m.object(func(name []byte) error {
		switch string(name) {
		case "reasoning_content", "reasoning":
			value, err := m.dec.ReadValue()
			if value.Kind() == '"' && (thought == nil || len(value) > len(thought)) {
				thought = bytes.Clone(value)
			}
			return err
		case "tool_calls":
			called, err = m.toolCalls(name, choice)
			return err
		}
		_, err := m.copy(name)
		return err
	}, func() {
		if thought != nil && !m.want.hide {
			m.put([]byte("reasoning_content"), thought)
			m.put([]byte("reasoning"), thought)
		}
	})
	return called, err
}

// object writes the next object anew: each is called with every member's name
// and writes it and its value, or takes the value and writes nothing; last, if
// not nil, adds members.
func (m *mender) object(each func(name []byte) error, last func()) error {
	if m.dec.PeekKind() != '{' {
		return errNoObject
	}
	if _, err := m.dec.ReadToken(); err != nil {
		return err
	}
	m.out = append(m.out, '{')
	var buf [64]byte
	for m.dec.PeekKind() != '}' {
		name, err := m.dec.ReadValue()
		if err != nil {
			return err
		}
		plain, err := jsontext.AppendUnquote(buf[:0], name)
		if err != nil {
			return err
		}
		if err := each(plain); err != nil {
			return err
		}
	}
	if last != nil {
		last()
	}
	m.out = append(m.out, '}')
	_, err := m.dec.ReadToken()
	return err
}

// array writes the next array anew, each element by each.
func (m *mender) array(each func(i int) error) error {
	if m.dec.PeekKind() != '[' {
		value, err := m.dec.ReadValue()
		m.out = append(m.out, value...)
		return err
	}
	if _, err := m.dec.ReadToken(); err != nil {
		return err
	}
	m.out = append(m.out, '[')
	for i := 0; m.dec.PeekKind() != ']'; i++ {
		if i > 0 {
			m.out = append(m.out, ',')
		}
		if err := each(i); err != nil {
			return err
		}
	}
	m.out = append(m.out, ']')
	_, err := m.dec.ReadToken()
	return err
}

// name writes a member's name, after a comma if it is not the first.
func (m *mender) name(name []byte) {
	if m.out[len(m.out)-1] != '{' {
		m.out = append(m.out, ',')
	}
	m.out, _ = jsontext.AppendQuote(m.out, name) // it was just unquoted
	m.out = append(m.out, ':')
}

// put writes a member.
func (m *mender) put(name, value []byte) {
	m.name(name)
	m.out = append(m.out, value...)
}

// copy writes the member called name with the next value as it stands.
func (m *mender) copy(name []byte) (jsontext.Value, error) {
	value, err := m.dec.ReadValue()
	if err == nil {
		m.put(name, value)
	}
	return value, err
}
