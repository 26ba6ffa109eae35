package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/cluster"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/hub"
	"github.com/kith/kith/internal/registry"
	"github.com/kith/kith/internal/spool"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

const (
	region = "home"
	hubURL = "http://127.0.0.1"
)

// world is a hub, its members and their machines.
type world struct {
	t    *testing.T
	path string // of the database
	log  *logbook
	// config is of the hubs that start from now on; Region and Log are set there.
	config hub.Config
	// timing is of the engines of machines that are added from now on, which are then
	// of a kind that keeps the prompts of each caller.
	timing *enginetest.Timing

	*node
	at       atomic.Pointer[network] // of the present node, for those who dial
	cluster  *nodeTable              // nil: the hub is alone
	client   *http.Client
	machines []*machine
	desks    map[*member]*machine // without models; not nil: all machines seal calls
	runs     runs

	// Of a history.
	rng      *rand.Rand
	people   []*member
	groups   []string
	restarts []time.Time // ends and beginnings of the hub, in turn

	draw uint64       // what every random number begins with
	ids  atomic.Int64 // how many records were made

	mu      sync.Mutex
	history []truth
	lost    []*loss
	asks    []*answer // by tag, from 1
}

// inBubble runs a test in a world of its own and ends what is left of it.
func inBubble(t *testing.T, test func(*world)) {
	path := storetest.SQLite(t)
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, path: path, log: new(logbook)}
		w.client = clientOf(w.at.Load)
		defer func() {
			for _, m := range w.machines {
				m.stop()
			}
			for _, m := range w.desks {
				m.stop()
			}
			w.stopHub()
			time.Sleep(10 * time.Second) // what is on its way over delayed connections, and engines that linger
			if t.Failed() {
				t.Log(w.log.String())
			}
		}()
		w.startHub()
		test(w)
	})
}

// clientOf returns a client of the hub at an address.
func clientOf(at func() *network) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := at().dial(ctx)
			if err != nil {
				return nil, err
			}
			return c, nil
		},
	}}
}

// logbook is the end of the log, for a test that failed.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.String()
	return text[max(0, len(text)-20_000):]
}

func (w *world) logger(who string) *slog.Logger {
	return slog.New(slog.NewTextHandler(w.log, nil)).With("who", who)
}

// memory is what a hub may hold of requests and answers.
const memory = 64 << 20

// node is one life of the hub.
type node struct {
	name     string
	net      *network
	peers    *network         // at which the other nodes reach it
	others   *cluster.Cluster // nil: there are none
	db       *store.DB
	trouble  // of the hub with db
	live     *registry.Registry
	spool    *spool.Spool
	hub      *hub.Hub
	server   *http.Server
	handlers sync.WaitGroup
	running  sync.WaitGroup
	cancel   context.CancelFunc
}

// startHub begins a life of the hub, on the store there is.
func (w *world) startHub() {
	db, err := store.Open(context.Background(), store.Config{Path: w.path})
	w.must(err)
	w.node = w.startNode("hub", db)
	w.at.Store(w.net)
}

// startNode begins a life of a hub node of that name.
func (w *world) startNode(name string, db *store.DB) *node {
	ctx, cancel := context.WithCancel(context.Background())
	n := &node{name: name, net: newNetwork(), cancel: cancel, db: db}
	log := w.logger(name)
	read := registry.Config{Node: name, Region: region, Facts: facts{n.db.Facts(region), &n.trouble}, Log: log}
	if w.cluster != nil {
		w.cluster.join(w, n, &read)
	}
	n.live = registry.New(read)
	n.spool, _ = spool.Open("", spool.Limits{Memory: memory}) // without a folder nothing fails
	config := w.config
	config.Region, config.Cluster, config.Edge.Spool, config.Draw, config.Log, config.DB = region, n.others, n.spool, w.drawFor(name), log, n.db
	n.hub = hub.New(config, records{n.db, &n.trouble}, n.live)
	handler := n.hub.Handler()
	n.server = gateway.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n.handlers.Add(1)
		defer n.handlers.Done()
		handler.ServeHTTP(rw, r)
	}), log)
	run := func(what string, f func() error) {
		n.running.Go(func() {
			if err := f(); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
				w.t.Errorf("%s: %v", what, err)
			}
		})
	}
	run("registry", func() error { return n.live.Run(ctx) })
	run("hub", func() error { return n.hub.Run(ctx) })
	<-n.live.Ready()
	run("server", func() error { return n.server.Serve(n.net) })
	if n.others != nil {
		run("peers", func() error { return n.hub.ServePeers(ctx, n.peers) })
	}
	return n
}

