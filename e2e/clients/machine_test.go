package clients_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/enginetest"
)

// fleet is a hub and a member's machine with an engine double, as separate
// processes: what `kith dev`'s small model cannot be made to say, the double
// says word for word.
type fleet struct {
	base   string // of the hub, without /v1
	key    string
	engine *enginetest.Engine
}

// double brings a fleet up and ends it with the test.
func double(t *testing.T) fleet {
	t.Helper()
	f := fleet{engine: enginetest.New(enginetest.VLLM, enginetest.Options{Slots: 4})}
	if err := f.engine.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.engine.Close() })
	data, home := t.TempDir(), t.TempDir()
	config := fmt.Sprintf("[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%q]\n", f.engine.URL())
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	listen := freeAddr(t)
	f.base = "http://" + listen
	start(t, home, "hub", "--listen", listen, "--admin", freeAddr(t), "--data", data)
	until(t, "the hub answers", func() bool {
		response, err := http.Head(f.base + "/")
		if err != nil {
			return false
		}
		response.Body.Close()
		_, err = os.Stat(filepath.Join(data, "admin.sock"))
		return err == nil
	})
	var key struct{ Secret string }
	var token struct{ Token string }
	run(t, home, nil, "admin", "member", "create", "ada", "--data", data)
	run(t, home, &key, "admin", "key", "create", "--member", "ada", "--data", data, "--json")
	run(t, home, &token, "admin", "machine", "token", "--member", "ada", "--data", data, "--json")
	run(t, home, nil, "login", "--hub", f.base, "--token", token.Token)
	f.key = key.Secret
	start(t, home, "serve", "--listen", freeAddr(t))
	until(t, "the hub lists the double's model", func() bool {
		request, _ := http.NewRequest("GET", f.base+"/v1/models/test-model", nil)
		request.Header.Set("Authorization", "Bearer "+f.key)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == 200
	})
	return f
}

// kith is a command of the binary under test.
func kith(t *testing.T, home string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(binary(t), args...)
	cmd.Env = append(os.Environ(), "KITH_HOME="+home, "NO_COLOR=1")
	return cmd
}

// start runs a process and ends it, well, with the test.
func start(t *testing.T, home string, args ...string) {
	t.Helper()
	cmd := kith(t, home, args...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGINT)
		if err := cmd.Wait(); err != nil {
			t.Errorf("kith %s ended badly after an interrupt: %v", args[0], err)
		}
		if t.Failed() {
			t.Logf("kith %s said:\n%s", args[0], log.String())
		}
	})
}

// run runs a command to its end; what it printed goes into v if that is not nil.
func run(t *testing.T, home string, v any, args ...string) {
	t.Helper()
	cmd := kith(t, home, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("kith %v: %v\n%s", args, err, said.String())
	}
	if v != nil {
		if err := json.Unmarshal(out, v); err != nil {
			t.Fatalf("kith %v: %v: %s", args, err, out)
		}
	}
}

// until looks again and again until it holds, for a minute at most.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	late := time.After(time.Minute)
	for !holds() {
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("waited a minute in vain until %s", what)
		}
	}
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
