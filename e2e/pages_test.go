package e2e_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestPages runs the blocks of commands of every page in their order, each page in a
// sandbox of its own: a home, a hub, a machine with an engine that offers llama3, and the
// members ada and bob. What a page starts itself is not there before.
func TestPages(t *testing.T) {
	binary := builtBinary(t)
	ran, left := 0, 0
	for name, page := range pages(t) {
		var run []block
		for _, b := range blocksOf(page) {
			switch {
			case b.language != "sh":
			case b.notRun != "":
				left++
			default:
				run = append(run, b)
			}
		}
		ran += len(run)
		if len(run) > 0 {
			t.Run(name, func(t *testing.T) { runPage(t, binary, name, run) })
		}
	}
	t.Logf("%d blocks of commands ran, %d have a reason not to", ran, left)
}

// runPage runs the blocks of a page.
func runPage(t *testing.T, binary, name string, blocks []block) {
	s := newSandbox(t, binary)
	var text strings.Builder
	for _, b := range blocks {
		text.WriteString(b.text)
	}
	has := func(pattern string) bool { return regexp.MustCompile(`(?m)` + pattern).MatchString(text.String()) }
	if name == "docs/start/invite.md" {
		s.member = "bob"
	}
	switch {
	case name == "docs/start/pull.md":
		s.pullsFrom(modelHub(t))
	case !has(`^kith hub`):
		s.start("kith hub")
		s.prepare(has(`member create ada`), has(`^kith login`), has(`^kith serve`))
	}
	for _, b := range blocks {
		s.runBlock(b)
	}
}

// sandbox is a computer for the commands of one page.
type sandbox struct {
	t      *testing.T
	folder string
	site   string // the hub's address
	local  string // the daemon's address
	// releases is where the installer finds a release.
	releases string
	member   string // who approves what a command asks for in the browser
	env      []string
}

// newSandbox makes a sandbox in which nothing runs.
func newSandbox(t *testing.T, binary string) *sandbox {
	t.Helper()
	engine := enginetest.New(enginetest.Ollama, enginetest.Options{Models: []enginetest.Model{{ID: "llama3:latest"}, {ID: "llama3"}}})
	assert.OK(t, engine.Start())
	t.Cleanup(func() { engine.Close() })
	folder, err := os.MkdirTemp("", "kith-page-") // short: sockets are below it
	assert.OK(t, err)
	t.Cleanup(func() { os.RemoveAll(folder) })
	s := &sandbox{t: t, folder: folder, site: enginetest.FreeAddress(), local: enginetest.FreeAddress(), member: "ada"}
	program := "#!/bin/sh\ncase $1 in hub) shift; exec " + binary + " hub --admin '' \"$@\" ;; esac\nexec " + binary + " \"$@\"\n"
	s.write("bin/kith", 0o755, program)
	s.releases = releases(t, program)
	curl, err := exec.LookPath("curl")
	assert.OK(t, err)
	s.write("bin/curl", 0o755, "#!/bin/sh\ncase \" $* \" in *' -f'*) exec "+curl+" \"$@\" ;; esac\nexec "+curl+" --fail-with-body \"$@\"\n") // a call that is refused fails
	s.write("home/.kith/hub.toml", 0o600, fmt.Sprintf("[hub]\nlisten = %q\n", s.site))
	for home, listen := range map[string]string{"home/.kith": s.local, "bob": enginetest.FreeAddress()} {
		s.write(home+"/config.toml", 0o600, fmt.Sprintf("[daemon]\nlisten = %q\n[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%q]\n", listen, engine.URL()))
	}
	s.write("backups/.keep", 0o600, "")
	s.env = []string{
		"PATH=" + folder + "/home/.local/bin:" + folder + "/bin:" + os.Getenv("PATH"), "HOME=" + folder + "/home", "KITH_SYSTEM_ROOT=" + folder + "/system", "NO_COLOR=1", "TMPDIR=" + folder,
		"EXPORTS=" + folder + "/exports", "KITH_RELEASES=" + s.releases,
	}
	s.write("exports", 0o600, "")
	return s
}

