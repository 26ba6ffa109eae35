package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/store"
)

var kills = flag.Int("kills", 20, "how often TestLedgerOutlivesKills kills")

// soon is how long anything of these tests may take, on a computer with other
// work to do. It only ends a test that hangs: no rule about time is tested here.
const soon = 5 * time.Minute

// rig is a hub and a daemon as processes of their own, and an engine double.
type rig struct {
	t      *testing.T
	dir    string // the hub's data
	home   string // the daemon's
	front  *front
	base   string // the address of front
	listen string // the hub's own address, and
	health string // its admin address, where they are to be known; empty: any, and none
	key    string
	engine *enginetest.Engine
	client *http.Client // nil: the default one
	env    []string     // of processes that start from now on
	// hasty limits the wait of each call to 1 s, for tests that expect refusals. Without
	// it a call waits as long as the hub lets it: on a busy computer that may be seconds.
	hasty bool

	hub, daemon *child
}

// child is a process of the rig's.
type child struct {
	cmd  *exec.Cmd
	out  io.Reader // of what it prints at its start
	errs shared
}

// start runs kith, as this test's binary.
func (r *rig) start(args ...string) *child {
	r.t.Helper()
	c := &child{cmd: exec.Command("kith", args...)}
	c.cmd.Env = append(append(os.Environ(), "KITH_HOME="+r.home), r.env...)
	c.cmd.Stderr = &c.errs
	var err error
	if c.out, err = c.cmd.StdoutPipe(); err == nil {
		err = c.cmd.Start()
	}
	assert.OK(r.t, err)
	return c
}

// kill is kill -9.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// stop is an interrupt, after which the process has to end well.
func (c *child) stop(t *testing.T) {
	t.Helper()
	late := time.AfterFunc(soon, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	assert.OK(t, c.cmd.Process.Signal(os.Interrupt))
	if err := c.cmd.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &c.errs)
	}
}

// startHub starts the hub, with hub.toml in the daemon's home. It does not wait for it.
func (r *rig) startHub() {
	r.front.to.Store(nil)
	r.hub = r.start("hub", "--json", "--listen", cmp.Or(r.listen, "127.0.0.1:0"), "--data", r.dir, "--admin", r.health, "--admin-any", "--config", filepath.Join(r.home, "hub.toml"))
	go r.front.leadTo(r.hub.out)
}

func (r *rig) startDaemon() { r.daemon = r.start("serve", "--listen", "127.0.0.1:0") }

// newRig brings everything up, with further settings of the hub: a call is served.
func newRig(t *testing.T, settings ...string) *rig {
	t.Helper()
	r := emptyRig(t)
	r.open(settings...)
	r.serve("ada", enginetest.Options{Slots: 16, Behaviour: enginetest.Behaviour{Chunks: 4, Interval: time.Millisecond}})
	r.until("a call is served", func() error { _, err := r.ask(false); return err })
	return r
}

// emptyRig has an address, at which nothing runs yet.
func emptyRig(t *testing.T) *rig {
	t.Helper()
	f := newFront(t)
	return &rig{t: t, dir: shortDir(t), home: shortDir(t), front: f, base: "http://" + f.Addr().String()}
}

// write writes a file in the daemon's home.
func (r *rig) write(name, text string) {
	r.t.Helper()
	assert.OK(r.t, os.WriteFile(filepath.Join(r.home, name), []byte(text), 0o600))
}

// open starts the hub, with settings, and waits for its operator's socket.
func (r *rig) open(settings ...string) {
	r.t.Helper()
	r.write("hub.toml", "[ratelimit]\nrps = 0\nconnections = 0\n"+strings.Join(settings, ""))
	r.startHub()
	r.t.Cleanup(func() { r.hub.kill() })
	r.until("the hub's socket answers", func() error {
		_, err := r.operator().call(r.t.Context(), "look", request{http.MethodGet, "/members", nil}, nil)
		if err == nil && r.front.to.Load() == nil {
			err = errors.New("it has not printed its address")
		}
		return err
	})
}

// serve starts an engine double and a daemon, as a machine of a new member.
func (r *rig) serve(member string, options enginetest.Options) {
	r.t.Helper()
	r.engine = enginetest.New(enginetest.LlamaCpp, options)
	assert.OK(r.t, r.engine.Start())
	r.t.Cleanup(func() { r.engine.Close() })
	r.write("config.toml", "[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [\""+r.engine.URL()+"\"]\n")
	r.signIn(member)
	r.startDaemon()
	r.t.Cleanup(func() { r.daemon.kill() })
}

func (r *rig) operator() *client { return overSocket(filepath.Join(r.dir, "admin.sock"), "", "") }

// signIn makes the member, the key and the machine.
func (r *rig) signIn(member string) {
	r.t.Helper()
	ctx, operator := r.t.Context(), r.operator()
	_, _, err1 := fetch(ctx, operator, "make a member", api.OperatorCreateMember.With(api.NewMember{Name: member}))
	key, _, err2 := fetch(ctx, operator, "make a key", api.OperatorCreateKey.With(api.NewKey{Member: member, Name: "k"}))
	token, _, err3 := fetch(ctx, operator, "make a token", api.OperatorCreateToken.With(api.NewToken{Member: member}))
	assert.OK(r.t, errors.Join(err1, err2, err3))
	saved, err := redeem(ctx, toHub(r.base, ""), token.Token)
	if err == nil {
		err = daemon.SaveCredential(r.home, saved)
	}
	assert.OK(r.t, err)
	r.key = key.Secret
}

