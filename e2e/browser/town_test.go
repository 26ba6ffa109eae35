package browser_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	cryptorand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
	_ "time/tzdata" // the zones of town.zone

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/tunnel"
)

// The members of the network that the pictures show.
const (
	ada   = "mem_ada"
	bob   = "mem_bob"
	chloe = "mem_chloe"
)

const gib = 1 << 30

// modelSpec is a model with its facts and its speed, as the pictures show them.
type modelSpec struct {
	id, architecture, quantization string
	billions, gigabytes            float64 // parameters and bytes
	context                        int
	perSecond                      float64 // tokens
	capabilities                   []string
}

// machineSpec is a machine of the network. One that is away never connects.
type machineSpec struct {
	id, name, owner, hours string
	away                   bool
	slots                  int
	facts                  fleet.MachineFacts
	engine                 string
	models                 []modelSpec
}

var tools = []string{"tools"}

// machines are those of the network: three of ada, one that bob shares and one of a group.
var machines = []machineSpec{
	{id: "mch_desk", name: "desk", owner: ada, slots: 4, engine: "ollama",
		facts: fleet.MachineFacts{System: "Debian GNU/Linux 13 (trixie)", Arch: "amd64", CPU: "AMD Ryzen 9 7950X 16-Core Processor", Cores: 32, Memory: 64 * gib,
			GPUs: []fleet.GPU{{Name: "NVIDIA GeForce RTX 4090", Memory: 24 * gib}}, Engines: []fleet.EngineVersion{{Kind: "ollama", Version: "0.13.1"}}, Kith: "1.0.0"},
		models: []modelSpec{
			{"qwen3:32b", "qwen3", "Q4_K_M", 32.8, 20.2, 40960, 38, []string{"tools", "thinking"}},
			{"qwen3:8b", "qwen3", "Q4_K_M", 8.19, 5.2, 40960, 121, []string{"tools", "thinking"}},
			{"gemma3:12b", "gemma3", "Q4_K_M", 12.2, 8.1, 131072, 84, []string{"vision"}},
		}},
	{id: "mch_studio", name: "studio", owner: ada, slots: 2, engine: "llama.cpp",
		facts: fleet.MachineFacts{System: "macOS 26.1", Arch: "arm64", CPU: "Apple M2 Ultra", Cores: 24, Memory: 128 * gib,
			GPUs: []fleet.GPU{{Name: "Apple M2 Ultra", Memory: 96 * gib}}, Engines: []fleet.EngineVersion{{Kind: "llama.cpp", Version: "b7180"}}, Kith: "1.0.0"},
		models: []modelSpec{
			{"gpt-oss:120b", "gptoss", "MXFP4", 116.8, 65.4, 131072, 46, []string{"tools", "thinking"}},
			{"gemma3:27b", "gemma3", "Q4_K_M", 27.4, 17.4, 131072, 27, []string{"vision"}},
		}},
	{id: "mch_attic", name: "attic", owner: ada, slots: 1, engine: "ollama", away: true,
		facts: fleet.MachineFacts{System: "Ubuntu 24.04.3 LTS", Arch: "amd64", CPU: "Intel Core i7-8700K", Cores: 12, Memory: 32 * gib,
			GPUs: []fleet.GPU{{Name: "NVIDIA GeForce GTX 1080 Ti", Memory: 11 * gib}}, Engines: []fleet.EngineVersion{{Kind: "ollama", Version: "0.13.1"}}, Kith: "1.0.0"},
		models: []modelSpec{
			{"mistral-nemo:12b", "llama", "Q4_0", 12.2, 7.1, 131072, 31, tools},
			{"gemma3:4b", "gemma3", "Q4_K_M", 4.3, 3.3, 131072, 58, []string{"vision"}},
		}},
	{id: "mch_tower", name: "tower", owner: bob, slots: 4, engine: "vllm",
		facts: fleet.MachineFacts{System: "Fedora Linux 43", Arch: "amd64", CPU: "AMD Ryzen Threadripper 3960X", Cores: 48, Memory: 128 * gib,
			GPUs:    []fleet.GPU{{Name: "NVIDIA GeForce RTX 3090", Memory: 24 * gib}, {Name: "NVIDIA GeForce RTX 3090", Memory: 24 * gib}},
			Engines: []fleet.EngineVersion{{Kind: "vllm", Version: "0.11.2"}}, Kith: "1.0.0"},
		models: []modelSpec{
			{"qwen3-coder:30b", "qwen3moe", "AWQ", 30.5, 17.9, 262144, 96, tools},
			{"llama3.3:70b", "llama", "AWQ", 70.6, 39.8, 65536, 21, tools},
		}},
	{id: "mch_lab", name: "lab-a100", owner: chloe, slots: 8, engine: "vllm",
		facts: fleet.MachineFacts{System: "Ubuntu 24.04.3 LTS", Arch: "amd64", CPU: "AMD EPYC 7543", Cores: 64, Memory: 512 * gib,
			GPUs: []fleet.GPU{{Name: "NVIDIA A100 80GB PCIe", Memory: 80 * gib}}, Engines: []fleet.EngineVersion{{Kind: "vllm", Version: "0.11.2"}}, Kith: "1.0.0"},
		models: []modelSpec{
			{"qwen3:32b", "qwen3", "BF16", 32.8, 65.5, 40960, 52, []string{"tools", "thinking"}},
			{"mistral-small3.2:24b", "llama", "BF16", 23.6, 48.0, 131072, 57, []string{"tools", "vision"}},
		}},
}

