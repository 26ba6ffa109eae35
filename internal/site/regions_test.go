package site

import (
	"net/url"
	"strings"
	"testing"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
)

// A site with other regions offers keys for each, and shows where each key can be used.
func TestKeysOfRegions(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	if page := ada.get("/applications").want(t, 200, "Base URL for your program"); strings.Contains(page.body, `name="region"`) {
		t.Error("the only region can be chosen")
	}
	tn.api.Regions = map[string]*url.URL{"us": {Scheme: "https", Host: "us.example"}, "asia": {Scheme: "https", Host: "asia.example"}}
	ada.get("/applications").want(t, 200, `<option>home</option><option>asia</option><option>us</option>`, "https://us.example</code>")
	ada.post("/applications", "name", "editor", "reach", "all", "region", "us").goes(t, newKeyPath)
	page := ada.get(newKeyPath).
		want(t, 200, "kith_us_", "in region us", "OPENAI_BASE_URL=https://us.example/v1", "ANTHROPIC_BASE_URL=https://us.example\n", `href="https://us.example/applications"`)
	assert.Lacks(t, page.body, `id="test-key"`, "it can be tested where it does not work")
	ada.post("/applications", "name", "here", "reach", "all").goes(t, newKeyPath)
	ada.get(newKeyPath).want(t, 200, "kith_home_", "in region home", `id="test-key"`)
	ada.post("/applications", "name", "nowhere", "reach", "all", "region", "moon").want(t, 400, "a key is of home, asia, us")
	ada.get("/applications").want(t, 200, `<td class="names">us <code>https://us.example/v1</code></td>`, `<td class="names">home <code>`+tn.web.URL+"/v1</code></td>")
	ada.post("/applications/test", "secret", credential.Mint(credential.APIKey, "us").Reveal()).want(t, 400, "to region &#34;us&#34;: test it at https://us.example/applications")

	keys, err := tn.db.Keys(t.Context(), tn.members["ada"].ID)
	check(t, err)
	assert.That(t, len(keys) == 2 && keys[0].Region == "us" && keys[1].Region == "home", keys)
}

// If a device requests a key for another region, the member sees that before approving.
func TestDeviceKeyOfRegion(t *testing.T) {
	tn := newTown(t, nil)
	tn.api.Regions = map[string]*url.URL{"us": {Scheme: "https", Host: "us.example"}}
	d := tn.ask4("scope", "key", "name", "ci", "region", "us")
	ada := tn.as("ada")
	ada.post("/device", "code", d.user).want(t, 200, "in region <strong>us</strong>")
	ada.post("/device/decide", "code", d.user, "decision", "approve").want(t, 200)
	got := d.want("")
	if parsed := must1(credential.Parse(got.Secret)); parsed.Region() != "us" || got.Region != "us" || got.BaseURL != "https://us.example/v1" {
		t.Errorf("%+v", got)
	}
	key, _, err := tn.db.KeyByHash(t.Context(), must1(credential.Parse(got.Secret)).Hash())
	check(t, err)
	assert.That(t, key.Region == "us" && key.Reach == account.ReachAll, key)
	tn.browser().post("/device/code", "client_id", "kith", "scope", "key", "name", "ci", "region", "moon").want(t, 400, "there is no region", "home, us")
}

// What a member created on the site of one region works on the site of another, because
// the regions share their members.
func TestCodesOfAnotherRegion(t *testing.T) {
	tn := newTown(t, nil)
	tn.api.Region = "us"
	code := good[anything](tn.world, "ada", "POST", "/api/invites", "")["code"].(string)
	tn.api.Region = "home"
	if good[anything](tn.world, "bob", "POST", "/api/invites/accept", `{"code":"`+code+`"}`)["owner"] != "ada" {
		t.Error("the invite was not accepted")
	}
}
