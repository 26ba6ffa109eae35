package site

import (
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
)

// withFacts is ada's machine with what it and its engine report.
func (tn *town) withFacts(shown bool) *fleet.Machine {
	m := *tn.snapshot.Machine(fleet.MachineID(tn.machine.ID))
	m.Facts = &fleet.MachineFacts{
		System: "Debian GNU/Linux 12 (bookworm)", Arch: "amd64", CPU: "AMD Ryzen 9", Cores: 32, Memory: 63 << 30,
		GPUs: []fleet.GPU{{Name: "NVIDIA GeForce RTX 4090", Memory: 24564 << 20}}, Engines: []fleet.EngineVersion{{Kind: "ollama", Version: "0.32.9"}}, Kith: "1.2.0",
	}
	m.ShowsClass, m.Groups = shown, nil
	m.Offers = []fleet.Offer{{ID: "tiny", Families: fleet.Families(fleet.Chat), ContextLength: 512, Facts: fleet.ModelFacts{
		Architecture: "qwen3", Parameters: 8_190_735_360, Quantization: "Q4_K_M", Size: 5_225_388_164,
	}}}
	tn.snapshot = tn.snapshot.WithMachine(&m)
	return &m
}

// TestWhoSeesFacts: the owner and operators see what a machine is made of. Those who reach it
// see the sizes of its GPUs and memory, and only if the owner shows them. Facts of a model are
// for those who reach it.
func TestWhoSeesFacts(t *testing.T) {
	tn := newTown(t, nil)
	check(t, tn.db.CreateMember(t.Context(), account.Member{ID: "mem_pat", Name: "pat", Created: time.Now()}))
	pat := tn.db
	who, err := pat.Member(t.Context(), "mem_pat")
	check(t, err)
	tn.members["pat"] = who
	tn.models = []api.Model{{ID: "tiny", Availability: "ready"}}
	ada, bob, eve := fleet.MemberID(tn.members["ada"].ID), fleet.MemberID(tn.members["bob"].ID), fleet.MemberID(tn.members["eve"].ID)
	tn.snapshot = tn.snapshot.WithShares(bob, []*fleet.Share{{ID: "shr_1", Owner: ada, Member: bob}}).
		WithGroup(&fleet.Group{ID: "grp_1", Name: "lab", Members: []fleet.MemberID{ada, eve}})
	op := tn.operator()
	browsers := map[string]*browser{"ada": tn.as("ada"), "bob": tn.as("bob"), "eve": tn.as("eve"), "pat": tn.as("pat")}
	const class, ofModel = "24 GB GPU, 64 GB memory", "Q4_K_M"
	made := []string{"AMD Ryzen 9", "RTX 4090", "bookworm", "0.32.9"}
	for _, shown := range []bool{false, true} {
		tn.withFacts(shown)
		for name, sees := range map[string]struct{ made, class, model bool }{
			"ada": {true, true, true},    // the owner
			"bob": {false, shown, true},  // by a share
			"eve": {false, shown, true},  // in a group
			"pat": {false, false, false}, // reaches nothing
		} {
			pages, answers := "", ""
			for _, path := range []string{"/", "/models", "/models?model=tiny", "/machines", "/machines/" + tn.machine.ID, "/access", "/try"} {
				pages += browsers[name].get(path).body
			}
			for _, path := range []string{"/api/models", "/api/why?model=tiny", "/api/machines", "/api/seals?model=tiny", "/api/groups", "/api/shares"} {
				answers += tn.ask(name, "GET", path, "").body
			}
			for _, seen := range []string{pages, answers} {
				for _, fact := range made {
					assert.Equal(t, strings.Contains(seen, fact), sees.made, name, shown, fact)
				}
				assert.Equal(t, strings.Contains(seen, class), sees.class, name, shown, class)
				assert.Equal(t, strings.Contains(seen, ofModel), sees.model, name, shown, ofModel)
			}
		}
		op.get("/operator/machines").want(t, 200, "NVIDIA GeForce RTX 4090 24.0 GiB, 63.0 GiB memory, Debian GNU/Linux 12 (bookworm), kith 1.2.0")
	}
}

