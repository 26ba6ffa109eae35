package dialect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/spool"
)

// form returns a form of these parts; a name with a dot is the file name of the audio.
func form(parts ...string) string {
	var b strings.Builder
	for _, p := range parts {
		name, value, _ := strings.Cut(p, "=")
		extra := ""
		if file, ok := strings.CutPrefix(name, "file:"); ok {
			name, extra = "file", `; filename="`+file+"\"\r\nContent-Type: application/x-whatever"
		}
		fmt.Fprintf(&b, "--B\r\nContent-Disposition: form-data; name=%q%s\r\n\r\n%s\r\n", name, extra, value)
	}
	return b.String() + "--B--\r\n"
}

// formType is the media type of what form writes.
const formType = `multipart/form-data; boundary=B`

// sound returns where to hold audio, in a spool of that many bytes; 0: unlimited.
func sound(room int64) *spool.Bytes {
	s, _ := spool.Open("", spool.Limits{Memory: room}) // without a folder nothing fails
	return s.Hold(spool.Holder{}, -1)
}

func readForm(t testing.TB, contentType, body string, limit int64) (*Transcription, error) {
	t.Helper()
	got, err := ReadTranscription(contentType, iotestOneByte(body), sound(0), limit)
	t.Cleanup(func() { got.Close() })
	return got, err
}

// iotestOneByte returns the text in small reads, so that nothing depends on their size.
func iotestOneByte(text string) io.Reader { return &smallReads{strings.NewReader(text)} }

type smallReads struct{ r io.Reader }

func (s *smallReads) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), 7)]) }

// The parts may come in any order; the next hop gets them in a fixed order.
func TestTranscriptionOrder(t *testing.T) {
	parts := []string{
		"file:Über die/../../etc/passwd.WAV=RIFFsound\r\n--BX", "model=whisper", "language=de", "prompt=Guten Tag", "response_format=srt",
		"temperature=0.50", "timestamp_granularities[]=word", "timestamp_granularities[]=segment", "stream=false", "include[]=logprobs", "chunking_strategy=auto",
	}
	for turn := range parts {
		got, err := readForm(t, formType, form(append(parts[turn:len(parts):len(parts)], parts[:turn]...)...), 100)
		assert.OK(t, err, "turn", turn)
		if got.Model != "whisper" || got.Stream || got.Head() != (Head{Model: "whisper"}) {
			t.Errorf("turn %d: %+v", turn, got)
		}
		for _, others := range []bool{false, true} {
			want := []string{"model=whisper", "response_format=verbose_json", "language=de", "prompt=Guten Tag", "temperature=0.5"}
			if turn <= 6 || turn > 7 {
				want = append(want, "timestamp_granularities[]=word", "timestamp_granularities[]=segment")
			} else {
				want = append(want, "timestamp_granularities[]=segment", "timestamp_granularities[]=word")
			}
			if others && turn != 10 {
				want = append(want, "include[]=logprobs", "chunking_strategy=auto")
			} else if others {
				want = append(want, "chunking_strategy=auto", "include[]=logprobs")
			}
			want = append(want, "file audio.wav audio/wav=RIFFsound\r\n--BX")
			assert.Same(t, encodedParts(t, got, others), want, "turn", turn, "-want +got")
		}
	}
}

// encodedParts returns what the next hop reads of a form; encoding twice gives the same.
func encodedParts(t *testing.T, f *Transcription, others bool) []string {
	t.Helper()
	contentType, length, body := f.Encode(others)
	text, err := io.ReadAll(body())
	assert.Require(t, err == nil && int64(len(text)) == length, len(text), "bytes, told", length, err)
	if again, _ := io.ReadAll(body()); !bytes.Equal(text, again) {
		t.Error("the second reading differs")
	}
	_, params, err := mime.ParseMediaType(contentType)
	assert.OK(t, err)
	var got []string
	r := multipart.NewReader(bytes.NewReader(text), params["boundary"])
	for {
		p, err := r.NextPart()
		if err == io.EOF {
			return got
		}
		assert.OK(t, err)
		value, err := io.ReadAll(p)
		assert.OK(t, err)
		name := p.FormName()
		if p.FileName() != "" {
			name += " " + p.FileName() + " " + p.Header.Get("Content-Type")
		}
		got = append(got, name+"="+string(value))
	}
}

