package dialect

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fault"
)

// transcript is an engine's answer in the format json or verbose_json. The members of
// segments and words that clients know are kept unchanged; missing ones are not made up.
type transcript struct {
	Task     string          `json:"task,omitzero"`
	Language *string         `json:"language,omitzero"`
	Duration jsontext.Value  `json:"duration,omitzero"` // seconds; some engines write the number as a string
	Text     *string         `json:"text"`
	Segments []segment       `json:"segments,omitzero"`
	Words    []word          `json:"words,omitzero"`
	Usage    transcriptUsage `json:"usage,omitzero"`
	Error    jsontext.Value  `json:"error,omitzero"`
}

type segment struct {
	ID               int            `json:"id"`
	Seek             jsontext.Value `json:"seek,omitzero"`
	Start            float64        `json:"start"` // seconds, like End
	End              float64        `json:"end"`
	Text             string         `json:"text"`
	Tokens           jsontext.Value `json:"tokens,omitzero"`
	Temperature      jsontext.Value `json:"temperature,omitzero"`
	AvgLogprob       jsontext.Value `json:"avg_logprob,omitzero"`
	CompressionRatio jsontext.Value `json:"compression_ratio,omitzero"`
	NoSpeechProb     jsontext.Value `json:"no_speech_prob,omitzero"`
}

type word struct {
	Word  string  `json:"word"`
	Start float64 `json:"start"`
	End   float64 `json:"end"`
}

// transcriptUsage is either tokens or seconds.
type transcriptUsage struct {
	Type    string   `json:"type,omitzero"`
	Seconds *float64 `json:"seconds,omitzero"`
	In      *int64   `json:"input_tokens,omitzero"`
	Out     *int64   `json:"output_tokens,omitzero"`
	Total   *int64   `json:"total_tokens,omitzero"`
}

// usage returns the engine's counts, if they are in tokens.
func (u transcriptUsage) usage() Usage {
	if u.In == nil || u.Out == nil || *u.In < 0 || *u.Out < 0 {
		return Usage{}
	}
	return Usage{In: *u.In, Out: *u.Out, Reported: true}
}

// Answer translates an engine's answer, in the format that Encode requested, to the
// format of the form. It returns the body and its media type. Errors are *fault.Fault.
func (t *Transcription) Answer(answer io.Reader) (body []byte, contentType string, usage Usage, err error) {
	var said transcript
	err = readObject(answer, &said)
	switch {
	case said.Error != nil && said.Error.Kind() != 'n':
		return nil, "", Usage{}, errorMember(said.Error)
	case errors.As(err, new(*json.SemanticError)), err == nil && said.Text == nil:
		return nil, "", Usage{}, invalidAnswer("something that is no transcript")
	case err != nil:
		return nil, "", Usage{}, err
	}
	if t.engineFormat() == "verbose_json" && said.Segments == nil {
		return nil, "", Usage{}, fault.New(fault.InvalidRequest, "the machine's engine gives no times, which %s is made of: ask for json or text", t.Format).WithParam("response_format")
	}
	contentType = "text/plain; charset=utf-8"
	switch t.Format {
	case "text":
		body = append([]byte(*said.Text), '\n')
	case "srt":
		body = cues(said.Segments, "", ',', true)
	case "vtt":
		body = cues(said.Segments, "WEBVTT\n\n", '.', false)
	default:
		contentType = "application/json"
		body, err = said.document(t.Format)
	}
	return body, contentType, said.Usage.usage(), err
}

func (s *transcript) document(format string) ([]byte, error) {
	if format == "json" {
		*s = transcript{Text: s.Text, Usage: s.Usage}
	} else {
		s.Task, s.Error = "transcribe", nil
		if s.Language == nil {
			s.Language = new(string)
		}
		seconds, err := strconv.ParseFloat(strings.Trim(string(s.Duration), `"`), 64)
		if err != nil || !(seconds >= 0 && seconds < math.MaxInt32) { // then use the end of the last segment
			seconds = 0
			for _, g := range s.Segments {
				seconds = max(seconds, g.End)
			}
		}
		s.Duration = strconv.AppendFloat(nil, seconds, 'f', -1, 64)
	}
	body, err := json.Marshal(s)
	if err != nil {
		return nil, invalidAnswer("something that is no transcript")
	}
	return body, nil
}

func cues(segments []segment, head string, point byte, numbered bool) []byte {
	out := []byte(head)
	for i, s := range segments {
		if numbered {
			out = append(strconv.AppendInt(out, int64(i+1), 10), '\n')
		}
		out = appendTime(out, s.Start, point)
		out = append(out, " --> "...)
		out = appendTime(out, max(s.Start, s.End), point)
		out = append(out, '\n')
		out = append(out, cueText(s.Text)...)
		out = append(out, "\n\n"...)
	}
	return out
}

// cueText returns text changed so that it cannot end its cue or begin another.
func cueText(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "-->", "->")
}

// appendTime appends seconds as 00:00:00 and milliseconds.
func appendTime(out []byte, seconds float64, point byte) []byte {
	const most = 100*3600 - 0.001 // longer than any audio file
	ms := int64(math.Round(min(max(seconds, 0), most) * 1000))
	return fmt.Appendf(out, "%02d:%02d:%02d%c%03d", ms/3600000, ms/60000%60, ms/1000%60, point, ms%1000)
}

// A SpeechEvent is one event of a streamed transcript. Some engines write it as chunks of
// the chat dialect instead.
type SpeechEvent struct {
	Type  string         `json:"type"`
	Delta *string        `json:"delta,omitzero"`
	Text  *string        `json:"text,omitzero"`
	Usage jsontext.Value `json:"usage,omitzero"`

	Choices []struct {
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
	} `json:"choices,omitzero"`
}

// The event types of a streamed transcript; the second is its end mark.
const (
	SpeechDelta = "transcript.text.delta"
	SpeechDone  = "transcript.text.done"
)

// speech checks the data of one frame of a streamed transcript; end is true for the last
// one.
func (s *Stream) speech(data []byte) (end bool, err error) {
	if err := s.object.read(data); err != nil {
		return false, err
	}
	if s.object.failure != nil {
		return false, s.failure(data)
	}
	var e SpeechEvent
	if err := json.Unmarshal(data, &e); err != nil {
		return false, invalidAnswer("an event that is of no transcript")
	}
	switch {
	case e.Type == SpeechDelta && e.Delta != nil:
		s.object.content = *e.Delta != ""
		return false, nil
	case e.Type == SpeechDone && e.Text != nil:
		var u transcriptUsage
		if e.Usage.Kind() == '{' && json.Unmarshal(e.Usage, &u) == nil {
			s.object.usage = u.usage()
		}
		return true, nil
	}
	return false, invalidAnswer("an event that is of no transcript")
}

// AppendSpeech appends an event of a streamed transcript as a frame; usage may be nil.
func AppendSpeech(dst []byte, kind, text string, usage jsontext.Value) []byte {
	e := SpeechEvent{Type: kind, Text: &text, Usage: usage}
	if kind == SpeechDelta {
		e.Delta, e.Text = &text, nil
	}
	out := outbox{out: dst}
	out.data(encode(e))
	return out.out
}
