package engine

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fleet"
)

// normalizer normalizes an engine's answer: the advertised model id, the same id
// in every chunk, reasoning under both of its names or none, tool calls with
// index, type and arguments as text, the finish reason that fits them, and token
// counts only for callers that asked for them. It walks each object once and
// rewrites it member by member; other values are copied as raw bytes
// (spec/api.md#canonical). It appends to a buffer, because a jsontext.Encoder
// checks each value again: 7.1 instead of 5.2 µs a chunk in BenchmarkStream/model,
// 7.9 instead of 5.8 µs in BenchmarkStream/reasoning.
//
// It does not validate: what is not JSON passes unchanged, and the gateway
// refuses it.
type normalizer struct {
	model  []byte // the advertised id as a JSON string
	exact  []byte // `"model":` and model
	chat   bool
	stream bool // chunks; otherwise a unary answer
	want   wants
	speech *transcript // nil for chat and embeddings

	id, exactID   []byte        // of the answer, as a JSON string, and with `"id":` before it; nil if unknown
	before, after []byte        // around the text of the last canonical frame
	calls         [][]toolState // by choice: the tool calls of a stream so far
	indexes       []int         // of the choices of a chunk with tool calls
	surrogates    surrogates    // that the next chunk may complete
	ids           func() string // makes the unique part of a new id; nil: random
	usage         dialect.Usage // those counts

	in  bytes.Buffer
	dec jsontext.Decoder
	out []byte
}

func newNormalizer(req *Request, want wants) *normalizer {
	model := []byte(quoted(string(req.Model)))
	m := &normalizer{
		model:  model,
		exact:  append([]byte(`"model":`), model...),
		chat:   req.Endpoint == fleet.ChatCompletions,
		stream: req.Stream,
		want:   want,
	}
	if req.Form != nil {
		m.speech = new(transcript)
	}
	return m
}

// Parts of a frame that needs a closer look. In valid JSON they never occur inside
// a string, because quotes are escaped there.
var (
	dataObject  = []byte("data: {")
	newline     = []byte("\n")
	noChoices   = []byte(`"choices":[]`)
	usageObject = []byte(`"usage":{`)
	errorName   = []byte(`"error"`)
	idText      = []byte(`"id":"`)
	emptyID     = []byte(`"id":""`)
	toolCalls   = []byte(`"tool_calls"`)
	reasoning   = []byte(`"reasoning`) // the prefix of both names
	contentText = []byte(`"content":"`)
	finishText  = []byte(`"finish_reason":"`)
	finishStop  = []byte(`stop"`)
)

// canonical reports whether the frame may pass unchanged: one line of data with
// the model's and the answer's id and nothing to normalize. The first frame of a
// stream never is, because the answer's id is unknown. The chunks of a stream
// differ in little but their text, so a frame that equals the last canonical one
// around a plain text is canonical, too.
func (m *normalizer) canonical(frame []byte) bool {
	if len(m.calls) > 0 || len(m.surrogates.held) > 0 || m.speech != nil || m.id == nil || hasLone(frame) {
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
		return false
	}
	if good {
		m.learn(frame)
	}
	return good
}

// learn stores the parts of a canonical frame before and after its text.
func (m *normalizer) learn(frame []byte) {
	i := bytes.Index(frame, contentText)
	if i < 0 {
		return
	}
	i += len(contentText)
	end := bytes.IndexByte(frame[i:], '"')
	if end < 0 || bytes.IndexByte(frame[i:i+end], '\\') >= 0 {
		return // the text has an escape: its end is not searched
	}
	m.before = append(m.before[:0], frame[:i]...)
	m.after = append(m.after[:0], frame[i+end:]...)
}

