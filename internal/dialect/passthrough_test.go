package dialect

import (
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

// took feeds a text to the checker in pieces of that many bytes, and returns what passed
// and the stream afterwards.
func took(text string, piece int) (passed string, s Stream, err error) {
	s.Passthrough = true
	var held []byte
	for len(text) > 0 || len(held) > 0 {
		n := min(piece, len(text))
		held, text = append(held, text[:n]...), text[n:]
		whole, err := s.Take(held)
		passed += string(held[:whole])
		held = held[whole:]
		if err != nil || n == 0 {
			return passed, s, err
		}
	}
	return passed, s, nil
}

func TestNativeStreams(t *testing.T) {
	const (
		begin = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":2,\"cache_creation_input_tokens\":5,\"output_tokens\":1}}}\n\n"
		said  = ": a comment of theirs\nevent: d\r\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"x\"}}\r\n\r\n"
		count = "data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"output_tokens\":9}}\n\n"
		stop  = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
	)
	for _, piece := range []int{1, 7, 1 << 20} {
		passed, s, err := took(begin+said+count+stop, piece)
		if err != nil || passed != begin+said+count+stop || !s.Ended() {
			t.Errorf("in pieces of %d: %v, ended %v, passed %q", piece, err, s.Ended(), passed)
		}
		assert.Equal(t, s.Usage(), (Usage{In: 7, Out: 9, Reported: true}), "usage")
	}
	last := "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"pad\":\"" + strings.Repeat("x", 1<<20) +
		"\",\"usage\":{\"input_tokens\":5,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":6}}}\n\n"
	if passed, s, err := took(last, 4096); err != nil || passed != last || !s.Ended() || s.Usage() != (Usage{In: 5, Out: 6, Cached: 4, Reported: true}) {
		t.Errorf("a large last event: %v, %+v", err, s.Usage())
	}
	for name, text := range map[string]string{
		"no JSON":         "data: x\n\n",
		"no object":       "data: [1]\n\n",
		"no type":         "data: {\"a\":1}\n\n",
		"a name twice":    "data: {\"type\":\"a\",\"type\":\"message_stop\"}\n\n",
		"no UTF-8":        "data: {\"type\":\"a\xff\"}\n\n",
		"two data lines":  "data: {\"type\":\"a\"}\ndata: {}\n\n",
		"more in a line":  "data: {\"type\":\"a\"} {}\n\n",
		"an end of chat":  "data: [DONE]\n\n",
		"another field":   "id: 7\ndata: {\"type\":\"a\"}\n\n",
		"after the end":   stop + begin,
		"an error":        "event: error\ndata: {\"type\":\"error\",\"error\":{\"message\":\"no\"}}\n\n",
		"a flat error":    "event: error\ndata: {\"type\":\"error\",\"message\":\"no\",\"code\":\"x\"}\n\n",
		"an endless one":  "data: {\"type\":\"" + strings.Repeat("x", maxPassedFrame+1),
		"a bare return":   "data: {\"type\":\r\"a\"}\n\n",
		"a wrong message": "data: {\"type\":7}\n\n",
	} {
		passed, _, err := took(text, 64<<10)
		f := fault.Of(err)
		if err == nil || f.Code != fault.EngineError || len(passed) > len(stop) {
			t.Errorf("%s: %v, passed %q", name, err, passed)
		}
	}
}

func TestCheckNative(t *testing.T) {
	for body, good := range map[string]bool{
		`{"type":"message","usage":{"input_tokens":1,"output_tokens":2}}`:                        true,
		`{"object":"response","error":null,"usage":{"input_tokens":1,"output_tokens":2}}` + "\n": true,
		`{"type":"error","error":{"message":"no"}}`:                                              false,
		`{"type":"message"} {}`: false,
		`[]`:                    false,
		``:                      false,
		`{"type":"message","usage":{"input_tokens":1,"output_tokens":2},"usage":{}}`: false,
	} {
		usage, err := CheckPassthrough(strings.NewReader(body))
		if (err == nil) != good || good && usage != (Usage{In: 1, Out: 2, Reported: true}) {
			t.Errorf("%s: %+v, %v", body, usage, err)
		}
	}
	usage, err := CheckPassthrough(strings.NewReader(`{"usage":{"input_tokens":-1,"output_tokens":9223372036854775807,"cache_read_input_tokens":9223372036854775807}}`))
	assert.That(t, err == nil && usage.In >= 0 && usage.Out >= 0, usage, err)
}
