package hub

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
)

// code is the fault's code that Identify gives for the secret; empty: none.
func (r *rig) code(secret string) fault.Code {
	r.t.Helper()
	_, err := r.Identify(r.t.Context(), secret)
	if err == nil {
		return ""
	}
	return fault.Of(err).Code
}

func TestIdentify(t *testing.T) {
	r := newRig(t, Config{})
	keyID, key := r.member("ann")
	machineID, machine := r.machine("ann", "box")
	caller, err := r.Identify(t.Context(), key)
	if err != nil || caller.Name != "ann" || caller.KeyID != keyID || caller.Machine != "" || caller.Reach != fleet.Everything {
		t.Errorf("%+v, %v", caller, err)
	}
	caller, err = r.Identify(t.Context(), machine)
	if err != nil || caller.Name != "ann" || caller.KeyID != "" || caller.Machine != fleet.MachineID(machineID) {
		t.Errorf("%+v, %v", caller, err)
	}
	for reach, want := range map[string]fleet.KeyReach{"own": fleet.OwnOnly, "shared": fleet.OwnAndShared} {
		secret := r.ok("POST", "/keys", `{"member":"ann","reach":"`+reach+`"}`).Body["secret"].(string)
		assert.Equal(t, assert.Value(r.Identify(t.Context(), secret))(t).Reach, want, reach)
	}
}

// What cannot be a key of this hub never reaches the records.
func TestIdentifyAsksOnlyForWhatMayBe(t *testing.T) {
	r := newRig(t, Config{})
	_, key := r.member("ann")
	before := r.kept.lookups.Load()
	for name, secret := range map[string]string{
		"empty":          "",
		"a word":         "secret",
		"another prefix": "sk-" + key,
		"mistyped":       mistyped(key),
		"cut":            key[:len(key)-1],
		"another region": elsewhere(credential.APIKey),
		"a login token":  credential.Mint(credential.LoginToken, "home").Reveal(),
	} {
		assert.Equal(t, r.code(secret), fault.InvalidAPIKey, name)
	}
	assert.Equal(t, r.kept.lookups.Load()-before, 0, "look-ups")
	if code := r.code(credential.Mint(credential.APIKey, "home").Reveal()); code != fault.InvalidAPIKey {
		t.Errorf("an unknown key: %q", code)
	}
	assert.Equal(t, r.kept.lookups.Load()-before, 1, "look-ups for an unknown key")
}

// A key is believed for 5 s and no longer; what changed is looked up at once.
func TestIdentifyForgets(t *testing.T) {
	r := newRig(t, Config{})
	keyID, key := r.member("ann")
	lookups := func() int64 { return r.kept.lookups.Load() }
	synctest.Test(t, func(t *testing.T) {
		before := lookups()
		good := func(want fault.Code, looks int64) {
			t.Helper()
			if code := r.code(key); code != want || lookups()-before != looks {
				t.Errorf("%q after %d look-ups", code, lookups()-before)
			}
		}
		good("", 1)
		time.Sleep(cacheFor - 1)
		good("", 1)
		time.Sleep(time.Nanosecond)
		good("", 2)
		r.onCommitted(nil)
		good("", 3)
		assert.OK(t, r.kept.RevokeKey(t.Context(), keyID, time.Now()))
		good("", 3)
		r.kept.clock = -time.Hour // set back: the key is believed no longer for that
		time.Sleep(cacheFor)
		good(fault.InvalidAPIKey, 4)
	})
}