// advertisement returns the state that the machine reports.
func (m machineSpec) advertisement() tunnel.Advertisement {
	ad := tunnel.Advertisement{Version: tunnel.Version, Name: m.name, Slots: m.slots, Free: m.slots, Hours: m.hours, Timezone: "UTC", Facts: &m.facts, Models: []tunnel.Model{}}
	for _, x := range m.models {
		ad.Models = append(ad.Models, tunnel.Model{ID: x.id, Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, ContextLength: x.context, Capabilities: x.capabilities,
			Slots: m.slots, Free: m.slots, Engine: m.engine, ModelFacts: fleet.ModelFacts{
				Architecture: x.architecture, Parameters: int64(x.billions * 1e9), Quantization: x.quantization, Size: int64(x.gigabytes * 1e9)}})
	}
	return ad
}

// town is a hub with the members and machines that the pictures show. All of it is invented. It
// is the same at each run, except for the dates.
type town struct {
	*walk
	listen  string // where https://hub.example is
	zone    *time.Location
	engine  *enginetest.Engine // of all machines
	roots   *x509.CertPool
	pem     string                       // the file with its certificate
	secrets map[string]credential.Secret // of machines and keys, by id
}

const hubName = "hub.example"

// newTown starts the hub and connects its machines.
func newTown(t *testing.T) *town {
	t.Helper()
	n := &town{listen: enginetest.FreeAddress(), zone: afternoon(time.Now()), secrets: map[string]credential.Secret{}}
	folder := shortDir(t)
	n.certificate(t, folder)
	n.walk = &walk{scripts: true, stage: newStageOver(t, func(data string) { n.seed(t, data) }, n.listen,
		fmt.Sprintf("[hub]\npublic_url = \"https://%s\"\n[tls]\ncertificate = %q\nkey = %q\n", hubName, filepath.Join(folder, "certificate"), filepath.Join(folder, "key")))}
	n.engine = enginetest.New(enginetest.LlamaCpp, enginetest.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	connected := make(chan struct{}, 100)
	waiting := 0
	for _, m := range machines {
		if !m.away {
			running.Go(func() { n.connect(ctx, m, connected) })
			waiting++
		}
	}
	for range waiting {
		select {
		case <-connected:
		case <-time.After(patience):
			t.Fatal("a machine does not connect")
		}
	}
	return n
}

// connect keeps a machine connected until ctx ends.
func (n *town) connect(ctx context.Context, m machineSpec, connected chan<- struct{}) {
	d := &tunnel.Dialer{
		HubURL: "https://" + hubName, Instance: m.id, Credential: n.secrets[m.id].Reveal, Handler: n.engine,
		TLS: &tls.Config{RootCAs: n.roots}, Dial: n.dial,
		Advertise: func() (tunnel.Advertisement, <-chan struct{}) { return m.advertisement(), nil },
		OnState: func(s tunnel.State) {
			if s.Phase == tunnel.Acked {
				connected <- struct{}{}
			}
		},
	}
	_ = d.Run(ctx) // until ctx ends; a wrong field shows as no connection
}

// dial connects to the hub, at whatever address.
func (n *town) dial(ctx context.Context, protocol, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, protocol, n.listen)
}

