package prefix

import (
	"bytes"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

var (
	key  = Key{1, 2, 3}
	noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
)

func sums(p Prompt) (sums []uint64) {
	for _, m := range p.Marks {
		sums = append(sums, m.Sum)
	}
	return sums
}

// A conversation's next prompt has the marks of the previous one, wherever the tools are
// and whatever else the request contains.
func TestPromptsShareTheirPrefixes(t *testing.T) {
	const system, user, answer = `{"role":"system","content":"be \"brief\" \\"}`, `{"role":"user","content":[{"type":"text","text":"]}"}]}`, `{"role":"assistant","content":null}`
	first := Read(&key, "ann m", []byte(`{"model":"m","tools":[{"a":[1,{"b":"]"}]}],"messages":[`+system+`,`+user+`],"max_tokens":12}`))
	next := Read(&key, "ann m", []byte(` { "messages" : [ `+system+" ,\n"+user+`,`+answer+`,`+user+` ] , "stream":true,"temperature":-1.5e3, "max_completion_tokens" : 70 ,"tools":[{"a":[1,{"b":"]"}]}]}`))
	if len(first.Marks) != 2 || len(next.Marks) != 4 || !slices.Equal(sums(first), sums(next)[:2]) {
		t.Errorf("%+v and %+v", first, next)
	}
	assert.That(t, first.MaxTokens == 12 && next.MaxTokens == 70, first.MaxTokens, "and", next.MaxTokens, "tokens")
	if want := len(`[{"a":[1,{"b":"]"}]}]`) + len(system) + len(user); first.Bytes != want || next.Marks[1].Bytes != want {
		t.Errorf("%d bytes, want %d", first.Bytes, want)
	}
	for name, other := range map[string]Prompt{
		"another member": Read(&key, "bob m", []byte(`{"messages":[`+system+`]}`)),
		"another key":    Read(&Key{9}, "ann m", []byte(`{"messages":[`+system+`]}`)),
		"without tools":  Read(&key, "ann m", []byte(`{"messages":[`+system+`]}`)),
		"another order":  Read(&key, "ann m", []byte(`{"tools":[{"a":[1,{"b":"]"}]}],"messages":[`+user+`,`+system+`]}`)),
	} {
		for _, sum := range sums(other) {
			assert.That(t, !slices.Contains(sums(next), sum), name, "has the same fingerprint")
		}
	}
	for _, body := range []string{``, `null`, `[]`, `{}`, `{"messages":7}`, `{"messages":[]}`, `{"messages":[`, `{"messages"`, `{"a":"`, `{"max_tokens":"x"}`, `{"max_tokens":-3}`} {
		if p := Read(&key, "", []byte(body)); len(p.Marks) > 0 || p.MaxTokens != 0 {
			t.Errorf("%s: %+v", body, p)
		}
	}
}

// Read finds the messages that a parser finds.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[1,"a",{"b":[{}]},null,true],"tools":{}}`, `{"x":"\\\"","messages":[ "\"" , [] ]}`, `{"a":1 ,"messages":[[[]],{}]}`, "{\"messages\":[\"\\\\\"]}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		got := Read(&key, "", body) // it must not panic on any input
		var want struct {
			Tools    jsontext.Value   `json:"tools"`
			Messages []jsontext.Value `json:"messages"`
		}
		if json.Unmarshal(body, &want) != nil || bytes.Contains(body, []byte(`\u`)) { // no client escapes the names
			return
		}
		if len(got.Marks) != min(len(want.Messages), maxMarks) {
			t.Fatalf("%d marks of %d messages", len(got.Marks), len(want.Messages))
		}
		size := len(want.Tools)
		for _, m := range want.Messages {
			size += len(m)
		}
		assert.Require(t, got.Bytes == size, got.Bytes, "bytes", size)
	})
}

