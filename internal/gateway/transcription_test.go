package gateway

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

const formType = "multipart/form-data; boundary=B"

// formOf returns a form with the audio first, as some SDKs send it.
func formOf(sound string, parts ...string) string {
	text := "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.mp3\"\r\n\r\n" + sound + "\r\n"
	for _, p := range append(parts, "model=m") {
		name, value, _ := strings.Cut(p, "=")
		text += fmt.Sprintf("--B\r\nContent-Disposition: form-data; name=%q\r\n\r\n%s\r\n", name, value)
	}
	return text + "--B--\r\n"
}

func transcribe(body string, headers ...string) *http.Request {
	return ask("POST", "/v1/audio/transcriptions", body, append([]string{"Content-Type", "", "Content-Type", formType}, headers...)...)
}

// spoolFolder returns the spool for large audio during the test. No file ever stays in
// its directory, or even has a name there.
func spoolFolder(t *testing.T) (*spool.Spool, func(when string)) {
	folder := t.TempDir()
	s := assert.Value(spool.Open(folder, spool.Limits{}))(t)
	return s, func(when string) {
		t.Helper()
		if names, err := os.ReadDir(folder); err != nil || len(names) > 0 {
			t.Errorf("%s: %v %v", when, names, err)
		}
	}
}

// What the Backend and the caller get of a transcription.
func TestTranscription(t *testing.T) {
	kept, empty := spoolFolder(t)
	sound := strings.Repeat("sound", 1<<18) // more than is kept in memory
	const verbose = `{"text":"Hi all","language":"en","segments":[{"id":0,"start":0,"end":1,"text":"Hi all"}]}`
	for format, want := range map[string]string{
		"json": `{"text":"Hi all"}`, "text": "Hi all\n", "srt": "1\n00:00:00,000 --> 00:00:01,000\nHi all\n\n",
		"vtt":          "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nHi all\n\n",
		"verbose_json": `{"task":"transcribe","language":"en","duration":1,"text":"Hi all","segments":[{"id":0,"start":0,"end":1,"text":"Hi all"}]}`,
	} {
		var form *dialect.Transcription
		for _, c := range []Config{hostedConfig(nil), localConfig(nil)} {
			c.Backend = &backend{do: func(ctx context.Context, call *Call) (*Answer, error) {
				empty("while the call runs")
				form = call.Form
				r := httptest.NewRequest("POST", "/", nil)
				call.Attach(r, call.Body)
				body, err := io.ReadAll(r.Body)
				if again, _ := r.GetBody(); err != nil || int64(len(body)) != r.ContentLength || again == nil || !strings.Contains(string(body), "\r\n\r\n"+sound+"\r\n") {
					t.Errorf("%v: %q", err, body)
				}
				if call.Endpoint != fleet.Transcriptions || call.Model != "m" || call.Stream || call.Body != nil || call.Caller.Reach != 0 {
					t.Errorf("%+v", call)
				}
				return answer(io.NopCloser(strings.NewReader(verbose))), nil
			}}
			c.Spool = kept
			r := transcribe(formOf(sound, "response_format="+format))
			r.Host = "127.0.0.1:8701"
			w, _ := do(New(c), r)
			kind := "text/plain; charset=utf-8"
			if strings.HasSuffix(format, "json") {
				kind = "application/json"
			}
			if w.Code != 200 || w.Body.String() != want || w.Header().Get("Content-Type") != kind {
				t.Errorf("%s: %d %s %q", format, w.Code, w.Header().Get("Content-Type"), w.Body)
			}
			_, _, body := form.Encode(true)
			assert.Is(t, assert.Err(io.ReadAll(body())), os.ErrClosed, "the sound is still there after the call")
			assert.Equal(t, kept.Use(), (spool.Use{}), "still held after the call")
		}
	}
	empty("at the end")
}

