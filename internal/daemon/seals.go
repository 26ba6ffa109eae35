package daemon

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/tunnel"
)

// What the owner's commands send and get.
type (
	TrustChange = sealed.Change
	// Trust is the output of `kith trust`.
	Trust struct {
		sealed.Trust
		Calls SealedCalls `json:"calls"`
	}
	// Refused is why this machine would not send a call to others; empty: it would.
	Refused struct {
		Message string `json:"message"`
	}
)

// SealedStatus is how calls to other machines are sealed.
type SealedStatus struct {
	Mode  sealed.Mode `json:"mode"`
	Error string      `json:"error,omitzero"` // why none can be
	// Approved reports that the account key is on several machines of its owner.
	Approved  bool `json:"approved"`
	Keys      int  `json:"keys"`      // of others
	Confirmed int  `json:"confirmed"` // of Keys
	SealedCalls
}

// sealing is what a login has for sealed calls.
type sealing struct {
	keys    *sealed.Keyring
	caller  *sealed.Caller
	machine *sealed.Machine
}

// sealing returns the parts for sealed calls of this login. It makes them at the first
// call, and with them, at the first login, the account key.
func (c *hubClient) sealing() (*sealing, error) {
	c.sealMu.Lock()
	defer c.sealMu.Unlock()
	if c.seals != nil {
		return c.seals, nil
	}
	keys, err := sealed.OpenKeyring(c.home, c.credential.Hub, c.credential.Member)
	if err != nil {
		return nil, err
	}
	c.seals = &sealing{
		keys: keys,
		caller: &sealed.Caller{
			Hub: c.credential.Hub, Keys: keys, Mode: c.mode,
			Reach: func(of fleet.KeyReach) fleet.KeyReach { return max(c.reach(), of) },
			Send: func(req *http.Request) (*http.Response, error) {
				resp, err := c.send(req)
				if err != nil {
					return nil, c.unreachable(req.Context(), err)
				}
				return resp, nil
			},
			Refusal: c.refusalIn, Clear: c.do, Report: c.recordError,
		},
		machine: sealed.NewMachine(keys, c.credential.Machine),
	}
	return c.seals, nil
}

// dropSealing forgets the prekeys, so that nothing sealed for this machine can be opened.
func (c *hubClient) dropSealing() {
	c.sealMu.Lock()
	defer c.sealMu.Unlock()
	c.seals = nil
}

// remote sends a call to other machines: through the hub as it is, or sealed.
func (c *hubClient) remote(ctx context.Context, call *gateway.Call) (*gateway.Answer, error) {
	if !c.mode().IsOn() {
		return c.do(ctx, call, fleet.Everything)
	}
	s, err := c.sealing()
	if err != nil {
		return nil, cannotSeal(err)
	}
	return s.caller.Do(ctx, call)
}

// cannotSeal returns the fault of a call if the keys of this login cannot be used.
func cannotSeal(err error) *fault.Fault {
	return fault.New(fault.CascadeExhausted, "cannot seal calls: %v; correct that, or set [privacy] sealed = \"off\"", err).WithNoRetry()
}

// Sealing returns the keys of this login, for the owner's commands. It fails if this
// machine is not signed in or calls are not sealed.
func (d *Daemon) Sealing() (*sealed.Keyring, error) {
	s, err := d.sealing()
	switch {
	case err != nil:
		return nil, err
	case s != nil:
		return s.keys, nil
	case d.hubClient.Load() == nil:
		return nil, errors.New("no calls are sealed: this machine is not signed in; run kith login --hub URL")
	}
	return nil, errors.New(`no calls are sealed: config.toml has [privacy] sealed = "off"; set it to "prefer", and run kith reload`)
}

// sealing returns the parts for sealed calls, or nil if there are none.
func (d *Daemon) sealing() (*sealing, error) {
	hub := d.hubClient.Load()
	if hub == nil || !d.policy.Load().sealed.IsOn() {
		return nil, nil
	}
	return hub.sealing()
}

