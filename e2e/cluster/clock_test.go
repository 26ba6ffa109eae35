//go:build linux

package cluster_test

import (
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/store"
)

// clockVariable is the environment variable that has by how much the clock of a process
// of changedClock is ahead.
const clockVariable = "KITH_TEST_CLOCK"

const clockSource = `package time

import "syscall"

// clockAhead is by how many seconds Now is ahead of the computer's clock.
var clockAhead = func() int64 {
	text, _ := syscall.Getenv("` + clockVariable + `")
	d, err := ParseDuration(text)
	if err != nil {
		panic("` + clockVariable + `: " + err.Error())
	}
	return int64(d / Second)
}()
`

// changedClock builds kith with a time.Now that is ahead by what clockVariable says, and
// returns the path of the program. The monotonic clock is the computer's.
func changedClock(t *testing.T) string {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	check(t, err)
	// Go overlays no file of the module cache, in which is a version of Go that Go fetched.
	dir := t.TempDir()
	goRoot := filepath.Join(dir, "go")
	check(t, os.Symlink(strings.TrimSpace(string(root)), goRoot))
	source := filepath.Join(goRoot, "src", "time")
	text, err := os.ReadFile(filepath.Join(source, "time.go"))
	check(t, err)
	const read = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	if strings.Count(string(text), read) != 1 {
		t.Fatalf("%s does not have %q once: change this test for this version of Go", source, read)
	}
	changed := strings.Replace(string(text), read, read+"\tsec += clockAhead\n", 1)
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		check(t, os.WriteFile(path, text, 0o600))
		return path
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(source, "time.go"):       write("time.go", []byte(changed)),
		filepath.Join(source, "time_ahead.go"): write("time_ahead.go", []byte(clockSource)),
	}})
	check(t, err)
	binary := filepath.Join(dir, "kith")
	build := exec.Command(filepath.Join(goRoot, "bin", "go"), "build", "-trimpath", "-overlay", write("overlay.json", overlay), "-o", binary, "github.com/kith/kith/cmd/kith")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOROOT="+goRoot, "GOTOOLCHAIN=local")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build kith with a changed clock: %v\n%s", err, out)
	}
	return binary
}

// TestClocks runs three nodes whose clocks are an hour ahead, right, and an hour behind.
// Nothing ends early or late by that, and nothing is refused. It needs -long.
func TestClocks(t *testing.T) {
	if !*long {
		t.Skip("it builds kith with another clock, and takes minutes: -long")
	}
	c, r := start(t, 3, time.Hour, 0, -time.Hour), new(results)
	defer r.print(t)
	r.add("what", "seen")
	owners := c.owners()
	for _, part := range []struct {
		name string
		run  func(owners []clockOwner) (seen string)
	}{
		{"calls at each node, by way of each node", c.callsEverywhere},
		{"waiting calls are granted by age", c.waitByAge},
		{"keys with an end", c.keysEnd},
		{"sharing hours", c.sharingHours},
		{"invites, sign-in links, sessions, devices, pauses", c.membersEverywhere},
		{"rights that end", c.rightsEnd},
		{"a node that is ahead drains to one that is behind", c.drainAhead},
		{"sums of usage", c.usageEverywhere},
		{"operators learn of it", c.operatorsLearn},
	} {
		t.Run(part.name, func(t *testing.T) {
			defer func(before *testing.T) { c.t = before }(c.t)
			c.t = t
			r.add(part.name, part.run(owners))
		})
	}
	if n := c.machines.fenced.Load(); n > 0 {
		t.Errorf("machines were fenced %d times", n)
	}
	again, together := c.machines.repeated()
	lost, doubled := c.checkLedger()
	r.add("attempts that ran twice, two attempts of a call at a time", fmt.Sprint(again, ", ", together))
	r.add("answered calls; lost, doubled in the ledger", fmt.Sprint(len(c.answered), "; ", lost, ", ", doubled))
	if again+together > 0 {
		t.Errorf("%d attempts ran twice, %d calls had two attempts at a time", again, together)
	}
}

// clockOwner is a member with one machine of one slot, at the node of the member's index.
type clockOwner struct {
	name string
	key  key
}