// write writes a file in the sandbox.
func (s *sandbox) write(name string, mode os.FileMode, text string) {
	s.t.Helper()
	name = filepath.Join(s.folder, name)
	assert.OK(s.t, os.MkdirAll(filepath.Dir(name), 0o700))
	assert.OK(s.t, os.WriteFile(name, []byte(text), mode))
}

// prepare makes the members, a machine of ada's whose daemon runs, and a key in
// KITH_API_KEY: less what the page itself does.
func (s *sandbox) prepare(makesAda, signsIn, serves bool) {
	s.t.Helper()
	if !makesAda {
		s.run("kith admin member create ada")
		s.run("kith admin member create bob")
		s.run("kith admin machine token --member bob | KITH_HOME=" + s.folder + "/bob kith login --hub http://" + s.site + " --token -")
		if !signsIn {
			s.run("kith admin machine token --member ada | kith login --hub http://" + s.site + " --token -")
		}
		s.run("export KITH_API_KEY=$(kith admin key create --manage --member " + s.member + " --json | sed 's/.*\"secret\":\"\\([^\"]*\\)\".*/\\1/')")
	}
	if s.member != "ada" {
		s.run("kith admin share add --owner ada --with " + s.member)
	}
	if !serves && !makesAda {
		s.start("kith serve")
	}
}

// forever are commands that run until they are stopped.
var forever = []string{"kith hub", "kith serve"}

// runBlock runs a block. A command that runs until it is stopped is the block's last
// one, and runs on until the page's end.
func (s *sandbox) runBlock(b block) {
	s.t.Helper()
	text := strings.NewReplacer(
		"https://hub.example", "http://"+s.site, "http://127.0.0.1:8700", "http://"+s.site, "http://127.0.0.1:8701", "http://"+s.local,
		"/backups/", s.folder+"/backups/", "/tmp/kith-drill", s.folder+"/kith-drill", "https://github.com/kith/kith/releases", s.releases,
	).Replace(b.text)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	last, _, _ := strings.Cut(lines[len(lines)-1], " #")
	last = strings.TrimSpace(last)
	stays := slices.Contains(forever, last)
	if stays {
		text = strings.Join(lines[:len(lines)-1], "\n")
	}
	if b.as != "" {
		text = "(\nexport KITH_HOME=" + s.folder + "/" + b.as + "\nunset KITH_API_KEY\n" + text + ")\n"
	}
	s.run(text)
	if stays {
		s.start(last)
	}
}

// run runs a script to its end. Variables that it exports are there for the next one, and
// what it asks for in a browser is approved.
func (s *sandbox) run(script string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-ec", ". $EXPORTS\n"+script+"\nexport -p >$EXPORTS")
	cmd.Dir, cmd.Env = s.folder, s.env
	cmd.Stdin = strings.NewReader(s.exported("KITH_API_KEY") + "\n") // for `read`
	out := &output{}
	said := &output{line: s.approve}
	cmd.Stdout, cmd.Stderr = out, said
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("%v\n%s\nprinted: %s\n%s", err, script, out, said)
	}
	s.t.Logf("$ %s\n%s%s", strings.TrimSpace(script), out, said)
}

// exported is the value of a variable that a script exported.
func (s *sandbox) exported(name string) string {
	text := assert.Value(os.ReadFile(s.folder + "/exports"))(s.t)
	_, value, _ := strings.Cut(string(text), "export "+name+"=")
	value, _, _ = strings.Cut(value, "\n")
	return strings.Trim(value, `'"`)
}

// code is the line with the code that a member types on the site.
var code = regexp.MustCompile(`^Type +([A-Z]{4}-[A-Z]{4})$`)

// approve approves the request with the code that the line holds, in the member's name.
func (s *sandbox) approve(line string) {
	m := code.FindStringSubmatch(line)
	if m == nil {
		return
	}
	cmd := exec.Command(s.folder+"/bin/kith", "admin", "device", "approve", m[1], "--member", s.member)
	cmd.Env = s.env
	if out, err := cmd.CombinedOutput(); err != nil {
		s.t.Errorf("cannot approve: %v: %s", err, out)
	}
}

