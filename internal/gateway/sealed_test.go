package gateway

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

const (
	sealedHead    = `{"v":1,"call":"AAAAAAAAAAAAAAAAAAAAAA==","endpoint":"/v1/chat/completions","model":"m","stream":false,"n":1}`
	sealedRouting = `{"to":[{"machine":"a","key":"AQEBAQEBAQE="},{"machine":"b","key":"AgICAgICAgI="}],"declined":["c"],"prompt":512}`
)

// sealedRequest is a sealed call for two machines, whose keys are of the digits 1 and 2.
func sealedRequest(head, routing, body string) string {
	front := binary.BigEndian.AppendUint16([]byte(sealedMagic), uint16(len(head)))
	front = append(binary.BigEndian.AppendUint16(front, uint16(len(routing))), 2)
	return string(front) + head + routing + strings.Repeat("1", sealedKey) + strings.Repeat("2", sealedKey) + body
}

// The hub reads the front of a sealed call, and passes on what is behind it.
func TestSealedCall(t *testing.T) {
	var got *Call
	var sent []byte
	unread := strings.Repeat("what nobody reads ", 40)
	trailer := http.Header{"Kith-Usage": {"7 5"}}
	edge := New(hostedConfig(&backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		got = call
		r, _ := http.NewRequest("POST", "http://machine/", nil)
		_, body := call.Request()
		call.Attach(r, body)
		sent, _ = io.ReadAll(r.Body)
		assert.Equal(t, r.ContentLength, int64(len(sent)))
		return &Answer{Response: &http.Response{Body: io.NopCloser(strings.NewReader("sealed answer")), Trailer: trailer, ContentLength: -1}}, nil
	}}))
	w, _ := do(edge, ask("POST", "https://hub.example/v1/sealed", sealedRequest(sealedHead, sealedRouting, unread)))
	assert.Require(t, w.Code == 200 && w.Body.String() == "sealed answer" && w.Header().Get("Content-Type") == "application/octet-stream", w.Code, w.Body)
	assert.Equal(t, string(sent), unread)
	assert.That(t, got.Endpoint == fleet.ChatCompletions && got.Model == "m" && !got.Stream && got.Choices == 1 && got.Sealed.Prompt == 512, got)
	assert.That(t, len(got.Sealed.To) == 2 && got.Sealed.Declined[0] == "c")
	head := assert.Value(base64.StdEncoding.DecodeString(got.Sealed.Head))(t)
	assert.Equal(t, string(head), sealedHead)
	key := got.Sealed.Key("b", []fleet.SealKey{{9}, {2, 2, 2, 2, 2, 2, 2, 2}})
	assert.Equal(t, key, "AgICAgICAgI= "+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("2"), sealedKey)))
	assert.Equal(t, got.Sealed.Key("b", []fleet.SealKey{{1, 1, 1, 1, 1, 1, 1, 1}}), "")
	assert.Equal(t, got.Sealed.Key("d", []fleet.SealKey{{2, 2, 2, 2, 2, 2, 2, 2}}), "")
}

// What a call's routing says of its size is advice: the counts of its machine are limited by
// the size of its body, and so is what is learned of the machine's speed.
func TestSealedSize(t *testing.T) {
	const embeddings = `"endpoint":"/v1/embeddings"`
	for name, c := range map[string]struct {
		head, prompt string
		want         int
	}{
		"as it is": {sealedHead, "512", 512}, "too small": {sealedHead, "0", 0}, "too large": {sealedHead, "9007199254740991", 6000},
		"embeddings": {strings.Replace(sealedHead, `"endpoint":"/v1/chat/completions"`, embeddings, 1), "0", 6000},
	} {
		var got *Call
		var out Outcome
		config := hostedConfig(&backend{do: func(_ context.Context, call *Call) (*Answer, error) {
			got = call
			return &Answer{Response: &http.Response{Body: io.NopCloser(strings.NewReader("sealed answer")), Trailer: http.Header{"Kith-Usage": {"1000000 5"}}, ContentLength: -1}}, nil
		}})
		config.Finished = func(_ *Call, o Outcome) { out = o }
		routing := strings.Replace(sealedRouting, "512", c.prompt, 1)
		do(New(config), ask("POST", "https://hub.example/v1/sealed", sealedRequest(c.head, routing, strings.Repeat("x", 6000))))
		assert.That(t, got.Sealed.Prompt == c.want && out.TokensIn == 6000+tokenRoom, name, got.Sealed.Prompt, out.TokensIn)
	}
}

