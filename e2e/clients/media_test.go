package clients_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/kith/kith/internal/assert"
)

// mostSound is the largest clip of the daemon's and of its engine, in bytes.
const mostSound = 1 << 20

// speechEngine transcribes by saying how long the clip is, and refuses long ones
// as it has to.
func speechEngine() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"whisper-tiny","object":"model"}]}`)
	})
	mux.HandleFunc("POST /v1/audio/transcriptions", func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, mostSound+8<<10)
		file, _, err := r.FormFile("file")
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		sound, _ := io.ReadAll(file)
		if len(sound) > mostSound {
			w.WriteHeader(http.StatusRequestEntityTooLarge)
			return
		}
		text := fmt.Sprintf("%d bytes in %s", len(sound), r.FormValue("language"))
		switch {
		case r.FormValue("stream") == "true":
			w.Header().Set("Content-Type", "text/event-stream")
			for word := range strings.FieldsSeq(text) {
				fmt.Fprintf(w, "data: {\"type\":\"transcript.text.delta\",\"delta\":%q}\n\n", word)
			}
			if r.FormValue("prompt") != "break" {
				fmt.Fprintf(w, "data: {\"type\":\"transcript.text.done\",\"text\":%q}\n\n", text)
			}
		case r.FormValue("response_format") == "verbose_json":
			words := "null"
			if g := r.Form["timestamp_granularities[]"]; len(g) > 0 && g[0] == "word" {
				words = `[{"word":"bytes","start":0.5,"end":1}]`
			}
			fmt.Fprintf(w, `{"text":%q,"language":"english","duration":"1.5","segments":[{"id":0,"start":0,"end":1.5,"text":%[1]q}],"words":%s}`, text, words)
		default:
			fmt.Fprintf(w, `{"text":%q,"usage":{"type":"duration","seconds":2}}`, text)
		}
	})
	return mux
}

// TestAudio is the official library against both surfaces: five formats, the
// stream, and the refusals that a program branches on. Clips are not sealed
// (docs/spec/sealed.md#counts).
func TestAudio(t *testing.T) {
	n := startNetwork(t, "")
	n.member("eve")
	engine := httptest.NewServer(speechEngine())
	t.Cleanup(engine.Close)
	n.daemon("box", fmt.Sprintf("[engine]\nbuiltin = false\n[discovery]\nenabled = false\n[audio]\nengine = %q\nmax_upload = \"1MiB\"\n", engine.URL))
	for name, client := range map[string]openai.Client{
		"hub":   n.clients["ada"],
		"local": surface{base: n.local("box"), key: anyKey}.openAI(),
	} {
		n.until(name+" serves it", func() error {
			_, err := transcribe(t.Context(), &client, 3, openai.AudioResponseFormatJSON)
			return err
		})
		t.Run(name, func(t *testing.T) { formats(t, &client) })
	}
	wrong := func(what string, err error, status int, code string) {
		t.Helper()
		var api *openai.Error
		if !errors.As(err, &api) || api.StatusCode != status || api.Code != code {
			t.Errorf("%s: %v, not %d %s", what, err, status, code)
		}
	}
	ada, eve := n.clients["ada"], n.clients["eve"]
	_, err := transcribe(t.Context(), &eve, 3, openai.AudioResponseFormatJSON)
	wrong("a stranger's clip", err, 404, "model_not_found")
	_, err = transcribe(t.Context(), &ada, mostSound+1, openai.AudioResponseFormatJSON)
	wrong("over the machine's bound", err, 413, "request_too_large")
	_, err = transcribe(t.Context(), &ada, 25<<20+1, openai.AudioResponseFormatJSON)
	wrong("over the hub's bound", err, 413, "request_too_large")
	_, err = transcribe(t.Context(), &ada, 3, "pdf")
	wrong("an odd format", err, 400, "invalid_request")
	nobody := openai.NewClient(option.WithBaseURL(n.hub+"/v1"), option.WithAPIKey("kith_wrong"), option.WithMaxRetries(0))
	_, err = transcribe(t.Context(), &nobody, 3, openai.AudioResponseFormatJSON)
	wrong("a wrong key", err, 401, "invalid_api_key")
}

// clip is a clip of so many bytes, named as the library wants it.
func clip(size int) io.Reader {
	return openai.File(bytes.NewReader(make([]byte, size)), "clip.wav", "audio/wav")
}

func transcribe(ctx context.Context, client *openai.Client, size int, format openai.AudioResponseFormat) (*openai.AudioTranscriptionNewResponseUnion, error) {
	return client.Audio.Transcriptions.New(ctx, openai.AudioTranscriptionNewParams{
		File: clip(size), Model: "whisper-tiny", Language: openai.String("en"), ResponseFormat: format,
		TimestampGranularities: []string{"word"},
	})
}

func formats(t *testing.T, client *openai.Client) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const text = "3 bytes in en"
	answer, err := transcribe(ctx, client, 3, openai.AudioResponseFormatJSON)
	assert.That(t, err == nil && answer.Text == text && answer.Usage.Seconds == 2, "json", answer, err)
	answer, err = transcribe(ctx, client, 3, openai.AudioResponseFormatVerboseJSON)
	assert.OK(t, err)
	if v := answer.AsTranscriptionVerbose(); v.Text != text || v.Duration != 1.5 || len(v.Segments) != 1 || v.Segments[0].End != 1.5 || len(v.Words) != 1 || v.Words[0].Word != "bytes" {
		t.Errorf("verbose_json: %+v", v)
	}
	for format, want := range map[openai.AudioResponseFormat]string{
		"text": text + "\n", "srt": "1\n00:00:00,000 --> 00:00:01,500\n" + text + "\n\n", "vtt": "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\n" + text + "\n\n",
	} {
		var got string
		if _, err := client.Audio.Transcriptions.New(ctx, openai.AudioTranscriptionNewParams{
			File: clip(3), Model: "whisper-tiny", Language: openai.String("en"), ResponseFormat: format,
		}, option.WithResponseBodyInto(&got)); err != nil || got != want {
			t.Errorf("%s: %q %v", format, got, err)
		}
	}
	params := openai.AudioTranscriptionNewParams{File: clip(3), Model: "whisper-tiny", Language: openai.String("en")}
	events := client.Audio.Transcriptions.NewStreaming(ctx, params)
	deltas, whole := 0, ""
	for events.Next() {
		if e := events.Current(); e.Type == "transcript.text.done" {
			whole = e.Text
		} else {
			deltas++
		}
	}
	if err := events.Err(); err != nil || deltas != 4 || whole != text {
		t.Errorf("stream: %d deltas, then %q, %v", deltas, whole, err)
	}
	params.File, params.Prompt = clip(3), openai.String("break")
	events = client.Audio.Transcriptions.NewStreaming(ctx, params)
	for events.Next() {
	}
	assert.That(t, events.Err() != nil, "a stream that broke looks whole")
}

// TestEmbeddingCodings is what the library reads of each coding, on all
// surfaces, and what it makes of a bad input.
func TestEmbeddingCodings(t *testing.T) {
	n := dev(t)
	for _, surface := range n.surfaces() {
		client := surface.openAI()
		params := openai.EmbeddingNewParams{Model: "tiny", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"Hello", "Good bye"}}}
		floats, err := client.Embeddings.New(t.Context(), params)
		if err != nil || len(floats.Data) != 2 || floats.Usage.PromptTokens == 0 {
			t.Fatalf("%s: %+v %v", surface.name, floats, err)
		}
		params.EncodingFormat = openai.EmbeddingNewParamsEncodingFormatBase64
		var coded struct {
			Data []struct {
				Index     int
				Embedding string
			}
		}
		if _, err := client.Embeddings.New(t.Context(), params, option.WithResponseBodyInto(&coded)); err != nil || len(coded.Data) != 2 {
			t.Fatalf("%s: %+v %v", surface.name, coded, err)
		}
		for i, d := range coded.Data {
			raw, err := base64.StdEncoding.DecodeString(d.Embedding)
			if err != nil || len(raw) != 4*len(floats.Data[i].Embedding) || d.Index != i {
				t.Fatalf("%s: %d bytes, %v", surface.name, len(raw), err)
			}
			for j, want := range floats.Data[i].Embedding {
				if got := math.Float32frombits(binary.LittleEndian.Uint32(raw[4*j:])); math.Abs(float64(got)-want) > 1e-5 {
					t.Fatalf("%s: %v is not %v", surface.name, got, want)
				}
			}
		}
		tokens := openai.EmbeddingNewParams{Model: "tiny", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfTokenArrays: [][]int64{{1, 2, 3}, {4}}}}
		if answer, err := client.Embeddings.New(t.Context(), tokens); err != nil || len(answer.Data) != 2 {
			t.Errorf("%s, tokens: %v", surface.name, err)
		}
		params.Input = openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"Hello", ""}}
		_, err = client.Embeddings.New(t.Context(), params)
		var api *openai.Error
		if !errors.As(err, &api) || api.StatusCode != 400 || api.Code != "invalid_request" || api.Param != "input" {
			t.Errorf("%s, an empty text: %v", surface.name, err)
		}
	}
}