// A key with an end is refused from that moment on by the store's clock, cached or not, and
// the answer says when it expired (spec/api.md#expired-key).
func TestIdentifyExpired(t *testing.T) {
	r := newRig(t, Config{})
	memberID, _ := r.kept.MemberByName(t.Context(), r.ok("POST", "/members", `{"name":"ann"}`).Body["name"].(string))
	synctest.Test(t, func(t *testing.T) {
		secret := credential.Mint(credential.APIKey, "home")
		r.kept.clock = -2 * time.Hour
		end := r.kept.Now().Add(time.Hour).UTC()
		err := r.kept.CreateKey(t.Context(), account.Key{
			ID: "key_1", MemberID: memberID.ID, Region: "home", Reach: account.ReachAll, Hash: secret.Hash(), Created: time.Now(), Expires: end,
		})
		assert.OK(t, err)
		time.Sleep(time.Hour - time.Second)
		assert.Equal(t, r.code(secret.Reveal()), "", "before its end")
		time.Sleep(time.Second - time.Nanosecond)
		assert.Equal(t, r.code(secret.Reveal()), "", "just before its end")
		time.Sleep(time.Nanosecond)
		for range 2 {
			_, err := r.Identify(t.Context(), secret.Reveal())
			if f := fault.Of(err); err == nil || f.Code != fault.InvalidAPIKey || !strings.Contains(f.Message, "expired on "+api.Moment(end, time.Time{})) {
				t.Errorf("at its end: %v", err)
			}
		}
	})
}

// A refused key is answered with the address where another one is created, and an expired one
// with when it expired, over HTTP, too.
func TestRefusedKeyNamesThePage(t *testing.T) {
	r := newRig(t, Config{Edge: gateway.Config{Base: "https://hub.example"}})
	_, secret := r.member("ann")
	member, err := r.kept.MemberByName(t.Context(), "ann")
	assert.OK(t, err)
	old := credential.Mint(credential.APIKey, "home")
	err = r.kept.CreateKey(t.Context(), account.Key{
		ID: "key_1", MemberID: member.ID, Region: "home", Reach: account.ReachAll, Hash: old.Hash(), Created: time.Now(), Expires: time.Now().Add(-time.Hour),
	})
	assert.OK(t, err)
	const bad = "the API key is missing, wrong or revoked: kith's keys begin with kith_; create one at Keys (https://hub.example/applications) and send it as"
	for sent, want := range map[string]string{
		"": bad, mistyped(secret): bad, credential.Mint(credential.APIKey, "home").Reveal(): bad,
		old.Reveal(): "the API key expired on ",
	} {
		q := httptest.NewRequest("GET", "/v1/models", nil)
		if sent != "" {
			q.Header.Set("Authorization", "Bearer "+sent)
		}
		w := httptest.NewRecorder()
		r.Handler().ServeHTTP(w, q)
		if w.Code != 401 || !strings.Contains(w.Body.String(), want) || !strings.Contains(w.Body.String(), "Keys (https://hub.example/applications)") {
			t.Errorf("%q: %d %s", sent, w.Code, w.Body)
		}
	}
}

// A key that is revoked while it is looked up is not believed after the change was
// heard of.
func TestIdentifyRevokedMeanwhile(t *testing.T) {
	r := newRig(t, Config{})
	keyID, key := r.member("ann")
	r.kept.found = func() {
		r.kept.found = nil
		if err := r.kept.RevokeKey(t.Context(), keyID, time.Now()); err != nil {
			t.Error(err)
		}
		r.onCommitted(nil)
	}
	_ = r.code(key)
	assert.Equal(t, r.code(key), fault.InvalidAPIKey, "after the change")
}

// While the database is down no new key is accepted, and none is called wrong.
func TestIdentifyWithoutDatabase(t *testing.T) {
	r := newRig(t, Config{})
	_, known := r.member("ann")
	_, other := r.member("bob")
	_, machine := r.machine("ann", "box")
	if code := r.code(known); code != "" {
		t.Fatal(code)
	}
	r.kept.down.Store(true)
	assert.Equal(t, r.code(known), "", "a key just seen")
	for _, secret := range []string{other, machine} {
		assert.Equal(t, r.code(secret), fault.CascadeExhausted)
	}
	assert.Equal(t, r.code(mistyped(other)), fault.InvalidAPIKey, "mistyped")
	r.kept.down.Store(false)
	assert.Equal(t, r.code(other), "", "a failed look-up was kept")
}

func TestKeyringIsBounded(t *testing.T) {
	var k keyring
	for i := range maxCachedKeys + 1 {
		k.put([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, holder{fleet.Caller{Name: "ann"}, time.Unix(1, 0)}, 0)
	}
	assert.Equal(t, len(k.byHash), 1, "keys")
}
