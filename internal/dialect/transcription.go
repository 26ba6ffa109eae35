package dialect

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// Limits of a transcription form in addition to its audio.
const (
	// FormOverhead is how many bytes a form may be longer than its audio.
	FormOverhead = 1 << 20

	maxFormParts  = 64
	maxFormHeader = 16 << 10 // bytes of one part's header
	maxFormValue  = 64 << 10 // bytes of one part other than the audio
)

// transcriptFormats are the values of response_format (spec/api.md#audio-forms).
var transcriptFormats = []string{"json", "text", "srt", "verbose_json", "vtt"}

// soundTypes are the file types that engines distinguish by extension, and the media type
// to send for each.
var soundTypes = map[string]string{
	".flac": "audio/flac", ".m4a": "audio/mp4", ".mp3": "audio/mpeg", ".mp4": "audio/mp4", ".mpeg": "audio/mpeg",
	".mpga": "audio/mpeg", ".oga": "audio/ogg", ".ogg": "audio/ogg", ".opus": "audio/ogg", ".wav": "audio/wav", ".webm": "audio/webm",
}

var mediaExtensions = map[string]string{
	"audio/flac": ".flac", "audio/x-flac": ".flac", "audio/mp4": ".m4a", "audio/x-m4a": ".m4a", "audio/m4a": ".m4a", "audio/aac": ".m4a",
	"audio/mpeg": ".mp3", "audio/mp3": ".mp3", "audio/ogg": ".ogg", "audio/opus": ".ogg", "video/mp4": ".mp4", "application/ogg": ".ogg",
	"audio/wav": ".wav", "audio/x-wav": ".wav", "audio/wave": ".wav", "audio/vnd.wave": ".wav", "audio/webm": ".webm", "video/webm": ".webm",
}

// Field is one part of a form other than the audio.
type Field struct{ Name, Value string }

// Transcription is the form of a transcription call: its fields in memory, its audio in a
// spool. Every hop encodes the form again, so the caller's boundaries, file name and
// media type are not passed on.
type Transcription struct {
	Model       fleet.ModelID // never empty, but may be invalid
	Language    string        // empty: the engine detects it
	Prompt      string
	Format      string   // of the answer: one of transcriptFormats
	Temperature string   // a number from 0 to 1; may be empty
	Granularity []string // word, segment or both
	Stream      bool
	Others      []Field // unknown parts, in their order

	extension string // with its dot, a key of soundTypes; empty: unknown
	sound     *spool.Bytes
	size      int64
}

// ReadTranscription reads a form, its parts in any order, and fills sound with its audio.
// The form owns sound from then on, also after an error; Close closes it. If the audio is
// longer than limit bytes, the error is request_too_large, as soon as the first byte too
// many arrives. All other errors are invalid_request, except those of reading body and of
// a full spool.
func ReadTranscription(contentType string, body io.Reader, sound *spool.Bytes, limit int64) (*Transcription, error) {
	t := &Transcription{Format: transcriptFormats[0], sound: sound}
	media, params, err := mime.ParseMediaType(contentType)
	if err != nil || media != "multipart/form-data" || params["boundary"] == "" {
		return t, fault.New(fault.InvalidRequest, "send the request as multipart/form-data with a boundary, the sound in the part named file")
	}
	from := &partReader{src: body}
	parts := multipart.NewReader(from, params["boundary"])
	seen := map[string]bool{}
	for n := 0; ; n++ {
		from.left = maxFormHeader
		part, err := parts.NextRawPart()
		if err == io.EOF && n > 0 {
			break
		}
		if err != nil {
			return t, from.cause(malformed("cannot find the end of a part"))
		}
		name := part.FormName()
		switch {
		case n == maxFormParts:
			return t, malformed("it has more than %d parts", maxFormParts)
		case name == "":
			return t, malformed("a part has no name")
		case encoded(part.Header):
			return t, malformed("the part %q is in a transfer encoding; send it as it is", name)
		case slices.Contains(singleParts, name) && seen[name]:
			return t, malformed("the part %q comes twice", name).WithParam(name)
		}
		seen[name] = true
		if name == "file" {
			from.left = limit + maxFormHeader
			err = t.readSound(part, limit)
		} else {
			from.left = maxFormValue + maxFormHeader
			err = t.readField(name, part)
		}
		if err != nil {
			return t, from.cause(err)
		}
	}
	return t, t.check()
}