// until tries again and again until it works.
func (r *rig) until(what string, try func() error) {
	r.t.Helper()
	late := time.After(soon)
	// What takes long is tried less often: each try costs the processes under test time.
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 80*time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-time.After(pause):
		case <-late:
			r.t.Fatalf("%s: not within %s: %v\nhub: %s\ndaemon: %s", what, soon, err, &r.hub.errs, r.daemonSaid())
		}
	}
}

func (r *rig) daemonSaid() string {
	if r.daemon == nil {
		return ""
	}
	return r.daemon.errs.String()
}

// begin makes a call; the answer's body is to be read and closed.
func (r *rig) begin(stream bool) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	body := fmt.Sprintf(`{"model":"test-model","stream":%v,"messages":[{"role":"user","content":"hi"}]}`, stream)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+r.key)
	if r.hasty {
		req.Header.Set("Prefer", "wait=1")
	}
	res, err := cmp.Or(r.client, http.DefaultClient).Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	context.AfterFunc(r.t.Context(), cancel)
	return res, nil
}

// ask makes a call and returns the id of a complete response.
func (r *rig) ask(stream bool) (id string, err error) {
	res, err := r.begin(stream)
	if err != nil {
		return "", err
	}
	return complete(res, stream)
}

// complete reads a response to its end marker and returns its id.
func complete(res *http.Response, stream bool) (string, error) {
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return "", err
	case res.StatusCode != http.StatusOK:
		return "", fmt.Errorf("status %d: %s", res.StatusCode, text)
	case stream && !bytes.HasSuffix(text, []byte("data: [DONE]\n\n")):
		return "", fmt.Errorf("no end marker: %s", text)
	}
	return res.Header.Get("X-Correlation-Id"), nil
}

// TestLedgerOutlivesKills kills the hub, and sometimes the daemon, at random moments
// under load. Each call with a complete response is in the ledger once, none is there
// twice, and the daily sums are those of the records (docs/faults.md#24,
// docs/faults.md#35, docs/faults.md#36).
func TestLedgerOutlivesKills(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.hasty = true
	var mu sync.Mutex
	var answered []string
	gained := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for i := range 8 {
		load.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				id, err := r.ask(n%2 == 0)
				if err != nil { // the hub or the daemon is away
					select {
					case <-time.After(20 * time.Millisecond):
					case <-ctx.Done():
					}
					continue
				}
				mu.Lock()
				answered = append(answered, id)
				mu.Unlock()
				select {
				case gained <- struct{}{}:
				default:
				}
			}
		})
	}
	for kill := range *kills {
		// A few answers, then any moment of the next ones.
		for range 1 + rand.IntN(30) {
			select {
			case <-gained:
			case <-time.After(soon):
				t.Fatalf("no answer for %s after kill %d\nhub: %s\ndaemon: %s", soon, kill, &r.hub.errs, r.daemonSaid())
			}
		}
		<-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond)
		r.hub.kill()
		if kill%5 == 4 {
			r.daemon.kill()
			r.startDaemon()
		}
		r.startHub()
	}
	r.until("a call is served", func() error { _, err := r.ask(false); return err })
	stop()
	load.Wait()
	r.hub.stop(t)
	checkLedger(t, filepath.Join(r.dir, "kith.db"), answered)
}

// checkLedger reads the ledger of a hub that has ended.
func checkLedger(t *testing.T, path string, answered []string) (calls map[string]account.Usage) {
	t.Helper()
	db, err := store.Open(t.Context(), store.Config{Path: path}) // which checks the file
	assert.OK(t, err)
	defer db.Close()
	records, err := db.Usage(t.Context())
	assert.OK(t, err)
	calls = map[string]account.Usage{}
	ends := map[string]int{}
	var sum account.UsageDay
	for _, u := range records {
		if _, twice := calls[u.CallID]; twice {
			t.Errorf("call %s is in the ledger twice", u.CallID)
		}
		calls[u.CallID] = u
		ends[u.Code]++
		if trace, err := db.Trace(t.Context(), u.CallID, u.MemberID); err != nil || trace.Code != u.Code || !trace.Mine {
			t.Errorf("`kith why` of %s: %+v (%v)", u.CallID, trace, err)
		}
		sum.Calls, sum.Waited, sum.Duration = sum.Calls+1, sum.Waited+u.Waited.Truncate(time.Microsecond), sum.Duration+u.Duration.Truncate(time.Microsecond)
		sum.TokensIn, sum.TokensOut = sum.TokensIn+u.TokensIn, sum.TokensOut+u.TokensOut
	}
	unknown := 0
	for _, id := range answered {
		u, there := calls[id]
		switch {
		case !there:
			t.Errorf("call %s was answered and is not in the ledger", id)
		case u.Code == account.Interrupted && u.TokensHow == account.TokensUnknown && u.MachineID != "":
			unknown++
		case u.Code != "" || u.TokensHow != account.TokensReported || u.MachineID == "":
			t.Errorf("call %s was answered; the ledger says %+v", id, u)
		}
	}
	days, err := db.UsageDays(t.Context())
	assert.OK(t, err)
	var kept account.UsageDay
	for _, d := range days {
		kept.Calls, kept.Waited, kept.Duration = kept.Calls+d.Calls, kept.Waited+d.Waited, kept.Duration+d.Duration
		kept.TokensIn, kept.TokensOut = kept.TokensIn+d.TokensIn, kept.TokensOut+d.TokensOut
	}
	assert.Equal(t, kept, sum, "the days sum up to", "the records to")
	t.Logf("%d answered, %d of them by a hub that died before it recorded the end; %d records by code: %v", len(answered), unknown, len(records), ends)
	return calls
}