// afternoon returns a time zone in which it is about three in the afternoon, so that the daily
// rhythm looks the same in all pictures.
func afternoon(now time.Time) (best *time.Location) {
	for i, nearest := 0, 24; i < len(cities); i++ {
		zone, err := time.LoadLocation(cities[i])
		if err != nil {
			panic(err) // they are compiled in
		}
		hours := now.In(zone).Hour() - 15
		if hours = max(hours, -hours); hours < nearest {
			best, nearest = zone, hours
		}
	}
	return best
}

var cities = []string{"Pacific/Auckland", "Australia/Sydney", "Asia/Tokyo", "Asia/Singapore", "Asia/Bangkok", "Asia/Dhaka", "Asia/Karachi", "Asia/Dubai", "Europe/Istanbul", "Europe/Athens",
	"Europe/Berlin", "Europe/London", "Atlantic/Azores", "America/Noronha", "America/Sao_Paulo", "America/Halifax", "America/New_York", "America/Chicago", "America/Denver",
	"America/Los_Angeles", "America/Anchorage", "Pacific/Honolulu", "Pacific/Pago_Pago"}

// certificate makes the hub's certificate and its key in a folder: the files certificate and key.
func (n *town) certificate(t *testing.T, folder string) {
	t.Helper()
	key := assert.Value(ecdsa.GenerateKey(elliptic.P256(), cryptorand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: hubName}, DNSNames: []string{hubName}, NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true}
	der := assert.Value(x509.CreateCertificate(cryptorand.Reader, template, template, &key.PublicKey, key))(t)
	private := assert.Value(x509.MarshalPKCS8PrivateKey(key))(t)
	for name, block := range map[string]*pem.Block{"certificate": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: private}} {
		assert.OK(t, os.WriteFile(filepath.Join(folder, name), pem.EncodeToMemory(block), 0o600))
	}
	n.pem = filepath.Join(folder, "certificate")
	n.roots = x509.NewCertPool()
	n.roots.AddCert(assert.Value(x509.ParseCertificate(der))(t))
}

// seed fills the hub's data folder.
func (n *town) seed(t *testing.T, folder string) {
	t.Helper()
	assert.OK(t, os.MkdirAll(folder, 0o700))
	db := assert.Value(store.Open(t.Context(), store.Config{Path: filepath.Join(folder, "kith.db")}))(t)
	defer func() { assert.OK(t, db.Close()) }()
	ctx, now := t.Context(), time.Now()
	long := now.AddDate(0, 0, -40)
	for id, name := range map[string]string{ada: "ada", bob: "bob", chloe: "chloe"} {
		assert.OK(t, db.CreateMember(ctx, account.Member{ID: id, Name: name, Operator: id == ada, Created: long}))
		key := credential.Mint(credential.APIKey, "local")
		n.secrets[id] = key
		assert.OK(t, db.CreateKey(ctx, account.Key{ID: "key_" + name, MemberID: id, Name: map[string]string{ada: "editor", bob: "notebook", chloe: "agent"}[id], Region: "local", Reach: account.ReachAll,
			Hash: key.Hash(), LastFour: key.LastFour(), Created: long}))
		assert.OK(t, db.SetPassword(ctx, id, "no one signs in with it", "", long))
	}
	for i, m := range machines {
		secret := credential.Mint(credential.MachineKey, "local")
		n.secrets[m.id] = secret
		assert.OK(t, db.CreateMachine(ctx, account.Machine{ID: m.id, OwnerID: m.owner, Name: m.name, Region: "local", Hash: secret.Hash(), LastFour: secret.LastFour(), Created: long.AddDate(0, 0, i), ShowsClass: m.owner != ada}))
		assert.OK(t, db.SaveOffers(ctx, m.id, assert.Value(json.Marshal(m.advertisement()))(t), now.Add(-3*time.Hour)))
		assert.OK(t, db.SaveSpeeds(ctx, m.speeds(t, now), now))
	}
	for _, s := range []account.Share{
		{ID: "shr_1", OwnerID: bob, MemberID: ada, Limits: account.Limits{PerDay: 200}},
		{ID: "shr_2", OwnerID: ada, MemberID: bob, Limits: account.Limits{PerDay: 100, Models: []string{"gpt-oss:120b", "gemma3:27b"}}},
	} {
		s.Created = long
		assert.OK(t, db.AddShare(ctx, s))
	}
	assert.OK(t, db.CreateGroup(ctx, account.Group{ID: "grp_lab", Name: "lab", Kind: account.GroupOrg, Created: long,
		Members: []account.GroupMember{{MemberID: chloe, Admin: true}, {MemberID: ada}, {MemberID: bob}}}))
	assert.OK(t, db.RecordUsage(ctx, usage(now, n.zone)))
	assert.OK(t, db.SaveTraces(ctx, traces(now), now))
	assert.OK(t, db.RecordBackup(ctx, account.Backup{ID: "bak_1", At: now.Add(-9 * time.Hour), File: "/var/backups/kith.db", Bytes: 48 << 20}))
	for _, id := range []string{ada, bob, chloe} {
		assert.OK(t, db.SeeNotices(ctx, id, now))
	}
}

