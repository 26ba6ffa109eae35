package engine

import (
	"encoding/json/v2"

	"github.com/kith/kith/internal/dialect"
)

// maxSpeech bounds the text of a streamed transcript, in bytes.
const maxSpeech = 4 << 20

// transcript normalizes a streamed transcript to events of the transcription dialect,
// even from engines that send chunks of the chat dialect (vLLM) or do not stream. Its end
// marker is transcript.text.done.
type transcript struct {
	text    []byte
	skipped bool // an event was not understood
}

// frame appends the normalized event and reports whether it was the last one.
func (s *transcript) frame(dst, data []byte) ([]byte, bool) {
	if string(data) == "[DONE]" { // the end marker of the chat dialect
		if len(s.text) == 0 && s.skipped {
			return append(dst, `data: {"error":{"message":"the engine sent no transcript that can be read"}}`+"\n\n"...), true
		}
		return dialect.AppendSpeech(dst, dialect.SpeechDone, string(s.text), nil), true
	}
	var e struct {
		dialect.SpeechEvent
		Error any `json:"error"`
	}
	if err := json.Unmarshal(data, &e); err != nil || e.Error != nil {
		return append(append(append(dst, "data: "...), data...), "\n\n"...), true // the gateway refuses it
	}
	said := ""
	switch {
	case e.Type == dialect.SpeechDone && e.Text != nil:
		return dialect.AppendSpeech(dst, e.Type, *e.Text, e.Usage), true
	case e.Type == dialect.SpeechDelta && e.Delta != nil:
		said = *e.Delta
	case e.Type == "" && e.Text != nil: // a segment
		said = *e.Text
	case e.Type == "":
		for _, c := range e.Choices {
			said += c.Delta.Content
		}
	}
	if said == "" { // an event that clients do not know
		s.skipped = true
		return dst, false
	}
	if s.text = append(s.text, said...); len(s.text) > maxSpeech {
		return append(dst, `data: {"error":{"message":"the transcript is longer than 4 MiB"}}`+"\n\n"...), true
	}
	return dialect.AppendSpeech(dst, dialect.SpeechDelta, said, nil), false
}

// transcriptEvents converts a complete transcript to a stream of events.
func transcriptEvents(whole []byte) ([]byte, error) {
	var e dialect.SpeechEvent
	if err := json.Unmarshal(whole, &e); err != nil {
		return nil, err
	}
	if e.Text == nil {
		return nil, notChat("something that is not a transcript", whole)
	}
	out := dialect.AppendSpeech(nil, dialect.SpeechDelta, *e.Text, nil)
	return dialect.AppendSpeech(out, dialect.SpeechDone, *e.Text, e.Usage), nil
}