func malformed(format string, args ...any) *fault.Fault {
	return fault.New(fault.InvalidRequest, "the multipart form is malformed: "+format, args...)
}

// encoded reports whether a part has a transfer encoding. Parsers treat those
// differently, and no client uses them.
func encoded(h textproto.MIMEHeader) bool {
	switch strings.ToLower(h.Get("Content-Transfer-Encoding")) {
	case "", "binary", "8bit", "7bit":
		return false
	}
	return true
}

// singleParts may occur only once, because parsers differ on which of two they use.
var singleParts = []string{"file", "model", "language", "prompt", "response_format", "temperature", "stream"}

// partReader limits the bytes that the multipart reader gets, because that holds a part's
// header in memory. It records the error that ended its source.
type partReader struct {
	src  io.Reader
	left int64
	err  error // of src, except io.EOF
}

var errPartTooLong = errors.New("more than a part may have")

func (g *partReader) Read(p []byte) (int, error) {
	if g.left <= 0 {
		return 0, errPartTooLong
	}
	n, err := g.src.Read(p[:min(int64(len(p)), g.left)])
	g.left -= int64(n)
	if err != nil && err != io.EOF {
		g.err = err
	}
	return n, err
}

func (g *partReader) cause(err error) error {
	if g.err != nil {
		return g.err
	}
	return err
}

func (t *Transcription) readSound(part *multipart.Part, limit int64) error {
	t.extension = strings.ToLower(path.Ext(part.FileName()))
	if _, known := soundTypes[t.extension]; !known { // a name such as "blob": use the media type
		media, _, _ := mime.ParseMediaType(part.Header.Get("Content-Type"))
		t.extension = mediaExtensions[media]
	}
	size, err := t.sound.ReadFrom(io.LimitReader(part, limit+1))
	switch {
	case size > limit:
		return fault.New(fault.RequestTooLarge, "audio exceeds %d bytes", limit).WithParam("file")
	case errors.As(err, new(*fault.Fault)): // no memory left, which is not the form's fault
		return err
	case err != nil:
		return malformed("its sound is cut short").WithParam("file")
	case size == 0:
		return fault.New(fault.InvalidRequest, "the part file holds no sound").WithParam("file")
	}
	t.size = size
	return nil
}

func (t *Transcription) readField(name string, part *multipart.Part) error {
	raw, err := io.ReadAll(io.LimitReader(part, maxFormValue+1))
	value := string(raw)
	switch {
	case len(raw) > maxFormValue:
		return malformed("the part %q is longer than %d bytes", name, maxFormValue)
	case err != nil:
		return malformed("the part %q is cut short", name)
	case !utf8.ValidString(value):
		return malformed("the part %q is not UTF-8", name)
	}
	into := map[string]*string{
		"model": (*string)(&t.Model), "language": &t.Language, "prompt": &t.Prompt,
		"response_format": &t.Format, "temperature": &t.Temperature,
	}
	if into[name] != nil {
		*into[name] = value
		return nil
	}
	switch name {
	case "timestamp_granularities[]", "timestamp_granularities":
		t.Granularity = append(t.Granularity, value)
	case "stream":
		switch strings.ToLower(value) {
		case "true", "1":
			t.Stream = true
		case "false", "0", "":
		default:
			return fault.New(fault.InvalidRequest, "stream must be true or false").WithParam("stream")
		}
	default:
		t.Others = append(t.Others, Field{name, value})
	}
	return nil
}

