package daemon

import (
	"cmp"
	"context"
	"net/http"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// audioCheckInterval is how often a working audio engine is checked.
const audioCheckInterval = time.Hour

// newAudio returns the configured audio engine, or nil if there is none.
func newAudio(c *Config) (*engine.Audio, error) {
	c.Audio.MaxUpload = cmp.Or(c.Audio.MaxUpload, DefaultMaxUpload)
	if c.Audio.Engine == "" {
		return nil, nil
	}
	return engine.NewAudio(c.Audio)
}

// runAudioChecks checks the audio engine at once, every hour, and on request. While the
// engine does not work, it is checked as often as the other engines.
func (d *Daemon) runAudioChecks(ctx context.Context) error {
	if d.audio == nil {
		return nil
	}
	for {
		before, wait := d.audio.Engine(), discoveryInterval
		if d.audio.Check(ctx) {
			wait = audioCheckInterval
		}
		if d.audio.Engine() != before {
			d.offers.setChanged()
		}
		// A failing engine must not be checked continuously.
		if !sleep(ctx, wait, d.checkAudioNow) || !sleep(ctx, minDiscoveryInterval, nil) {
			return nil
		}
	}
}

// serveTranscription serves one transcription call of the hub.
func (d *Daemon) serveTranscription(w http.ResponseWriter, r *http.Request, began *bool) {
	a, ok := d.admitHead(w, r, fleet.Transcriptions)
	if !ok {
		return
	}
	defer a.release()
	limit := d.config.Audio.MaxUpload
	clip := d.config.Spool.Hold(spool.Holder{Member: hubMember}, -1)
	defer clip.Close()
	form, err := dialect.ReadTranscription(r.Header.Get("Content-Type"),
		http.MaxBytesReader(w, r.Body, limit+dialect.FormOverhead), clip, limit)
	if err != nil {
		refuseBody(w, r, err, fault.New(fault.RequestTooLarge, "the form exceeds %d bytes", limit+dialect.FormOverhead))
		return
	}
	d.serveCall(w, r, began, a, engine.Request{
		Endpoint: fleet.Transcriptions, Model: form.Model, Stream: form.Stream, Form: form, Caller: d.cacheOf(r),
	})
}
