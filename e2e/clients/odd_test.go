package clients_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// oddStream is a stream of the chat dialect in one of the ways in which engines break
// it, and what it means.
type oddStream struct {
	Text   string    `json:"text"`
	Calls  []oddCall `json:"calls"`
	frames []string
}

type oddCall struct {
	Name      string         `json:"name"`
	Arguments map[string]any `json:"arguments"`
}

// newOddStream makes the stream of a seed.
func newOddStream(seed uint64) oddStream {
	rng := rand.New(rand.NewPCG(seed, 7))
	pick := func(words ...string) string { return words[rng.IntN(len(words))] }
	var s oddStream
	object := func(members ...string) string { return "{" + strings.Join(members, ",") + "}" }
	quote := func(text string) string { quoted, _ := json.Marshal(text); return string(quoted) }
	end := pick("\n", "\n", "\r\n")
	frame := func(data string) {
		s.frames = append(s.frames, "data:"+pick(" ", "")+data+end+end)
		switch rng.IntN(12) {
		case 0:
			s.frames = append(s.frames, ": ping"+end+end)
		case 1:
			s.frames = append(s.frames, "data:"+end+end)
		case 2:
			s.frames = append(s.frames, "data: {}"+end+end)
		case 3:
			s.frames = append(s.frames, "event: message"+end+"id: 7"+end+`data: {"choices":[]}`+end+end)
		}
	}
	roles := pick("once", "always", "never")
	said := false
	empty := pick(`null`, `null`, `""`)
	head := pick(`"id":"c","created":1700000000,`, `"id":"","created":1.5,`, ``, `"id":"c","object":"chat.completion.chunk",`)
	chunk := func(finish string, members ...string) {
		if roles == "always" || roles == "once" && !said {
			members = append(members, `"role":"assistant"`)
		}
		said = true
		frame(object(head + `"model":"/models/x.gguf","choices":[` + object(pick(`"index":0`, `"index":0`, `"index":"0"`, `"index":0.0`), `"delta":`+object(members...), `"finish_reason":`+finish) + `]`))
	}
	if rng.IntN(3) == 0 {
		chunk(empty, `"`+pick("reasoning", "reasoning_content")+`":"hm"`)
	}
	for range rng.IntN(4) {
		word := pick("Hello ", "wörld ", "😀 ", "a\"b\\c ", "line\nbreak ")
		s.Text += word
		if rng.IntN(4) == 0 {
			chunk(empty, `"content":[`+object(`"type":"text"`, `"text":`+quote(word))+`]`)
		} else {
			chunk(empty, `"content":`+quote(word))
		}
	}
	for range rng.IntN(4) {
		s.Calls = append(s.Calls, oddCall{pick("f", "g", "h"), map[string]any{"n": float64(len(s.Calls)), pick("text", "path"): pick("", "x", "a{b}\"c", "ü")}})
	}
	s.callParts(rng, quote, func(finish string, parts ...string) {
		members := []string{`"tool_calls":[` + strings.Join(parts, ",") + `]`}
		if rng.IntN(5) == 0 {
			members = append(members, `"content":`+pick(`"\n"`, `null`, `""`))
		}
		if finish == "" {
			finish = empty
		}
		chunk(finish, members...)
	})
	switch {
	case rng.IntN(6) == 0: // no finish reason
	case len(s.Calls) > 0:
		chunk(pick(`"tool_calls"`, `"stop"`, `"tool_use"`), []string(nil)...)
	default:
		chunk(pick(`"stop"`, `"eos"`, `"STOP"`, `"end_turn"`), []string(nil)...)
	}
	switch rng.IntN(4) {
	case 0:
		frame(`{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}`)
	case 1:
		frame(`{"usage":{"input_tokens":5.0,"output_tokens":"3"}}`)
	}
	if s.Text == "" && len(s.Calls) == 0 {
		s.Text = "x"
		s.frames = append([]string{"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}" + end + end}, s.frames...)
	}
	s.frames = append(s.frames, "data: [DONE]"+pick("", " ")+end+end)
	return s
}

