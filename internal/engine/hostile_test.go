package engine

import (
	"bytes"
	std "encoding/json"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
)

// hostileBodies are requests that two parsers may read differently, or that may
// crash one (spec/security.md#untrusted-prompts).
func hostileBodies() []string {
	var all []string
	const good = `{"model":"m","messages":[{"role":"user","content":"hi"}]`
	// Duplicate names at each depth and in each JSON spelling.
	for _, name := range []string{"model", "stream", "messages", "x", "reasoning_effort", "max_tokens"} {
		for _, values := range [][2]string{{`"m"`, `"n"`}, {`"m"`, `"m"`}, {`true`, `false`}, {`null`, `"n"`}, {`[]`, `{}`}} {
			escaped := fmt.Sprintf(`\u%04x`, name[0]) + name[1:]
			all = append(all,
				fmt.Sprintf(`{"model":"m",%q:%s,%q:%s}`, name, values[0], name, values[1]),
				fmt.Sprintf(`{"model":"m",%q:%s,"%s":%s}`, name, values[0], escaped, values[1]),
				fmt.Sprintf(`%s,"x":{%q:%s,%q:%s}}`, good, name, values[0], name, values[1]),
			)
		}
	}
	// Case variants of the names that kith reads, which some parsers fold.
	for _, name := range []string{"Model", "MODEL", "mOdel", "model ", " model", "model\\u0000", "ｍodel", "mode\u0130", "Stream", "STREAM", "\u017ftream", "stream\\t", "ſtream", "Messages"} {
		for _, value := range []string{`"n"`, `true`, `null`} {
			all = append(all, fmt.Sprintf(`%s,"%s":%s}`, good, name, value), fmt.Sprintf(`{"%s":%s,"model":"m","messages":[]}`, name, value))
		}
	}
	// Models and switches of other types, or with two meanings.
	for _, value := range []string{`1`, `null`, `true`, `["m"]`, `{"id":"m"}`, `""`, `"m\u0000"`, `"\ud800"`, `"\udc00\ud800"`, `"m\n"`, `" m"`, `"m\u202e"`, `"` + strings.Repeat("m", 300) + `"`, `"\u006d"`, `"m/../n"`, `"m%00"`, `"m"x`, `'m'`, `m`, `NaN`, `-0`, `1e999`, `0x1`, `01`, `.5`, `"m`, `"m\"`} {
		all = append(all, fmt.Sprintf(`{"model":%s,"messages":[]}`, value), fmt.Sprintf(`%s,"stream":%s}`, good, value), fmt.Sprintf(`%s,"seed":%s}`, good, value))
	}
	// What is not a single JSON object.
	for _, text := range []string{"", " ", "null", "[]", `"x"`, "1", "{", "}", `{"model"}`, `{"model":}`, `{"model":"m"`, `{"model":"m",}`, `{,"model":"m"}`, `{"model":"m"};`, `{"model":"m"}{"model":"n"}`, `{"model":"m"}]`,
		`{"model":"m"}` + "\x00", "\ufeff" + `{"model":"m"}`, "\xff\xfe{\x00", `{"model":"m"/**/}`, `//x` + "\n" + `{"model":"m"}`, `{model:"m"}`, `{'model':'m'}`, `{"model":"m" "x":1}`, "{\"model\":\"m\",\"x\":\"a\nb\"}",
		"{\"model\":\"m\",\"x\":\"\x7f\"}", "{\"model\":\"m\",\"x\":\"\xc3\x28\"}", "{\"model\":\"m\",\"x\":\"\xed\xa0\x80\"}", "{\"model\":\"m\",\"\xff\":1}", "{\"mod\xc0\xaeel\":\"m\"}", "\x1f\x8b\x08", "model=m&stream=true", "--B\r\n\r\nx\r\n--B--"} {
		all = append(all, text, text+"\r\n")
	}
	// Depth, size, numbers.
	for _, n := range []int{10, 62, 63, 64, 65, 66, 1000, 100_000} {
		all = append(all, good+`,"x":`+strings.Repeat("[", n)+strings.Repeat("]", n)+"}", good+`,"x":`+strings.Repeat(`{"a":`, n)+"1"+strings.Repeat("}", n)+"}", good+`,"x":"`+strings.Repeat("[", n)+`"}`)
	}
	for _, n := range []string{"1e400", "-1e400", "1e-400", "99999999999999999999", "-9223372036854775809", "0.1e1", "1E5", "1.0", "-0.0", strings.Repeat("9", 5000), "1" + strings.Repeat("0", 400)} {
		all = append(all, good+`,"max_tokens":`+n+"}", good+`,"temperature":`+n+"}", good+`,"n":`+n+"}", good+`,"top_k":`+n+"}")
	}
	return all
}