// The longest answer that a machine may give can be sealed; nothing longer passes.
func TestLongSealedAnswer(t *testing.T) {
	most := int(dialect.MaxAnswer(fleet.ChatCompletions)) + sealedAnswerRoom
	for length, want := range map[int]int{most: 200, most + 1: 502} {
		edge := New(hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) {
			return &Answer{Response: &http.Response{Body: io.NopCloser(strings.NewReader(strings.Repeat("x", length))), ContentLength: -1}}, nil
		}}))
		w, _ := do(edge, ask("POST", "https://hub.example/v1/sealed", sealedRequest(sealedHead, sealedRouting, "")))
		assert.Equal(t, w.Code, want, length)
	}
}

// A front that cannot be read is refused, and nothing of it goes on.
func TestBadSeals(t *testing.T) {
	edge := New(hostedConfig(refuses(fault.New(fault.InternalError, "it went on"))))
	good := sealedRequest(sealedHead, sealedRouting, "")
	requests := map[string]string{
		"empty": "", "other magic": "KSEAL2" + good[6:], "long head": sealedRequest(strings.Repeat("x", maxSealedHead+1), sealedRouting, ""),
		"long routing": sealedRequest(sealedHead, strings.Repeat("x", maxRouting+1), ""), "no keys": good[:10] + "\x00" + good[11:], "nine keys": good[:10] + "\x09" + good[11:],
		"a version": sealedRequest(strings.Replace(sealedHead, `"v":1`, `"v":2`, 1), sealedRouting, ""), "no json": sealedRequest("x", sealedRouting, ""),
		"no routing":    sealedRequest(sealedHead, "x", ""),
		"one recipient": sealedRequest(sealedHead, `{"to":[{"machine":"a","key":"AQEBAQEBAQE="}],"prompt":1}`, ""),
		"declined":      sealedRequest(sealedHead, strings.Replace(sealedRouting, `"c"`, `"c"`+strings.Repeat(`,"c"`, maxDeclined), 1), ""),
		"negative":      sealedRequest(sealedHead, strings.Replace(sealedRouting, "512", "-1", 1), ""),
		"marks":         sealedRequest(sealedHead, strings.Replace(sealedRouting, `"prompt"`, `"marks":"AAAA","prompt"`, 1), ""),
		"audio":         sealedRequest(strings.Replace(sealedHead, "/v1/chat/completions", "/v1/audio/transcriptions", 1), sealedRouting, ""),
		"messages":      sealedRequest(strings.Replace(sealedHead, "/v1/chat/completions", "/v1/messages", 1), sealedRouting, ""),
	}
	for i := range len(good) {
		if i%97 == 0 {
			requests["cut at "+string(rune(i))] = good[:i]
		}
	}
	for name, body := range requests {
		w, _ := do(edge, ask("POST", "https://hub.example/v1/sealed", body))
		if w.Code != 400 || !strings.Contains(w.Body.String(), "the sealed call is invalid") {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
}

// Whatever a caller sends, it is refused, or the hub has read what the front says and passes
// on the rest.
func FuzzSealed(f *testing.F) {
	f.Add([]byte(sealedRequest(sealedHead, sealedRouting, "body")))
	f.Add([]byte(sealedRequest(strings.Replace(sealedHead, "chat/completions", "embeddings", 1), strings.Replace(sealedRouting, `"prompt"`, `"marks":"AAAAAAAAAAAAAA==","prompt"`, 1), "")))
	var got *Call
	var sent []byte
	edge := New(hostedConfig(&backend{do: func(_ context.Context, call *Call) (*Answer, error) {
		got = call
		r, _ := http.NewRequest("POST", "http://machine/", nil)
		_, body := call.Request()
		call.Attach(r, body)
		sent, _ = io.ReadAll(r.Body)
		return &Answer{Response: &http.Response{Body: io.NopCloser(strings.NewReader("data: [DONE]\n\n")), ContentLength: -1}}, nil
	}}))
	f.Fuzz(func(t *testing.T, body []byte) {
		got = nil
		w, _ := do(edge, ask("POST", "https://hub.example/v1/sealed", string(body)))
		if got == nil {
			assert.That(t, w.Code == 400 || w.Code == 404, w.Code, w.Body) // 404: a model's id
			return
		}
		s := got.Sealed
		assert.That(t, w.Code == 200 && got.Model.Valid() && got.Choices >= 0 && got.Choices <= dialect.MaxChoices && s.Prompt >= 0 && s.Prompt <= len(sent), got)
		assert.That(t, len(s.To) >= 1 && len(s.To) <= maxRecipients && len(s.Declined) <= maxDeclined && len(s.Marks) <= 10*MaxMarks, s)
		head := assert.Value(base64.StdEncoding.DecodeString(s.Head))(t)
		assert.That(t, bytes.HasPrefix(body[sealedFront:], head) && bytes.HasSuffix(body, append(bytes.Clone(s.keys), sent...)))
		for i, to := range s.To {
			key := s.Key(to.Machine, []fleet.SealKey{to.Key})
			_, text, _ := strings.Cut(key, " ")
			assert.That(t, len(assert.Value(base64.StdEncoding.DecodeString(text))(t)) == sealedKey, i)
		}
	})
}

// Of a sealed stream only sealed frames and the end mark pass.
func TestSealedStream(t *testing.T) {
	head := strings.Replace(sealedHead, `"stream":false`, `"stream":true`, 1)
	for answer, complete := range map[string]bool{
		"data: QUJD\n\ndata: QUJD\n\ndata: [DONE]\n\n":         true,
		"data: QUJD\n\n: of the machine\n\ndata: [DONE]\n\n":   true,
		"data: QUJD\n\ndata: {\"error\":{\"code\":\"x\"}}\n\n": false,
		"data: QUJD\n\ndata: {}\n\ndata: [DONE]\n\n":           false,
		"data: QUJD\n\n": false,
		"data: " + strings.Repeat("A", 400<<10) + "\n\ndata: [DONE]\n\n": false,
	} {
		edge := New(hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) {
			return &Answer{Response: &http.Response{Body: io.NopCloser(strings.NewReader(answer)), Trailer: http.Header{}}}, nil
		}}))
		w, _ := do(edge, ask("POST", "https://hub.example/v1/sealed", sealedRequest(head, sealedRouting, "")))
		got := w.Body.String()
		assert.Equal(t, strings.HasSuffix(got, "data: [DONE]\n\n"), complete, answer[:min(len(answer), 80)], got)
		assert.That(t, !strings.Contains(got, "of the machine") && !strings.Contains(got, `"code":"x"`), got)
	}
}

// An engine's error in a sealed call is passed on sealed.
func TestSealedFault(t *testing.T) {
	edge := New(hostedConfig(refuses(fault.New(fault.ContextLengthExceeded, "why").WithSealed("QUJD"))))
	w, _ := do(edge, ask("POST", "https://hub.example/v1/sealed", sealedRequest(sealedHead, sealedRouting, "")))
	assert.That(t, w.Code == 400 && strings.Contains(w.Body.String(), `"sealed":"QUJD"`), w.Code, w.Body)
}
