package chatform

import (
	"crypto/sha256"
	"encoding/json/jsontext"
	"math/big"
	"slices"
	"strconv"
	"strings"
)

// prepare returns a conversation as the template takes it: with the tools in the system
// message and results as text if the template does not write them, and with one call in a
// message if it writes one only.
func (t *template) prepare(c *Conversation) *Conversation {
	f, p := t.form, *c
	p.Messages, p.Variables = slices.Clone(c.Messages), f.variables(c.Variables)
	if !f.Parallel && f.WritesCalls {
		p.Messages = splitCalls(p.Messages)
	}
	if f.NameInID {
		nameIDs(p.Messages)
	}
	if f.Default {
		p.Messages = resultsAsText(p.Messages)
	}
	if len(c.Tools) > 0 && f.Tools() && (f.Default || !f.ShowsTools) {
		text := f.instructions(c.Tools)
		if len(p.Messages) > 0 && p.Messages[0].Role == "system" {
			p.Messages[0].Content = strings.TrimSpace(p.Messages[0].Content + "\n\n" + text)
		} else {
			p.Messages = slices.Insert(p.Messages, 0, Message{Role: "system", Content: text})
		}
	}
	if f.Default || !f.Tools() {
		p.Tools = nil
	}
	return &p
}

// instructions describes tools, and how to call them, for the system message.
func (f *Form) instructions(tools []jsontext.Value) string {
	var b strings.Builder
	b.WriteString("# Tools\n\nYou may call these functions to help with the user's request. Each line within <tools></tools> is the JSON description of one.\n\n<tools>\n")
	for _, tool := range tools {
		b.Write(tool)
		b.WriteByte('\n')
	}
	b.WriteString("</tools>\n\nTo call a function, write its name and its arguments exactly in this form, and nothing after it:\n\n")
	b.WriteString(f.example())
	if f.Parallel {
		b.WriteString("\n\nYou may write several calls one after another.")
	}
	b.WriteString("\nThe results follow in the next message.")
	return b.String()
}

// resultsAsText turns the results of calls into messages of the user.
func resultsAsText(messages []Message) (list []Message) {
	for _, m := range messages {
		if m.Role != "tool" {
			list = append(list, m)
			continue
		}
		text := "<tool_response>\n" + m.Content + "\n</tool_response>"
		if last := len(list) - 1; last >= 0 && list[last].Role == "user" && strings.HasSuffix(list[last].Content, "</tool_response>") {
			list[last].Content += "\n" + text
			continue
		}
		list = append(list, Message{Role: "user", Content: text})
	}
	return list
}

// splitCalls gives each call of a message a message, with its result after it.
func splitCalls(messages []Message) (list []Message) {
	for i := 0; i < len(messages); i++ {
		m := messages[i]
		if len(m.Calls) < 2 {
			list = append(list, m)
			continue
		}
		var results []Message
		for i+1 < len(messages) && messages[i+1].Role == "tool" {
			i++
			results = append(results, messages[i])
		}
		for n, call := range m.Calls {
			one := Message{Role: m.Role, Calls: []Call{call}}
			if n == 0 {
				one.Content, one.Reasoning = m.Content, m.Reasoning
			}
			list = append(list, one)
			results = slices.DeleteFunc(results, func(r Message) bool {
				if r.CallID == call.ID {
					list = append(list, r)
				}
				return r.CallID == call.ID
			})
		}
		list = append(list, results...)
	}
	return list
}

// alternating merges messages so that those of the user and the assistant alternate, which
// some templates demand. The system message becomes a part of the user's first one.
func alternating(messages []Message) (list []Message) {
	for _, m := range messages {
		if m.Role == "system" {
			m.Role = "user"
		}
		if last := len(list) - 1; last >= 0 && list[last].Role == m.Role && m.Role != "tool" {
			to := &list[last]
			to.Content = strings.Trim(to.Content+"\n\n"+m.Content, "\n")
			to.Reasoning = strings.Trim(to.Reasoning+"\n\n"+m.Reasoning, "\n")
			to.Calls = slices.Concat(to.Calls, m.Calls)
			continue
		}
		list = append(list, m)
	}
	return list
}

// nameID returns an id that has the name of the tool.
func nameID(name string, n int) string { return "functions." + name + ":" + strconv.Itoa(n) }

// nameIDs gives the calls of a conversation ids that have the names of the tools.
func nameIDs(messages []Message) {
	ids := map[string]string{}
	for i := range messages {
		m := &messages[i]
		m.Calls = slices.Clone(m.Calls)
		for j, c := range m.Calls {
			if ids[c.ID] = c.ID; !strings.Contains(c.ID, c.Name) {
				ids[c.ID] = nameID(c.Name, len(ids)-1)
			}
			m.Calls[j].ID = ids[c.ID]
		}
		if id, ok := ids[m.CallID]; ok {
			m.CallID = id
		}
	}
}

// callsAsText returns calls as the model writes them, for a template that does not.
func (f *Form) callsAsText(calls []Call) string {
	if write := syntaxes[f.Syntax].write; write != nil {
		return write(calls)
	}
	var list []string
	for _, c := range calls {
		arguments := c.Arguments
		if v := jsontext.Value(arguments); !v.IsValid() {
			arguments = quote(arguments)
		}
		call := strings.NewReplacer(MarkName, quote(c.Name), MarkArguments, arguments).Replace(f.Shape)
		list = append(list, f.CallBegin+call+f.CallEnd)
	}
	return strings.Join(list, f.Sep)
}

// callID returns the id of a call for the template. If that must be 9 letters and digits,
// it is derived from the caller's.
func (f *Form) callID(id string) string {
	const length = 9
	word := func(c rune) bool { return c < 128 && isWord(byte(c)) && !strings.ContainsRune("_-.:", c) }
	if !f.ShortIDs || len(id) == length && strings.IndexFunc(id, func(c rune) bool { return !word(c) }) < 0 {
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return new(big.Int).SetBytes(sum[:]).Text(62)[:length]
}