func (c *cluster) owners() []clockOwner {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(cancel) // start waits for their end
	owners := make([]clockOwner, len(c.nodes))
	for i := range owners {
		o := clockOwner{name: fmt.Sprintf("owner%d", i+1)}
		check(c.t, c.nodes[i].operate("POST", "/members", map[string]string{"name": o.name}, nil))
		o.key = c.keyAt(c.nodes[i], o.name, "")
		secret, err := c.machine(c.at(i+1), c.at(i+2), o.name, o.name+"s-machine")
		check(c.t, err)
		// A second connection is to the node before: from the one that is ahead to the one that
		// is behind.
		c.machines.connect(ctx, "http://"+c.network.proxy(c.t, machinesWay, c.nodes[i].public, c.at(i+2).public), secret, 1)
		owners[i] = o
	}
	c.allConnected(*machineCount + len(owners))
	for _, o := range owners {
		for _, n := range c.nodes {
			c.until(n.name+" serves "+o.name, func() error { _, err := c.call(n, o.key, unary); return err })
		}
	}
	return owners
}

func check(t *testing.T, err error) {
	t.Helper()
	assert.OK(t, err)
}

// at returns the node of that index, counted round.
func (c *cluster) at(i int) *node { return c.nodes[i%len(c.nodes)] }

// keyAt makes a key at a node; expires may be empty.
func (c *cluster) keyAt(n *node, member, expires string) (made key) {
	c.t.Helper()
	if err := n.operate("POST", "/keys", map[string]any{"member": member, "expires": expires, "manage": true}, &made); err != nil {
		c.t.Errorf("%s: %v", n.name, err)
	}
	return made
}

// callsEverywhere makes calls at each node to the machine at each node.
func (c *cluster) callsEverywhere(owners []clockOwner) string {
	const each = 10
	for _, o := range owners {
		for _, n := range c.nodes {
			for i := range each {
				if _, err := c.call(n, o.key, []string{unary, streamed}[i%2]); err != nil {
					c.t.Errorf("%s's call at %s: %v", o.name, n.name, err)
				}
			}
		}
	}
	return fmt.Sprint(len(owners)*len(c.nodes)*each, " calls, half of them streamed")
}

// waitByAge has calls wait at the nodes by turns for the machine at each node.
func (c *cluster) waitByAge(owners []clockOwner) string {
	const waiting, apart = 9, 100 * time.Millisecond
	passed, all := 0, 0
	for i, o := range owners {
		ctx, free := context.WithCancel(c.t.Context())
		var running sync.WaitGroup
		begun := make(chan struct{}, manyChunks+1)
		running.Go(func() { _, _ = c.callUntil(ctx, c.nodes[i], o.key, endless, func() { begun <- struct{}{} }) })
		<-begun
		ids := make([]string, waiting)
		for j := range ids {
			running.Go(func() {
				var err error
				if ids[j], err = c.call(c.at(j), o.key, unary); err != nil {
					c.t.Errorf("call %d of %s, at %s: %v", j, o.name, c.at(j).name, err)
				}
			})
			time.Sleep(apart)
		}
		free()
		running.Wait()
		last := time.Time{}
		for _, id := range ids {
			began := c.machines.began(id)
			if began.Before(last) {
				passed++
			}
			all, last = all+1, began
		}
	}
	assert.That(c.t, passed <= 0, passed, "calls began before an older one")
	return fmt.Sprint(all, " calls, each ", apart, " after the one before; out of order: ", passed)
}

