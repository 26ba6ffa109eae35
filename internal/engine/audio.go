package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/fleet"
)

const (
	// clipWait is how long an engine may take to refuse the clip that is too
	// long for it.
	clipWait = time.Minute
	// wavHeader is the length of a WAV file's header, in bytes.
	wavHeader = 44
	// leastUpload is the smallest budget that makes sense, in bytes.
	leastUpload = 4 << 10
)

// AudioConfig names the owner's engine for speech.
type AudioConfig struct {
	// Engine is its address, with or without a /v1 at the end; empty: there is none.
	Engine string
	// MaxUpload is the largest clip it is given, in bytes.
	MaxUpload int64
	// Model is the id it is offered under and asked for; empty: the one it lists.
	Model fleet.ModelID
	Log   *slog.Logger
	// Transport reaches it; nil: one made for it.
	Transport http.RoundTripper
}

// Audio is the owner's engine for speech. It is offered only while it is known
// to hold its bound: a clip one byte over the budget is refused with 413 (S4,
// decisions 5).
type Audio struct {
	config AudioConfig
	base   string
	rt     http.RoundTripper

	mu      sync.RWMutex
	engine  *Engine // nil: not offered
	finding Finding
}

// speechEngine is the kind of an audio engine: there is nothing to tell apart.
var speechEngine = kind{word: "audio", name: "audio engine"}

// NewAudio is an Audio that was not checked yet, and is not offered. It refuses
// an address that is no http or https one, and a budget no clip fits in.
func NewAudio(c AudioConfig) (*Audio, error) {
	base, err := parseBase(c.Engine)
	if err != nil {
		return nil, err
	}
	if c.MaxUpload < leastUpload {
		return nil, fmt.Errorf("cannot use %d bytes as the largest clip: give at least %d", c.MaxUpload, leastUpload)
	}
	if c.Model != "" && !c.Model.Valid() {
		return nil, fmt.Errorf("cannot offer an audio model under that id: give 1 to 256 printable bytes")
	}
	a := &Audio{config: c, base: strings.Replace(base, "://localhost:", "://127.0.0.1:", 1), rt: c.Transport}
	if a.rt == nil {
		a.rt = newTransport()
	}
	a.finding = a.found("it is being checked")
	return a, nil
}

func (a *Audio) found(why string) Finding {
	f := Finding{Place: a.base, Configured: true, Kind: speechEngine.word, Name: speechEngine.name, Why: why}
	if why == "" {
		f.Models = 1
	}
	return f
}

// Engine is the engine while it is offered, else nil.
func (a *Audio) Engine() *Engine {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.engine
}

// Finding says what is known of the engine, and why it is not offered.
func (a *Audio) Finding() Finding {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.finding
}

// Check sends the engine a clip over the budget and offers it if the answer is
// 413. reached is false where nothing could be asked at all, which is worth
// asking again soon. One Check runs at a time.
func (a *Audio) Check(ctx context.Context) (reached bool) {
	model, err := a.model(ctx)
	if err == nil {
		err = a.sendClip(ctx, model)
	}
	if ctx.Err() != nil {
		return false // cut short: it says nothing of the engine
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.finding
	switch {
	case err != nil:
		a.engine, a.finding = nil, a.found(err.Error())
	case a.engine == nil || a.engine.models[0].ID != model:
		a.engine = &Engine{kind: &speechEngine, name: speechEngine.name, base: a.base, rt: a.rt, load: new(load), models: []Model{{
			ID: model, Families: []fleet.Family{fleet.Audio}, Endpoints: []fleet.Endpoint{fleet.Transcriptions}, Slots: 1,
		}}}
		a.finding = a.found("")
	}
	if a.finding != before {
		a.config.Log.Info("audio engine checked", "place", a.base, "offered", a.engine != nil, "why", a.finding.Why)
	}
	return !errors.Is(err, errAway)
}

// errAway marks an engine that could not be asked.
var errAway = errors.New("it cannot be reached")

// model is the id to offer: the owner's word, or the one model the engine lists.
func (a *Audio) model(ctx context.Context) (fleet.ModelID, error) {
	if a.config.Model != "" {
		return a.config.Model, nil
	}
	p := &place{ctx: ctx, rt: a.rt, base: a.base, wait: farWait, pages: map[string]page{}}
	list, err := p.models()
	switch {
	case p.get("/v1/models").err != nil:
		return "", fmt.Errorf("%w: %w", errAway, err)
	case err != nil || len(list.Data) != 1 || !fleet.ModelID(list.Data[0].ID).Valid():
		return "", errors.New("it does not list exactly one model; name the one for speech as model in [audio]")
	}
	return fleet.ModelID(list.Data[0].ID), nil
}

// sendClip sends the clip; nil says that it was refused as it has to be.
func (a *Audio) sendClip(ctx context.Context, model fleet.ModelID) error {
	ctx, cancel := context.WithTimeout(ctx, clipWait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+fleet.Transcriptions.Path(), nil)
	if err != nil {
		return err
	}
	contentType, length, body := clip(model, a.config.MaxUpload+1)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "kith")
	// Whoever judges by the length does not need the bytes, and whoever answers
	// before they are all read would break the connection they come on.
	req.Header.Set("Expect", "100-continue")
	req.ContentLength, req.Body = length, io.NopCloser(body)
	resp, err := a.rt.RoundTrip(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("it gave no answer within %v to a clip one byte over max_upload; it has to refuse that with 413", clipWait)
	case err != nil:
		return fmt.Errorf("%w: %w", errAway, err)
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusRequestEntityTooLarge:
		return nil
	case http.StatusOK:
		return fmt.Errorf("it accepted a clip of %d bytes, one over max_upload; set its own limit so that it refuses that with 413", a.config.MaxUpload+1)
	default:
		return fmt.Errorf("it answered a clip of %d bytes, one over max_upload, with status %d and not with 413", a.config.MaxUpload+1, resp.StatusCode)
	}
}

// clip is a form with a WAV file of that many bytes of silence, made as it is
// read.
func clip(model fleet.ModelID, size int64) (contentType string, length int64, body io.Reader) {
	var head bytes.Buffer
	w := multipart.NewWriter(&head) // nothing fails to be written to a Buffer
	_ = w.WriteField("model", string(model))
	_ = w.WriteField("response_format", "json")
	_, _ = w.CreateFormFile("file", "silence.wav")
	sound := uint32(min(size-wavHeader, 1<<32-wavHeader-1))
	head.WriteString("RIFF")
	head.Write(binary.LittleEndian.AppendUint32(nil, sound+wavHeader-8))
	head.WriteString("WAVEfmt ")
	for _, n := range []uint32{16, 1 | 1<<16, 16_000, 32_000, 2 | 16<<16} { // PCM, one channel, 16 kHz, 16 bits
		head.Write(binary.LittleEndian.AppendUint32(nil, n))
	}
	head.WriteString("data")
	head.Write(binary.LittleEndian.AppendUint32(nil, sound))
	tail := "\r\n--" + w.Boundary() + "--\r\n"
	silence := size - wavHeader
	return w.FormDataContentType(), int64(head.Len()) + silence + int64(len(tail)),
		io.MultiReader(&head, io.LimitReader(silent{}, silence), strings.NewReader(tail))
}

// silent is zeros without end.
type silent struct{}

func (silent) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