// Anything that is not a form, or requests the impossible, is refused, and the fault
// names the place.
func TestTranscriptionRefused(t *testing.T) {
	good := []string{"file:a.mp3=sound", "model=m"}
	with := func(parts ...string) string { return form(append(parts, good...)...) }
	for name, c := range map[string]struct{ kind, body, param string }{
		"json":             {"application/json", `{}`, ""},
		"no boundary":      {"multipart/form-data", form(good...), ""},
		"no type":          {"", form(good...), ""},
		"mixed":            {"multipart/mixed; boundary=B", form(good...), ""},
		"two boundaries":   {"multipart/form-data; boundary=B; boundary=C", form(good...), ""},
		"nothing":          {formType, "", ""},
		"no parts":         {formType, "--B--\r\n", ""},
		"words":            {formType, "hello", ""},
		"another boundary": {formType, strings.ReplaceAll(form(good...), "--B", "--C"), ""},
		"no end":           {formType, strings.TrimSuffix(form(good...), "--B--\r\n"), ""},
		"cut in the sound": {formType, form(good...)[:strings.Index(form(good...), "sound")+2], "file"},
		"cut in a header":  {formType, form(good...)[:30], ""},
		"no name":          {formType, "--B\r\nContent-Type: text/plain\r\n\r\nx\r\n" + form(good...), ""},
		"odd disposition":  {formType, "--B\r\nContent-Disposition: attachment; name=\"x\"\r\n\r\nx\r\n" + form(good...), ""},
		"base64":           {formType, "--B\r\nContent-Disposition: form-data; name=\"prompt\"\r\nContent-Transfer-Encoding: base64\r\n\r\neA==\r\n" + form(good...), ""},
		"huge header":      {formType, "--B\r\nX: " + strings.Repeat("x", 1<<20) + "\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\nx\r\n" + form(good...), ""},
		"two models":       {formType, with("model=other"), "model"},
		"two sounds":       {formType, with("file:b.mp3=other"), "file"},
		"two streams":      {formType, with("stream=true", "stream=false"), "stream"},
		"too many":         {formType, with(strings.Split(strings.Repeat("x=y ", 70), " ")[:70]...), ""},
		"long prompt":      {formType, with("prompt=" + strings.Repeat("x", maxFormValue+1)), ""},
		"not UTF-8":        {formType, with("prompt=\xff"), ""},
		"no sound":         {formType, form("model=m"), "file"},
		"empty sound":      {formType, form("model=m", "file:a.wav="), "file"},
		"no model":         {formType, form("file:a.wav=x"), "model"},
		"empty model":      {formType, form("file:a.wav=x", "model="), "model"},
		"format":           {formType, with("response_format=diarized_json"), "response_format"},
		"format's case":    {formType, with("response_format=JSON"), "response_format"},
		"language":         {formType, with("language=--output=/etc/passwd"), "language"},
		"language's break": {formType, with("language=en\r\nX: y"), "language"},
		"hot":              {formType, with("temperature=2"), "temperature"},
		"no number":        {formType, with("temperature=NaN"), "temperature"},
		"stream":           {formType, with("stream=maybe"), "stream"},
		"granularity":      {formType, with("timestamp_granularities[]=char"), "timestamp_granularities"},
	} {
		_, err := readForm(t, c.kind, c.body, 1000)
		f, ok := errors.AsType[*fault.Fault](err)
		if !ok || f.Code != fault.InvalidRequest || f.Param != c.param {
			t.Errorf("%s: %v (param %q)", name, err, fault.Of(err).Param)
		}
	}
}

