package dialect

import (
	"bytes"
	"cmp"
	"encoding/json/jsontext"
	"fmt"
	"strconv"
)

// What one stream may hold (docs/faults.md#48). Its frames are not counted: in a long answer each is one token, and the
// limits on bytes and time bound those.
const (
	MaxFrame       = 256 << 10 // bytes, its blank line included
	MaxStreamBytes = 64 << 20
)

// Stream checks a streamed answer of the chat dialect on its way to the
// caller. Its user reads bytes into a buffer, gives Take all that was not yet
// passed on, and passes on untouched what Take counts. A frame is one data
// line that holds a strict JSON object or the end mark, comments, and a blank
// line; lines end in LF or CRLF. The zero Stream is ready.
type Stream struct {
	// Trusted says that a hub sent the bytes and not a member's machine: its comments stay as they are and its faults
	// keep their codes.
	Trusted bool
	// Events, if set, turns what is taken into events of another dialect,
	// which are then passed on in its place. Set it before the first Take.
	Events *Events
	// Speech says that the stream is a transcript and not a chat: its events have
	// types, and the last of them is its end mark.
	Speech bool
	// MaxBytes is how many bytes the answer may have; 0: MaxStreamBytes.
	MaxBytes int
	// Passthrough says that the stream is of the messages or the responses dialect and
	// passes as it is, comments too: its events have names and types, and one of
	// them is the last.
	Passthrough bool

	object   object
	response jsontext.Value // of an answer of the responses dialect, as its first event has it
	sequence int            // of its next event
	scanned  int            // bytes of the pending ones that were looked at
	line     int            // where the line that is being read begins in them
	filled   bool           // the frame that is being read has its data
	mark     bool           // … and it is the end mark

	ended   bool
	bytes   int
	frames  int
	content int
}

// Ended reports whether the end mark was taken; without it no end is good.
func (s *Stream) Ended() bool { return s.ended }

// Frames is how many frames with data were taken, the end mark included.
func (s *Stream) Frames() int { return s.frames }

// Content is how many of the frames carried text, reasoning or a tool call.
func (s *Stream) Content() int { return s.content }

// Usage is what the engine reported so far. While it reported nothing, Out is
// the number of frames that carried content.
func (s *Stream) Usage() Usage {
	if s.object.usage.Reported {
		return s.object.usage
	}
	return Usage{Out: int64(s.content)}
}

// Take looks at pending, the bytes that were received and not passed on, and
// returns how many of them from the front are complete and checked frames: n.
// The next pending begins behind those. An error is a *fault.Fault that ends
// the stream: an error frame of the sender, or bytes that the dialect does not
// allow; the n bytes before them are good. In the comments of an untrusted
// sender, which could look like the hub's, Take overwrites the text with spaces.
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
		if s.ended && s.Passthrough { // the responses dialect has an end mark, too; what else follows is ignored
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

// IsEndMark reports whether a frame without its blank line is the end mark of the chat and the responses dialect.
func IsEndMark(frame []byte) bool {
	data, ok := bytes.CutPrefix(bytes.TrimSpace(frame), dataField)
	return ok && bytes.Equal(bytes.TrimSpace(data), endMark)
}

// close takes the frame of that many bytes whose blank line was seen.
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

// longest is how long a frame may be.
func (s *Stream) longest() int {
	if s.Passthrough {
		return maxPassedFrame
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

// read checks one line, its LF cut off; blank means that the frame is over.
func (s *Stream) read(line []byte) (blank bool, err error) {
	line = bytes.TrimSuffix(line, []byte{'\r'})
	switch {
	case len(line) == 0:
		return true, nil
	case bytes.IndexByte(line, '\r') >= 0: // readers differ on a bare CR
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

// failure is the fault that an error frame reports.
func (s *Stream) failure(data []byte) error {
	if s.Trusted {
		if f, ok := ParseFault(data); ok {
			return f
		}
	}
	return reportedError(data)
}
