package daemon

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/tunnel"
)

// audioEvery is how often the audio engine is checked (decisions 5).
const audioEvery = time.Hour

// newAudio is the audio engine of the configuration; nil: it names none.
func newAudio(c *Config) (*engine.Audio, error) {
	if c.Audio.MaxUpload == 0 {
		c.Audio.MaxUpload = DefaultUpload
	}
	if c.Audio.Engine == "" {
		return nil, nil
	}
	if c.Audio.Log == nil {
		c.Audio.Log = c.Log
	}
	return engine.NewAudio(c.Audio)
}

// keepAudio checks the audio engine now, hourly, when it was asked for, and as
// often as the other engines while there is none to ask.
func (d *Daemon) keepAudio(ctx context.Context) error {
	if d.audio == nil {
		return nil
	}
	for {
		before := d.audio.Engine()
		wait := lookEvery
		if d.audio.Check(ctx) {
			wait = audioEvery
		}
		if d.audio.Engine() != before {
			d.board.touch()
		}
		select {
		case <-time.After(wait):
		case <-d.recheck:
		case <-ctx.Done():
			return nil
		}
		select { // a failing engine is not asked without a break
		case <-time.After(lookPace):
		case <-ctx.Done():
			return nil
		}
	}
}

// askCheck asks for a check of the audio engine soon.
func (d *Daemon) askCheck() {
	select {
	case d.recheck <- struct{}{}:
	default: // one is due already
	}
}

// serveSpeech serves one transcription of the hub.
func (d *Daemon) serveSpeech(w http.ResponseWriter, r *http.Request, began *bool) {
	a, ok := d.admitHead(w, r, fleet.Transcriptions)
	if !ok {
		return
	}
	defer a.release()
	limit := d.config.Audio.MaxUpload
	sound := d.config.Spool.Hold(spool.Holder{Member: routed}, -1)
	defer sound.Close()
	form, err := dialect.ReadTranscription(r.Header.Get("Content-Type"), http.MaxBytesReader(w, r.Body, limit+dialect.FormRoom), sound, limit)
	f := (*fault.Fault)(nil)
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		tellHub(w, r, fault.New(fault.RequestTooLarge, "the form is larger than %d bytes", limit+dialect.FormRoom))
		return
	case errors.As(err, &f) && f.Code == fault.CapacityFull:
		turnAway(w, tunnel.RefusedBusy)
		return
	case errors.As(err, &f):
		tellHub(w, r, f)
		return
	case err != nil:
		panic(http.ErrAbortHandler) // the hub gave the call up
	}
	d.serveCall(w, r, began, a, engine.Request{Endpoint: fleet.Transcriptions, Model: form.Model, Stream: form.Stream, Form: form})
}