// start starts a command that runs until the test's end. It returns when the command
// printed a line, and a daemon's models can be called.
func (s *sandbox) start(command string) {
	s.t.Helper()
	cmd := exec.Command("sh", "-c", ". $EXPORTS\nexec "+command)
	cmd.Dir, cmd.Env = s.folder, s.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	begun, ended := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	said := &output{}
	cmd.Stdout = &output{line: func(string) { once.Do(func() { close(begun) }) }}
	cmd.Stderr = said
	assert.OK(s.t, cmd.Start())
	go func() { ended <- cmd.Wait() }()
	s.t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	})
	select {
	case <-begun:
	case err := <-ended:
		ended <- err
		s.t.Fatalf("%s ended: %v\n%s", command, err, said)
	case <-time.After(patience):
		s.t.Fatalf("%s printed nothing within %v\n%s", command, patience, said)
	}
	if command != "kith serve" {
		return
	}
	list := "kith models --json | grep -q '\"id\"'"
	if _, err := os.Stat(s.folder + "/home/.kith/credential"); err == nil {
		list = "kith models --account --json | grep -q '\"availability\":\"ready\"'"
	}
	s.run("i=0; until " + list + "; do i=$((i+1)); test $i -lt 600; sleep 0.1; done")
}

// output collects what a process prints, and passes each complete line on.
type output struct {
	line func(string)
	mu   sync.Mutex
	all  bytes.Buffer
	rest string
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all.Write(b)
	o.rest += string(b)
	for {
		line, rest, complete := strings.Cut(o.rest, "\n")
		if !complete {
			return len(b), nil
		}
		if o.rest = rest; o.line != nil {
			o.line(line)
		}
	}
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// pullsFrom makes a model hub's address the one that models come from, and the built-in
// engine what serves them.
func (s *sandbox) pullsFrom(address string) {
	s.env = append(s.env, "HF_ENDPOINT="+address)
	s.write("home/.kith/config.toml", 0o600, fmt.Sprintf("[daemon]\nlisten = %q\n[discovery]\nenabled = false\n", s.local))
}

// modelHub serves the small model as the one file of every repository, as a model hub
// does, and returns its address.
func modelHub(t *testing.T) string {
	t.Helper()
	model := assert.Value(os.ReadFile("../internal/llama/data/tiny.gguf"))(t)
	sum := fmt.Sprintf("%x", sha256.Sum256(model))
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/models/{org}/{repo}/tree/main", func(w http.ResponseWriter, r *http.Request) {
		name := strings.TrimSuffix(r.PathValue("repo"), "-GGUF")
		fmt.Fprintf(w, `[{"type":"file","oid":"1","path":"%s-Q8_0.gguf","size":%d,"lfs":{"oid":%q,"size":%[2]d,"pointerSize":134}}]`, name, len(model), sum)
	})
	mux.HandleFunc("GET /{org}/{repo}/resolve/main/{file}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"`+sum+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(model))
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// releases serves a release as its site does, with one archive that holds the program,
// and returns its address.
func releases(t *testing.T, program string) string {
	t.Helper()
	name := "kith_1.2.3_" + runtime.GOOS + "_" + runtime.GOARCH
	var archive bytes.Buffer
	zip := gzip.NewWriter(&archive)
	files := tar.NewWriter(zip)
	for _, file := range []string{"kith", "man/man1/kith.1", "completions/kith.bash", "completions/_kith", "completions/kith.fish"} {
		assert.OK(t, files.WriteHeader(&tar.Header{Name: name + "/" + file, Mode: 0o755, Size: int64(len(program))}))
		_, _ = io.WriteString(files, program) // into memory
	}
	assert.OK(t, errors.Join(files.Close(), zip.Close()))
	mux := http.NewServeMux()
	serve := func(name string, content []byte) {
		mux.HandleFunc("GET /latest/download/"+name, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	}
	installer := assert.Value(os.ReadFile("../install.sh"))(t)
	serve("install.sh", installer)
	serve("SHA256SUMS", fmt.Appendf(nil, "%x  %s.tar.gz\n", sha256.Sum256(archive.Bytes()), name))
	serve(name+".tar.gz", archive.Bytes())
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}
