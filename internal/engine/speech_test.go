package engine

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// whisper is the model that the doubles list.
var whisper = []enginetest.Model{{ID: "whisper"}}

// audio returns an Audio with the double as its engine and a limit of 8 KiB.
func audio(t *testing.T, e *enginetest.Engine, model fleet.ModelID) *Audio {
	t.Helper()
	a, err := NewAudio(AudioConfig{Engine: "http://127.0.0.1:1", MaxUpload: 8 << 10, Model: model, Transport: e.Transport(), Log: slog.New(slog.DiscardHandler)})
	assert.OK(t, err)
	return a
}

// Only an engine that refuses a clip one byte over the limit with 413 is offered
// (spec/api.md#audio-check).
func TestOverBudgetClip(t *testing.T) {
	for name, c := range map[string]struct {
		max       int64 // of the engine
		behaviour enginetest.Behaviour
		why       string // part of it; empty: it is offered
	}{
		"413":             {8 << 10, enginetest.Behaviour{}, ""},
		"413 far earlier": {100, enginetest.Behaviour{}, ""},
		"takes it":        {0, enginetest.Behaviour{}, "accepted a clip of 8193 bytes"},
		"takes more":      {8<<10 + 1, enginetest.Behaviour{}, "accepted"},
		"400":             {0, enginetest.Behaviour{Status: 400}, "status 400"},
		"401":             {0, enginetest.Behaviour{Status: 401}, "status 401"},
		"404":             {0, enginetest.Behaviour{Status: 404}, "status 404"},
		"500":             {0, enginetest.Behaviour{Status: 500}, "status 500"},
		"503":             {0, enginetest.Behaviour{Status: 503}, "status 503"},
		"slow":            {0, enginetest.Behaviour{First: 2 * clipTimeout}, "no answer within 1m0s"},
		"hangs":           {0, enginetest.Behaviour{Fault: enginetest.Hang}, "no answer within 1m0s"},
		"dies":            {0, enginetest.Behaviour{Fault: enginetest.Die}, "cannot be reached"},
	} {
		synctest.Test(t, func(t *testing.T) {
			e := enginetest.New(enginetest.Speech, enginetest.Options{Models: whisper, MaxUpload: c.max, Behaviour: c.behaviour})
			a := audio(t, e, "whisper")
			assert.That(t, a.Engine() == nil && a.Finding().Why != "", "offered unchecked")
			reached := a.Check(t.Context())
			offered := a.Engine() != nil
			if offered != (c.why == "") || !strings.Contains(a.Finding().Why, c.why) || offered != (a.Finding().Why == "") || reached != (name != "dies") {
				t.Errorf("%s: offered %v, reached %v, %+v", name, offered, reached, a.Finding())
			}
			if !offered {
				return
			}
			want := []Model{{ID: "whisper", Families: []fleet.Family{fleet.Audio}, Endpoints: []fleet.Endpoint{fleet.Transcriptions}, Slots: 1}}
			if diff := cmp.Diff(want, a.Engine().Models(), cmp.AllowUnexported(Model{})); diff != "" {
				t.Error(diff)
			}
			// An engine that no longer enforces its limit is withdrawn.
			e.Set(enginetest.Behaviour{Status: 400})
			loose := enginetest.New(enginetest.Speech, enginetest.Options{Models: whisper})
			a.rt = loose.Transport()
			if a.Check(t.Context()); a.Engine() != nil {
				t.Errorf("%s: still offered", name)
			}
			if clip := loose.Last().Clip; len(clip.Sound) != 8<<10+1 || string(clip.Sound[:4]) != "RIFF" || string(clip.Sound[8:16]) != "WAVEfmt " || clip.Fields["model"][0] != "whisper" {
				t.Errorf("the clip: %d bytes, %q, %v", len(clip.Sound), clip.Sound[:44], clip.Fields)
			}
		})
	}
}

// Real connections: engines that decide by the length and answer before the bytes
// arrive, and a closed port.
func TestOverBudgetClipOverTCP(t *testing.T) {
	early := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength > 1<<20 {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	}))
	defer early.Close()
	late := enginetest.New(enginetest.Speech, enginetest.Options{Models: whisper, MaxUpload: 1 << 20})
	assert.OK(t, late.Start())
	defer late.Close()
	for place, offered := range map[string]bool{early.URL + "/v1": true, late.URL(): true, "http://" + enginetest.FreeAddress(): false} {
		a, err := NewAudio(AudioConfig{Engine: place, MaxUpload: 1 << 20, Model: "m", Log: slog.New(slog.DiscardHandler)})
		assert.OK(t, err)
		if reached := a.Check(t.Context()); reached != offered || (a.Engine() != nil) != offered {
			t.Errorf("%s: reached %v, %+v", place, reached, a.Finding())
		}
	}
}

