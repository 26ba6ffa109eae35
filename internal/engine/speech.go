package engine

import (
	"io"
	"net/http"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/spool"
)

// attach makes the form of a call the request's body, else asked. Parts of a form
// that kith does not know go to the engine only in calls of the machine's owner.
func attach(r *http.Request, req *Request, asked *spool.Bytes) {
	if req.Form == nil {
		r.ContentLength, r.Body = asked.Len(), asked.Open()
		r.GetBody = func() (io.ReadCloser, error) { return asked.Open(), nil }
		return
	}
	contentType, length, body := req.Form.Encode(req.Trusted)
	r.Header.Set("Content-Type", contentType)
	r.ContentLength, r.Body = length, body()
	r.GetBody = func() (io.ReadCloser, error) { return body(), nil }
}

// mostSpeech bounds the text of one streamed transcript, in bytes.
const mostSpeech = 4 << 20

// speech makes a streamed transcript canonical: events of the transcription
// dialect, also where the engine writes chunks of the chat dialect (vLLM), or
// where it does not stream at all. The one end mark is transcript.text.done.
type speech struct{ text []byte }

// frame appends the event in data as the caller gets it, if at all, and reports
// whether it was the last.
func (s *speech) frame(dst, data []byte) ([]byte, bool) {
	if string(data) == "[DONE]" { // of an engine that streams as chat does
		return dialect.AppendSpeech(dst, dialect.SpeechDone, string(s.text), nil), true
	}
	var e struct {
		dialect.SpeechEvent
		Error any `json:"error"`
	}
	if err := json.Unmarshal(data, &e); err != nil || e.Error != nil {
		return append(append(append(dst, "data: "...), data...), "\n\n"...), true // for the edge to refuse
	}
	said := ""
	switch {
	case e.Type == dialect.SpeechDone && e.Text != nil:
		return dialect.AppendSpeech(dst, e.Type, *e.Text, e.Usage), true
	case e.Type == dialect.SpeechDelta && e.Delta != nil:
		said = *e.Delta
	case e.Type == "":
		for _, c := range e.Choices {
			said += c.Delta.Content
		}
	}
	if said == "" { // nothing that callers know
		return dst, false
	}
	if s.text = append(s.text, said...); len(s.text) > mostSpeech {
		return append(dst, `data: {"error":{"message":"the transcript is longer than 4 MiB"}}`+"\n\n"...), true
	}
	return dialect.AppendSpeech(dst, dialect.SpeechDelta, said, nil), false
}

// speechOf is a whole transcript as the events an engine would have streamed.
func speechOf(whole []byte) ([]byte, error) {
	var e dialect.SpeechEvent
	if err := json.Unmarshal(whole, &e); err != nil {
		return nil, err
	}
	if e.Text == nil {
		return nil, errNoAnswer
	}
	out := dialect.AppendSpeech(nil, dialect.SpeechDelta, *e.Text, nil)
	return dialect.AppendSpeech(out, dialect.SpeechDone, *e.Text, e.Usage), nil
}
