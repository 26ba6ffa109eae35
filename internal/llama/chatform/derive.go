package chatform

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// derive derives how the template writes calls, and the marks of reasoning and text.
func (p *probe) derive() error {
	reasoned := p.conventions()
	plain := p.plain()
	var err error
	start := *p.form
	for _, text := range []bool{false, true} {
		*p.form = start
		p.form.TextArguments = text
		one, err2 := p.calls(probeArguments)
		if err2 == nil && strings.Contains(one, idA) && !strings.Contains(one, toolA) {
			p.form.NameInID = true
			one, err2 = p.calls(probeArguments)
		}
		if err2 != nil || p.tools == nil || !(strings.Contains(one, toolA) && strings.Contains(one, valueB)) {
			err2 = errNoCalls
			one = ""
		}
		p.marks(plain, reasoned, one)
		if err2 == nil {
			err2 = p.deriveCalls(plain, one)
		}
		if err2 == nil {
			err2 = p.verify()
		}
		if err2 == nil {
			return nil
		}
		if err == nil || text && errors.Is(err, errNoCalls) {
			err = err2
		}
	}
	return err
}

const probeArguments = `{"` + argA + `":"` + valueA + `","` + argB + `":"` + valueB + `"}`

// deriveCalls derives the literals of calls from an answer in text and one with a call.
func (p *probe) deriveCalls(plain, one string) error {
	f := p.form
	before, after, _ := strings.Cut(plain, probeText)
	common := after[len(after)-tail(after, one):]
	inner := func(s string) string {
		s = strings.TrimSuffix(s, common)
		n := head(s, before)
		if n < len(before) { // the rest of a word is a part of the call
			n = strings.LastIndexAny(s[:n], ">]\n") + 1
		}
		if at := strings.Index(s, f.ThinkEnd); f.ThinkEnd != "" && at >= 0 && at < n && n < at+len(f.ThinkEnd) {
			n = at + len(f.ThinkEnd)
		}
		s = s[n:]
		// Reasoning without text, and text without text, are no part of a call.
		for _, mark := range []string{f.ThinkEnd, f.ContentEnd} {
			if at := strings.Index(s, mark); mark != "" && at >= 0 && at < strings.Index(s, toolA) {
				s = s[at+len(mark):]
			}
		}
		for _, end := range []string{f.TurnEnd, f.CallTurnEnd} {
			if at := strings.LastIndex(s, end); end != "" && at > strings.LastIndex(s, valueB) {
				s = strings.TrimRight(s[:at], white) // the rest is not written by the model
			}
		}
		return s
	}
	if one = inner(one); !strings.Contains(one, toolA) || !strings.Contains(one, valueB) {
		return errors.New("a call is before the text")
	}
	two, err := p.calls(probeArguments, probeArguments)
	if f.Parallel = err == nil && strings.Contains(two, toolB); f.Parallel {
		two = inner(two)
	} else {
		two = ""
	}
	switch {
	case f.deriveJSON(one, two):
		return nil
	case f.deriveTag(one, two):
		return nil
	case f.derivePython(one):
		return nil
	}
	return f.deriveArgs(p, one, two, inner)
}

// deriveJSON recognizes calls that are JSON values, or an array of them.
func (f *Form) deriveJSON(one, two string) bool {
	from, to := findValue(one, 0, toolA, valueB)
	if from < 0 {
		return false
	}
	// In an array the calls are the innermost objects with the name.
	if one[from] == '[' {
		inner := one[from+1 : to-1]
		at, end := findValue(inner, 0, toolA, valueB)
		if at < 0 {
			return false
		}
		from, to = from+1+at, from+1+end
	}
	if one[from] != '{' || !f.paths(jsontext.Value(one[from:to]), nil) {
		return false
	}
	f.Kind = KindJSON
	f.shape(one[from:to])
	pre, post := mark(one[:from], idA, toolA), mark(one[to:], idA, toolA)
	if two == "" {
		f.Begin, f.End = pre, post
		return true
	}
	if len(two) <= from || two[from] != '{' {
		return false
	}
	_, to2 := findValue(two, from, toolA, valueB)
	if to2 < 0 {
		return false
	}
	next, _ := findValue(two, to2, toolB, valueB)
	if next < 0 {
		return false
	}
	f.divide(pre, mark(two[to2:next], idB, toolB), post)
	return true
}

// paths finds the name, the arguments and the id in a call.
func (f *Form) paths(call jsontext.Value, path []string) bool {
	var members map[string]jsontext.Value
	if json.Unmarshal(call, &members) != nil {
		return false
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		value := members[name]
		at := append(path[:len(path):len(path)], name)
		var text string
		switch value.Kind() {
		case '"':
			_ = json.Unmarshal(value, &text)
			if text == toolA {
				f.NamePath = at
			} else if text == idA {
				f.IDPath = at
			}
		case '{':
			var inner map[string]jsontext.Value
			_ = json.Unmarshal(value, &inner)
			_, has := inner[argA]
			switch {
			case name == toolA && has:
				f.NameIsKey, f.NamePath, f.ArgumentsPath = true, path, path
			case has:
				f.ArgumentsPath = at
			default:
				f.paths(value, at)
			}
		}
		if (name == "id" || strings.HasSuffix(name, "_id")) && f.IDPath == nil && value.Kind() != '{' {
			f.IDPath = at // the template counts the calls
		}
	}
	return f.NameIsKey || f.NamePath != nil && f.ArgumentsPath != nil
}