// stopHub ends the hub's life as its process does at a signal with no grace:
// its parts end first, then every connection.
func (w *world) stopHub() {
	w.node.stop()
	if err := w.db.Close(); err != nil {
		w.t.Errorf("closing the store: %v", err)
	}
}

func (n *node) stop() {
	n.cancel()
	n.net.Close()
	n.server.Close()
	n.net.cut()
	if n.others != nil {
		n.peers.Close()
		n.peers.cut()
	}
	n.running.Wait()
	n.handlers.Wait()
}

// newID names a record: by turns, not at random, because ids order machines and
// break ties.
func (w *world) newID(prefix string) string { return fmt.Sprintf("%s%03d", prefix, w.ids.Add(1)) }

// drawFor returns the random numbers of one process. A number depends on the seed,
// the process and the time alone, so that it is the same in whichever order
// goroutines of one instant run.
func (w *world) drawFor(process string) func() uint64 {
	first := rand.NewPCG(w.draw, uint64(crc32.ChecksumIEEE([]byte(process)))).Uint64()
	return func() uint64 { return rand.NewPCG(first, uint64(time.Now().UnixNano())).Uint64() }
}

// member is a person and a key of theirs.
type member struct {
	account.Member
	key    account.Key
	secret string
}

func (w *world) addMember(name string) *member {
	w.t.Helper()
	m := &member{Member: account.Member{ID: w.newID("mem_"), Name: name, Created: time.Now().UTC()}}
	w.must(w.db.CreateMember(w.t.Context(), m.Member))
	w.addKey(m, account.ReachAll)
	return m
}

// addKey gives the member a new key, which it uses from now on.
func (w *world) addKey(m *member, reach account.Reach) {
	w.t.Helper()
	secret := credential.Mint(credential.APIKey, region)
	m.key = account.Key{
		ID: w.newID("key_"), MemberID: m.ID, Name: "k", Region: region, Reach: reach,
		Hash: secret.Hash(), LastFour: secret.LastFour(), Created: time.Now().UTC(),
	}
	m.secret = secret.Reveal()
	w.must(w.db.CreateKey(w.t.Context(), m.key))
}

// addBox adds ann, and her machine box that serves the model m.
func (w *world) addBox(slots int) (ann *member, box *machine) {
	w.t.Helper()
	ann = w.addMember("ann")
	return ann, w.addMachine(ann, "box", slots, "m")
}

// addShared adds ann and her box, which she shares with bob.
func (w *world) addShared(slots int) (ann, bob *member, box *machine) {
	w.t.Helper()
	ann, box = w.addBox(slots)
	bob = w.addMember("bob")
	w.share(ann, bob)
	return ann, bob, box
}

func (w *world) share(owner, with *member) {
	w.t.Helper()
	w.must(w.db.AddShare(w.t.Context(), account.Share{ID: w.newID("shr_"), OwnerID: owner.ID, MemberID: with.ID, Created: time.Now().UTC()}))
	for _, n := range w.nodes() {
		n.live.Settle(w.t.Context())
	}
	synctest.Wait()
}

func (w *world) must(err error) {
	w.t.Helper()
	assert.OK(w.t, err)
}

// machine is a member's computer: a daemon and the double that is its engine.
type machine struct {
	w      *world
	id     string
	name   string
	owner  *member
	home   string
	config daemon.Config
	engine *enginetest.Engine
	models []string
	at     atomic.Pointer[seat] // the node that it dials; nil: the world's

	*daemon.Daemon              // of the present life
	life           atomic.Int64 // counts them
	end            func()       // nil while there is none
	socket         *network     // the owner's, of this life
	surface        *network     // the local surface, of this life

	// Its sharing hours, minutes of the day; 0: always open.
	from, until int
	faulty      atomic.Bool // its engine was made to fail once
	revoked     bool
	lingers     time.Duration // how long its engine runs on after a call was cancelled

	mu        sync.Mutex
	down      bool  // the engine refuses connections
	link      *link // the newest connection to the hub
	away      bool  // the daemon reaches no hub
	paused    bool
	pauses    []time.Time // when it was paused or resumed
	disturbed []time.Time
}