// frame appends the normalized frame to dst, unless the caller does not get it,
// and reports whether it was the last: an end mark or an error.
func (m *normalizer) frame(dst, frame []byte) ([]byte, bool) {
	if m.canonical(frame) {
		return append(dst, frame...), false
	}
	data, comment := fields(frame)
	switch {
	case data == nil && comment:
		return append(dst, frame...), false
	case data == nil: // some clients fail on an event without data
		return dst, false
	case m.speech != nil:
		return m.speech.frame(dst, data)
	case string(data) == "[DONE]":
		return append(m.appendChunks(dst, m.surrogates.rest()), "data: [DONE]\n\n"...), true
	}
	data, lost := m.surrogates.join(data)
	dst = m.appendChunks(dst, lost)
	normalized, keep, failed := m.chunk(data)
	if !keep {
		return dst, false
	}
	dst = append(dst, "data: "...)
	dst = append(dst, normalized...)
	return append(dst, "\n\n"...), failed
}

// appendChunks appends chunks made by surrogates, normalized.
func (m *normalizer) appendChunks(dst []byte, chunks [][]byte) []byte {
	for _, chunk := range chunks {
		normalized, _, _ := m.chunk(chunk)
		dst = append(append(append(dst, "data: "...), normalized...), "\n\n"...)
	}
	return dst
}

// fields returns the data of a frame with its lines joined, and whether it has a
// comment. Other fields have no meaning in this dialect.
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
		data = append(append(bytes.Clone(data), ' '), value...) // a space for the line break
	}
	return data, comment
}

// chunk normalizes one chunk; keep is false if the caller did not ask for it.
func (m *normalizer) chunk(data []byte) (normalized []byte, keep, failed bool) {
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

// unary normalizes a complete answer. Errors are *fault.Fault.
func (m *normalizer) unary(body []byte) ([]byte, error) {
	if !m.chat {
		return m.embeddings(body)
	}
	if bytes.Contains(body, m.exact) && bytes.Contains(body, idText) && !bytes.Contains(body, emptyID) && !bytes.Contains(body, reasoning) && !bytes.Contains(body, toolCalls) {
		return body, nil
	}
	if _, err := m.answer(body); err != nil {
		return body, nil
	}
	return m.out, nil
}

// seen is what an answer contains.
type seen struct{ failed, counts, choices bool }

// answer rewrites the object in src to m.out.
func (m *normalizer) answer(src []byte) (a seen, err error) {
	m.in = *bytes.NewBuffer(src)
	m.dec.Reset(&m.in)
	m.out = m.out[:0]
	m.readIndexes(src)
	named, identified := false, false
	err = m.object(func(name []byte) error {
		switch string(name) {
		case "id":
			identified = true
			value, err := m.dec.ReadValue()
			if err != nil {
				return err
			}
			m.put(name, m.answerID(value))
			return nil
		case "model":
			named = true
			if err := m.dec.SkipValue(); err != nil {
				return err
			}
			m.put(name, m.model)
			return nil
		case "choices":
			m.putName(name)
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
				return m.readUsage(value)
			}
			value, err := m.putNext(name)
			if err != nil || !a.counts {
				return err
			}
			return m.readUsage(value)
		}
		_, err := m.putNext(name)
		return err
	}, func() {
		if !identified {
			m.put([]byte("id"), m.answerID(nil))
		}
		if !named {
			m.put([]byte("model"), m.model)
		}
	})
	return a, err
}

// answerID returns the id of the answer: the first id that the engine sent, or a
// new one if its first object has none. Clients drop a chunk with another id, and
// the token counts with it.
func (m *normalizer) answerID(sent jsontext.Value) []byte {
	if m.id == nil {
		if m.id = bytes.Clone(sent); sent.Kind() != '"' || len(sent) == len(`""`) || len(sent) > maxName {
			m.id = []byte(quoted(m.newID("chatcmpl-")))
		}
		m.exactID = append([]byte(`"id":`), m.id...)
	}
	return m.id
}