// keysEnd makes a key at each node that ends at one moment, and uses each at each node.
func (c *cluster) keysEnd(owners []clockOwner) string {
	const life = 15 * time.Second
	ends := time.Now().Add(life).Truncate(time.Second)
	lives := make(map[*node]key)
	early, late := 0, 0
	for _, n := range c.nodes {
		lives[n] = c.keyAt(n, owners[0].name, "1m")
	}
	keys := make([]key, len(c.nodes))
	for i, n := range c.nodes {
		keys[i] = c.keyAt(n, owners[0].name, ends.UTC().Format(time.RFC3339))
	}
	use := func() (served, refused int) {
		for _, k := range keys {
			for _, n := range c.nodes {
				switch _, err := c.call(n, k, unary); {
				case err == nil:
					served++
				case errors.Is(err, errRefused) && strings.Contains(err.Error(), "401"):
					refused++
				default:
					c.t.Error(err)
				}
			}
		}
		return served, refused
	}
	for time.Until(ends) > 3*time.Second {
		_, refused := use()
		early += refused
		time.Sleep(time.Second)
	}
	time.Sleep(time.Until(ends.Add(time.Second)))
	late, _ = use()
	for n, k := range lives {
		for _, at := range c.nodes {
			if _, err := c.call(at, k, unary); err != nil {
				c.t.Errorf("a key of %s that lives for a minute, at %s: %v", n.name, at.name, err)
			}
		}
	}
	if early+late > 0 {
		c.t.Errorf("%d calls were refused before the end of their key, %d served after it", early, late)
	}
	return fmt.Sprint("refused before it: ", early, "; served 1 s after it: ", late)
}

// sharingHours has members call at each node whose shares have hours: from ten minutes ago
// until in ten minutes.
func (c *cluster) sharingHours(owners []clockOwner) string {
	const each = 5
	now := time.Now().UTC()
	hours := "Mon-Sun " + now.Add(-10*time.Minute).Format("15:04") + "-" + now.Add(10*time.Minute).Format("15:04")
	for i, o := range owners {
		c.members++
		guest := fmt.Sprintf("guest%d", c.members)
		check(c.t, c.nodes[i].operate("POST", "/members", map[string]string{"name": guest}, nil))
		k := c.keyAt(c.nodes[i], guest, "")
		check(c.t, exchange(as(o.key), "POST", c.nodes[i].base+"/api/shares", map[string]string{"with": guest, "hours": hours}, nil))
		time.Sleep(2 * time.Second) // each node has the share
		for range each {
			for _, n := range c.nodes {
				if _, err := c.call(n, k, unary); err != nil {
					c.t.Errorf("a call at %s to the machine of %s: %v", n.name, o.name, err)
				}
			}
		}
	}
	return fmt.Sprint(len(owners)*len(c.nodes)*each, " calls, hours ", hours)
}

// browser is a member's, at any node: its cookies are for all ports.
type browser struct {
	c      *cluster
	client *http.Client
	status int // of the last page
	at     string
}

func (c *cluster) browser() *browser {
	jar, err := cookiejar.New(nil)
	check(c.t, err)
	return &browser{c: c, client: &http.Client{Jar: jar, Timeout: 10 * time.Second}}
}