// addMachine registers a machine and starts its daemon; it is routable on return.
func (w *world) addMachine(owner *member, name string, slots int, models ...string) *machine {
	w.t.Helper()
	m := &machine{w: w, id: w.newID("mch_"), name: name, owner: owner, models: models}
	m.home = filepath.Join(filepath.Dir(w.path), name)
	secret := credential.Mint(credential.MachineKey, region)
	w.must(w.db.CreateMachine(w.t.Context(), account.Machine{
		ID: m.id, OwnerID: owner.ID, Name: name, Region: region,
		Hash: secret.Hash(), LastFour: secret.LastFour(), Created: time.Now().UTC(),
	}))
	w.must(daemon.SaveCredential(m.home, daemon.Credential{Hub: hubURL, Machine: m.id, Member: owner.Name, Region: region, Secret: secret.Reveal()}))
	var offered []enginetest.Model
	for _, id := range models {
		offered = append(offered, enginetest.Model{ID: id, Embeddings: strings.HasPrefix(id, "emb")})
	}
	kind := enginetest.LlamaCpp
	if w.timing != nil {
		kind = enginetest.VLLM
	}
	m.engine = enginetest.New(kind, enginetest.Options{Models: offered, Slots: slots, Timing: w.timing})
	m.config = daemon.Config{
		Home: m.home, Listen: "127.0.0.1:8701", Name: name, Version: "sim",
		Discovery: engine.Config{Endpoints: []string{"http://127.0.0.1:8080"}, Transport: m},
		Sharing:   daemon.Sharing{Slots: slots},
		Log:       w.logger(name), Dial: m.dial, Draw: w.drawFor(name),
		ListenOn: func(kind, _ string) (net.Listener, error) {
			n := newNetwork()
			if kind == "unix" {
				m.socket = n
			} else {
				m.surface = n
			}
			return n, nil
		},
	}
	if w.desks != nil {
		m.config.Sealed = sealed.Prefer
	}
	w.machines = append(w.machines, m)
	if w.cluster != nil && w.rng != nil {
		m.at.Store(pick(w.rng, w.cluster.seats...))
	}
	m.start()
	synctest.Wait()
	return m
}

// dial is the daemon's way to the hub.
func (m *machine) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	m.mu.Lock()
	away := m.away
	m.mu.Unlock()
	if away {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: errNoRoute}
	}
	at := m.w.at.Load()
	if seat := m.at.Load(); seat != nil {
		at = seat.Load().net
	}
	c, err := at.dial(ctx)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.link = c.link
	m.mu.Unlock()
	return c, nil
}

// start begins a life of the daemon.
func (m *machine) start() {
	if m.end != nil {
		return
	}
	m.life.Add(1)
	d, err := daemon.New(m.config)
	m.w.must(err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	m.Daemon = d
	<-d.Ready()
	m.end = func() {
		cancel()
		if err := <-ended; err != nil {
			m.w.t.Errorf("daemon %s: %v", m.name, err)
		}
	}
}

// post asks the daemon's socket for something, as the owner's commands do.
func (m *machine) post(path, body string) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return m.socket.dial(ctx) },
	}}
	response, err := client.Post("http://daemon"+path, "application/json", strings.NewReader(body))
	m.w.must(err)
	response.Body.Close()
	assert.Require(m.w.t, response.StatusCode == http.StatusOK, path, "of", m.name, response.Status)
}

// stop ends it, with every connection it has.
func (m *machine) stop() {
	if m.end != nil {
		m.cut()
		m.end()
		m.end = nil
	}
}

// cut breaks the connection to the hub; the daemon comes back by itself.
func (m *machine) cut() {
	if l := m.newest(); l != nil {
		l.cut()
	}
}

