package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/llama"
)

// patience is how long a script waits for anything before it fails.
const patience = time.Minute

// process is one that a script started.
type process struct {
	cmd  *exec.Cmd
	out  *os.File // held: once it is collected, a line on standard output kills the process
	done chan struct{}
	err  error // after done

	mu  sync.Mutex
	log bytes.Buffer
}

// Write collects what the process says on standard error.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// kill ends a process and waits for its end; fine on one that has ended.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// start runs kith under a name in the script; out gets its standard output.
func start(ts *testscript.TestScript, name string, args ...string) (*process, *bufio.Reader) {
	p := &process{done: make(chan struct{})}
	binary, err := exec.LookPath(filepath.Join(strings.Split(ts.Getenv("PATH"), string(os.PathListSeparator))[0], "kith"))
	ts.Check(err)
	p.cmd = exec.Command(binary, args...)
	p.cmd.Dir = ts.MkAbs(".")
	p.cmd.Env = []string{
		"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME"), "KITH_HOME=" + ts.Getenv("KITH_HOME"),
		"KITH_SYSTEM_ROOT=" + ts.Getenv("KITH_SYSTEM_ROOT"), "NO_COLOR=1", "TMPDIR=" + ts.Getenv("TMPDIR"),
		"HF_ENDPOINT=" + ts.Getenv("HF_ENDPOINT"),
	}
	p.cmd.Stderr = p
	read, write, err := os.Pipe()
	ts.Check(err)
	p.cmd.Stdout, p.out = write, read
	ts.Check(p.cmd.Start())
	write.Close()
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	if old := of(ts).procs[name]; old != nil {
		old.kill()
	}
	of(ts).procs[name] = p
	return p, bufio.NewReader(read)
}

// network [FLAGS...] runs kith dev and waits until it serves: $HUB and $LOCAL
// are base URLs with /v1, $SITE without, $KEY the key; of several nodes $HUB1,
// $HUB2 and so on too.
func network(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, true, "network [FLAGS...]")
	flags := append([]string{"dev", "--json", "--listen", "127.0.0.1:0", "--local", "127.0.0.1:0"}, args...)
	if !strings.Contains(strings.Join(args, " "), "--data") {
		flags = append(flags, "--data", ts.MkAbs("dev"))
	}
	p, out := start(ts, "dev", flags...)
	line, err := out.ReadBytes('\n')
	if err != nil {
		ts.Fatalf("kith dev printed no line: %v\n%s", err, p.said())
	}
	var told struct {
		Hub    string   `json:"hub"`
		Hubs   []string `json:"hubs"`
		Site   string   `json:"site"`
		Local  string   `json:"local"`
		APIKey string   `json:"api_key"`
	}
	ts.Check(json.Unmarshal(line, &told))
	ts.Setenv("HUB", told.Hub)
	for i, node := range told.Hubs {
		ts.Setenv(fmt.Sprintf("HUB%d", i+1), node)
	}
	ts.Setenv("SITE", told.Site)
	ts.Setenv("LOCAL", told.Local)
	ts.Setenv("KEY", told.APIKey)
	ts.Setenv("LOCALPORT", told.Local[strings.LastIndex(strings.TrimSuffix(told.Local, "/v1"), ":")+1:len(told.Local)-len("/v1")])
}

// hub [FLAGS...] runs kith hub with its data in ./hub, at $HUB and $SITE; a
// second time it comes back at the same address.
func hub(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, true, "hub [FLAGS...]")
	addr := strings.TrimPrefix(ts.Getenv("SITE"), "http://")
	if addr == "" {
		addr = enginetest.FreeAddress()
		ts.Setenv("SITE", "http://"+addr)
		ts.Setenv("HUB", "http://"+addr+"/v1")
		ts.Setenv("ADMIN", enginetest.FreeAddress())
		ts.Setenv("HUBDATA", ts.MkAbs("hub"))
	}
	socket := filepath.Join(ts.MkAbs("hub"), "admin.sock")
	p, _ := start(ts, "hub", append([]string{"hub", "--listen", addr, "--admin", ts.Getenv("ADMIN"), "--data", ts.MkAbs("hub")}, args...)...)
	await(ts, p, "the hub", func() bool {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return false
		}
		c.Close()
		c, err = net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// member NAME makes a member with a key, in $KEY_NAME; with "machine" behind it
// also signs this KITH_HOME in as a machine of the member's, with "machine HOME"
// the home of that name (see daemon).
func member(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1 || len(args) <= 3 && args[1] == "machine", "member NAME [machine [HOME]]")
	name := args[0]
	run := func(into any, args ...string) {
		ts.Check(ts.Exec("kith", args...))
		if into != nil {
			ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), into))
		}
	}
	if ts.Getenv("KEY_"+name) == "" {
		var key struct {
			Secret string `json:"secret"`
		}
		run(nil, "admin", "member", "create", name, "--data", ts.MkAbs("hub"))
		run(&key, "admin", "key", "create", "--member", name, "--manage", "--data", ts.MkAbs("hub"), "--json")
		ts.Setenv("KEY_"+name, key.Secret)
	}
	if len(args) >= 2 {
		token := []string{"admin", "machine", "token", "--member", name, "--data", ts.MkAbs("hub"), "--json"}
		if len(args) == 3 {
			token = append(token, "--name", args[2])
			defer inHome(ts, args[2])()
		}
		var made struct {
			Token string `json:"token"`
		}
		run(&made, token...)
		run(nil, "login", "--hub", ts.Getenv("SITE"), "--token", made.Token)
	}
}