// The limit applies to the audio, to the byte.
func TestTranscriptionBound(t *testing.T) {
	for size, code := range map[int]fault.Code{999: "", 1000: "", 1001: fault.RequestTooLarge, 100_000: fault.RequestTooLarge} {
		_, err := readForm(t, formType, form("file:a.wav="+strings.Repeat("x", size), "model=m"), 1000)
		if got := fault.Of(err); got != nil && got.Code != code || got == nil && code != "" {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// If the source or the spool fails, it is not the caller's fault.
func TestTranscriptionBreaks(t *testing.T) {
	broken := errors.New("the line broke")
	whole := form("file:a.wav=sound", "model=m")
	for n := range len(whole) {
		_, err := ReadTranscription(formType, io.MultiReader(strings.NewReader(whole[:n]), failing{broken}), sound(0), 1000)
		assert.Require(t, errors.Is(err, broken), "after", n, "bytes", err)
	}
	_, err := ReadTranscription(formType, strings.NewReader(whole), sound(1), 1000)
	if f, told := errors.AsType[*fault.Fault](err); !told || f.Code != fault.CapacityFull {
		t.Errorf("no room: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

const (
	verbose = `{"task":"transcribe","language":"english","duration":"3.5","text":"Hello there.\nGo --> now","x":1,"words":[{"word":"Hello","start":0,"end":0.5,"probability":0.9}],
		"segments":[{"id":0,"seek":0,"start":0,"end":1.5,"text":" Hello there.","tokens":[1,2],"temperature":0,"avg_logprob":-0.1,"compression_ratio":1.1,"no_speech_prob":0.01,"x":[]},
		{"id":1,"start":3661.0005,"end":-2,"text":"Go -->\n\n now"}],"usage":{"type":"duration","seconds":4}}`
	plainText = `{"text":"Hello","usage":{"type":"tokens","input_tokens":14,"input_token_details":{"text_tokens":10,"audio_tokens":4},"output_tokens":101,"total_tokens":115},"logprobs":[]}`
)

// The five formats, made from the answers of engines.
func TestTranscriptAnswers(t *testing.T) {
	for _, c := range []struct{ format, answer, want, kind string }{
		{"json", plainText, `{"text":"Hello","usage":{"type":"tokens","input_tokens":14,"output_tokens":101,"total_tokens":115}}`, "application/json"},
		{"json", verbose, `{"text":"Hello there.\nGo --> now","usage":{"type":"duration","seconds":4}}`, "application/json"},
		{"json", `{"text":""}`, `{"text":""}`, "application/json"},
		{"text", plainText, "Hello\n", "text/plain; charset=utf-8"},
		{"verbose_json", verbose, `{"task":"transcribe","language":"english","duration":3.5,"text":"Hello there.\nGo --> now","segments":[{"id":0,"seek":0,"start":0,"end":1.5,"text":" Hello there.","tokens":[1,2],"temperature":0,"avg_logprob":-0.1,"compression_ratio":1.1,"no_speech_prob":0.01},{"id":1,"start":3661.0005,"end":-2,"text":"Go -->\n\n now"}],"words":[{"word":"Hello","start":0,"end":0.5}],"usage":{"type":"duration","seconds":4}}`, "application/json"},
		{"verbose_json", `{"text":"a","segments":[{"start":1,"end":2.5,"text":"a"}]}`, `{"task":"transcribe","language":"","duration":2.5,"text":"a","segments":[{"id":0,"start":1,"end":2.5,"text":"a"}]}`, "application/json"},
		{"srt", verbose, "1\n00:00:00,000 --> 00:00:01,500\nHello there.\n\n2\n01:01:01,001 --> 01:01:01,001\nGo -> now\n\n", "text/plain; charset=utf-8"},
		{"vtt", verbose, "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nHello there.\n\n01:01:01.001 --> 01:01:01.001\nGo -> now\n\n", "text/plain; charset=utf-8"},
		{"srt", `{"text":"","segments":[]}`, "", "text/plain; charset=utf-8"},
	} {
		f := &Transcription{Format: c.format}
		body, kind, _, err := f.Answer(strings.NewReader(c.answer))
		assert.That(t, err == nil && string(body) == c.want && kind == c.kind, c.format, err, kind, body, c.want)
	}
	_, _, usage, _ := (&Transcription{Format: "text"}).Answer(strings.NewReader(plainText))
	assert.Equal(t, usage, (Usage{In: 14, Out: 101, Reported: true}), "usage")
}

// It is an error if an answer is not a transcript or cannot be converted to the format.
func TestTranscriptAnswersRefused(t *testing.T) {
	for _, c := range []struct {
		format, answer string
		code           fault.Code
	}{
		{"json", `{}`, fault.EngineError}, {"json", `{"text":1}`, fault.EngineError}, {"json", `{"text":null}`, fault.EngineError},
		{"json", `Hello`, fault.EngineError}, {"json", `{"error":{"message":"no sound"}}`, fault.EngineError}, {"json", ``, fault.EngineError},
		{"json", `{"text":"a"} {"text":"b"}`, fault.EngineError}, {"json", `{"text":"a","text":"b"}`, fault.EngineError}, {"json", "{\"text\":\"\xff\"}", fault.EngineError},
		{"srt", `{"text":"a"}`, fault.InvalidRequest}, {"vtt", `{"text":"a"}`, fault.InvalidRequest}, {"verbose_json", `{"text":"a"}`, fault.InvalidRequest},
		{"verbose_json", `{"text":"a","segments":"x"}`, fault.EngineError}, {"srt", `{"text":"a","segments":[{"start":"x"}]}`, fault.EngineError},
	} {
		_, _, _, err := (&Transcription{Format: c.format}).Answer(strings.NewReader(c.answer))
		if f := fault.Of(err); f == nil || f.Code != c.code {
			t.Errorf("%s %s: %v", c.format, c.answer, err)
		}
	}
}

// A streamed transcript is complete only with its own end mark.
func TestSpeechStream(t *testing.T) {
	delta, done := string(AppendSpeech(nil, SpeechDelta, "Hi", nil)), string(AppendSpeech(nil, SpeechDone, "Hi", []byte("{\"type\":\"tokens\",\n\"input_tokens\":7,\"output_tokens\":3}")))
	for text, want := range map[string]fault.Code{
		delta + done: "", ": \n\n" + delta + ": \n\n" + done: "", done: "", delta: "no end",
		delta + "data: [DONE]\n\n": fault.EngineError, done + delta: fault.EngineError, "data: {}\n\n": fault.EngineError,
		`data: {"type":"transcript.text.delta","text":"x"}` + "\n\n": fault.EngineError, `data: {"type":"transcript.text.done"}` + "\n\n": fault.EngineError,
		`data: {"type":1}` + "\n\n": fault.EngineError, `data: {"error":{"message":"x"}}` + "\n\n": fault.EngineError,
		"event: x\n" + done: fault.EngineError, "data: " + strings.Repeat("x", MaxFrame) + "\n\n": fault.EngineError,
		`data: {"type":"transcript.text.done","text":"a","text":"b"}` + "\n\n": fault.EngineError,
	} {
		s := &Stream{Speech: true}
		n, err := s.Take([]byte(text))
		got := fault.Code("")
		switch {
		case err != nil:
			got = fault.Of(err).Code
		case !s.Ended():
			got = "no end"
		case n != len(text):
			t.Errorf("%.80q: took %d bytes of %d", text, n, len(text))
		}
		assert.Equal(t, got, want, text)
	}
	s := &Stream{Speech: true}
	if _, err := s.Take([]byte(delta + done)); err != nil || s.Usage() != (Usage{In: 7, Out: 3, Reported: true}) || s.Frames() != 2 {
		t.Errorf("%v %+v %d", err, s.Usage(), s.Frames())
	}
}

// Every form is refused, or reads the same after it is encoded again.
func FuzzTranscription(f *testing.F) {
	f.Add(form("file:a.wav=sound", "model=m"), "B")
	f.Add(form("model=m", "prompt=a\"b\r\nc", "x\"y=z", "file:a.b=s"), "B")
	f.Add("--B\r\n\r\n\r\n--B--", "B")
	read := func(t *testing.T, contentType string, body io.Reader) (*Transcription, error) {
		return ReadTranscription(contentType, body, sound(0), 1<<10)
	}
	f.Fuzz(func(t *testing.T, body, boundary string) {
		got, err := read(t, mime.FormatMediaType("multipart/form-data", map[string]string{"boundary": boundary}), strings.NewReader(body))
		if err != nil {
			if _, ok := errors.AsType[*fault.Fault](err); !ok {
				t.Fatalf("%v is no fault", err)
			}
			return
		}
		contentType, _, encoded := got.Encode(false)
		text, err := io.ReadAll(encoded())
		assert.OK(t, err)
		again, err := read(t, contentType, bytes.NewReader(text))
		assert.OK(t, err, "what was read is refused when it is encoded")
		if again.Model != got.Model || again.Prompt != got.Prompt || again.Language != got.Language || again.Stream != got.Stream || again.size != got.size || again.extension != got.extension {
			t.Errorf("got %+v, then %+v", got, again)
		}
	})
}