// speeds are what the hub measured of the machine's models.
func (m machineSpec) speeds(t *testing.T, now time.Time) (all []account.Speed) {
	t.Helper()
	for _, x := range m.models {
		var load fleet.Load
		for range 8 {
			load.Measure(fleet.Circle{}, fleet.Measurement{At: now.Add(-time.Hour), Uncached: 400, FirstToken: time.Duration(9e9 / x.perSecond), Output: 256,
				Decoding: time.Duration(256e9 / x.perSecond), Running: 1})
		}
		proofs, at := load.Proofs()
		all = append(all, account.Speed{MachineID: m.id, Model: x.id, Measured: at, Samples: string(assert.Value(json.Marshal(proofs))(t))})
	}
	return all
}

// route is a way that calls take: who calls which model on which machine, how often.
type route struct {
	member, key, machine, owner, group, model string
	weight                                    float64 // calls in the busiest hour
}

var routes = []route{
	{ada, "key_ada", "mch_desk", ada, "", "qwen3:32b", 7},
	{ada, "key_ada", "mch_desk", ada, "", "qwen3:8b", 4},
	{ada, "key_ada", "mch_studio", ada, "", "gemma3:27b", 2},
	{ada, "key_ada", "mch_tower", bob, "", "qwen3-coder:30b", 9},
	{ada, "key_ada", "mch_lab", chloe, "grp_lab", "qwen3:32b", 3},
	{bob, "key_bob", "mch_studio", ada, "", "gpt-oss:120b", 4},
	{chloe, "key_chloe", "mch_desk", ada, "grp_lab", "qwen3:32b", 3},
}

