package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// openRegion starts the hub of one region on a database that it shares with another
// one's, and a machine there that runs one model.
func (r *rig) openRegion(url, region, other, otherAddress, member, model string) {
	r.t.Helper()
	r.open(fmt.Sprintf("[database]\nurl = %q\n[hub]\nnode = %q\nregion = %[2]q\n[regions]\n%s = %q\n", url, region, other, otherAddress))
	r.serve(member, enginetest.Options{
		Slots: 16, Models: []enginetest.Model{{ID: model, ContextLength: 1 << 24}},
		Behaviour: enginetest.Behaviour{Text: "hello", Chunks: 4, Interval: time.Millisecond},
	})
}

// chat makes a call at the rig's address with any key. The content has nothing that JSON
// would escape: to look for that in megabytes takes seconds under the race detector. It
// returns the response's status, code and correlation id; a complete one has no code.
func (r *rig) chat(key, model, content string, stream bool) (status int, code, id string, err error) {
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"messages":[{"role":"user","content":"%s"}]}`, model, stream, content)
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		return 0, "", "", err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+key)
	req.Header.Set("Prefer", "wait=1")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", "", err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		refused := readRefusal(res)
		return res.StatusCode, refused.code, "", nil
	}
	id, err = complete(res, stream)
	return http.StatusOK, "", id, err
}

// TestTwoRegions runs the hubs of two regions on one PostgreSQL, each with a machine
// of another member. A key works at either address and reaches its own region only.
func TestTwoRegions(t *testing.T) {
	t.Parallel()
	url := storetest.Postgres(t)
	eu, us := emptyRig(t), emptyRig(t)
	eu.openRegion(url, "eu", "us", us.base, "ada", "eu-model")
	us.openRegion(url, "us", "eu", eu.base, "ben", "us-model")
	answered := func(at *rig, key, model, content string, stream bool, status int, code string) (id string) {
		t.Helper()
		at.until(fmt.Sprintf("%s at %s is answered with %d %s", model, at.base, status, code), func() error {
			gotStatus, gotCode, gotID, err := at.chat(key, model, content, stream)
			if err == nil && (gotStatus != status || gotCode != code) {
				err = fmt.Errorf("%d %s", gotStatus, gotCode)
			}
			id = gotID
			return err
		})
		return id
	}
	var served []string
	long := strings.Repeat("words and ", 8<<20/10)
	for _, at := range []*rig{eu, us} {
		for _, stream := range []bool{true, false} {
			served = append(served,
				answered(at, eu.key, "eu-model", "hi", stream, 200, ""),
				answered(at, us.key, "us-model", "hi", stream, 200, ""))
		}
		served = append(served, answered(at, us.key, "us-model", long, false, 200, ""))
		// A model of another region is served nowhere, though a machine runs it now.
		answered(at, eu.key, "us-model", "hi", false, 404, "model_not_found")
		answered(at, us.key, "eu-model", "hi", true, 404, "model_not_found")
		if models := at.models(eu.key); !slices.Equal(models, []string{"eu-model"}) {
			t.Errorf("models of region eu: %v", models)
		}
	}

	// A member of one region makes a key of the other, is out of reach there, is shared
	// with, and loses the key.
	made, _, err := fetch(t.Context(), eu.operator(), "make a key", api.OperatorCreateKey.With(api.NewKey{Member: "ada", Region: "us"}))
	assert.Require(t, err == nil && made.Region == "us" && made.BaseURL == us.base+"/v1", made, err)
	answered(eu, made.Secret, "us-model", "hi", false, 403, "NOT_IN_CIRCLE")
	_, _, err = fetch(t.Context(), eu.operator(), "share", api.OperatorAddShare.With(api.BetweenMembers{Owner: "ben", With: "ada"}))
	assert.OK(t, err)
	served = append(served, answered(eu, made.Secret, "us-model", "hi", true, 200, ""))
	answered(eu, eu.key, "us-model", "hi", false, 404, "model_not_found")
	if _, _, err := fetch(t.Context(), eu.operator(), "revoke", api.OperatorRevokeKey.With(api.ID{ID: made.ID})); err != nil {
		t.Fatal(err)
	}
	for _, at := range []*rig{eu, us} {
		answered(at, made.Secret, "us-model", "hi", false, 401, "invalid_api_key")
	}

	eu.misdirect(us)

	us.hub.kill()
	answered(eu, us.key, "us-model", "hi", false, 503, "CASCADE_EXHAUSTED")
	answered(eu, us.key, "us-model", "hi", true, 503, "CASCADE_EXHAUSTED")
	served = append(served, answered(eu, eu.key, "eu-model", "hi", false, 200, ""))
	us.startHub()
	served = append(served, answered(eu, us.key, "us-model", "hi", false, 200, ""))

	// Each call is in the ledger once: that of the region that served it.
	eu.hub.stop(t)
	us.hub.stop(t)
	records := usageOf(t, store.Config{URL: url}) // which fails on a double
	for _, id := range served {
		if u, there := records[id]; !there || u.Code != "" {
			t.Errorf("call %s: %v, %+v", id, there, u)
		}
	}
}

// models lists the models at the rig's address with any key.
func (r *rig) models(key string) (ids []string) {
	r.t.Helper()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if _, err := toHub(r.base, key).call(r.t.Context(), "list the models", request{http.MethodGet, "/v1/models", nil}, &list); err != nil {
		r.t.Fatal(err)
	}
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids
}

// misdirect starts a daemon with the credential of the rig's machine at the hub of
// another region: its status says where to sign in.
func (r *rig) misdirect(to *rig) {
	r.t.Helper()
	c := assert.Value(daemon.LoadCredential(r.home))(r.t)
	lost := &rig{t: r.t, home: shortDir(r.t), hub: to.hub}
	lost.write("config.toml", "[engine]\nbuiltin = false\n[discovery]\nenabled = false\n")
	c.Hub = to.base
	assert.OK(r.t, daemon.SaveCredential(lost.home, c))
	lost.startDaemon()
	defer lost.daemon.kill()
	go func() { _, _ = io.Copy(io.Discard, lost.daemon.out) }()
	lost.until("the status of a daemon at the wrong region says so", func() error {
		var now daemon.Status
		if _, err := control(lost.home).call(r.t.Context(), "look", request{http.MethodGet, "/status", nil}, &now); err != nil {
			return err
		}
		if !strings.Contains(now.Tunnel.Error, "kith login --hub "+r.base) {
			return errors.New(now.Tunnel.Error)
		}
		return nil
	})
}