// TestShowClass: an owner shows the class of a machine, and hides it again.
func TestShowClass(t *testing.T) {
	tn := newTown(t, nil)
	ada, path := tn.as("ada"), "/machines/"+tn.machine.ID
	tn.withFacts(false)
	shown := func() bool {
		m, err := tn.db.ActiveMachine(t.Context(), tn.machine.ID)
		check(t, err)
		return m.ShowsClass
	}
	ada.get(path).want(t, 200, `Show others "24 GB GPU, 64 GB memory"`, "AMD Ryzen 9, 32 cores", "ollama 0.32.9")
	ada.post("/machines/show", "machine", tn.machine.ID, "shown", "yes").goes(t, path)
	assert.That(t, shown(), "not shown")
	ada.get(path).want(t, 200, "Hide from others")
	ada.post("/machines/show", "machine", tn.machine.ID).goes(t, path)
	assert.That(t, !shown(), "still shown")
}

// TestFactsOfAnOfflineMachine: they are those of when it was last seen.
func TestFactsOfAnOfflineMachine(t *testing.T) {
	tn := newTown(t, nil)
	m := tn.withFacts(false)
	off := *m
	off.Online, off.LastSeen = false, time.Now().Add(-3*time.Hour)
	tn.snapshot = tn.snapshot.WithMachine(&off)
	ada := tn.as("ada")
	ada.get("/machines/"+tn.machine.ID).want(t, 200, "As reported when last seen", "AMD Ryzen 9")
	ada.get("/models").want(t, 200, "qwen3 · 8.2B · Q4_K_M · 4.9 GiB", "3 h ago")
	ada.get("/models?model=tiny").want(t, 200, "3 h ago")
	on := *m
	on.ID, on.Name, on.Load = "mch_on", "on", nil
	tn.snapshot = tn.snapshot.WithMachine(&on)
	assert.Lacks(t, ada.get("/models").want(t, 200).body, "3 h ago", "while another machine that has it is connected")
}

// TestVariants: two quantizations of one id are both there, and a machine outside its hours
// has when it opens.
func TestVariants(t *testing.T) {
	tn := newTown(t, nil)
	tn.models = []api.Model{{ID: "tiny", Availability: "ready"}}
	first := tn.withFacts(false)
	second := *first
	second.ID, second.Name, second.Owner, second.OwnerName = "mch_2", "attic", fleet.MemberID(tn.members["bob"].ID), "bob"
	second.Load, second.Facts = nil, nil
	second.Offers = []fleet.Offer{{ID: "tiny", Families: fleet.Families(fleet.Chat), ContextLength: 4096, Facts: fleet.ModelFacts{Architecture: "qwen3", Quantization: "Q8_0"}}}
	now := time.Now().UTC()
	day := now.AddDate(0, 0, 2).Weekday().String()[:3]
	hours, err := fleet.ParseHours(day+" 10:00-11:00", "UTC")
	check(t, err)
	second.Hours = hours
	ada := fleet.MemberID(tn.members["ada"].ID)
	tn.snapshot = tn.snapshot.WithMachine(&second).WithShares(ada, []*fleet.Share{{ID: "shr_1", Owner: second.Owner, Member: ada}})
	page := tn.as("ada")
	page.get("/models").want(t, 200, `qwen3 · 8.2B · Q4_K_M · 4.9 GiB <small class="muted">(ada)</small>`, `qwen3 · Q8_0 <small class="muted">(bob)</small>`)
	for _, search := range []string{"q8_0", "qwen3+8.2b", "q4_k_m+chat"} {
		page.get("/models?q="+search).want(t, 200, "<code>tiny</code>")
	}
	opens := time.Date(now.Year(), now.Month(), now.Day()+2, 10, 0, 0, 0, time.UTC).Format(time.RFC3339)
	page.get("/models?model=tiny").want(t, 200, "<dd>Q4_K_M</dd>", "<dd>Q8_0</dd>", "<dd>8.2B</dd>", `opens <time datetime="`+opens+`"`)
	variants := good[api.List[api.Model]](tn.world, "ada", "GET", "/api/models", "").Data[0].Variants
	assert.That(t, len(variants) == 2 && variants[0].Quantization == "Q4_K_M" && variants[1].Opens.Equal(variants[1].Opens.Truncate(time.Hour)), variants)
	assert.Same(t, variants[1].Owners, []string{"bob"})
	assert.Equal(t, variants[1].Availability, "outside_hours")
}