// blackhole makes the connection swallow everything from now on.
func (m *machine) blackhole() {
	if l := m.newest(); l != nil {
		l.lost.Store(true)
	}
}

func (m *machine) newest() *link {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.link
}

// setAway keeps the daemon from reaching a hub, or lets it again.
func (m *machine) setAway(away bool) {
	m.mu.Lock()
	m.away = away
	m.mu.Unlock()
	if away {
		m.cut()
	}
}

// setDown makes the engine refuse connections, or take them again.
func (m *machine) setDown(down bool) {
	m.mu.Lock()
	m.down = down
	m.mu.Unlock()
}

// RoundTrip is the daemon's way to its engine: it notes what runs there.
func (m *machine) RoundTrip(r *http.Request) (*http.Response, error) {
	m.mu.Lock()
	down, link := m.down, m.link
	m.mu.Unlock()
	if down {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: errNoRoute}
	}
	if r.Method != http.MethodPost || !strings.HasPrefix(r.URL.Path, "/v1/") {
		return m.engine.Transport().RoundTrip(r)
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	end := m.w.runs.begin(m, link, text)
	response, err := m.engine.Transport().RoundTrip(r)
	if err != nil {
		time.Sleep(m.lingers)
		end()
		return nil, err
	}
	response.Body = &watched{response.Body, end}
	return response, nil
}

// watched is an engine's answer; its close ends the run.
type watched struct {
	io.ReadCloser
	end func()
}

func (b *watched) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// run is one call on one engine.
type run struct {
	call    string // its tag
	machine *machine
	life    int64 // of the daemon that sent it
	link    *link
	hops    []*link // between the node that has the call and that of the machine
	at      time.Time
	live    bool
	left    time.Time // once it is not live
}

// parted reports whether the node that has the call cannot know that it still runs: the
// machine's connection is gone, or each link to the machine's node was.
func (r *run) parted() bool {
	return r.link.dead() || len(r.hops) > 0 && !slices.ContainsFunc(r.hops, func(l *link) bool { return !l.over.Load() })
}

// runs is everything engines ever ran.
type runs struct {
	mu  sync.Mutex
	all []*run
	// check, if set, looks at each run as it begins; earlier ones are in all.
	check func(*run, []*run)
}

func (s *runs) begin(m *machine, l *link, body []byte) (end func()) {
	if tagIn(body) == "" {
		return func() {} // the daemon tries what the engine can
	}
	r := &run{call: tagIn(body), machine: m, life: m.life.Load(), link: l, at: time.Now(), live: true}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.check != nil {
		s.check(r, s.all)
	}
	s.all = append(s.all, r)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		r.live, r.left = false, time.Now()
	}
}

// of is the runs of one call, oldest first.
func (s *runs) of(tag string) []run {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []run
	for _, r := range s.all {
		if r.call == tag {
			out = append(out, *r)
		}
	}
	return out
}

// where names the machines on which a call ran.
func (s *runs) where(tag string) string {
	out := ""
	for _, r := range s.of(tag) {
		out += r.machine.name + " "
	}
	return out
}

// tagIn finds a call's tag, which its text begins with: <tag>.
func tagIn(body []byte) string {
	_, after, _ := bytes.Cut(body, []byte("tag-"))
	tag, _, _ := bytes.Cut(after, []byte(" "))
	return string(tag)
}

// tag numbers a call.
func (w *world) tag(a *answer) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asks = append(w.asks, a)
	return fmt.Sprint(len(w.asks))
}

// asked is the call of a tag.
func (w *world) asked(tag string) *answer {
	n, err := strconv.Atoi(tag)
	w.must(err)
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asks[n-1]
}

// knows reports whether the node that has the call can route to the machine.
func (w *world) knows(a *answer, m *machine) bool {
	if a.via == nil {
		return w.machineNow(m)
	}
	found := a.via.Load().live.Snapshot().Machine(fleet.MachineID(m.id))
	return found != nil && found.Online
}

// machineNow reports whether the hub can route to the machine.
func (w *world) machineNow(m *machine) bool {
	found := w.live.Snapshot().Machine(fleet.MachineID(m.id))
	return found != nil && found.Online
}