// No way in which a form may fail leaves anything behind.
func TestTranscriptionFails(t *testing.T) {
	kept, empty := spoolFolder(t)
	c := hostedConfig(refuses(fault.New(fault.ModelNotFound, "nobody has it")))
	c.Limits.Upload, c.Spool = 1000, kept
	long := strings.Repeat("x", 1001)
	for name, r := range map[string]struct {
		request *http.Request
		status  int
		code    fault.Code
	}{
		"unknown model":  {transcribe(formOf("sound")), 404, fault.ModelNotFound},
		"odd model":      {transcribe(formOf("sound", "x=y") + "--B--"), 404, fault.ModelNotFound},
		"at the limit":   {transcribe(formOf(long[1:])), 404, fault.ModelNotFound},
		"a byte over":    {transcribe(formOf(long)), 413, fault.RequestTooLarge},
		"far over":       {transcribe(formOf(strings.Repeat(long, 2000))), 413, fault.RequestTooLarge},
		"JSON":           {transcribe(`{"model":"m"}`, "Content-Type", "", "Content-Type", "application/json"), 400, fault.InvalidRequest},
		"malformed":      {transcribe("hello"), 400, fault.InvalidRequest},
		"no sound":       {transcribe(strings.Replace(formOf("sound"), `name="file"`, `name="fil"`, 1)), 400, fault.InvalidRequest},
		"bad format":     {transcribe(formOf("sound", "response_format=pdf")), 400, fault.InvalidRequest},
		"zipped":         {transcribe(formOf("sound"), "Content-Encoding", "gzip"), 415, fault.UnsupportedEncoding},
		"no key":         {transcribe(formOf("sound"), "Authorization", ""), 401, fault.InvalidAPIKey},
		"another method": {ask("GET", "/v1/audio/transcriptions", ""), 405, fault.MethodNotAllowed},
	} {
		w, _ := do(New(c), r.request)
		if w.Code != r.status || !strings.Contains(w.Body.String(), `"code":"`+string(r.code)+`"`) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		empty(name)
	}
	c.Backend = &backend{do: func(context.Context, *Call) (*Answer, error) { panic("a defect") }}
	if w, _ := do(New(c), transcribe(formOf("sound"))); w.Code != 500 {
		t.Errorf("a defect: %d", w.Code)
	}
	empty("a defect")
	assert.Equal(t, kept.Use(), (spool.Use{}), "still held")
	c.Spool = noRoom()
	if w, _ := do(New(c), transcribe(formOf("sound"))); w.Code != 503 || !strings.Contains(w.Body.String(), "CAPACITY_FULL") {
		t.Errorf("no room: %d %s", w.Code, w.Body)
	}
}

// Too much audio is refused at the first excess byte, not at the end.
func TestSoundTooLargeAtTheByte(t *testing.T) {
	c := hostedConfig(answers(`{"text":"x"}`))
	c.Limits.Upload = 1000
	head := "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + goodKey + "\r\nContent-Type: " + formType + "\r\n"
	whole := formOf(strings.Repeat("x", 1000))
	begun := strings.Split(formOf(strings.Repeat("x", 1000)), "\r\n--B\r\n")[0]
	answered(t, c, map[string]sending{
		"at the limit":  {fmt.Sprintf("%sConnection: close\r\nContent-Length: %d\r\n\r\n%s", head, len(whole), whole), "200"},
		"length":        {fmt.Sprintf("%sContent-Length: %d\r\n\r\n", head, 1001+dialect.FormOverhead), "413"},
		"a byte over":   {fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n8\r\nyyyyyyyy\r\n", head, len(begun), begun), "413"}, // its end never comes
		"a long ending": {fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%x\r\n%s", head, len(whole), whole, dialect.FormOverhead, strings.Repeat("z", dialect.FormOverhead)), "413"},
	})
}

// A streamed transcript has heartbeats before it and its own events, and it is complete
// only if the engine's is.
func TestTranscriptionStream(t *testing.T) {
	delta, done := string(dialect.AppendSpeech(nil, dialect.SpeechDelta, "Hi", nil)), string(dialect.AppendSpeech(nil, dialect.SpeechDone, "Hi", nil))
	for name, c := range map[string]struct {
		said []line
		good bool
	}{
		"whole": {[]line{{0, delta, nil}, {0, done, nil}}, true},
		"cut":   {[]line{{0, delta, nil}}, false},
		"mixed": {[]line{{0, delta, nil}, {0, frame, nil}}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newTape()
			aborted := serveTo(New(hostedConfig(sends(6*time.Second, c.said...))), w, transcribe(formOf("sound", "stream=true")))
			text := w.text.String()
			if w.status != 200 || !strings.HasPrefix(text, ": working\n\n") || !strings.Contains(text, delta) {
				t.Errorf("%s: %d %q", name, w.status, text)
			}
			if good := strings.HasSuffix(text, done) && !aborted; good != c.good || strings.Contains(text, "[DONE]") || !good && !strings.Contains(text, `"code":"engine_error"`) {
				t.Errorf("%s: aborted %v: %q", name, aborted, text)
			}
		})
	}
}

// A caller that stops sending is disconnected.
func TestSlowSound(t *testing.T) {
	kept, empty := spoolFolder(t)
	ctx, cancel := context.WithCancel(t.Context())
	r := transcribe("").WithContext(ctx)
	read, write := io.Pipe()
	r.Body, r.ContentLength = read, -1
	ended := make(chan bool)
	go func() {
		c := hostedConfig(answers(`{"text":"x"}`))
		c.Spool = kept
		_, aborted := do(New(c), r)
		ended <- aborted
	}()
	assert.Value(io.WriteString(write, formOf("sound")[:90]))(t)
	empty("while it comes")
	cancel()
	write.CloseWithError(context.Canceled)
	assert.That(t, <-ended, "it was answered")
	empty("after it left")
}
