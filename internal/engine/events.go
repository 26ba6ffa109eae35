package engine

import (
	"bytes"

	"github.com/kith/kith/internal/fault"
)

// maxFrame bounds one event of a stream (spec/api.md#limit-frame).
const maxFrame = 256 << 10

// errEventTooLong is the fault of an event over maxFrame.
var errEventTooLong = fault.New(fault.EngineError, "the engine sent a frame of more than %d KiB", maxFrame>>10)

// events parses a stream of server-sent events according to the HTML standard
// (spec/engine-answers.md#events): lines end with LF, CRLF or CR, a byte order mark may
// come first, comments and unknown fields are ignored, lines of data are joined, and
// events without data are ignored. The zero value is ready to use.
type events struct {
	line    []byte // the current line
	data    []byte // of the current event, with an LF after each line
	failing bool   // the current event is an error, according to its name
	started bool   // the byte order mark was checked
	afterCR bool   // an LF that follows belongs to a CR
}

// feed parses b and calls event for each complete event. failing reports an event with
// the name "error", or a line with the field "error". If event returns an error, parsing
// stops.
func (e *events) feed(b []byte, event func(data []byte, failing bool) error) error {
	for len(b) > 0 {
		if e.afterCR {
			e.afterCR = false
			if b[0] == '\n' {
				b = b[1:]
				continue
			}
		}
		n := bytes.IndexByte(b, '\n')
		if cr := bytes.IndexByte(b[:max(n, 0)], '\r'); n < 0 || cr >= 0 {
			if cr < 0 {
				cr = bytes.IndexByte(b, '\r')
			}
			n, e.afterCR = cr, cr >= 0
		}
		if n < 0 {
			e.line = append(e.line, b...)
			break
		}
		line := b[:n]
		if len(e.line) > 0 {
			line = append(e.line, line...)
			e.line = line[:0]
		}
		b = b[n+1:]
		if err := e.take(line, event); err != nil {
			return err
		}
	}
	if len(e.line)+len(e.data) > maxFrame {
		return errEventTooLong
	}
	return nil
}

// end parses the rest of a stream whose last event is not followed by a blank line.
func (e *events) end(event func(data []byte, failing bool) error) error {
	if len(e.line) > 0 {
		if err := e.take(e.line, event); err != nil {
			return err
		}
	}
	return e.take(nil, event)
}

func (e *events) take(line []byte, event func(data []byte, failing bool) error) error {
	if !e.started {
		e.started = true
		line = bytes.TrimPrefix(line, []byte("\ufeff"))
	}
	if len(line) == 0 {
		data, failing := bytes.TrimSuffix(e.data, []byte("\n")), e.failing
		e.data, e.failing = e.data[:0], false
		if len(bytes.TrimSpace(data)) == 0 {
			return nil
		}
		return event(data, failing)
	}
	field, value, _ := bytes.Cut(line, []byte(":"))
	value = bytes.TrimPrefix(value, []byte(" "))
	switch string(field) {
	case "event":
		e.failing = string(value) == "error"
	case "error": // older servers of llama.cpp
		e.failing = true
		fallthrough
	case "data":
		e.data = append(append(e.data, value...), '\n')
		if len(e.data) > maxFrame {
			return errEventTooLong
		}
	}
	return nil
}
