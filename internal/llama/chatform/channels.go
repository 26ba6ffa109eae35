package chatform

import (
	"bytes"
	"strings"
)

// readChannels reads an answer of messages with headers:
//
//	<|channel|>analysis<|message|>reasoning<|end|>
//	<|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{arguments}<|call|>
//	<|start|>assistant<|channel|>final<|message|>text<|return|>
//
// The prompt ends with the first <|start|>assistant. A message to a recipient that is no
// tool is left out.
func (r *Reader) readChannels(ReaderOptions) {
	ends := []string{"<|end|>", "<|call|>", "<|return|>", "<|start|>"}
	for r.peek(1) {
		header, ok := r.channelHeader()
		if !ok {
			if r.skip("<|start|>") { // without a message
				r.emit(Event{Kind: EventText, Text: "<|start|>"})
			}
			if r.until(EventText, ends); !r.endMessage(ends) {
				return
			}
			continue
		}
		channel, recipient := readHeader(header)
		_, known := r.tools[recipient]
		switch {
		case known && r.calls < maxCalls:
			r.beginCall(recipient, "")
			r.object()
			r.skipTo(ends)
		case recipient != "":
			r.inCall = false
			r.skipTo(ends)
		case strings.HasPrefix(channel, "analysis"):
			r.until(EventReasoning, ends)
		default:
			r.until(EventText, ends)
		}
		if !r.endMessage(ends) {
			return
		}
	}
}

// maxHeader limits a header, in bytes.
const maxHeader = 1024

// channelHeader reads a header with the mark of its end. If the answer has none, it reads
// nothing.
func (r *Reader) channelHeader() (header string, ok bool) {
	start := r.at()
	begins := false
	for _, mark := range []string{"<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", " to=", "to="} {
		begins = begins || r.has(mark)
	}
	if !begins {
		return "", false
	}
	for {
		s := r.rest()
		s = s[:min(len(s), maxHeader)]
		if i := bytes.Index(s, []byte("to=functions.")); i >= 0 && len(r.names) > 0 && !r.inCall {
			r.inCall, r.trigger = true, start
		}
		if i := bytes.Index(s, []byte("<|message|>")); i >= 0 {
			r.pos += i + len("<|message|>")
			return string(s[:i]), true
		}
		if len(s) == maxHeader || !r.more() {
			break
		}
	}
	r.inCall = false
	if r.cut {
		r.pos = len(r.buf) // a header without its message
	}
	return "", false
}

// readHeader returns the last channel of a header, and the recipient: the name of a tool or
// of something else, or "" if the message is for the user.
func readHeader(header string) (channel, recipient string) {
	const mark = "<|channel|>"
	if i := strings.LastIndex(header, mark); i >= 0 {
		channel = header[i+len(mark):]
	}
	_, recipient, _ = strings.Cut(header, "to=")
	if i := strings.IndexAny(recipient, "<"+white); i >= 0 {
		recipient = recipient[:i]
	}
	switch recipient {
	case "assistant", "user", "all":
		recipient = ""
	}
	return channel, strings.TrimPrefix(recipient, "functions.")
}

// skipTo skips text up to one of the marks.
func (r *Reader) skipTo(marks []string) {
	r.quiet = true
	r.until(EventText, marks)
	r.quiet = false
}

// endMessage reads the mark that ends a message. It reports whether one is there.
func (r *Reader) endMessage(ends []string) bool {
	for _, end := range ends {
		if end != "<|start|>" && r.skip(end) {
			return true
		}
	}
	return r.has("<|start|>")
}