// Without a configured model the engine's only model is offered.
func TestAudioModel(t *testing.T) {
	for n, offered := range []bool{false, true, false} {
		models := make([]enginetest.Model, n)
		for i := range models {
			models[i].ID = fmt.Sprint("whisper", i)
		}
		e := enginetest.New(enginetest.Speech, enginetest.Options{Models: models, MaxUpload: 1})
		a := audio(t, e, "")
		if a.Check(t.Context()); (a.Engine() != nil) != offered || !offered && !strings.Contains(a.Finding().Why, "name the one") {
			t.Errorf("%d models: %+v", n, a.Finding())
		}
	}
	for status, why := range map[int]string{401: "kith sends none to an audio engine", 404: "status 404; it need not", 503: "not ready yet"} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }))
		defer server.Close()
		a, err := NewAudio(AudioConfig{Engine: server.URL, MaxUpload: 1 << 20, Log: slog.New(slog.DiscardHandler)})
		assert.OK(t, err)
		if a.Check(t.Context()); a.Engine() != nil || !strings.Contains(a.Finding().Why, why) {
			t.Errorf("status %d: %+v", status, a.Finding())
		}
	}
	for _, c := range []AudioConfig{{Engine: "ftp://x"}, {Engine: "http://x", MaxUpload: 10}, {Engine: "http://x", MaxUpload: 1 << 20, Model: " x"}} {
		if _, err := NewAudio(c); err == nil {
			t.Errorf("%+v is spooled", c)
		}
	}
}