// Hub and machine read every body alike or refuse it. Any parser reads the routed
// call from what an engine receives.
func TestHostileBodies(t *testing.T) {
	bodies := hostileBodies()
	assert.Require(t, len(bodies) >= 300, len(bodies), "bodies")
	spooled := 0
	for _, text := range bodies {
		head, err := dialect.ReadHead([]byte(text))
		if err != nil {
			if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.InvalidRequest {
				t.Errorf("%.120q: %v", text, err)
			}
			continue
		}
		spooled++
		// As a parser that ignores case and takes the last of two equal names.
		var other struct {
			Model  string
			Stream bool
		}
		if err := std.Unmarshal([]byte(text), &other); err != nil || other.Model != string(head.Model) || other.Stream != head.Stream {
			t.Errorf("%.120q: we read %q and %v, another %q and %v (%v)", text, head.Model, head.Stream, other.Model, other.Stream, err)
		}
		for _, trusted := range []bool{false, true} {
			m := chatModel(string(head.Model), 4096)
			e := &Engine{kind: &generic, models: []Model{m}}
			sent, _, err := e.request(&Request{Model: head.Model, Stream: head.Stream, Body: []byte(text), Trusted: trusted}, &m)
			if err != nil {
				if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.InvalidRequest {
					t.Errorf("%.120q: %v", text, err)
				}
				continue
			}
			other.Model, other.Stream = "", !head.Stream
			var strict map[string]jsontext.Value
			if err := json.Unmarshal(sent, &strict); err != nil {
				t.Errorf("%.120q: the engine gets %.120q: %v", text, sent, err)
			} else if err := std.Unmarshal(sent, &other); err != nil || other.Model != string(head.Model) || other.Stream != head.Stream {
				t.Errorf("%.120q: the engine reads %q and %v (%v)", text, other.Model, other.Stream, err)
			}
			if !trusted {
				for name := range strict {
					if _, known := chatMembers[name]; !known && name != "model" && name != "stream" && name != "stream_options" && name != "max_tokens" {
						t.Errorf("%.120q: %s reaches the engine", text, name)
					}
				}
			}
		}
	}
	assert.That(t, spooled >= 30 && spooled <= len(bodies)/2, spooled, "of", len(bodies), "were spooled")
}

// The same for embeddings, whose input is checked by the gateway and by the engine.
func TestHostileEmbeddings(t *testing.T) {
	for _, text := range hostileBodies() {
		text = strings.Replace(text, `"messages"`, `"input"`, 1)
		head, err := dialect.ReadEmbeddingsHead([]byte(text))
		if err != nil {
			if f, ok := errors.AsType[*fault.Fault](err); !ok || f.Code != fault.InvalidRequest {
				t.Errorf("%.120q: %v", text, err)
			}
			continue
		}
		if !strings.Contains(text, `"input":"m"`) {
			t.Errorf("%.120q is spooled, as %+v", text, head)
		}
	}
}

// The hub either passes on or refuses a normalized stream, whatever the engine
// sends: both read it alike, and no buffer is unbounded.
func FuzzBothHalves(f *testing.F) {
	for _, g := range golden(f) {
		f.Add([]byte(g["in"]), false)
	}
	f.Add(dialect.AppendSpeech(dialect.AppendSpeech(nil, dialect.SpeechDelta, "a", nil), dialect.SpeechDone, "a", nil), true)
	f.Add([]byte("data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: [DONE]\n\n"), true)
	f.Fuzz(func(t *testing.T, in []byte, speaks bool) {
		s := streamOf(bytes.NewReader(in), wants{})
		if speaks {
			s.normalizer.speech = new(transcript)
		}
		check := &dialect.Stream{Speech: speaks}
		var pending []byte
		buf := make([]byte, 512)
		for {
			n, readErr := s.Read(buf)
			pending = append(pending, buf[:n]...)
			spooled, err := check.Take(pending)
			pending = pending[spooled:]
			if err != nil || readErr != nil || check.Ended() {
				break
			}
		}
		if e := &s.normalizer.events; cap(e.line)+cap(e.data) > 4*maxFrame+512 {
			t.Errorf("%d bytes are held", cap(e.line)+cap(e.data))
		}
		marks := bytes.Count(in, []byte("[DONE]")) + bytes.Count(in, []byte("done")) + bytes.Count(in, []byte(`\u`))
		assert.That(t, !check.Ended() || marks != 0, in, "ended well without an end mark")
	})
}
