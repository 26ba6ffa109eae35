package gateway

import (
	"fmt"
	"strings"
	"testing"
)

// Whatever a machine claims, the record of a call has no more tokens than there were
// bytes, plus some room, and none below zero.
func TestClaimedTokens(t *testing.T) {
	chat := func(content string, in, out string) string {
		return fmt.Sprintf(`{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],`+
			`"usage":{"prompt_tokens":%s,"completion_tokens":%s,"total_tokens":1}}`, content, in, out)
	}
	long := strings.Repeat("word ", 10_000)
	for name, c := range map[string]struct {
		request, answer   string
		mostIn, mostOut   int64
		exactIn, exactOut int64 // -1: only limited
	}{
		"honest":      {chatRequest, chat("hi", "7", "3"), 0, 0, 7, 3},
		"many":        {chatRequest, chat("hi", "2000000000", "2000000000"), tokenRoom + 200, tokenRoom + 500, -1, -1},
		"too many":    {chatRequest, chat("hi", "9223372036854775807", "9223372036854775807"), tokenRoom + 200, tokenRoom + 500, -1, -1},
		"below zero":  {chatRequest, chat("hi", "-5", "-9223372036854775808"), 0, 1, 0, -1}, // frames are counted
		"long answer": {chatRequest, chat(long, "7", "9000"), 0, 0, 7, 9000},
		"a picture": {strings.Replace(chatRequest, `"messages"`, `"x":"data:image/png;base64,AA==","messages"`, 1),
			chat("hi", "8000", "3"), 0, 0, 8000, 3},
		"a picture, and more": {strings.Replace(chatRequest, `"messages"`, `"x":"data:image/png;base64,AA==","messages"`, 1),
			chat("hi", "80000", "3"), tokenRoom + pictureRoom + 200, 0, -1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			for _, stream := range []bool{false, true} {
				config, out := hostedConfig(answers(c.answer)), Outcome{}
				body := c.request
				if stream {
					usage := c.answer[strings.Index(c.answer, `"usage"`):]
					content := strings.TrimSuffix(c.answer[strings.Index(c.answer, `"content":`)+len(`"content":`):], usage)
					content = strings.TrimSuffix(content, `},"finish_reason":"stop"}],`)
					text := fmt.Sprintf("data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":%s},\"finish_reason\":\"stop\"}]}\n\n"+
						"data: {\"id\":\"x\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],%s\n\ndata: [DONE]\n\n", content, usage)
					config = hostedConfig(answers(text))
					body = strings.Replace(body, `{`, `{"stream":true,"stream_options":{"include_usage":true},`, 1)
				}
				config.Finished = func(_ *Call, o Outcome) { out = o }
				if w, _ := do(New(config), ask("POST", "/v1/chat/completions", body)); w.Code != 200 {
					t.Fatalf("%d %s", w.Code, w.Body)
				}
				for _, n := range []struct{ got, exact, most int64 }{{out.TokensIn, c.exactIn, c.mostIn}, {out.TokensOut, c.exactOut, c.mostOut}} {
					if n.exact >= 0 && n.got != n.exact || n.exact < 0 && (n.got < 0 || n.got > n.most) {
						t.Errorf("stream %v: %+v", stream, out)
					}
				}
			}
		})
	}
}