// speechForm returns a form as the gateway reads it.
func speechForm(t *testing.T, parts ...string) *dialect.Transcription {
	t.Helper()
	room, _ := spool.Open("", spool.Limits{}) // without a folder nothing fails
	body := ""
	for _, p := range append(parts, "model=whisper") {
		name, value, _ := strings.Cut(p, "=")
		body += "--B\r\nContent-Disposition: form-data; name=\"" + strings.ReplaceAll(name, ";", `"; filename="`) + "\"\r\n\r\n" + value + "\r\n"
	}
	f, err := dialect.ReadTranscription("multipart/form-data; boundary=B", strings.NewReader(body+"--B--\r\n"), room.Hold(spool.Holder{}, -1), 1<<20)
	assert.OK(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// transcribed returns the answer of a checked engine to a form.
func transcribed(t *testing.T, b enginetest.Behaviour, form *dialect.Transcription, trusted bool) (string, *enginetest.Clip, error) {
	t.Helper()
	e := enginetest.New(enginetest.Speech, enginetest.Options{Models: whisper, MaxUpload: 8 << 10})
	a := audio(t, e, "whisper")
	a.Check(t.Context())
	e.Set(b)
	resp, err := a.Engine().Do(t.Context(), Request{Endpoint: fleet.Transcriptions, Model: "whisper", Form: form, Stream: form.Stream, Trusted: trusted})
	if err != nil {
		return "", e.Last().Clip, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), e.Last().Clip, err
}

// hostileParts control engines, name files or addresses, or smuggle other parts.
// None may reach an engine from an untrusted caller.
var hostileParts = []string{
	"to_language=de", "vad_filter=true", "hotwords=x", "beam_size=9999", "best_of=9999", "no_context=true", "translate=true", "diarize=true", "tinydiarize=1",
	"offset_t=1", "duration=1", "max_len=1", "split_on_word=1", "entropy_thold=x", "logprob_thold=x", "suppress_nst=1", "grammar=root ::= x", "audio_ctx=-1",
	"n_predict=-1", "lora=/etc/passwd", "id_slot=1", "cache_prompt=true", "samplers=x", "file_path=/etc/passwd", "url=http://169.254.169.254/", "file_url=file:///etc/passwd",
	"audio_url=http://10.0.0.1/a.wav", "input=x", "chunking_strategy={\"type\":\"server_vad\"}", "include[]=logprobs", "known_speaker_names[]=x",
	"known_speaker_references[]=http://10.0.0.1/", "seed=1", "top_p=2", "top_k=5", "min_p=1", "frequency_penalty=1", "repetition_penalty=9", "presence_penalty=1",
	"stream_include_usage=true", "stream_continuous_usage_stats=true", "vllm_xargs={}", "max_completion_tokens=99999999", "use_beam_search=true", "n=100", "user=bob",
	"conversion_path=/tmp", "output_file=/tmp/x", "model_path=/etc", "ffmpeg_args=-i", "metadata={}", "priority=-9", "request_id=x", "Model=other", "MODEL=other", "file2;/etc/passwd=x",
}

func TestHostilePartsNeverArrive(t *testing.T) {
	form := speechForm(t, append(hostileParts, "file;../../etc/cron.d/x.sh=sound", "temperature=1", "prompt=--help", "timestamp_granularities[]=word", "response_format=vtt")...)
	_, clip, err := transcribed(t, enginetest.Behaviour{}, form, false)
	assert.OK(t, err)
	want := map[string][]string{"model": {"whisper"}, "response_format": {"verbose_json"}, "temperature": {"1"}, "prompt": {"--help"}, "timestamp_granularities[]": {"word"}}
	assert.Same(t, clip.Fields, want, "-want +got")
	if clip.FileName != "audio" || clip.FileType != "application/octet-stream" || string(clip.Sound) != "sound" {
		t.Errorf("%q of %q: %q", clip.FileName, clip.FileType, clip.Sound)
	}
	assert.That(t, len(hostileParts) >= 50, "only", len(hostileParts), "hostile parts")
	_, clip, err = transcribed(t, enginetest.Behaviour{}, form, true)
	if err != nil || clip.Fields["vad_filter"] == nil || clip.FileName != "audio" {
		t.Errorf("the owner's own: %v %v", clip.Fields, err)
	}
}

// Each way in which engines stream becomes events of the dialect.
func TestSpeechStreams(t *testing.T) {
	delta := func(s string) string { return string(dialect.AppendSpeech(nil, dialect.SpeechDelta, s, nil)) }
	done := func(s string) string { return string(dialect.AppendSpeech(nil, dialect.SpeechDone, s, nil)) }
	chunk := func(s, finish string) string {
		return fmt.Sprintf(`data: {"id":"trsc-1","object":"transcription.chunk","created":1,"model":"x","choices":[{"delta":{"content":%q},"finish_reason":%s}]}`+"\n\n", s, finish)
	}
	for name, c := range map[string]struct {
		b    enginetest.Behaviour
		want string
	}{
		"events":        {enginetest.Behaviour{Text: "a b"}, delta("a ") + delta("b") + strings.TrimSuffix(done("a b"), "}\n\n") + `,"usage":{"type":"tokens","input_tokens":7,"output_tokens":3,"total_tokens":10}}` + "\n\n"},
		"then [DONE]":   {enginetest.Behaviour{Raw: []string{delta("a"), done("a"), "data: [DONE]\n\n"}}, delta("a") + done("a")},
		"as chat does":  {enginetest.Behaviour{Raw: []string{chunk("", "null"), chunk("a", "null"), chunk(" b", `"stop"`), "data: [DONE]\n\n"}}, delta("a") + delta(" b") + done("a b")},
		"event lines":   {enginetest.Behaviour{Raw: []string{"event: x\r\nid: 7\r\n" + strings.TrimSpace(delta("a")) + "\r\n\r\n", done("a")}}, delta("a") + done("a")},
		"unknown kinds": {enginetest.Behaviour{Raw: []string{`data: {"type":"transcript.text.segment","text":"x"}` + "\n\n", delta("a"), done("a")}}, delta("a") + done("a")},
		"not streamed":  {enginetest.Behaviour{Text: "a b", Fault: enginetest.Unstreamed}, delta("a b") + strings.TrimSuffix(done("a b"), "}\n\n") + `,"usage":{"type":"duration","seconds":2}}` + "\n\n"},
		"zipped":        {enginetest.Behaviour{Raw: []string{delta("a"), done("a")}, Fault: enginetest.Zipped}, delta("a") + done("a")},
		"no end":        {enginetest.Behaviour{Text: "a b", Fault: enginetest.Unmarked}, delta("a ") + delta("b")},
		"error":         {enginetest.Behaviour{Raw: []string{delta("a"), `data: {"error":{"message":"x"}}` + "\n\n", "data: [DONE]\n\n"}}, delta("a") + `data: {"error":{"message":"x"}}` + "\n\n"},
		"nonsense":      {enginetest.Behaviour{Raw: []string{"data: x\n\n"}}, "data: x\n\n"},
	} {
		got, _, err := transcribed(t, c.b, speechForm(t, "stream=true", "file;a.wav=x"), false)
		assert.That(t, err == nil && got == c.want, name, err, got, c.want)
	}
	for name, b := range map[string]enginetest.Behaviour{
		"no transcript":   {Answer: `{"x":1}`, Fault: enginetest.Unstreamed},
		"no JSON":         {Answer: `hello`, Fault: enginetest.Unstreamed},
		"dies":            {Text: "a b", Fault: enginetest.Die, After: 1},
		"dies before all": {Fault: enginetest.Die},
	} {
		if got, _, err := transcribed(t, b, speechForm(t, "stream=true", "file;a.wav=x"), false); err == nil && !strings.Contains(got, `data: {"error":`) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// The engine's call ends when the caller leaves.
func TestSpeechCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := enginetest.New(enginetest.Speech, enginetest.Options{Models: whisper, MaxUpload: 8 << 10})
		a := audio(t, e, "whisper")
		a.Check(t.Context())
		e.Set(enginetest.Behaviour{Text: "a b", Interval: time.Hour})
		resp, err := a.Engine().Do(t.Context(), Request{Endpoint: fleet.Transcriptions, Model: "whisper", Form: speechForm(t, "stream=true", "file;a.wav=x"), Stream: true})
		assert.OK(t, err)
		assert.Value(resp.Body.Read(make([]byte, 1)))(t)
		resp.Body.Close()
		if err := e.Wait(t.Context(), func(c enginetest.Counts) bool { return c.Cancelled == 1 }); err != nil {
			t.Error(err)
		}
	})
}