// check refuses values that no engine accepts. The faults do not quote the values.
func (t *Transcription) check() error {
	wrong := func(param, rule string) error {
		return fault.New(fault.InvalidRequest, "%s %s", param, rule).WithParam(param)
	}
	switch {
	case t.size == 0:
		return wrong("file", "is missing: send the sound as the part named file")
	case t.Model == "":
		return wrong("model", "is missing: set it to an id that GET /v1/models lists")
	case !slices.Contains(transcriptFormats, t.Format):
		return wrong("response_format", "must be one of "+strings.Join(transcriptFormats, ", "))
	case len(t.Language) > 32 || strings.ContainsFunc(t.Language, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '-')
	}):
		return wrong("language", "must be the code of a language, as in en")
	}
	for _, g := range t.Granularity {
		if g != "word" && g != "segment" {
			return wrong("timestamp_granularities", "must be word or segment")
		}
	}
	if t.Temperature == "" {
		return nil
	}
	n, err := strconv.ParseFloat(t.Temperature, 64)
	if err != nil || !(n >= 0 && n <= 1) {
		return wrong("temperature", "must be a number from 0 to 1")
	}
	t.Temperature = strconv.FormatFloat(n, 'f', -1, 64)
	return nil
}

// Head returns what the edge knows of every call.
func (t *Transcription) Head() Head { return Head{Model: t.Model, Stream: t.Stream} }

// Close releases the audio.
func (t *Transcription) Close() { t.sound.Close() }

// engineFormat returns the format to request from machines and engines. Every format that
// a caller may request can be made from it, and most engines support no other.
func (t *Transcription) engineFormat() string {
	if t.Stream || t.Format == "json" || t.Format == "text" {
		return "json"
	}
	return "verbose_json"
}

// SetBody makes a call the body of a request to the next hop: form with or without its
// unknown parts, or body, which is JSON, if form is nil.
func SetBody(r *http.Request, form *Transcription, body *spool.Bytes, others bool) {
	contentType, length, open := "application/json", int64(0), func() io.ReadCloser { return body.Open() }
	if form != nil {
		contentType, length, open = form.Encode(others)
	} else {
		length = body.Len()
	}
	r.Header.Set("Content-Type", contentType)
	r.ContentLength, r.Body = length, open()
	r.GetBody = func() (io.ReadCloser, error) { return open(), nil }
}

// Encode encodes the form for the next hop. It returns the media type, the length, and a
// function that opens the body from the beginning. others is whether to include the
// unknown parts; engines get them only from their owner.
func (t *Transcription) Encode(others bool) (contentType string, length int64, body func() io.ReadCloser) {
	var head bytes.Buffer
	w := multipart.NewWriter(&head)
	_ = w.SetBoundary("kith-" + rand.Text()) // the boundary is valid, and writes to a Buffer cannot fail
	field := func(name, value string) {
		if value != "" {
			_ = w.WriteField(name, value)
		}
	}
	field("model", string(t.Model))
	field("response_format", t.engineFormat())
	field("language", t.Language)
	field("prompt", t.Prompt)
	field("temperature", t.Temperature)
	for _, g := range t.Granularity {
		field("timestamp_granularities[]", g)
	}
	if t.Stream {
		field("stream", "true")
	}
	if others {
		for _, f := range t.Others {
			field(f.Name, f.Value)
		}
	}
	media := soundTypes[t.extension]
	if media == "" {
		media = "application/octet-stream"
	}
	_, _ = w.CreatePart(textproto.MIMEHeader{
		"Content-Disposition": {`form-data; name="file"; filename="audio` + t.extension + `"`},
		"Content-Type":        {media},
	})
	tail := "\r\n--" + w.Boundary() + "--\r\n"
	return w.FormDataContentType(), int64(head.Len()) + t.size + int64(len(tail)), func() io.ReadCloser {
		sound := t.sound.Open()
		return struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(head.Bytes()), sound, strings.NewReader(tail)), sound}
	}
}
