package site

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fleet"
)

// mostOnTheWire is what a page takes at most with all that it loads, compressed, and
// mostElements is how many elements it has: more make a browser slow.
const (
	mostOnTheWire = 120 << 10
	mostElements  = 12_000
)

// TestPagesWithinBudget checks every list with 200 members, 400 machines, half of them
// online, 1,000 models, and 30 days of usage.
func TestPagesWithinBudget(t *testing.T) {
	tn := newTown(t, nil)
	tn.crowd()
	ada, root := tn.as("ada"), tn.operator()
	for _, as := range []*browser{ada, root} {
		as.header.Set("Accept-Encoding", "gzip")
	}
	for _, path := range []string{
		"/", "/try", "/models", "/models?model=model-0001:70b-instruct-q4_K_M", "/machines", "/machines/mch_001", "/machines/mch_001?tab=models", "/access", "/applications", "/requests",
		"/usage?by=day&days=30", "/usage?by=hour&days=7", "/api", "/notices", "/account", "/docs/commands", "/docs/spec/security",
		"/operator", "/operator/members", "/operator/machines", "/operator/usage?by=day&days=30", "/operator/audit",
	} {
		as := ada
		if strings.HasPrefix(path, "/operator") {
			as = root
		}
		wire, page := as.weigh(path)
		elements := strings.Count(page, "<") - strings.Count(page, "</")
		t.Logf("%-60s %4d KiB on the wire, %5d KiB, %6d elements", path, wire>>10, len(page)>>10, elements)
		if wire > mostOnTheWire {
			t.Errorf("%s takes %d bytes on the wire, want %d", path, wire, mostOnTheWire)
		}
		if elements > mostElements {
			t.Errorf("%s has %d elements, want %d", path, elements, mostElements)
		}
	}
}

// weigh loads a page and returns what it takes on the wire with all that it loads, and its
// text.
func (b *browser) weigh(path string) (wire int, page string) {
	b.t.Helper()
	got := b.get(path).want(b.t, http.StatusOK)
	wire, page = len(got.body), got.body
	if got.header.Get("Content-Encoding") == "gzip" {
		assert.Equal(b.t, got.header.Get("Vary"), "Accept-Encoding", path)
		zip, err := gzip.NewReader(strings.NewReader(got.body))
		check(b.t, err)
		text, err := io.ReadAll(zip)
		check(b.t, err)
		page = string(text)
	}
	for _, match := range regexp.MustCompile(`<(?:link|script)[^>]* (?:href|src)="(/static/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		wire += len(assets()[match[1]].zipped)
	}
	return wire, page
}

// TestSecretsAreNotCompressed checks that a page that holds a secret is sent as it is: its
// length would reveal what of the secret a text beside it repeats.
func TestSecretsAreNotCompressed(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	ada.header.Set("Accept-Encoding", "gzip")
	key := credential.Mint(credential.APIKey, "home").Reveal()
	tn.keys = map[string]string{key: "ada"}
	ada.post("/applications", "name", "one", "reach", "all").goes(t, newKeyPath)
	for name, page := range map[string]seen{
		"a new key": ada.get(newKeyPath), "a key that is tested": ada.post("/applications/test", "secret", key),
		"an invite": ada.post("/sharing/invite", "uses", "1", "expires", "1d"), "a page to visitors": tn.browser().get("/signin"),
	} {
		page.want(t, 200)
		assert.Equal(t, page.header.Get("Content-Encoding"), "", name)
	}
	assert.Equal(t, ada.get("/usage").want(t, 200).header.Get("Content-Encoding"), "gzip", "usage")
	ada.header.Set("Accept-Encoding", "identity")
	ada.get("/usage").want(t, 200, "</html>")
}

// crowd fills the hub.
func (tn *town) crowd() {
	tn.t.Helper()
	now := time.Now().UTC()
	ada := tn.members["ada"].ID
	var members, machines []string
	for i := range 200 {
		m := account.Member{ID: fmt.Sprintf("mem_%03d", i), Name: fmt.Sprintf("member number %d", i*7919), Created: now.Add(-time.Duration(i) * time.Hour)}
		check(tn.t, tn.db.CreateMember(tn.t.Context(), m))
		check(tn.t, tn.db.AddShare(tn.t.Context(), account.Share{ID: fmt.Sprintf("shr_%03d", i), OwnerID: ada, MemberID: m.ID, Created: now}))
		members = append(members, m.ID)
	}
	var offers []fleet.Offer
	for i := range 1000 {
		id := fleet.ModelID(fmt.Sprintf("model-%04d:70b-instruct-q4_K_M", i))
		offers = append(offers, fleet.Offer{ID: id, Families: fleet.Families(fleet.Chat), ContextLength: 4096 + i})
		tn.models = append(tn.models, api.Model{ID: id, Availability: "ready", Via: "own", Owner: "ada", Chat: true, Machines: 1 + i%40, ContextLength: 4096 << (i % 6), Capabilities: []string{"tools", "vision"}})
	}
	for i := range 400 {
		m := account.Machine{ID: fmt.Sprintf("mch_%03d", i), OwnerID: ada, Name: fmt.Sprintf("machine-%d", i*104729%9973), Region: "home", Created: now.Add(-time.Duration(i) * time.Minute), LastSeen: now}
		m.Hash[0], m.Hash[1], m.Hash[2] = byte(i), byte(i>>8), 7
		check(tn.t, tn.db.CreateMachine(tn.t.Context(), m))
		tn.snapshot = tn.snapshot.WithMachine(&fleet.Machine{ID: fleet.MachineID(m.ID), Owner: fleet.MemberID(ada), OwnerName: "ada", Name: m.Name,
			Created: m.Created, Online: i%2 == 0, Slots: 4, Offers: offers[i%900:][:100]})
		machines = append(machines, m.ID)
	}
	var usage []account.Usage
	var traces []account.Trace
	for i := range 30 * 24 * 5 {
		at := now.Add(-time.Duration(i) * time.Hour / 5)
		of, model := members[i*31%200], string(offers[i*17%1000].ID)
		call := account.Usage{CallID: fmt.Sprintf("req_%05d", i), Attempt: 1, Started: at, MemberID: ada, KeyID: fmt.Sprintf("key_%03d", i%100), MachineID: machines[i*13%400],
			OwnerID: of, Model: model, Endpoint: "/v1/chat/completions", Status: 200, TokensIn: int64(1000 + i*37), TokensOut: int64(i * 101), Duration: time.Second, FirstToken: time.Duration(i) * time.Millisecond}
		if i%2 == 0 {
			call.MemberID, call.OwnerID = of, ada
		}
		usage = append(usage, call)
		if i < 500 {
			traces = append(traces, account.Trace{CallID: call.CallID, MemberID: ada, Started: at, Mine: true, Caller: "ada", Model: model, Status: 200, TookMS: 1234, TokensIn: call.TokensIn, TokensOut: call.TokensOut,
				Tries: []account.Attempt{{Machine: "machine-" + call.MachineID}}})
		}
	}
	check(tn.t, tn.db.RecordUsage(tn.t.Context(), usage))
	check(tn.t, tn.db.SaveTraces(tn.t.Context(), traces, now))
}