// usage returns the calls of 14 days: busy afternoons, quiet nights and weekends.
func usage(now time.Time, zone *time.Location) (all []account.Usage) {
	random := rand.New(rand.NewPCG(42, 1))
	speed := map[string]float64{}
	for _, m := range machines {
		for _, x := range m.models {
			speed[m.id+x.id] = x.perSecond
		}
	}
	for hour := range 14 * 24 {
		at := now.Truncate(time.Hour).Add(-time.Duration(hour) * time.Hour)
		local := at.In(zone)
		rhythm := math.Exp(-math.Pow((float64(local.Hour())-14.5)/4.2, 2)) + 0.35*math.Exp(-math.Pow((float64(local.Hour())-21)/1.6, 2))
		if day := local.Weekday(); day == time.Saturday || day == time.Sunday {
			rhythm *= 0.3
		}
		for _, r := range routes {
			for range int(r.weight*rhythm*(0.6+0.8*random.Float64()) + random.Float64()*0.6) {
				in, out := int64(300+random.ExpFloat64()*1400), int64(40+random.ExpFloat64()*320)
				first := time.Duration((0.2 + random.ExpFloat64()*0.5) * 1e9)
				u := account.Usage{CallID: fmt.Sprintf("req_%06d", len(all)), Attempt: 1, Started: at.Add(time.Duration(random.Int64N(int64(min(time.Hour, max(now.Sub(at), 1)))))),
					MemberID: r.member, KeyID: r.key, MachineID: r.machine, OwnerID: r.owner, GroupID: r.group, Model: r.model, Endpoint: "/v1/chat/completions", Stream: true, Status: 200,
					FirstByte: first, FirstToken: first, Duration: first + time.Duration(float64(out)/speed[r.machine+r.model]*1e9), TokensIn: in, TokensOut: out, TokensHow: account.TokensReported}
				switch x := random.Float64(); {
				case x < 0.02:
					u.Code, u.Status, u.MachineID, u.OwnerID, u.GroupID, u.TokensIn, u.TokensOut, u.FirstByte, u.FirstToken = string(fault.CapacityFull), 503, "", "", "", 0, 0, 0, 0
				case x < 0.05:
					u.Code = account.Cancelled
				case x < 0.12:
					u.Waited = time.Duration(random.ExpFloat64() * 3e9)
				}
				all = append(all, u)
			}
		}
	}
	return all
}

// traces are ada's latest calls: one that waited and was tried twice, and two that were refused.
func traces(now time.Time) []account.Trace {
	call := account.Trace{MemberID: ada, Mine: true, Caller: "ada", Endpoint: "/v1/chat/completions", Stream: true, KeyID: "key_ada", Status: 200}
	explained, away, full, served := call, call, call, call
	explained.CallID, explained.Started, explained.Model = "req_7k2v9m4x", now.Add(-4*time.Minute), "qwen3:32b"
	explained.WaitedMS, explained.Place, explained.FirstMS, explained.TookMS, explained.TokensIn, explained.TokensOut = 2400, 2, 3600, 11_600, 6210, 418
	explained.Decisions = []account.Decision{
		{Verdict: "wait", Seen: []account.StateCount{{Via: "own", State: "busy", Machines: 1}, {Via: "group", State: "busy", Machines: 1}}},
		{AfterMS: 2400, Verdict: "try", Seen: []account.StateCount{{Via: "own", State: "ready", Machines: 1}, {Via: "group", State: "ready", Machines: 1}}},
	}
	explained.Tries = []account.Attempt{
		{Machine: "desk", Owner: "ada", Via: "own", AfterMS: 2400, TookMS: 180, Outcome: "did not take it: busy"},
		{Machine: "lab-a100", Owner: "chloe", Via: "group", AfterMS: 2580, TookMS: 9020, Outcome: account.Answered, Prompt: true},
	}
	away.CallID, away.Started, away.Model, away.Status, away.Code, away.TookMS = "req_3n8q1c6t", now.Add(-48*time.Minute), "mistral-nemo:12b", 503, string(fault.MachineOffline), 3
	away.Decisions = []account.Decision{{Verdict: "refuse", Row: 8, Seen: []account.StateCount{{Via: "own", State: "offline", Machines: 1}}}}
	full.CallID, full.Started, full.Model, full.Status, full.Code, full.TookMS, full.WaitedMS, full.Place = "req_5d0w2h8r", now.Add(-95*time.Minute), "llama3.3:70b", 503, string(fault.CapacityFull), 30_000, 30_000, 3
	full.Decisions = []account.Decision{
		{Verdict: "wait", Seen: []account.StateCount{{Via: "shared", State: "busy", Machines: 1}}},
		{AfterMS: 30_000, Verdict: "refuse", Row: 9, Seen: []account.StateCount{{Via: "shared", State: "busy", Machines: 1}}},
	}
	served.CallID, served.Started, served.Model, served.FirstMS, served.TookMS, served.TokensIn, served.TokensOut = "req_9f4b7z2a", now.Add(-7*time.Minute), "qwen3:32b", 410, 9100, 1204, 331
	served.Tries = []account.Attempt{{Machine: "desk", Owner: "ada", Via: "own", AfterMS: 1, TookMS: 9099, Outcome: account.Answered, Prompt: true}}
	return []account.Trace{explained, away, full, served}
}
