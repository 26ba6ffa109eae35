package web

import (
	"slices"
	"strings"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// applicationsData is what /applications shows.
type applicationsData struct {
	Keys   []Key
	Region string
	// Models are the ids that the member reaches; Model is the one that the lines
	// to paste name.
	Models []fleet.ModelID
	Model  fleet.ModelID
	// Made is the key just made, and Secret its secret, shown this once; or the
	// secret that was just tested.
	Made   Key
	Secret string
	Trial  *Trial
}

// exampleModel stands in lines to paste where no model is reached yet.
const exampleModel fleet.ModelID = "MODEL"

func (s *Site) applicationsData(v *visit) (applicationsData, error) {
	keys, err := ask[list[Key]](s, v, "GET", "/api/keys", nil, nil)
	if err != nil {
		return applicationsData{}, err
	}
	models, err := ask[list[Model]](s, v, "GET", "/api/models", nil, nil)
	data := applicationsData{Keys: keys.Data, Region: s.Region, Model: exampleModel}
	for _, m := range models.Data {
		data.Models = append(data.Models, m.ID)
		if data.Model == exampleModel && m.Availability == "ready" && pastes(m.ID) {
			data.Model = m.ID
		}
	}
	return data, err
}

// pastes reports whether an id may stand in lines that people paste into a
// shell: whoever shares a machine names its models, and a name can hold a quote
// and a command.
func pastes(id fleet.ModelID) bool {
	return id != "" && strings.Trim(string(id), "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@+-") == ""
}

func (s *Site) applications(v *visit) (reply, error) {
	data, err := s.applicationsData(v)
	return reply{page: "applications", title: "Applications", data: data}, err
}

// createKey is POST /applications: the answer is the only one that shows the
// secret.
func (s *Site) createKey(v *visit) (reply, error) {
	key, secret, err := newKey(s.Region, strings.TrimSpace(v.form.Get("name")), account.Reach(v.form.Get("reach")))
	if err != nil {
		return reply{}, err
	}
	key.MemberID = v.me.ID
	if err := s.Accounts.CreateKey(v.Context(), key); err != nil {
		return reply{}, err
	}
	s.Log.Info("member act", "member", v.me.ID, "method", v.Method, "path", "/applications", "key", key.ID)
	s.Changed()
	data, err := s.applicationsData(v)
	data.Made, data.Secret = viewKey(key), secret.Reveal()
	return reply{page: "key", title: "Your new key", data: data}, err
}

// testKey is POST /applications/test: a live call with a key of the member's own.
func (s *Site) testKey(v *visit) (reply, error) {
	secret := strings.TrimSpace(v.form.Get("secret"))
	model := fleet.ModelID(v.form.Get("model"))
	parsed, err := credential.Parse(secret)
	if err != nil || parsed.Kind() != credential.APIKey {
		return reply{}, fault.New(fault.InvalidRequest, "that is not a whole API key: copy it again, as it was shown").WithParam("secret")
	}
	if model != "" && !model.Valid() {
		return reply{}, fault.New(fault.InvalidRequest, "%.80q is no model's id", model).WithParam("model")
	}
	// Not the caller's: a key that was made a moment ago is known to no cache.
	caller, err := s.Identify(v.Context(), secret)
	if err != nil || caller.KeyID == "" || string(caller.Member) != v.me.ID {
		return reply{}, fault.New(fault.InvalidRequest, "that is no live key of yours").WithParam("secret")
	}
	data, err := s.applicationsData(v)
	if err != nil {
		return reply{}, err
	}
	if i := slices.IndexFunc(data.Keys, func(k Key) bool { return k.ID == caller.KeyID }); i >= 0 {
		data.Made = data.Keys[i]
	}
	trial := s.Try(v.Context(), secret, model)
	data.Trial, data.Secret = &trial, secret
	if pastes(trial.Model) {
		data.Model = trial.Model
	}
	return reply{page: "key", title: "Test a key", data: data}, nil
}

func (s *Site) endKey(v *visit) (reply, error) {
	return s.did(v, "The key is revoked: it is refused everywhere within 5 seconds.", "/applications",
		"DELETE", "/api/keys/{key}", map[string]string{"key": v.form.Get("key")}, nil)
}
