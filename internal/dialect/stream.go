package dialect

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"fmt"
	"strconv"
)

// Limits of one stream (docs/faults.md#48). Frames are not counted: in a long answer each
// is one token, and the limits on bytes and time are enough.
const (
	MaxFrame       = 256 << 10 // bytes, including the blank line
	MaxStreamBytes = 64 << 20

	// maxSealedFrame is MaxFrame, padded and in base64.
	maxSealedFrame = 384 << 10
)

// base64Digits are the characters of base64.
const base64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/="

// Stream checks a streamed answer of the chat dialect on its way to the caller. The user
// reads bytes into a buffer, passes Take everything not yet passed on, and passes on
// unchanged the bytes that Take counts. A frame is one data line with a strict JSON
// object or the end mark, comments, and a blank line; lines end in LF or CRLF. The zero
// Stream is ready to use.
type Stream struct {
	// Trusted is set if the bytes come from a hub and not from a member's machine.
	// Comments are then passed on and faults keep their codes.
	Trusted bool
	// Events, if set, translates the frames to events of another dialect, which are
	// passed on instead. Set it before the first Take.
	Events *Events
	// Speech is set if the stream is a transcript and not a chat: its events have types,
	// and the last one is its end mark.
	Speech bool
	// Sealed is set if the data of the frames is base64 of a sealed answer, its head first.
	Sealed bool
	// MaxBytes is the largest size of the answer in bytes; 0: MaxStreamBytes.
	MaxBytes int
	// Passthrough is set if the stream is of the messages or the responses dialect and is
	// passed through, including comments. Its events have names and types, and one type
	// ends the stream.
	Passthrough bool

	object   object
	response jsontext.Value // of an answer of the responses dialect, from its first event
	sequence int            // number of its next event
	scanned  int            // number of pending bytes already examined
	line     int            // where the current line begins in them
	filled   bool           // the current frame has its data
	mark     bool           // … and that is the end mark

	ended   bool
	bytes   int
	frames  int
	content int
}

// Ended reports whether the end mark was taken. Without it the answer is incomplete.
func (s *Stream) Ended() bool { return s.ended }

// Frames returns the number of frames with data, including the end mark.
func (s *Stream) Frames() int { return s.frames }

// Content returns the number of frames with text, reasoning or a tool call.
func (s *Stream) Content() int { return s.content }

// Usage returns what the engine has reported so far. If it has reported nothing, Out is
// the number of frames with content.
func (s *Stream) Usage() Usage {
	if s.object.usage.Reported {
		return s.object.usage
	}
	return Usage{Out: int64(s.content)}
}

// Take examines pending, the bytes received but not yet passed on, and returns n, the
// length of the complete and valid frames at its beginning. The next pending begins after
// those. An error is a *fault.Fault that ends the stream: an error frame of the sender,
// or bytes that the dialect does not allow; the n bytes before it are valid. Comments of
// an untrusted sender could imitate the hub's, so Take overwrites their text with spaces.
func (s *Stream) Take(pending []byte) (n int, err error) {
	for {
		i := bytes.IndexByte(pending[s.scanned:], '\n')
		if i < 0 {
			s.scanned = len(pending)
			if len(pending)-n > s.longest() {
				err = s.tooLong()
			}
			break
		}
		end := s.scanned + i
		blank, lineErr := s.read(pending[s.line:end])
		s.scanned, s.line = end+1, end+1
		if lineErr != nil {
			err = lineErr
			break
		}
		if !blank {
			continue
		}
		if s.mark && !s.Passthrough && len(bytes.Trim(pending[s.scanned:], "\r\n")) > 0 {
			err = invalidAnswer("more after the end of its answer")
			break
		}
		if err = s.close(s.scanned - n); err != nil {
			break
		}
		n = s.scanned
		if s.ended && s.Passthrough { // the responses dialect has an end mark as well; anything else is ignored
			if IsEndMark(pending[n:]) {
				n = len(pending)
			}
			break
		}
	}
	s.scanned -= n
	s.line -= n
	return n, err
}

// IsEndMark reports whether frame, without its blank line, is the end mark of the chat
// and responses dialects.
func IsEndMark(frame []byte) bool {
	data, ok := bytes.CutPrefix(bytes.TrimSpace(frame), dataField)
	return ok && bytes.Equal(bytes.TrimSpace(data), endMark)
}

// close ends a frame of size bytes after its blank line.
func (s *Stream) close(size int) error {
	s.bytes += size
	if s.filled {
		s.frames++
	}
	switch {
	case size > s.longest():
		return s.tooLong()
	case s.bytes > cmp.Or(s.MaxBytes, MaxStreamBytes):
		return invalidAnswer(fmt.Sprintf("an answer of more than %d MiB", cmp.Or(s.MaxBytes, MaxStreamBytes)>>20))
	}
	if s.filled && s.object.content {
		s.content++
	}
	s.ended = s.ended || s.mark
	s.Events.commit()
	s.filled, s.mark, s.object.content = false, false, false
	return nil
}

func (s *Stream) longest() int {
	switch {
	case s.Passthrough:
		return maxPassedFrame
	case s.Sealed:
		return maxSealedFrame
	}
	return MaxFrame
}

func (s *Stream) tooLong() error {
	return invalidAnswer("a frame of more than " + strconv.Itoa(s.longest()>>10) + " KiB")
}

var (
	eventField = []byte("event:")
	dataField  = []byte("data:")
	endMark    = []byte("[DONE]")
)

// read checks one line without its LF; blank is true at the end of the frame.
func (s *Stream) read(line []byte) (blank bool, err error) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	switch {
	case len(line) == 0:
		return true, nil
	case bytes.IndexByte(line, '\r') >= 0: // parsers differ on a bare CR
		return false, invalidAnswer("a bare carriage return")
	case line[0] == ':':
		if !s.Trusted && !s.Passthrough {
			for i := range line[1:] {
				line[1+i] = ' '
			}
		}
		return false, nil
	case s.ended:
		return false, invalidAnswer("more after the end of its answer")
	case s.Passthrough && !s.filled && bytes.HasPrefix(line, eventField):
		return false, nil
	case s.filled || !bytes.HasPrefix(line, dataField):
		return false, invalidAnswer("a frame that is not one data line")
	}
	s.filled = true
	data := bytes.TrimPrefix(line[len(dataField):], []byte{' '})
	if s.Speech {
		s.mark, err = s.speech(data)
		return false, err
	}
	if s.Passthrough {
		s.mark, err = s.native(data)
		return false, err
	}
	if s.Sealed && !bytes.Equal(data, endMark) {
		if len(data) == 0 || len(bytes.Trim(data, base64Digits)) > 0 {
			return false, invalidAnswer("a frame that is not sealed")
		}
		s.object.content = s.frames > 0
		return false, nil
	}
	if bytes.Equal(data, endMark) {
		s.mark = true
		return false, s.Events.end(s.Usage())
	}
	if s.Events != nil {
		s.object.into = &s.Events.delta
	}
	if err := s.object.read(data); err != nil {
		return false, err
	}
	if s.object.failure != nil {
		return false, s.failure(data)
	}
	return false, s.Events.chunk()
}

func (s *Stream) failure(data []byte) error {
	if s.Trusted {
		if f, ok := ParseFault(data); ok {
			return f
		}
	}
	return reportedError(data)
}