// sealedStatus returns how calls are sealed, nil if this machine is not signed in.
func (d *Daemon) sealedStatus() *SealedStatus {
	if d.hubClient.Load() == nil {
		return nil
	}
	now := &SealedStatus{Mode: d.policy.Load().sealed, SealedCalls: d.calls.sealed()}
	s, err := d.sealing()
	switch {
	case err != nil:
		now.Error = err.Error()
	case s != nil:
		now.Approved = s.keys.Approved()
		for _, key := range s.keys.Keys() {
			now.Keys++
			if key.How == sealed.Confirmed {
				now.Confirmed++
			}
		}
	}
	return now
}

// setSealed sets what the caller is told of a call, unless calls are not sealed.
func (d *Daemon) setSealed(call *gateway.Call, value string) { call.Trace.Sealed = d.ifSealing(value) }

// ifSealing returns a value of X-Kith-Sealed, or "" if calls are not sealed.
func (d *Daemon) ifSealing(value string) string {
	if !d.policy.Load().sealed.IsOn() {
		return ""
	}
	return value
}

// sealKeys returns the keys that calls can be sealed for now.
func (d *Daemon) sealKeys() []fleet.SealKey {
	s, err := d.sealing()
	if err == nil && s != nil {
		_, err = s.machine.Turn(time.Now())
	}
	if err != nil {
		d.recordError("calls cannot be sealed for this machine: %v", err)
	}
	if s == nil {
		return nil
	}
	return s.machine.Seals()
}

// sealCheckInterval is how often to check whether a prekey is too old.
const sealCheckInterval = time.Minute

// runSeals makes the prekey of each hour and forgets old ones, until ctx ends.
func (d *Daemon) runSeals(ctx context.Context) error {
	for sleep(ctx, sealCheckInterval, nil) {
		s, err := d.sealing()
		if err != nil || s == nil || d.policy.Load().unshared {
			continue // sealKeys reports the error
		}
		if changed, _ := s.machine.Turn(time.Now()); changed {
			d.offers.setChanged()
		}
	}
	return nil
}

// acceptAccount takes the account key that another machine of the owner sent.
func (d *Daemon) acceptAccount(answer string) error {
	keys, err := d.Sealing()
	if err != nil {
		return fmt.Errorf("cannot take an account key: %w", err)
	}
	text, err := base64.StdEncoding.DecodeString(answer)
	if err != nil {
		return fmt.Errorf("cannot take an account key: %w", err)
	}
	if err := keys.Accept(text); err != nil {
		return err
	}
	d.log.Info("this machine has the account key of its owner's other machines")
	return nil
}

// serveTrust serves GET /trust on the socket.
func (d *Daemon) serveTrust(w http.ResponseWriter, _ *http.Request) {
	if keys, err := d.Sealing(); err != nil {
		refuseChange(w, err)
	} else {
		d.writeTrust(w, keys, nil)
	}
}

// serveRefused serves GET /trust/refused on the socket: why this machine would not send a
// call for a model and family to others.
func (d *Daemon) serveRefused(w http.ResponseWriter, r *http.Request) {
	model := fleet.ModelID(r.FormValue("model"))
	family, known := fleet.ParseFamily(r.FormValue("family"))
	endpoint := map[fleet.Family]fleet.Endpoint{fleet.Embeddings: fleet.EmbeddingsEndpoint, fleet.Audio: fleet.Transcriptions}[family]
	why := Refused{}
	if known && len(serving(d.offers.forOwner(), model, endpoint)) == 0 { // else this machine serves it
		s, err := d.sealing()
		switch {
		case err != nil:
			why.Message = cannotSeal(err).Message
		case s != nil:
			if f := fault.Of(s.caller.Refused(r.Context(), model, family)); f != nil {
				why.Message = f.Message
			}
		}
	}
	writeJSON(w, http.StatusOK, why)
}