// TestCodeOfAModel: the lines of code are for what the model is for, in three languages, and
// are not there for an id that would break out of them.
func TestCodeOfAModel(t *testing.T) {
	tn := newTown(t, nil)
	m := *tn.withFacts(false)
	m.Offers = nil
	for id, family := range map[fleet.ModelID]fleet.Family{"tiny": fleet.Chat, "vectors": fleet.Embeddings, "hears": fleet.Audio, `it's`: fleet.Chat, `a"b`: fleet.Chat, `a\b`: fleet.Chat, "$(id)": fleet.Chat} {
		m.Offers = append(m.Offers, fleet.Offer{ID: id, Families: fleet.Families(family)})
	}
	tn.snapshot = tn.snapshot.WithMachine(&m)
	ada := tn.as("ada")
	for id, path := range map[string]string{"tiny": "/v1/chat/completions", "vectors": "/v1/embeddings", "hears": "/v1/audio/transcriptions"} {
		ada.get("/models?model="+id).want(t, 200, `id="curl" checked`, tn.web.URL+path, ">Python</label>", ">JavaScript</label>", `model="`+id+`"`)
	}
	for _, id := range []string{"it%27s", "a%22b", "a%5Cb", "%24%28id%29"} {
		assert.Lacks(t, ada.get("/models?model="+id).want(t, 200, "would be served").body, `id="code-curl"`)
	}
}

// TestGauges: the page shows how busy the machine is, as far as it reports that, and follows it.
func TestGauges(t *testing.T) {
	tn := newTown(t, nil)
	tn.withFacts(false)
	ada, path := tn.as("ada"), "/machines/"+tn.machine.ID
	assert.Lacks(t, ada.get(path).want(t, 200, `id="facts"`).body, "<meter", "an older daemon has gauges")
	tn.files.Gauges = &fleet.Gauges{CPU: 0.376, Memory: fleet.MemoryUse{Used: 16 << 30, Total: 64 << 30}, GPUs: []fleet.MemoryUse{{Used: 6 << 30, Total: 24 << 30}}}
	page := ada.get(path).want(t, 200, `id="gauge-cpu" data-live`, ">38 %<", `id="gauge-cpu-bar" data-live`, `value="38"`, ">16.0 GiB of 64.0 GiB<", ">6.0 GiB of 24.0 GiB<", `value="25"`)
	watch := &filesWatch{site: tn.site, who: fleet.Caller{Member: fleet.MemberID(tn.members["ada"].ID), Name: "ada"}, machine: fleet.MachineID(tn.machine.ID)}
	watch.look(t.Context())
	now := watch.now.Load().content()
	assert.Equal(t, now.texts["gauge-cpu-bar"], words{text: "38"})
	assert.Contains(t, page.body, `data-shape="`+machinesContent(tn.site, tn.site.hubView(time.Now()), watch.who).withFiles(watch.now.Load()).shape.String()+`"`)
	tn.files.Gauges = &fleet.Gauges{CPU: 7, Memory: fleet.MemoryUse{Used: 9, Total: 1}, GPUs: make([]fleet.MemoryUse, 1000)}
	assert.Lacks(t, ada.get(path).want(t, 200).body, "<meter", "hostile gauges are shown")
	tn.files.Gauges = &fleet.Gauges{CPU: -1, Memory: fleet.MemoryUse{Used: 1 << 30, Total: 4 << 30}}
	assert.Lacks(t, ada.get(path).want(t, 200, ">1.0 GiB of 4.0 GiB<").body, "gauge-cpu", "an unknown gauge is shown")
}

func TestParameterWords(t *testing.T) {
	for n, want := range map[int64]string{
		0: "", -1: "", 999: "999", 1_246_592: "1.2M", 270_000_000: "270M", 999_600_000: "1B", 8_190_735_360: "8.2B", 26_000_000_000: "26B", 671_000_000_000: "671B", 1_000_000_000_000: "1T",
	} {
		assert.Equal(t, parameterWords(n), want, n)
	}
}