func TestMemory(t *testing.T) {
	var m Memory
	prompt := func(n int) (marks []Mark) {
		for i := range n {
			marks = append(marks, Mark{uint64(i + 1), 10 * (i + 1)})
		}
		return marks
	}
	if got := m.Match(prompt(3), noon); got != nil {
		t.Errorf("an empty memory has %v", got)
	}
	if _, _, ok := m.Sent(nil, 7, noon); ok {
		t.Error("nothing was sent")
	}
	_, seen, _ := m.Sent(prompt(3), 7, noon)
	if again, ok := ParseSeen(seen.Encode()); !ok || again != seen || len(seen.Encode()) != 16 || seen != (Seen{3, 7, 30}) {
		t.Errorf("%v is read as %v", seen, again)
	}
	if _, ok := ParseSeen([]byte("short")); ok {
		t.Error("that is none")
	}
	m.Sent(prompt(1), 8, noon)
	m.Add(Seen{Sum: 5}, noon)
	want := []Match{{7, 30, 0}, {8, 10, 0}}
	if got := m.Match(prompt(5), noon.Add(lifetime)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	m.Sent(prompt(5), 8, noon.Add(lifetime))
	if got := m.Match(prompt(5), noon.Add(2*lifetime)); !slices.Equal(got, []Match{{8, 50, 0}, {7, 10, 0}}) {
		t.Errorf("after an hour: %v", got) // the first message was sent again
	}
	if got := m.Match(prompt(5), noon.Add(3*lifetime)); got != nil {
		t.Errorf("an hour after the last: %v", got)
	}
	for i := range uint32(10) {
		m.Add(Seen{Sum: 99, Machine: i + 1}, noon.Add(3*lifetime))
	}
	if got := m.Match([]Mark{{99, 1}}, noon.Add(3*lifetime)); !slices.Equal(got, []Match{{10, 1, 0}, {9, 1, 0}, {8, 1, 0}, {7, 1, 0}}) {
		t.Errorf("of ten machines: %v", got)
	}
}

// A machine's match reports how much of other prompts it has received since: the new
// bytes of each call, here or at another node. A shorter prefix that was sent later is a
// separate match.
func TestMemoryCountsTextSince(t *testing.T) {
	var m Memory
	system, now := Mark{1, 1000}, noon
	ours, other := []Mark{system, {2, 1500}}, []Mark{system, {3, 3000}}
	m.Sent(ours, 7, now)
	if got := m.Match(ours, now); !slices.Equal(got, []Match{{7, 1500, 0}}) {
		t.Errorf("at once: %v", got)
	}
	before, seen, _ := m.Sent(other, 7, now) // 2,000 of its bytes are new there
	if before != (Match{7, 1000, 0}) || seen != (Seen{3, 7, 2000}) {
		t.Errorf("%v was sent before, %v is new", before, seen)
	}
	m.Add(Seen{99, 7, 500}, now)
	m.Sent(other, 8, now) // another machine
	if got := m.Match(ours, now); !slices.Equal(got, []Match{{7, 1500, 2500}, {8, 1000, 0}, {7, 1000, 500}}) {
		t.Errorf("after 2,500 bytes: %v", got)
	}
	if before, _, _ := m.Sent(ours, 7, now.Add(lifetime)); before != (Match{7, 1500, 2500}) {
		t.Errorf("a generation later: %v", before)
	}
	m.Add(Seen{98, 7, 100}, now.Add(2*lifetime))
	if got := m.Match(ours, now.Add(2*lifetime)); !slices.Equal(got, []Match{{7, 1500, 100}, {8, 1000, 0}}) {
		t.Errorf("two generations later: %v", got)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	var m Memory
	for i := range uint64(2*maxEntries + 10) {
		m.Add(Seen{i, 1, 1}, noon)
	}
	if len(m.current.prefixes)+len(m.previous.prefixes) > 2*maxEntries {
		t.Errorf("%d entries", len(m.current.prefixes)+len(m.previous.prefixes))
	}
	if m.Match([]Mark{{2*maxEntries + 9, 1}}, noon) == nil || m.Match([]Mark{{0, 1}}, noon) != nil {
		t.Error("the oldest are dropped")
	}
}

// body returns a request of 100 KB with 40 messages of code with many quotes.
func body() []byte {
	var b bytes.Buffer
	b.WriteString(`{"model":"m","stream":true,"tools":[{"type":"function","function":{"name":"read","parameters":{"type":"object"}}}],"messages":[`)
	text := strings.Repeat(`if x := f(\"name\"); x != nil {\n\treturn fmt.Errorf(\"cannot read: %w\", err)\n} // and so on, and so on, for a line or two of plain text\n`, 18)
	for i := range 40 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"role":"user","content":"%d %s"}`, i, text)
	}
	b.WriteString(`]}`)
	return b.Bytes()
}

func BenchmarkRead100K(b *testing.B) {
	all := body()
	b.SetBytes(int64(len(all)))
	b.ReportAllocs()
	for b.Loop() {
		Read(&key, "ann m", all)
	}
}

func BenchmarkMatch(b *testing.B) {
	var m Memory
	for i := range uint64(400_000) {
		m.Add(Seen{i * 7919, 1, 1}, noon)
	}
	p := Read(&key, "ann m", body())
	m.Sent(p.Marks, 3, noon)
	b.ReportAllocs()
	for b.Loop() {
		assert.Require(b, len(m.Match(p.Marks, noon)) == 1, "not found")
	}
}
