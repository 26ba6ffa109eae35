package chatform

import (
	"encoding/json/jsontext"
	"errors"
	"strings"
)

// The words of the conversations that inspect renders: no template has them.
const (
	probeUser      = "zquser"
	probeText      = "zqtext"
	probeReasoning = "zqreason"
	probeResult    = "zqresult"
	toolA, toolB   = "zqalpha", "zqbeta"
	argA, argB     = "zqone", "zqtwo"
	valueA, valueB = "zqvala", "zqvalb"
	idA, idB       = "zqidaaaa1", "zqidbbbb2" // 9 letters and digits, as some templates demand
	longID         = "call_zq-3kPq9vXb7Lm2"
)

// maxProbes limits how many conversations are rendered to inspect a template.
const maxProbes = 64

var probeTools = []jsontext.Value{probeTool(toolA), probeTool(toolB)}

func probeTool(name string) jsontext.Value {
	return jsontext.Value(`{"type":"function","function":{"name":"` + name + `","description":"zqdescription","parameters":` + probeParameters + `}}`)
}

// probeReaderTools are probeTools for a Reader.
var probeReaderTools = []Tool{{toolA, probeSchema}, {toolB, probeSchema}}

const probeParameters = `{"type":"object","properties":{"zqone":{"type":"string","description":"d"},"zqtwo":{"type":"string","description":"d"}},"required":["zqone"]}`

var probeSchema = jsontext.Value(probeParameters)

// probe renders conversations to learn how the template writes them.
type probe struct {
	*template
	tools []jsontext.Value // nil if the template does not take them
	count int
	// start is the end of the prompt for an answer, after the user's message.
	start string
}

// render renders the messages after a user's message.
func (p *probe) render(answer bool, messages ...Message) (string, error) {
	if p.count++; p.count > maxProbes {
		return "", errors.New("too many conversations are needed to inspect the template")
	}
	text, _, err := p.renderOnce(&Conversation{
		Messages: append([]Message{{Role: "user", Content: probeUser}}, messages...),
		Tools:    p.tools, Answer: answer,
	})
	return text, err
}

// prompt returns the prompt for a user's message with the given variables.
func (p *probe) prompt(variables map[string]any) (string, error) {
	text, _, err := p.renderOnce(&Conversation{
		Messages: []Message{{Role: "user", Content: probeUser}}, Variables: variables, Answer: true,
	})
	return text, err
}

// afterUser returns what follows the user's message.
func afterUser(text string) string {
	return text[strings.LastIndex(text, probeUser)+len(probeUser):]
}

// answer returns what the template writes for an answer: what follows the prompt.
func (p *probe) answer(m Message) (string, error) {
	m.Role = "assistant"
	text, err := p.render(false, m)
	if err != nil {
		return "", err
	}
	if !strings.Contains(text, probeUser) {
		return "", errors.New("it leaves out a message")
	}
	text = afterUser(text)
	return text[head(text, p.start):], nil
}

// calls returns an answer with calls of the two tools.
func (p *probe) calls(arguments ...string) (string, error) {
	var m Message
	for i, a := range arguments {
		call := Call{[]string{idA, idB}[i], []string{toolA, toolB}[i], a}
		if p.form.NameInID {
			call.ID = nameID(call.Name, i)
		}
		m.Calls = append(m.Calls, call)
	}
	return p.answer(m)
}

// head returns the length of the common start of s and t. It ends no mark halfway.
func head(s, t string) int {
	n := 0
	for n < min(len(s), len(t)) && s[n] == t[n] {
		n++
	}
	if n == len(s) || n == len(t) && openTag(s[:n]) < 0 {
		return n
	}
	if at := openTag(s[:n]); at >= 0 {
		return at
	}
	if n > 0 && n < min(len(s), len(t)) && s[n-1] == '>' && isLetter(s[n]) && isLetter(t[n]) { // as in <|open|>text<|sep|>
		return max(strings.LastIndexByte(s[:n], '<'), 0)
	}
	return n
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }

// tail returns the length of the common end of s and t. It begins no mark halfway.
func tail(s, t string) int {
	n := 0
	for n < min(len(s), len(t)) && s[len(s)-1-n] == t[len(t)-1-n] {
		n++
	}
	before := s[:len(s)-n]
	if n == len(s) || openTag(before) < 0 {
		if word := strings.TrimRightFunc(before, func(r rune) bool { return r < 128 && isLetter(byte(r)) }); word != before && strings.HasSuffix(word, ">") {
			n -= len(firstTag(s[len(s)-n:])) // as in <|close|>text<|sep|>
		}
		return n
	}
	if i := strings.IndexAny(s[len(s)-n:], ">]"); i >= 0 {
		return n - i - 1
	}
	return n
}

// openTag returns the offset of a tag in s that is not closed, or -1.
func openTag(s string) int {
	at := strings.LastIndexAny(s, "<[")
	if at < 0 {
		return -1
	}
	for _, r := range s[at+1:] {
		inTag := r != '>' && r != ' ' && r != '\n' && r != '\t'
		if s[at] == '[' {
			inTag = r >= 'A' && r <= 'Z' || r == '_' || r == '/'
		}
		if !inTag {
			return -1
		}
	}
	return at
}

// lastUnit returns the last mark of s: a tag with the text before it up to white space or
// another tag, and that tag if text is between them, as in <|open|>think<|sep|>.
func lastUnit(s string) string {
	s = strings.TrimRight(s, white)
	at := max(strings.LastIndexAny(s, "<["), 0)
	if i := len(strings.TrimRight(s[:at], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-")); i < at && i > 0 && (s[i-1] == '>' || s[i-1] == ']') {
		at = max(strings.LastIndexAny(s[:i], "<["), 0)
	}
	return s[at:]
}

// firstUnit returns the first mark of s, as lastUnit returns the last.
func firstUnit(s string) string {
	s = strings.TrimLeft(s, white)
	tag := firstTag(s)
	if tag == "" {
		line, _, _ := strings.Cut(s, "\n")
		return strings.TrimRight(line, white)
	}
	rest := s[len(tag):]
	text := rest[:len(rest)-len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-"))]
	if next := firstTag(rest[len(text):]); text != "" && next != "" {
		return tag + text + next
	}
	return tag
}