// page gets a page of a node, or posts a form to it if there is one.
func (b *browser) page(n *node, path string, form url.Values) string {
	b.c.t.Helper()
	var response *http.Response
	var err error
	if form == nil {
		response, err = b.client.Get(n.base + path)
	} else {
		response, err = b.client.PostForm(n.base+path, form)
	}
	check(b.c.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	check(b.c.t, err)
	b.status, b.at = response.StatusCode, response.Request.URL.Path
	return string(text)
}

// membersEverywhere begins at each node what members finish at another one.
func (c *cluster) membersEverywhere(owners []clockOwner) string {
	done := 0
	for i, o := range owners {
		for j := range c.nodes {
			first, then, last := c.nodes[j], c.at(j+1), c.at(j+2)
			about := fmt.Sprintf("%s, %s, then %s, then %s", o.name, first.name, then.name, last.name)

			// A sign-in link: made, used, and the session at each node.
			var link struct{ Link string }
			check(c.t, first.operate("POST", "/members/"+o.name+"/link", nil, &link))
			b := c.browser()
			b.page(then, "/welcome", url.Values{"link": {link.Link[strings.LastIndex(link.Link, "/")+1:]}})
			for _, n := range c.nodes {
				if b.page(n, "/account", nil); b.at != "/account" || b.status != http.StatusOK {
					c.t.Fatalf("%s: the session at %s: %d at %s", about, n.name, b.status, b.at)
				}
			}

			// A key whose secret the page shows once, which it is sent to.
			b.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			b.page(first, "/applications", url.Values{"name": {fmt.Sprint("shown", i, j)}})
			b.client.CheckRedirect = nil
			if text := b.page(then, "/applications/new", nil); b.at != "/applications/new" || !strings.Contains(text, "Your new key") {
				c.t.Errorf("%s: the key's page: %d at %s", about, b.status, b.at)
			}

			// A device: its code, which is typed and approved at other nodes, and its credential.
			var device struct {
				DeviceCode string `json:"device_code"`
				UserCode   string `json:"user_code"`
			}
			ask := func(n *node, path string, form url.Values, into any) error {
				response, err := http.PostForm(n.base+path, form)
				if err != nil {
					return err
				}
				defer response.Body.Close()
				text, _ := io.ReadAll(response.Body)
				if response.StatusCode != http.StatusOK {
					return fmt.Errorf("%s%s: %s", n.name, path, text)
				}
				return json.Unmarshal(text, into)
			}
			check(c.t, ask(first, "/device/code", url.Values{"client_id": {"test"}, "scope": {"key"}, "name": {fmt.Sprint("key", i, j)}}, &device))
			code := url.Values{"code": {device.UserCode}}
			if b.page(then, "/device", code); b.status != http.StatusOK {
				c.t.Errorf("%s: the code that was typed: %d", about, b.status)
			}
			code.Set("decision", "approve")
			if b.page(last, "/device/decide", code); b.status != http.StatusOK {
				c.t.Errorf("%s: the approval: %d", about, b.status)
			}
			var made struct {
				Secret string `json:"access_token"`
			}
			if err := ask(then, "/device/token", url.Values{"grant_type": {"urn:ietf:params:oauth:grant-type:device_code"}, "device_code": {device.DeviceCode}}, &made); err != nil {
				c.t.Errorf("%s: the device: %v", about, err)
			} else if _, err := c.call(last, key{Secret: made.Secret}, unary); err != nil {
				c.t.Errorf("%s: a call with the device's key: %v", about, err)
			}

			// An invite of ten minutes: made, accepted, and its share used.
			c.members++
			guest := fmt.Sprintf("guest%d", c.members)
			check(c.t, first.operate("POST", "/members", map[string]string{"name": guest}, nil))
			guestKey := c.keyAt(then, guest, "")
			var invite struct{ Code string }
			check(c.t, exchange(as(o.key), "POST", first.base+"/api/invites", map[string]string{"expires": "10m"}, &invite))
			if err := exchange(as(guestKey), "POST", then.base+"/api/invites/accept", map[string]string{"code": invite.Code}, nil); err != nil {
				c.t.Errorf("%s: the invite: %v", about, err)
			} else {
				c.until("the guest is served", func() error { _, err := c.call(last, guestKey, unary); return err })
			}

			// A pause of half an hour, at the machine's own node.
			var machines struct{ Data []struct{ ID string } }
			check(c.t, exchange(as(o.key), "GET", then.base+"/api/machines", nil, &machines))
			b.page(c.nodes[i], "/machines/pause", url.Values{"machine": {machines.Data[0].ID}, "for": {"30m"}})
			if until := c.machines.pausedUntil(); b.status != http.StatusOK || time.Until(until) < 29*time.Minute || time.Until(until) > 31*time.Minute {
				c.t.Errorf("%s: a pause of 30 min at %s (%d) ends in %v", about, c.nodes[i].name, b.status, time.Until(until))
			}
			done++
		}
	}
	return fmt.Sprint(done, " times, each begun at one node and finished at others")
}

// as is a client with a key.
func as(k key) *http.Client { return &http.Client{Timeout: 10 * time.Second, Transport: withKey(k)} }

type withKey key

func (k withKey) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Header.Set("Authorization", "Bearer "+k.Secret)
	return client.Transport.RoundTrip(r)
}

// rightsEnd ends keys and shares at each node.
func (c *cluster) rightsEnd([]clockOwner) string {
	var answer, begin time.Duration
	for range c.nodes {
		a, b := c.endRights(faults[0])
		answer, begin = max(answer, a), max(begin, b)
		c.nodes = append(slices.Clone(c.nodes[1:]), c.nodes[0])
	}
	if begin > grantedWithin || answer > grantedWithin {
		c.t.Errorf("a start outlived its right by %v, an answer by %v", begin, answer)
	}
	return fmt.Sprintf("%d; last start after %s, last part of an answer after %s", 3**each, seconds(begin), seconds(answer))
}

