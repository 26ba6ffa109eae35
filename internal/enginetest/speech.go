package enginetest

import (
	"encoding/json/jsontext"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
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

// errTooLarge is the error of a clip over MaxUpload, whose rest is not read.
var errTooLarge = errors.New("the clip is too large")

// readClip reads the form of a transcription.
func (e *Engine) readClip(r *http.Request) (Call, error) {
	clip := &Clip{Fields: map[string][]string{}}
	call := Call{Path: r.URL.Path, From: r.RemoteAddr, Header: r.Header, Clip: clip}
	parts, err := r.MultipartReader()
	if err != nil {
		return call, err
	}
	var names []string
	for {
		part, err := parts.NextPart()
		if err == io.EOF {
			return call, nil
		}
		if err != nil {
			return call, err
		}
		var source io.Reader = part
		name := part.FormName()
		if name == "file" && e.maxUpload > 0 {
			source = io.LimitReader(part, e.maxUpload+1)
		}
		value, err := io.ReadAll(source)
		if err != nil {
			return call, err
		}
		switch name {
		case "file":
			if e.maxUpload > 0 && int64(len(value)) > e.maxUpload {
				return call, errTooLarge
			}
			clip.FileName, clip.FileType, clip.Before, clip.Sound = part.FileName(), part.Header.Get("Content-Type"), names, value
			call.Input = string(value)
			continue
		case "model":
			call.Model = string(value)
		case "stream":
			call.Stream = string(value) == "true"
		}
		names = append(names, name)
		clip.Fields[name] = append(clip.Fields[name], string(value))
	}
}

// transcribe answers POST /v1/audio/transcriptions with the text in the clip, a
// second for each word, or with the Behaviour's text.
func (r *run) transcribe() error {
	words := r.words()
	text := strings.TrimSpace(strings.Join(words, ""))
	if r.call.Stream && r.b.Fault != Unstreamed {
		var content []string
		for _, word := range words {
			content = append(content, `data: {"type":"transcript.text.delta","delta":`+quote(word)+"}\n\n")
		}
		return r.stream(nil, content, []string{`data: {"type":"transcript.text.done","text":` + quote(text) +
			`,"usage":{"type":"tokens","input_tokens":7,"output_tokens":3,"total_tokens":10}}` + "\n\n"})
	}
	out := object{"text": text, "usage": jsontext.Value(fmt.Sprintf(`{"type":"duration","seconds":%d}`, len(words)))}
	if slices.Equal(r.call.Clip.Fields["response_format"], []string{"verbose_json"}) {
		segments := make([]object, len(words))
		for i, word := range words {
			segments[i] = object{"id": i, "start": i, "end": float64(i) + 0.5, "avg_logprob": -0.5, "text": word}
		}
		out["language"], out["duration"], out["segments"] = "english", len(words), segments
	}
	return r.unaryJSON(out)
}
