package site

import (
	"cmp"
	"context"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// keyList are the rules of the list of keys.
var keyList = listRules[api.Key]{
	texts: func(k api.Key) []string {
		return []string{k.Name, k.LastFour, k.Region, reachWords(k.Reach), keyState(k).text}
	},
	state: keyState,
	by: map[string]func(a, b api.Key) int{
		"name":    func(a, b api.Key) int { return compareNames(a.Name, b.Name) },
		"used":    func(a, b api.Key) int { return a.LastUsed.Compare(b.LastUsed) },
		"today":   func(a, b api.Key) int { return cmp.Compare(a.Today, b.Today) },
		"calls":   func(a, b api.Key) int { return cmp.Compare(a.Calls, b.Calls) },
		"created": func(a, b api.Key) int { return a.Created.Compare(b.Created) },
		"expires": func(a, b api.Key) int {
			return cmp.Or(api.OnlineFirst(!a.Expires.IsZero(), !b.Expires.IsZero()), a.Expires.Compare(b.Expires))
		},
		"state": func(a, b api.Key) int { return compareStates(keyState(a), keyState(b)) },
	},
}

// keyColumns returns the columns of the list of keys.
func keyColumns(regions int) []column {
	columns := []column{{Head: "Name", Name: "name"}, {Head: "Reach"}}
	if regions > 1 {
		columns = append(columns, column{Head: "Region, base URL"})
	}
	return append(columns, column{Head: "Used today", Class: "n", Name: "today", Most: true},
		column{Head: "Calls, 30 days", Class: "n", Name: "calls", Most: true}, column{Head: "Last used", Class: "when", Name: "used", Most: true},
		column{Head: "Created", Class: "spare", Name: "created", Most: true},
		column{Head: "Expires", Class: "when", Name: "expires"}, column{Head: "State", Class: "status", Name: "state"}, column{Head: "Actions", Class: "do"})
}

// keyState returns a key's state.
func keyState(k api.Key) words {
	if k.State == "live" {
		return words{"active", "good"}
	}
	return words{k.State, "bad"}
}

// applicationsData is the content of /applications.
type applicationsData struct {
	Keys    []api.Key
	Listed  []api.Key // on this page of the list
	List    list
	Regions []api.Region // available to the member for new keys, the site's own first
	// Models are the models that the member reaches. Model is the one in the example
	// lines.
	Models []keyModel
	Model  fleet.ModelID
	// Made is the key that was just created or tested, and Secret its secret.
	Made   api.Key
	Secret string
	Trial  *trial
	// Address is the base URL of the key's region, without /v1.
	Address string
}

// keyModel is a model to test a key with. Its id stands in the example lines if it pastes.
type keyModel struct {
	ID     fleet.ModelID
	Pastes bool
}

// exampleModel stands for a model in the example lines if the member reaches none.
const exampleModel fleet.ModelID = "MODEL"

func (s *Site) applicationsData(v *visit) (applicationsData, error) {
	keys, noKeys := call(s, v, api.ListKeys, api.None{})
	models, noModels := call(s, v, api.ListModels, api.None{})
	data := applicationsData{Keys: keys.Data, Regions: s.AllRegions(), Model: exampleModel, Address: s.Base}
	data.List = list{ID: "keys", Path: "/applications", Label: "Your keys", One: "key", Many: "keys", Find: "Name, expiry, reach or state",
		Query: readList(v.URL.Query(), ""), Columns: keyColumns(len(data.Regions))}
	// The active keys come first, each newest first.
	ordered := slices.SortedStableFunc(slices.Values(data.Keys), func(a, b api.Key) int {
		return api.OnlineFirst(a.State == "live", b.State == "live")
	})
	data.Listed, data.List.Found, data.List.States = keyList.cut(ordered, data.List.Query)
	var paste []api.Model
	for _, m := range slices.SortedStableFunc(slices.Values(models.Data), online) {
		data.Models = append(data.Models, keyModel{m.ID, pastes(m.ID)})
		if pastes(m.ID) {
			paste = append(paste, m)
		}
	}
	if first := api.FirstChoice(paste); first != nil {
		data.Model = first.ID
	}
	return data, cmp.Or(noKeys, noModels)
}

// pastes reports whether a model id is safe in lines that people paste into a shell. The
// owner of a machine chooses its models' names, so a name can contain a quote and a
// command.
func pastes(id fleet.ModelID) bool {
	return id != "" && strings.Trim(string(id),
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@+-") == ""
}

// testKey handles POST /applications/test: a real call with one of the member's own keys.
func (s *Site) testKey(v *visit) (reply, error) {
	secret := strings.TrimSpace(v.form.Get("secret"))
	model := fleet.ModelID(v.form.Get("model"))
	parsed, err := credential.Parse(secret)
	if err != nil || parsed.Kind() != credential.APIKey {
		return reply{}, fault.New(fault.InvalidRequest,
			"that is not a complete API key: copy it again, as it was shown").WithParam("secret")
	}
	if at := s.Address(parsed.Region()); parsed.Region() != s.Region && at != "" {
		return reply{}, fault.New(fault.InvalidRequest, "the key belongs to region %q: test it at %s/applications",
			parsed.Region(), at).WithParam("secret")
	}
	if model != "" && !model.Valid() {
		return reply{}, fault.New(fault.InvalidRequest, "invalid model id %.80q", model).WithParam("model")
	}
	// Not through the caller cache, which may not know a key that was just created.
	caller, err := s.Identify(v.Context(), secret)
	if err != nil || caller.KeyID == "" || string(caller.Member) != v.me.ID {
		return reply{}, fault.New(fault.InvalidRequest, "you have no active key with this secret").WithParam("secret")
	}
	data, err := s.applicationsData(v)
	if err != nil {
		return reply{}, err
	}
	if i := slices.IndexFunc(data.Keys, func(k api.Key) bool { return k.ID == caller.KeyID }); i >= 0 {
		data.Made = data.Keys[i]
	}
	trial := s.tryKey(v.Context(), secret, caller, model)
	data.Trial, data.Secret = &trial, secret
	if pastes(trial.Model) {
		data.Model = trial.Model
	}
	return reply{page: "key", title: "Test a key", data: data}, nil
}

// trial is the result of a test call with a key.
type trial struct {
	chatAnswer
	Model fleet.ModelID
	Where string // the machine that responded; empty: none
	Took  time.Duration
}

// machineOf returns the last machine in X-Kith-Route, which sent the answer, or "" if the
// header names none.
func machineOf(route string) string {
	all := routeMachine.FindAllStringSubmatch(route, -1)
	if len(all) == 0 {
		return ""
	}
	name := all[len(all)-1][1]
	if plain, err := strconv.Unquote(name); err == nil {
		return plain
	}
	return name
}

var routeMachine = regexp.MustCompile(`machine=("(?:[^"\\]|\\.)*"|[^;,]*)`)

// trialTime is the timeout of a test call with a key.
const trialTime = 60 * time.Second

// tryKey makes a short call with a caller's key, as a client would. If model is empty, it
// uses the preferred model, or else the first that the key reaches.
func (s *Site) tryKey(ctx context.Context, secret string, who fleet.Caller, model fleet.ModelID) trial {
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	if model == "" {
		models, err := s.Models(ctx, who)
		if err != nil || len(models) == 0 {
			f := fault.New(fault.ModelNotFound,
				"this key can use no model right now: connect a machine that runs one, or accept an invite")
			return trial{chatAnswer: chatAnswer{Status: f.Status(), Code: string(f.Code), Message: f.Message}}
		}
		model = models[0].ID
		if first := api.FirstChoice(models); first != nil {
			model = first.ID
		}
	}
	r, err := chatCall(ctx, chatRequest{Model: model, MaxTokens: 32, Messages: []said{{"user", "Say hello."}}})
	if err != nil {
		return trial{chatAnswer: chatAnswer{Message: "the call cannot be made"}, Model: model}
	}
	r.Header.Set("Authorization", "Bearer "+secret)
	began := time.Now()
	answer := answerOf(func(w http.ResponseWriter) { s.Edge.ServeHTTP(w, r) })
	if answer.Message == "" {
		answer.Message = answer.Text
	}
	return trial{answer, model, machineOf(answer.header.Get("X-Kith-Route")), time.Since(began)}
}