// inHome makes the home NAME, $WORK/NAME, the KITH_HOME of what follows, until
// the function it returns is called.
func inHome(ts *testscript.TestScript, name string) (leave func()) {
	before := ts.Getenv("KITH_HOME")
	ts.Setenv("KITH_HOME", ts.MkAbs(name))
	return func() { ts.Setenv("KITH_HOME", before) }
}

// daemon [HOME] [FLAGS...] runs kith serve under the script's KITH_HOME, at
// $LOCAL; with a HOME under $WORK/HOME, at $LOCAL_HOME, as the process HOME.
func daemon(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, true, "daemon [HOME] [FLAGS...]")
	name, local := "daemon", "LOCAL"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, local, args = args[0], "LOCAL_"+args[0], args[1:]
		defer inHome(ts, name)()
	}
	addr := strings.TrimSuffix(strings.TrimPrefix(ts.Getenv(local), "http://"), "/v1")
	if addr == "" {
		addr = enginetest.FreeAddress()
		ts.Setenv(local, "http://"+addr+"/v1")
	}
	p, _ := start(ts, name, append([]string{"serve", "--listen", addr}, args...)...)
	await(ts, p, "the daemon", func() bool {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// kill9 NAME kills a process of the script's, or "engine": the built-in
// engine's worker under dev or daemon.
func kill9(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1, "kill9 dev|hub|daemon|HOME|engine")
	if args[0] != "engine" {
		of(ts).procs[args[0]].kill()
		return
	}
	for _, name := range []string{"dev", "daemon"} {
		p := of(ts).procs[name]
		if p == nil {
			continue
		}
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid))
		for _, task := range tasks {
			children, _ := os.ReadFile(task)
			for _, child := range strings.Fields(string(children)) {
				var pid int
				fmt.Sscan(child, &pid)
				if line, _ := os.ReadFile("/proc/" + child + "/cmdline"); !bytes.Contains(line, []byte(llama.WorkerArg)) {
					continue // the database of several nodes
				}
				ts.Check(syscall.Kill(pid, syscall.SIGKILL))
				return
			}
		}
	}
	ts.Fatalf("no engine worker runs under the script's processes")
}

// halt NAME interrupts a process, which must end well and soon, or ends a double.
// (stop is testscript's own: it ends the script there, as passed.)
func halt(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 1, "halt dev|hub|daemon|HOME|DOUBLE")
	if d, ok := of(ts).doubles[args[0]]; ok {
		ts.Check(d.engine.Close())
		return
	}
	p := of(ts).procs[args[0]]
	ts.Check(p.cmd.Process.Signal(os.Interrupt))
	select {
	case <-p.done:
		if p.err != nil {
			ts.Fatalf("%s ended badly after an interrupt: %v\n%s", args[0], p.err, p.said())
		}
	case <-time.After(patience):
		ts.Fatalf("%s did not end after an interrupt\n%s", args[0], p.said())
	}
}

// until call|exec ARGS... does that again and again until it succeeds.
func until(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) > 1 && (args[0] == "call" || args[0] == "exec"), "until call|exec ARGS...")
	var err error
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		if args[0] == "call" {
			err = tryCall(ts, args[1:])
		} else {
			err = ts.Exec(args[1], args[2:]...)
		}
		if err == nil {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
	ts.Fatalf("%v still fails after %v: %v", args, patience, err)
}

func await(ts *testscript.TestScript, p *process, what string, ready func() bool) {
	for limit := time.Now().Add(patience); time.Now().Before(limit); {
		if ready() {
			return
		}
		select {
		case <-p.done:
			ts.Fatalf("%s ended at once: %v\n%s", what, p.err, p.said())
		case <-time.After(50 * time.Millisecond):
		}
	}
	ts.Fatalf("%s was not ready within %v\n%s", what, patience, p.said())
}
