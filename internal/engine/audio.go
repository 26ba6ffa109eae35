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
	// clipTimeout is how long an engine may take to refuse the test clip.
	clipTimeout = time.Minute
	// wavHeader is the length of the header of a WAV file.
	wavHeader = 44
	// minUpload is the smallest limit that may be configured.
	minUpload = 4 << 10
)

// AudioConfig configures the owner's speech engine.
type AudioConfig struct {
	// Engine is the address, with or without /v1; "" means there is none.
	Engine string
	// MaxUpload is the size of the largest clip to send, in bytes.
	MaxUpload int64
	// Model is the model id; "" means the only model that the engine lists.
	Model fleet.ModelID
	Log   *slog.Logger
	// Transport connects to the engine; nil means a new transport.
	Transport http.RoundTripper
}

// Audio is the owner's speech engine. It is only offered if it enforces its limit: it
// must respond with status 413 to a clip that is one byte too large
// (spec/api.md#audio-check).
type Audio struct {
	config AudioConfig
	base   string
	rt     http.RoundTripper

	offered
}

// offered is the result of the last check: an engine, or why there is none.
type offered struct {
	mu      sync.RWMutex
	engine  *Engine // nil if nothing is offered
	finding Finding
}

// Engine returns the engine for the owner's calls, or nil if it is not offered.
func (o *offered) Engine() *Engine { return locked(&o.mu, &o.engine) }

// Finding returns the engine's description, including why it is not offered.
func (o *offered) Finding() Finding { return locked(&o.mu, &o.finding) }

// speechEngine is the kind of all audio engines.
var speechEngine = kind{id: "audio", name: "audio engine"}

// NewAudio returns an Audio that is not offered before Check. It refuses an address other
// than http or https, and a limit below minUpload.
func NewAudio(c AudioConfig) (*Audio, error) {
	base, err := parseBase(c.Engine)
	if err != nil {
		return nil, err
	}
	if c.MaxUpload < minUpload {
		return nil, fmt.Errorf("cannot use %d bytes as the largest clip: give at least %d", c.MaxUpload, minUpload)
	}
	if c.Model != "" && !c.Model.Valid() {
		return nil, fmt.Errorf("cannot offer an audio model under that id: give 1 to 256 printable bytes")
	}
	a := &Audio{config: c, base: base, rt: c.Transport}
	if a.rt == nil {
		a.rt = newTransport()
	}
	a.finding = a.found("it is being checked")
	return a, nil
}

func (a *Audio) found(why string) Finding {
	f := Finding{Place: a.base, Configured: true, Kind: speechEngine.id, Name: speechEngine.name, Why: why}
	if why == "" {
		f.Models = 1
	}
	return f
}

// Check sends the engine a clip over the limit, and offers the engine if the response is
// 413. reached is false if the engine could not be reached; the caller should then check
// again soon. Check must not run concurrently.
func (a *Audio) Check(ctx context.Context) (reached bool) {
	model, err := a.model(ctx)
	if err == nil {
		err = a.sendClip(ctx, model)
	}
	if ctx.Err() != nil {
		return false // an interrupted check has no result
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
	return !errors.Is(err, errNotReached)
}

var errNotReached = errors.New("it cannot be reached")

// model returns the configured model, or the only one that the engine lists.
func (a *Audio) model(ctx context.Context) (fleet.ModelID, error) {
	if a.config.Model != "" {
		return a.config.Model, nil
	}
	p := &probe{ctx: ctx, rt: a.rt, base: a.base, wait: farWait, pages: map[string]page{}}
	list, err := p.models()
	switch {
	case p.get("/v1/models").err != nil:
		return "", fmt.Errorf("%w: %w", errNotReached, err)
	case errors.Is(err, errLocked):
		return "", errors.New("it asks for a key, and kith sends none to an audio engine; let it serve this machine without one")
	case err != nil:
		return "", fmt.Errorf("it does not list its models: %w; it need not if the one for speech is named as model in [audio]", err)
	case len(list.Data) != 1 || !fleet.ModelID(list.Data[0].ID).Valid():
		return "", errors.New("it does not list exactly one model; name the one for speech as model in [audio]")
	}
	return fleet.ModelID(list.Data[0].ID), nil
}

// sendClip sends the clip. It returns nil if the engine refuses it with 413.
func (a *Audio) sendClip(ctx context.Context, model fleet.ModelID) error {
	ctx, cancel := context.WithTimeout(ctx, clipTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, a.base+fleet.Transcriptions.Path(), nil)
	if err != nil {
		return err
	}
	contentType, length, body := clip(model, a.config.MaxUpload+1)
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("User-Agent", "kith")
	// An engine that checks the length does not need the bytes, and one that responds
	// before reading them breaks the connection.
	req.Header.Set("Expect", "100-continue")
	req.ContentLength, req.Body = length, io.NopCloser(body)
	resp, err := a.rt.RoundTrip(req)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("it gave no answer within %v to a clip one byte over max_upload; it has to refuse that with 413", clipTimeout)
	case err != nil:
		return fmt.Errorf("%w: %w", errNotReached, err)
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

// clip returns a form with a WAV file that contains size bytes of silence. It is
// generated while it is read.
func clip(model fleet.ModelID, size int64) (contentType string, length int64, body io.Reader) {
	var head bytes.Buffer
	w := multipart.NewWriter(&head) // writing to a Buffer never fails
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

// silent is an endless reader of zeros.
type silent struct{}

func (silent) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