// serveTrustChange serves POST /trust on the socket.
func (d *Daemon) serveTrustChange(w http.ResponseWriter, r *http.Request) {
	var change TrustChange
	if !readChange(w, r, &change) {
		return
	}
	keys, err := d.Sealing()
	var answer []byte
	if err == nil {
		answer, err = keys.Change(&change)
		if s, _ := d.sealing(); s != nil {
			s.caller.Refresh() // the key that the owner means may be newer than the lists
		}
	}
	if err != nil {
		refuseChange(w, err)
		return
	}
	d.writeTrust(w, keys, answer)
}

// writeTrust responds with what this machine has of keys, and the answer of an act.
func (d *Daemon) writeTrust(w http.ResponseWriter, keys *sealed.Keyring, answer []byte) {
	now := Trust{Calls: d.calls.sealed()}
	var err error
	now.Trust, err = keys.Trust(d.hubClient.Load().credential.Machine, d.policy.Load().sealed)
	if err != nil {
		refuseChange(w, err)
		return
	}
	now.Answer = answer
	writeJSON(w, http.StatusOK, now)
}

// serveSeal responds with what others need to seal calls for this machine.
func (d *Daemon) serveSeal(w http.ResponseWriter, r *http.Request) {
	s, err := d.sealing()
	if err != nil || s == nil {
		http.NotFound(w, r)
		return
	}
	seal, err := s.machine.Seal()
	if err != nil {
		d.recordError("calls cannot be sealed for this machine: %v", err)
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	writeJSON(w, http.StatusOK, seal)
}

// serveSealed serves a sealed call. It is admitted by its head, which is in clear, before
// its body is read; after it was opened, everything that is sent but a refusal is sealed.
func (d *Daemon) serveSealed(w http.ResponseWriter, r *http.Request, began *bool) {
	s, err := d.sealing()
	if err != nil || s == nil {
		http.NotFound(w, r)
		return
	}
	received, refusal, err := s.machine.Receive(r.Header)
	switch {
	case err != nil:
		d.writeUnopened(w, err)
		return
	case refusal != "":
		refuseCall(w, refusal)
		return
	}
	a, ok := d.admitHead(w, r, received.Endpoint)
	if !ok {
		return
	}
	defer a.release()
	text, release, ok := d.readBody(w, r, maxRequest+sealed.Room)
	defer release()
	if !ok {
		return
	}
	call, refusal, err := s.machine.Open(received, text)
	switch {
	case err != nil:
		d.writeUnopened(w, err)
		return
	case refusal != "":
		refuseCall(w, refusal)
		return
	}
	out := call.Answer(w, correlation(r))
	defer out.End()
	if err := call.Check(); err != nil {
		writeFault(out, fault.Of(err), correlation(r))
	} else {
		d.serveCall(out, r, began, a, engine.Request{
			Endpoint: received.Endpoint, Model: call.Model, Stream: call.Stream, Choices: call.Choices, Body: call.Text,
			Caller: d.sealedCacheOf(r, call),
		})
	}
	if out.Close() != nil {
		panic(http.ErrAbortHandler) // the hub does not read it
	}
}

// sealedCacheOf returns the name of the prompt cache of a sealed call. It is "" for a call
// that proves to be from this machine's owner. The hub's name is a part of it, so that a
// machine that the call was also sealed for cannot use the cache by the sealed one.
func (d *Daemon) sealedCacheOf(r *http.Request, call *sealed.Call) string {
	if call.Own {
		return ""
	}
	return d.cacheName(r.Header.Get(tunnel.HeaderCache) + " " + hex.EncodeToString(call.Cache[:]))
}

// writeUnopened responds to a call that was changed on its way. Nothing is sealed: the key
// of the answer is in the call.
func (d *Daemon) writeUnopened(w http.ResponseWriter, err error) {
	d.recordError("a sealed call could not be opened: %v", err)
	w.Header().Set(tunnel.HeaderFault, string(fault.EngineError))
	w.WriteHeader(http.StatusBadGateway)
}