// callParts writes the calls of the stream in one of the ways of engines.
func (s *oddStream) callParts(rng *rand.Rand, quote func(string) string, write func(finish string, parts ...string)) {
	part := func(index int, id, name, arguments string) string {
		function := `"arguments":` + quote(arguments)
		if name != "" {
			function = `"name":` + quote(name) + "," + function
		}
		head := ""
		if index >= 0 {
			head = `"index":` + strconv.Itoa(index) + ","
		}
		if id != "" {
			head += `"id":` + quote(id) + ","
		}
		return `{` + head + `"type":"function","function":{` + function + `}}`
	}
	way := rng.IntN(9)
	var later [][]string
	for i, call := range s.Calls {
		text, _ := json.Marshal(call.Arguments)
		whole, id := string(text), "call_"+strconv.Itoa(i)
		cut := 1 + rng.IntN(len(whole)-1)
		for !utf8.RuneStart(whole[cut]) { // no character is cut
			cut--
		}
		first, rest := whole[:cut], whole[cut:]
		switch way {
		case 0: // as the dialect has it
			write("", part(i, id, call.Name, ""))
			write("", part(i, "", "", first))
			write("", part(i, "", "", rest))
		case 1: // another id in every part
			write("", part(i, id+"a", call.Name, first))
			write("", part(i, id+"b", "", rest))
		case 2: // one id for all
			write("", part(i, "same", call.Name, whole))
		case 3: // neither number nor id
			write("", part(-1, "", call.Name, whole))
		case 4: // all numbered 0
			write("", part(0, id, call.Name, first))
			write("", part(0, id, "", rest))
		case 5: // no ids
			write("", part(i, "", call.Name, first))
			write("", part(i, "", "", rest))
		case 6: // each part repeats those before it
			write("", part(i, id, call.Name, first))
			write("", part(i, id, call.Name, whole))
		case 7: // the last chunk has all of it again
			write("", part(i, id, call.Name, first))
			write("", part(i, "", "", rest))
			later = append(later, []string{part(i, id, call.Name, whole)})
		case 8: // interleaved
			write("", part(i, id, call.Name, ""))
			later = append(later, []string{part(i, "", "", first)}, []string{part(i, "", "", rest)})
		}
	}
	for _, parts := range later {
		write("", parts...)
	}
}

// TestOddStreams has the stream helpers of the official libraries join streams that
// break the dialect: none throws, and each gets the text and the calls that were meant.
func TestOddStreams(t *testing.T) {
	t.Parallel()
	const streams = 1000
	engine := enginetest.New(enginetest.VLLM, enginetest.Options{})
	assert.OK(t, engine.Start())
	t.Cleanup(func() { engine.Close() })
	engine.Script(func(c enginetest.Call) enginetest.Behaviour {
		seed, err := strconv.ParseUint(strings.TrimPrefix(c.Input, "odd "), 10, 64)
		if err != nil {
			return enginetest.Behaviour{Text: "hi"}
		}
		return enginetest.Behaviour{Raw: newOddStream(seed).frames}
	})
	n := startNetwork(t, "[ratelimit]\nrps = 10000\nburst = 10000\n")
	n.daemon("box", fmt.Sprintf("[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%q]\n", engine.URL()))
	n.eventually("ada", "test-model", "")
	var all []oddStream
	for seed := range uint64(streams) {
		all = append(all, newOddStream(seed))
	}
	text := assert.Value(json.Marshal(all))(t)
	meant := filepath.Join(t.TempDir(), "meant.json")
	assert.OK(t, os.WriteFile(meant, text, 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	on(t, []surface{n.atHub("ada"), n.remote("ada", "[ratelimit]\nrps = 10000\nburst = 10000\n")}, func(t *testing.T, s surface) {
		args := []string{"node/odd.mjs", s.base, s.key, meant}
		if s.sealed {
			args = append(args, "sealed")
		}
		cmd := exec.CommandContext(ctx, "node", args...)
		cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
		assert.OK(t, cmd.Run(), "node")
	})
}
