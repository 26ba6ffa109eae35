package daemon

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

const (
	speechType = "multipart/form-data; boundary=B"
	speechPath = "/v1/audio/transcriptions"
)

// speech is a form with the sound, which is text, first.
func speech(sound string, parts ...string) string {
	body := "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.mp3\"\r\n\r\n" + sound + "\r\n"
	for _, p := range append(parts, "model=whisper") {
		name, value, _ := strings.Cut(p, "=")
		body += "--B\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n"
	}
	return body + "--B--\r\n"
}

// speaking starts an audio engine that takes clips of up to 8 KiB, and is a
// configuration with it.
func speaking(t *testing.T) (*enginetest.Engine, Config) {
	t.Helper()
	e := enginetest.New(enginetest.Speech, enginetest.Options{Models: []enginetest.Model{{ID: "whisper"}}, MaxUpload: 8 << 10})
	assert.OK(t, e.Start())
	t.Cleanup(func() { e.Close() })
	return e, Config{Audio: engine.AudioConfig{Engine: e.URL(), MaxUpload: 8 << 10}}
}

func (r *rig) transcribe(body string) *http.Response {
	r.t.Helper()
	resp := assert.Value(http.Post(r.base()+speechPath, speechType, strings.NewReader(body)))(r.t)
	r.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// audioOf returns the audio engine's part of the status.
func audioOf(s Status) EngineStatus {
	for _, e := range s.Engines {
		if e.Kind == "audio" {
			return e
		}
	}
	return EngineStatus{}
}

// On the local surface: offered once it refused the clip, listed, served in the
// caller's format, bounded to the byte; and gone when it is.
func TestLocalAudio(t *testing.T) {
	e, c := speaking(t)
	t.Setenv("TMPDIR", t.TempDir())
	r := run(t, c)
	r.await("offered", func(s Status) bool { return audioOf(s).Models == 1 && len(s.Models) == 1 })
	assert.Equal(t, e.Counts().TooLarge, 1, e.Counts())
	for format, want := range map[string]string{
		"json": `{"text":"one two","usage":{"type":"duration","seconds":2}}`, "text": "one two\n",
		"srt": "1\n00:00:00,000 --> 00:00:00,500\none\n\n2\n00:00:01,000 --> 00:00:01,500\ntwo\n\n",
	} {
		resp := r.transcribe(speech("one two", "response_format="+format, "vad_filter=true"))
		if text := read(t, resp.Body); resp.StatusCode != 200 || text != want {
			t.Errorf("%s: %d %q", format, resp.StatusCode, text)
		}
	}
	if clip := e.Last().Clip; clip.FileName != "audio.mp3" || len(clip.Fields["vad_filter"]) != 1 || len(clip.Before) < 3 {
		t.Errorf("%+v", clip)
	}
	resp := r.transcribe(speech("one two", "stream=true"))
	if text := read(t, resp.Body); !strings.HasPrefix(text, `data: {"type":"transcript.text.delta","delta":"one "}`) || !strings.Contains(text, "transcript.text.done") {
		t.Errorf("stream: %q", text)
	}
	if got := faultIn(t, r.transcribe(speech(strings.Repeat("x", 8<<10+1)))); got.Status != 413 || got.Code != string(fault.RequestTooLarge) {
		t.Errorf("too large: %+v", got)
	}
	if got := faultIn(t, r.transcribe(strings.Replace(speech("x"), "whisper", "other", 1))); got.Status != 404 || got.Code != string(fault.ModelNotFound) {
		t.Errorf("another model, not signed in: %+v", got)
	}
	if got := faultIn(t, r.post("/v1/chat/completions", `{"model":"whisper","messages":[]}`)); got.Code != string(fault.ModelNotFound) {
		t.Errorf("chat with it: %+v", got)
	}
	for status, code := range map[int]fault.Code{400: fault.InvalidRequest, 413: fault.RequestTooLarge, 500: fault.EngineError, 501: fault.EngineError, 503: fault.CascadeExhausted} {
		e.Set(enginetest.Behaviour{Status: status})
		if got := faultIn(t, r.transcribe(speech("x"))); got.Code != string(code) {
			t.Errorf("engine's %d: %+v", status, got)
		}
	}
	e.Close()
	// The end of an idle connection may not be noticed yet: one call may be written to
	// it, and fails as the engine's failure.
	got := faultIn(t, r.transcribe(speech("x")))
	if got.Code == string(fault.EngineError) {
		got = faultIn(t, r.transcribe(speech("x")))
	}
	assert.Equal(t, got.Code, string(fault.CascadeExhausted), "gone", got)
	r.await("withdrawn", func(s Status) bool {
		return audioOf(s).Models == 0 && strings.Contains(audioOf(s).Why, "cannot be reached") && len(s.Models) == 0
	})
	if left, _ := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "kith-sound*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// An engine that accepts the clip is not offered, and status says why. Once it is
// correct and checked again, it is offered.
func TestAudioNotOffered(t *testing.T) {
	e := enginetest.New(enginetest.Speech, enginetest.Options{Models: []enginetest.Model{{ID: "whisper"}}})
	assert.OK(t, e.Start())
	t.Cleanup(func() { e.Close() })
	r := run(t, Config{Audio: engine.AudioConfig{Engine: e.URL(), MaxUpload: 8 << 10, Model: "whisper"}})
	r.await("judged", func(s Status) bool { return strings.Contains(audioOf(s).Why, "accepted a clip of 8193 bytes") })
	if got := faultIn(t, r.transcribe(speech("x"))); got.Status != 400 || got.Code != string(fault.InvalidRequest) {
		t.Errorf("%+v", got)
	}
	e.Set(enginetest.Behaviour{Status: 413})
	r.checkAudioNow.request()
	r.await("offered", func(s Status) bool { return audioOf(s).Models == 1 })
	if _, err := New(Config{Home: shortHome(t), Audio: engine.AudioConfig{Engine: "ftp://x"}, Log: r.Daemon.log}); err == nil {
		t.Error("an odd address is taken")
	}
}

// Down the tunnel: advertised for audio alone, served without
// unknown parts of the form, refused as any other call.
func TestRoutedAudio(t *testing.T) {
	e, c := speaking(t)
	r, _, l := joined(t, c)
	if offered := func(ad tunnel.Advertisement) bool {
		return len(ad.Models) == 1 && ad.Models[0].Families[0] == fleet.Audio.String() && ad.Models[0].Endpoints[0] == speechPath
	}; !offered(l.ad) {
		l.until("offered", offered)
	}
	ask := func(body string) *http.Response {
		return l.served(speechPath, body, "Content-Type", speechType)
	}
	resp := ask(speech("one two", "response_format=vtt", "vad_filter=true"))
	if text := read(t, resp.Body); resp.StatusCode != 200 || !strings.Contains(text, `"segments":[`) {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	if clip := e.Last().Clip; clip.Fields["vad_filter"] != nil || clip.Fields["response_format"][0] != "verbose_json" {
		t.Errorf("%+v", clip)
	}
	assert.Contains(t, read(t, ask(speech("one two", "stream=true")).Body), "transcript.text.done", "stream")
	for body, want := range map[string]int{`hello "model":"whisper"`: 400, speech(strings.Repeat("x", 8<<10+1)): 413, speech("x", "temperature=7"): 400} {
		if resp := ask(body); resp.StatusCode != want || resp.Header.Get(tunnel.HeaderRefused) != "" {
			t.Errorf("%.40q: %d", body, resp.StatusCode)
		}
	}
	if resp := ask(strings.Replace(speech("x"), "whisper", "other", 1)); resp.Header.Get(tunnel.HeaderRefused) != string(tunnel.RefusedUnknownModel) {
		t.Errorf("another model: %d", resp.StatusCode)
	}
	r.await("idle", func(s Status) bool { return s.Routed == 0 })
}

// Signed in, a clip that nothing here takes goes to the hub as a form.
func TestAudioGoesUp(t *testing.T) {
	h := newHub(t)
	home := shortHome(t)
	h.signIn(home)
	h.does(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Kith-Route", "shared; machine=box; owner=bob")
		w.Write([]byte(`{"text":"from afar"}`))
	})
	r := run(t, Config{Home: home})
	h.connected()
	resp := r.transcribe(speech("one two", "response_format=text", "vad_filter=true"))
	if text := read(t, resp.Body); resp.StatusCode != 200 || text != "from afar\n" || resp.Header.Get("X-Kith-Route") == "" {
		t.Errorf("%d %q", resp.StatusCode, text)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.asked) - 1
	if up := h.asked[last]; !strings.HasPrefix(up.Header.Get("Content-Type"), "multipart/form-data; boundary=") || up.ContentLength != int64(len(h.bodies[last])) ||
		!strings.Contains(h.bodies[last], "one two") || !strings.Contains(h.bodies[last], "vad_filter") {
		t.Errorf("%v %q", h.asked[last].Header, h.bodies[last])
	}
}

// With no speech model anywhere audio is 400, signed in or not; where this
// machine offers one, another model is 404.
func TestNoSpeechModel(t *testing.T) {
	const none = `{"error":{"code":"invalid_request","message":"no speech model","type":"invalid_request_error","param":"model","correlation_id":"req_1"}}`
	t.Setenv("TMPDIR", t.TempDir())
	check := func(where string, r *rig, model string, status int, code fault.Code) {
		t.Helper()
		body := strings.Replace(speech("one two"), "whisper", model, 1)
		if got := faultIn(t, r.transcribe(body)); got.Status != status || got.Code != string(code) {
			t.Errorf("%s: %+v, want %d %s", where, got, status, code)
		}
	}
	check("not signed in", run(t, Config{}), "whisper", 400, fault.InvalidRequest)
	credentialChanged, _ := away(t, refuseWith(400, none))
	check("signed in", credentialChanged, "whisper", 400, fault.InvalidRequest)

	_, c := speaking(t)
	alone := run(t, c)
	alone.await("offered", func(s Status) bool { return audioOf(s).Models == 1 })
	check("another model, not signed in", alone, "parakeet", 404, fault.ModelNotFound)

	_, c = speaking(t)
	h := newHub(t)
	h.does(refuseWith(400, none))
	c.Home, c.Unshared = shortHome(t), true
	h.signIn(c.Home)
	both := run(t, c)
	both.await("offered", func(s Status) bool { return audioOf(s).Models == 1 && s.Tunnel.SignedIn })
	check("another model, signed in", both, "parakeet", 404, fault.ModelNotFound)
}
