package enginetest

import (
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Speech is the kind of an engine that only transcribes.
const Speech Kind = "speech"

// Clip is the form of a transcription.
type Clip struct {
	Fields   map[string][]string // the parts except the clip
	FileName string
	FileType string
	Sound    []byte
	Before   []string // names of the parts before the clip
}

// readClip reads the form of a transcription. over reports a clip of more than
// limit bytes, if limit is not 0; the rest is not read.
func readClip(r *http.Request, limit int64) (call Call, over bool, err error) {
	call = Call{Path: r.URL.Path, From: r.RemoteAddr, Header: r.Header}
	clip := &Clip{Fields: map[string][]string{}}
	call.Clip = clip
	parts, err := r.MultipartReader()
	if err != nil {
		return call, false, err
	}
	var names []string
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			return call, false, nil
		}
		if err != nil {
			return call, false, err
		}
		if part.FormName() != "file" {
			value, err := io.ReadAll(part)
			if err != nil {
				return call, false, err
			}
			names = append(names, part.FormName())
			clip.Fields[part.FormName()] = append(clip.Fields[part.FormName()], string(value))
			switch part.FormName() {
			case "model":
				call.Model = string(value)
			case "stream":
				call.Stream = string(value) == "true"
			}
			continue
		}
		clip.FileName, clip.FileType, clip.Before = part.FileName(), part.Header.Get("Content-Type"), names
		source := io.Reader(part)
		if limit > 0 {
			source = io.LimitReader(part, limit+1)
		}
		if clip.Sound, err = io.ReadAll(source); err != nil {
			return call, false, err
		}
		if limit > 0 && int64(len(clip.Sound)) > limit {
			return call, true, nil
		}
		call.Input = string(clip.Sound)
	}
}

// transcribe answers POST /v1/audio/transcriptions with the text in the clip, a
// second for each word, or with the Behaviour's text.
func (r *run) transcribe() error {
	words := r.words()
	text := strings.TrimSpace(strings.Join(words, ""))
	if r.call.Stream && r.b.Fault != Unstreamed {
		return r.streamTranscript(words, text)
	}
	r.w.Header().Set("Content-Type", "application/json")
	out := []byte(r.b.Answer)
	if r.b.Answer == "" {
		out = quote([]byte(`{"text":`), text)
		if format := r.call.Clip.Fields["response_format"]; len(format) == 1 && format[0] == "verbose_json" {
			out = fmt.Appendf(out, `,"language":"english","duration":%d,"segments":[`, len(words))
			for i, word := range words {
				if i > 0 {
					out = append(out, ',')
				}
				out = fmt.Appendf(out, `{"id":%d,"start":%d.0,"end":%d.5,"avg_logprob":-0.5,"text":`, i, i, i)
				out = append(quote(out, word), '}')
			}
			out = append(out, ']')
		}
		out = fmt.Appendf(out, `,"usage":{"type":"duration","seconds":%d}}`, len(words))
	}
	if r.b.Fault == Garbage || r.b.Fault == Cut {
		out = out[:len(out)/2]
	}
	_, err := r.w.Write(out)
	return err
}

// streamTranscript answers as a stream.
func (r *run) streamTranscript(words []string, text string) error {
	r.w.Header().Set("Content-Type", "text/event-stream")
	if r.b.Raw != nil {
		return r.raw()
	}
	for i, word := range words {
		if i > 0 {
			if err := r.pause(r.b.Interval); err != nil {
				return err
			}
		}
		if err := r.flush(append(quote([]byte(`data: {"type":"transcript.text.delta","delta":`), word), "}\n\n"...)); err != nil {
			return err
		}
		r.e.count(func(c *Counts) { c.Chunks++ })
		if i+1 == r.b.After {
			if err := r.fault(); err != nil {
				return err
			}
		}
	}
	if r.b.Fault == Unmarked {
		return errFault
	}
	return r.flush(append(quote([]byte(`data: {"type":"transcript.text.done","text":`), text), `,"usage":{"type":"tokens","input_tokens":7,"output_tokens":3,"total_tokens":10}}`+"\n\n"...))
}