// drainAhead drains the node that is ahead while calls to its machine run by way of the
// others, and starts it again.
func (c *cluster) drainAhead(owners []clockOwner) string {
	ctx, stop := context.WithCancel(c.t.Context())
	var running sync.WaitGroup
	var callers []*caller
	for _, n := range c.nodes[1:] {
		for _, o := range owners {
			callers = append(callers, c.load(ctx, &running, n, o.key, unary, streamed))
		}
	}
	first := c.nodes[0]
	check(c.t, c.nodes[1].operate("POST", "/nodes/"+first.name+"/drain", nil, nil))
	check(c.t, first.cmd.Wait())
	time.Sleep(2 * time.Second)
	c.startNode(first)
	c.settle()
	c.allConnected(*machineCount + len(owners))
	stop()
	running.Wait()
	served, failed := int64(0), int64(0)
	for _, by := range callers {
		served, failed = served+by.served.Load(), failed+by.failed.Load()
		if fault := by.fault.Load(); fault != nil {
			c.t.Error(*fault)
		}
	}
	assert.That(c.t, served != 0, "no call was served")
	return fmt.Sprintf("%d calls at the other nodes; failed: %d", served, failed)
}

// usageEverywhere compares the sums that each node shows, and the sums of the database with
// its records.
func (c *cluster) usageEverywhere(owners []clockOwner) string {
	db, err := store.Open(c.t.Context(), store.Config{URL: c.databases("")})
	check(c.t, err)
	defer db.Close()
	var records []account.Usage
	byMember := make(map[string]int64)
	c.until("the ledger is written", func() error {
		read, err := db.Usage(c.t.Context())
		if err == nil && len(read) != len(records) {
			records, err = read, errors.New("records are added")
		}
		time.Sleep(time.Second)
		return err
	})
	off := time.Duration(0)
	for _, u := range records {
		byMember[u.MemberID]++
		off = max(off, time.Until(u.Started))
	}
	assert.That(c.t, off <= 5*time.Second, "a call began", off, "from now")
	var counts []int64
	for _, o := range owners {
		var shown []int64
		for _, n := range c.nodes {
			for _, by := range []string{"hour", "day"} {
				var usage struct {
					As struct {
						Total struct{ Calls int64 }
						Days  []struct{ Calls int64 }
					} `json:"as_caller"`
				}
				check(c.t, exchange(as(o.key), "GET", n.base+"/api/usage?by="+by, nil, &usage))
				sum := int64(0)
				for _, d := range usage.As.Days {
					sum += d.Calls
				}
				shown = append(shown, sum, usage.As.Total.Calls)
			}
			var keys struct {
				Data []struct {
					Created  time.Time
					LastUsed time.Time `json:"last_used"`
				}
			}
			check(c.t, exchange(as(o.key), "GET", n.base+"/api/keys", nil, &keys))
			for _, k := range keys.Data {
				if time.Until(k.Created) > 5*time.Second || time.Until(k.LastUsed) > 5*time.Second {
					c.t.Errorf("%s at %s: a key was made at %v and used at %v; it is %v", o.name, n.name, k.Created, k.LastUsed, time.Now())
				}
			}
		}
		if shown = slices.Compact(shown); len(shown) > 1 || !slices.Contains(slices.Collect(maps.Values(byMember)), shown[0]) {
			c.t.Errorf("%s has %v calls, by node; records of members: %v", o.name, shown, byMember)
		}
		counts = append(counts, shown[0])
	}
	return fmt.Sprintf("%d records; each node shows of the owners, by hour and day, %d", len(records), counts)
}

// operatorsLearn looks for what nodes report of their own clocks.
func (c *cluster) operatorsLearn([]clockOwner) string {
	for _, n := range c.nodes {
		text, err := os.ReadFile(n.log.Name())
		check(c.t, err)
		if logged := strings.Contains(string(text), "clock"); logged != (n.clock != 0) {
			c.t.Errorf("%s, whose clock is ahead by %v: in its log is that: %t", n.name, n.clock, logged)
		}
	}
	return "in the logs of two nodes"
}