// readUsage reads the token counts of the answer.
func (m *normalizer) readUsage(value jsontext.Value) error {
	var usage struct {
		Prompt     int64          `json:"prompt_tokens"`
		Completion int64          `json:"completion_tokens"`
		Details    jsontext.Value `json:"prompt_tokens_details"`
	}
	if err := json.Unmarshal(value, &usage); err != nil {
		return err
	}
	var details struct {
		Cached int64 `json:"cached_tokens"`
	}
	_ = json.Unmarshal(usage.Details, &details) // 0 if the engine does not report it
	m.usage = dialect.Usage{In: max(usage.Prompt, 0), Out: max(usage.Completion, 0), Reported: true, Cached: max(details.Cached, 0)}
	return nil
}

// choice normalizes one choice. The finish reason comes last, when it is known
// whether the choice has tool calls.
func (m *normalizer) choice(at int) error {
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
				m.putName(name)
				var err error
				called, err = m.message(index)
				return err
			}
		}
		_, err := m.putNext(name)
		return err
	}, func() {
		if !numbered {
			m.put([]byte("index"), strconv.AppendInt(nil, int64(at), 10))
		}
		called = called || m.stream && index < len(m.calls) && len(m.calls[index]) > 0
		m.put([]byte("finish_reason"), finish(reason, called))
	})
}

// readIndexes reads the indexes of a chunk's choices before it is rewritten, if there
// are tool calls to assign. A choice without an index has its position.
func (m *normalizer) readIndexes(chunk []byte) {
	m.indexes = m.indexes[:0]
	if !bytes.Contains(chunk, toolCalls) && len(m.calls) == 0 {
		return
	}
	var indexed struct {
		Choices []struct {
			Index *int `json:"index"`
		} `json:"choices"`
	}
	if json.Unmarshal(chunk, &indexed) != nil {
		return // answer reports it
	}
	for i, c := range indexed.Choices {
		if c.Index != nil {
			i = *c.Index
		}
		m.indexes = append(m.indexes, min(max(i, 0), maxChoices-1))
	}
}

// message normalizes the message or delta of a choice: reasoning under both names
// or none, no empty tool calls.
func (m *normalizer) message(choice int) (called bool, err error) {
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
		_, err := m.putNext(name)
		return err
	}, func() {
		if thought != nil && !m.want.hide {
			m.put([]byte("reasoning_content"), thought)
			m.put([]byte("reasoning"), thought)
		}
	})
	return called, err
}

// object rewrites the next object. It calls each with every member's name; each
// reads the value and may write the member. last adds members.
func (m *normalizer) object(each func(name []byte) error, last func()) error {
	if m.dec.PeekKind() != '{' {
		return errNoObject
	}
	m.out = append(m.out, '{')
	if err := dialect.Members(&m.dec, each); err != nil {
		return err
	}
	last()
	m.out = append(m.out, '}')
	return nil
}

// array rewrites the next array with each for every element.
func (m *normalizer) array(each func(i int) error) error {
	if m.dec.PeekKind() != '[' {
		value, err := m.dec.ReadValue()
		m.out = append(m.out, value...)
		return err
	}
	m.out = append(m.out, '[')
	i := 0
	err := dialect.Elements(&m.dec, func() error {
		if i > 0 {
			m.out = append(m.out, ',')
		}
		i++
		return each(i - 1)
	})
	m.out = append(m.out, ']')
	return err
}

// putName writes the name of a member, after a comma unless it is the first.
func (m *normalizer) putName(name []byte) {
	if m.out[len(m.out)-1] != '{' {
		m.out = append(m.out, ',')
	}
	m.out, _ = jsontext.AppendQuote(m.out, name) // valid, as it was just unquoted
	m.out = append(m.out, ':')
}

// put writes the member with that value.
func (m *normalizer) put(name, value []byte) {
	m.putName(name)
	m.out = append(m.out, value...)
}

// putNext writes the member with the next value, unchanged.
func (m *normalizer) putNext(name []byte) (jsontext.Value, error) {
	value, err := m.dec.ReadValue()
	if err == nil {
		m.put(name, value)
	}
	return value, err
}