// shape keeps the text of a call, with marks for name, arguments and id.
func (f *Form) shape(s string) {
	from, to := findValue(s, strings.Index(s, quote(argA)), argB, valueB)
	for at := strings.Index(s, quote(argA)); from < 0 && at > 0; {
		if at = strings.LastIndex(s[:at], "{"); at >= 0 {
			from, to = findValue(s, at, argA, valueB)
		}
	}
	if from < 0 {
		return
	}
	s = s[:from] + MarkArguments + s[to:]
	s = strings.Replace(s, quote(toolA), MarkName, 1)
	if before, id, found := f.cutID(s); found {
		s = before + MarkID + strings.TrimPrefix(s[len(before):], id)
	}
	f.Shape = s
}

// cutID returns the text of a call before its id, and the id.
func (f *Form) cutID(s string) (before, id string, found bool) {
	if f.IDPath == nil {
		return "", "", false
	}
	key := quote(f.IDPath[len(f.IDPath)-1])
	at := strings.Index(s, key) + len(key)
	rest := strings.TrimLeft(s[at:], white+":")
	id = rest[:max(strings.IndexAny(rest, ",}\n"), 0)]
	return s[:len(s)-len(rest)], id, at >= len(key)
}

// deriveTag recognizes calls with the name in tags and the arguments as a JSON object.
func (f *Form) deriveTag(one, two string) bool {
	from, to := findValue(one, strings.Index(one, toolA)+len(toolA), argA, valueB)
	if from < 0 {
		return false
	}
	f.Kind = KindTag
	name := strings.LastIndex(one[:from], toolA)
	pre, mid, post := mark(one[:name], idA, toolA), mark(one[name+len(toolA):from], idA, toolA), mark(one[to:], idA, toolA)
	f.NameEnd = mid
	if two == "" {
		f.Begin, f.End = pre, post
		return true
	}
	_, to1 := findValue(two, strings.Index(two, toolA), argA, valueB)
	from2, _ := findValue(two, to1, argA, valueB)
	if to1 < 0 || from2 < 0 {
		return false
	}
	name2 := strings.LastIndex(two[:from2], toolB)
	if name2 < to1 {
		return false
	}
	f.NameEnd = countMarks(mid, mark(two[name2+len(toolB):from2], idB, toolB))
	f.divide(pre, mark(two[to1:name2], idB, toolB), post)
	return true
}

// derivePython recognizes calls that are written as in Python, after a mark.
func (f *Form) derivePython(one string) bool {
	call := toolA + "(" + argA + "="
	begin, rest, found := strings.Cut(one, call)
	end := rest[strings.LastIndex(rest, ")")+1:]
	begin, end = strings.TrimRight(begin, white+"["), strings.TrimLeft(end, white+"]")
	if !found || strings.Trim(begin, white) == "" || strings.Contains(begin, toolA) {
		return false
	}
	f.Kind, f.Syntax, f.CallBegin, f.CallEnd = "", "python", strings.Trim(begin, white), strings.Trim(end, white)
	return true
}

// deriveArgs recognizes calls with tags for each argument.
func (f *Form) deriveArgs(p *probe, one, two string, inner func(string) string) error {
	f.Kind = KindArgs
	at := make([]int, 4)
	for i, s := range []string{argA, valueA, argB, valueB} {
		if at[i] = strings.Index(one, s); at[i] < 0 || i > 0 && at[i] < at[i-1] {
			return errors.New("the arguments are not in their order")
		}
	}
	name := strings.LastIndex(one[:at[0]], toolA)
	if name < 0 {
		return errors.New("the name is not before the arguments")
	}
	pre := mark(one[:name], idA, toolA)
	begin := mark(one[name+len(toolA):at[0]], idA, toolA)
	between := strings.ReplaceAll(one[at[1]+len(valueA):at[2]], argA, MarkArgument)
	post := strings.ReplaceAll(mark(one[at[3]+len(valueB):], idA, toolA), argB, MarkArgument)
	f.ArgEnd, f.ArgSep, f.ArgBegin = split(begin, between, post)
	f.NameEnd = strings.TrimSuffix(begin, f.ArgBegin)
	end := strings.TrimPrefix(post, f.ArgEnd)
	f.ArgMid = map[string]string{"string": one[at[0]+len(argA) : at[1]]}
	if two == "" {
		f.Begin, f.End = pre, end
	} else {
		from := strings.Index(two, valueB)
		last := strings.LastIndex(two, argA)
		to := strings.LastIndex(two[:max(last, 0)], toolB)
		if from < 0 || to < from {
			return errors.New("two calls are not in their order")
		}
		rest := strings.ReplaceAll(mark(two[from+len(valueB):to], idB, toolB), argB, MarkArgument)
		f.NameEnd = countMarks(f.NameEnd, strings.TrimSuffix(mark(two[to+len(toolB):last], idB, toolB), f.ArgBegin))
		f.divide(pre, strings.TrimPrefix(rest, f.ArgEnd), end)
	}
	return f.deriveValues(p, inner)
}

// deriveValues finds how values of other types than strings are written.
func (f *Form) deriveValues(p *probe, inner func(string) string) error {
	for kind, v := range map[string][3]string{ // JSON, as templates write it, as Python writes it
		"number": {"7391", "7391", "7391"}, "boolean": {"true", "true", "True"}, "null": {"null", "null", "None"},
		"object": {`{"zqk":"zqw"}`, `{"zqk": "zqw"}`, `{'zqk': 'zqw'}`}, "array": {`["zqk",1]`, `["zqk", 1]`, `['zqk', 1]`},
	} {
		s, err := p.calls(`{"` + argA + `":` + v[0] + `}`)
		_, s, _ = strings.Cut(inner(s), argA)
		s = s[:max(strings.LastIndex(s, strings.Trim(strings.ReplaceAll(f.ArgEnd, MarkArgument, argA), white)), 0)]
		i := max(strings.LastIndex(s, v[1]), strings.LastIndex(s, v[0]))
		if i < 0 {
			i = strings.LastIndex(s, v[2])
			f.Python = f.Python || i >= 0
		}
		switch {
		case err == nil && i >= 0:
			f.ArgMid[kind] = s[:i]
		case kind == "null": // many templates leave it out
			f.ArgMid[kind] = f.ArgMid["string"]
		default:
			return fmt.Errorf("it changes an argument of the type %s", kind)
		}
	}
	return nil
}

// divide splits what is before, between and after two calls.
func (f *Form) divide(pre, between, post string) {
	f.CallEnd, f.Sep, f.CallBegin = split(pre, between, post)
	f.Begin = strings.TrimSuffix(pre, f.CallBegin)
	// The numbers of the first call are not those of the second.
	if n := len(f.CallBegin); len(pre) >= n && n > 0 {
		if counted := countMarks(pre[len(pre)-n:], f.CallBegin); counted != f.CallBegin && strings.Contains(counted, MarkCount) {
			f.CallBegin, f.Begin = counted, pre[:len(pre)-n]
		}
	}
	f.End = strings.TrimPrefix(post, f.CallEnd)
}

// split returns the end, the separator and the begin in between: the end also begins
// post, and the begin also ends pre.
func split(pre, between, post string) (end, sep, begin string) {
	end = between[:head(between, post)]
	rest := between[len(end):]
	n := tail(rest, pre)
	return end, rest[:len(rest)-n], rest[len(rest)-n:]
}

var digits = regexp.MustCompile(`\d+`)

// countMarks returns s with MarkCount for numbers, if s and t differ in numbers only.
func countMarks(s, t string) string {
	counted := digits.ReplaceAllString(s, MarkCount)
	if s != t && counted == digits.ReplaceAllString(t, MarkCount) {
		return counted
	}
	return s
}

// mark returns a literal with marks for the id and the name.
func mark(s, id, name string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, id, MarkID), name, MarkName)
}

// findValue returns the outermost JSON object or array in s, from at on, that holds the
// strings; from is -1 if there is none.
func findValue(s string, at int, words ...string) (from, to int) {
	for i := max(at, 0); i < len(s); i++ {
		if s[i] != '{' && s[i] != '[' {
			continue
		}
		dec := jsontext.NewDecoder(strings.NewReader(s[i:]))
		raw, err := dec.ReadValue()
		if err != nil {
			continue
		}
		all := true
		for _, w := range words {
			all = all && strings.Contains(string(raw), quote(w))
		}
		if all {
			return i, i + len(raw)
		}
	}
	return -1, -1
}

// quote returns s as a JSON string.
func quote(s string) string {
	b, _ := jsontext.AppendQuote(nil, s)
	return string(b)
}

// verify reports whether the form reads back what the template writes.
func (p *probe) verify() error {
	if why := p.form.problem(); why != "" {
		return errors.New(why)
	}
	want := []string{`{"zqone":"it's \"a\"\n\tb {c}","zqtwo":"7"}`, `{"zqtwo":"x"}`}
	if !p.form.Parallel {
		want = want[:1]
	}
	text, err := p.calls(want...)
	if err != nil {
		return err
	}
	r := p.form.NewReader(ReaderOptions{Tools: probeReaderTools, Prompt: p.start})
	events := append(r.Write(text), r.Close("stop")...)
	var got []string
	for _, e := range events {
		switch e.Kind {
		case EventCall:
			got = append(got, "")
		case EventArguments:
			got[len(got)-1] += e.Text
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d of %d calls can be read", len(got), len(want))
	}
	for i := range got {
		value := jsontext.Value(got[i])
		if value.Canonicalize() != nil || string(value) != want[i] {
			return errors.New("the arguments cannot be read back")
		}
	}
	return nil
}
