package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	compose "github.com/compose-spec/compose-go/v2/cli"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// imageUser is the user of deploy/image/Dockerfile.
const imageUser = 65532

// inNamespaces names, in the environment of a test's second run, the folder it works in.
const inNamespaces = "KITH_TEST_NAMESPACES"

// TestSetUpsStart starts the hubs of Compose, of Helm and of systemd as they start them:
// their commands and users, in a root folder that is read-only, with files that have the
// modes and the mounts which Docker, Kubernetes and systemd give them. Each answers a call
// by a machine. The test runs again in namespaces of its own, so that the set-ups have
// their real ports and nothing outlives it.
func TestSetUpsStart(t *testing.T) {
	if dir := os.Getenv(inNamespaces); dir != "" {
		startSetUps(t, dir)
		return
	}
	if os.Getuid() != 0 {
		t.Fatal("only root can change users and mounts: run the tests of this folder with -exec sudo")
	}
	dir, err := os.MkdirTemp("", "kith") // other users reach it
	ok(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	ok(t, os.Chmod(dir, 0o755))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSetUpsStart$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespaces+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID}
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestSetUpsStart/systemd")) {
		t.Errorf("%v\n%s", err, out)
	}
}

func startSetUps(t *testing.T, dir string) {
	do(t, syscall.Mount("", "/", "", syscall.MS_PRIVATE|syscall.MS_REC, ""))
	do(t, syscall.Mount("proc", "/proc", "proc", 0, ""))
	loopback(t)
	bin := os.Getenv("KITH_BIN")
	if bin == "" {
		t.Fatal("KITH_BIN is not set: `make build-slim`, then KITH_BIN=$PWD/bin/kith-slim")
	}
	files := filepath.Join(dir, "compose")
	do(t, os.CopyFS(files, os.DirFS("compose")))
	run(t, nil, "bash", "-c", `umask 0002 && "$0"`, filepath.Join(files, "setup.sh")) // as of a user of Debian
	url := read(t, filepath.Join(files, "secrets/database_url"))
	startDatabases(t, read(t, filepath.Join(files, "secrets/database_password")), "kith", "helm", "unit")

	t.Run("compose", func(t *testing.T) { newContainer(t, dir, bin, imageUser).compose(files) })
	t.Run("helm", func(t *testing.T) {
		newContainer(t, dir, bin, imageUser).helm(strings.Replace(url, "/kith?", "/helm?", 1))
	})
	t.Run("systemd", func(t *testing.T) {
		newContainer(t, dir, bin, 990).systemd(strings.Replace(url, "/kith?", "/unit?", 1))
	})
}

func do(t *testing.T, err error) {
	t.Helper()
	ok(t, err)
}

// loopback turns on the loopback interface of a new network.
func loopback(t *testing.T) {
	t.Helper()
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	do(t, err)
	defer unix.Close(socket)
	lo, err := unix.NewIfreq("lo")
	do(t, err)
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	do(t, unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, lo))
}

// startDatabases starts PostgreSQL at its usual port, with the user kith.
func startDatabases(t *testing.T, password string, names ...string) {
	t.Helper()
	s := newServers(t)
	db := &server{servers: s, data: filepath.Join(s.dir, "data"), port: "5432"}
	s.must(db, "initdb", "--username", "kith", "--auth-local", "trust", "--auth-host", "scram-sha-256", "--no-sync")
	conf, err := os.OpenFile(filepath.Join(db.data, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	do(t, err)
	_, err = conf.WriteString("unix_socket_directories = '" + s.dir + "'\nlisten_addresses = '127.0.0.1'\n")
	do(t, err)
	do(t, conf.Close())
	db.start("postgres")
	for _, name := range names {
		s.must(db, "createdb", "--username", "kith", name)
	}
	s.sql(db, "ALTER ROLE kith PASSWORD '"+strings.TrimSpace(password)+"'")
}

// container is a root folder like that of the hub's image, in which one hub runs.
type container struct {
	t    *testing.T
	root string
	user uint32
	env  []string
	bin  string // kith, outside of it
}

func newContainer(t *testing.T, dir, bin string, user uint32) *container {
	t.Helper()
	c := &container{t: t, root: filepath.Join(dir, t.Name()), user: user, bin: bin, env: []string{"PATH=/usr/bin", "KITH_HOME=/var/lib/kith"}}
	c.put("/etc/hosts", "127.0.0.1 localhost db-1 db-2\n", 0o644)
	c.folder("/proc", 0o755)
	program, err := os.ReadFile(bin)
	do(t, err)
	c.put("/usr/bin/kith", string(program), 0o755)
	c.bind(c.root, "/", true)
	do(t, syscall.Mount("proc", c.in("/proc"), "proc", 0, ""))
	return c
}

func (c *container) in(path string) string { return filepath.Join(c.root, path) }

// folder makes a folder with exactly this mode.
func (c *container) folder(path string, mode os.FileMode) string {
	c.t.Helper()
	do(c.t, os.MkdirAll(c.in(path), 0o755))
	do(c.t, os.Chmod(c.in(path), mode))
	return c.in(path)
}

// put writes a file with exactly this mode.
func (c *container) put(path, text string, mode os.FileMode) string {
	c.t.Helper()
	c.folder(filepath.Dir(path), 0o755)
	do(c.t, os.WriteFile(c.in(path), []byte(text), 0o600))
	do(c.t, os.Chmod(c.in(path), mode))
	return c.in(path)
}

// writable lets prepare make mount points in the root, which is read-only afterwards.
func (c *container) writable(prepare func()) {
	c.t.Helper()
	do(c.t, syscall.Mount("", c.root, "", syscall.MS_BIND|syscall.MS_REMOUNT, ""))
	prepare()
	do(c.t, syscall.Mount("", c.root, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
}

// bind mounts a file or a folder of the host.
func (c *container) bind(from, to string, readOnly bool) {
	c.t.Helper()
	do(c.t, syscall.Mount(from, c.in(to), "", syscall.MS_BIND, ""))
	if readOnly {
		do(c.t, syscall.Mount("", c.in(to), "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
	}
}

func (c *container) tmpfs(to, options string) {
	c.t.Helper()
	do(c.t, syscall.Mount("tmpfs", c.in(to), "tmpfs", 0, options))
}

// command is a program of the container, as its user.
func (c *container) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(c.t.Context(), "/usr/bin/kith", args...)
	cmd.Err, cmd.Dir, cmd.Env = nil, "/", c.env // the program is in the container only
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.root, Credential: &syscall.Credential{Uid: c.user, Gid: c.user}}
	return cmd
}

// kith runs a command in the container and returns what it prints.
func (c *container) kith(input string, args ...string) string {
	c.t.Helper()
	cmd := c.command(args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.t.Fatalf("kith %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// compose starts hub-1 of compose.yaml. Compose mounts the file of a secret as it is.
func (c *container) compose(files string) {
	options, err := compose.NewProjectOptions([]string{filepath.Join(files, "compose.yaml")}, compose.WithEnvFiles(filepath.Join(files, ".env.example")), compose.WithDotEnv)
	do(c.t, err)
	project, err := options.LoadProject(c.t.Context())
	do(c.t, err)
	hub := project.Services["hub-1"]
	mounts := map[string]string{}
	for _, secret := range hub.Secrets {
		mounts["/run/secrets/"+secret.Source] = project.Secrets[secret.Source].File
	}
	for _, config := range hub.Configs {
		mounts[config.Target] = project.Configs[config.Source].File
	}
	c.writable(func() {
		for to := range mounts {
			c.put(to, "", 0o600)
		}
		c.put("/run/secrets/of_swarm", "", 0o600)
		c.folder("/tmp", 0o755)
		c.folder(hub.Volumes[0].Target, 0o755)
	})
	for to, from := range mounts {
		c.bind(from, to, true)
	}
	c.tmpfs(hub.Tmpfs[0], "mode=1777")
	c.tmpfs(hub.Volumes[0].Target, fmt.Sprintf("mode=0700,uid=%d,gid=%[1]d", imageUser))
	c.serve(hub.Command, hub.HealthCheck.Test[1:])

	// Swarm has secrets in a tmpfs, readable by all, and mounts each.
	swarm := filepath.Join(filepath.Dir(files), "swarm")
	do(c.t, os.Mkdir(swarm, 0o700))
	do(c.t, syscall.Mount("tmpfs", swarm, "tmpfs", 0, "mode=0700"))
	do(c.t, os.WriteFile(filepath.Join(swarm, "url"), []byte(read(c.t, mounts["/run/secrets/database_url"])), 0o444))
	c.bind(filepath.Join(swarm, "url"), "/run/secrets/of_swarm", true)
	do(c.t, os.WriteFile(c.in("/tmp/hub.toml"), []byte("[database]\nurl = \"file:/run/secrets/of_swarm\"\n"), 0o644))
	c.kith("", "config", "check", "/tmp/hub.toml")
}

// helm starts a pod of the chart. The kubelet gives the volumes of a pod to its fsGroup.
func (c *container) helm(url string) {
	var values map[string]any
	do(c.t, yaml.Unmarshal([]byte(valueSets["least"]), &values))
	o := render(c.t, values)
	pod := o.hubs.Spec.Template.Spec
	hub := pod.Containers[0]
	group := int(*pod.SecurityContext.FSGroup)
	if *pod.SecurityContext.RunAsUser != int64(c.user) {
		c.t.Fatal("the pods have another user than the image")
	}
	sources := map[string]func(to string){
		"data": func(to string) { c.tmpfs(to, fmt.Sprintf("mode=2775,gid=%d", group)) },
		"tmp":  func(to string) { c.tmpfs(to, fmt.Sprintf("mode=2777,gid=%d", group)) },
	}
	// volume writes the files of a Secret or a ConfigMap as the kubelet does.
	volume := func(name string, files map[string]string, mode os.FileMode) {
		sources[name] = func(to string) {
			c.tmpfs(to, fmt.Sprintf("mode=2777,gid=%d", group))
			do(c.t, os.Mkdir(filepath.Join(c.in(to), "..2026"), 0o755))
			do(c.t, os.Symlink("..2026", filepath.Join(c.in(to), "..data")))
			for file, text := range files {
				at := filepath.Join(c.in(to), "..2026", file)
				do(c.t, os.WriteFile(at, []byte(text), 0o600))
				do(c.t, os.Chown(at, 0, group))
				do(c.t, os.Chmod(at, mode))
				do(c.t, os.Symlink("..data/"+file, filepath.Join(c.in(to), file)))
			}
			do(c.t, syscall.Mount("", c.in(to), "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""))
		}
	}
	for _, v := range pod.Volumes {
		switch {
		case v.Secret != nil:
			volume(v.Name, map[string]string{"url": url}, os.FileMode(*v.Secret.DefaultMode))
		case v.ConfigMap != nil:
			volume(v.Name, o.config.Data, 0o644)
		}
	}
	c.writable(func() {
		for _, m := range hub.VolumeMounts {
			c.folder(m.MountPath, 0o755)
		}
	})
	for _, m := range hub.VolumeMounts {
		sources[m.Name](m.MountPath)
	}
	for _, e := range hub.Env {
		c.env = append(c.env, e.Name+"="+e.Value)
	}
	args := slices.Clone(hub.Args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(POD_IP)", "127.0.0.1")
	}
	c.serve(args, []string{"kith", "admin", "--data", "/var/lib/kith/hub", "health"})
}

// systemd starts kith-hub.service as the package installs it, with the database's URL in
// a file that the service's group can read.
func (c *container) systemd(url string) {
	unit := read(c.t, "systemd/kith-hub.service")
	start := strings.Fields(regexp.MustCompile(`(?m)^ExecStart=/usr/bin/kith (.*)$`).FindStringSubmatch(unit)[1])
	c.writable(func() {
		text := strings.Replace(read(c.t, "../packaging/hub.toml"), "\n[database]\n", "\n[database]\nurl = \"file:/etc/kith/database\"\n", 1)
		config := c.put("/etc/kith/hub.toml", text, 0o600)
		do(c.t, os.Chown(config, int(c.user), int(c.user))) // packaging/postinstall.sh
		do(c.t, os.Chown(c.put("/etc/kith/database", url, 0o640), 0, int(c.user)))
		c.folder("/tmp", 0o755)
		c.folder("/var/lib/kith", 0o755)
	})
	c.tmpfs("/tmp", "mode=1777")
	c.tmpfs("/var/lib/kith", fmt.Sprintf("mode=0700,uid=%d,gid=%[1]d", c.user))
	c.serve(start, []string{"kith", "admin", "--data", "/var/lib/kith", "health"})

	// systemd makes the root read-only for the service, and others read the file as before.
	c.writable(func() { do(c.t, os.Chmod(c.in("/etc/kith/database"), 0o644)) })
	if out, err := c.command("config", "check", "/etc/kith/hub.toml").CombinedOutput(); err == nil || !bytes.Contains(out, []byte("chmod 640 /etc/kith/database")) {
		c.t.Errorf("a secret for all: %v\n%s", err, out)
	}
}

// serve starts the hub, waits until its health check succeeds, and has a machine answer a
// call through it.
func (c *container) serve(command, health []string) {
	c.t.Helper()
	ctx, stop := context.WithCancel(c.t.Context())
	defer stop()
	hub := c.command(command...)
	var log strings.Builder
	hub.Stdout, hub.Stderr = &log, &log
	do(c.t, hub.Start())
	ended := make(chan error, 1)
	go func() { ended <- hub.Wait(); stop() }()
	defer func() {
		_ = hub.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil || c.t.Failed() {
			c.t.Errorf("the hub: %v\n%s", err, log.String())
		}
	}()
	s := &servers{t: c.t}
	last := ""
	logged := func(text string) {
		if last != text {
			last = text
			c.t.Log(text)
		}
	}
	s.until("the health check", func() bool {
		out, err := c.command(health[1:]...).CombinedOutput()
		logged(string(out))
		return ctx.Err() != nil || err == nil
	})
	if ctx.Err() != nil {
		return
	}
	data := health[slices.Index(health, "--data")+1]
	c.kith("a good password\n", "admin", "--data", data, "member", "create", "ada", "--operator", "--password-stdin")
	key := c.kith("", "admin", "--data", data, "key", "create", "--member", "ada", "--json")
	token := c.kith("", "admin", "--data", data, "machine", "token", "--member", "ada")
	c.machine(ctx, token)
	ready, err := http.Get("http://127.0.0.1:8702/readyz")
	do(c.t, err)
	ready.Body.Close()
	if ready.StatusCode != http.StatusOK {
		c.t.Errorf("the readiness probe is answered by %s", ready.Status)
	}
	var made struct{ Secret string }
	do(c.t, json.Unmarshal([]byte(key), &made))
	s.until("a call is answered", func() bool {
		body := strings.NewReader(`{"model":"tiny","messages":[{"role":"user","content":"Hello"}]}`)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:8700/v1/chat/completions", body)
		do(c.t, err)
		req.Header.Set("Authorization", "Bearer "+made.Secret)
		res, err := http.DefaultClient.Do(req)
		do(c.t, err)
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		do(c.t, err)
		logged(res.Status)
		return res.StatusCode == http.StatusOK && bytes.Contains(text, []byte("It runs."))
	})
}

// machine runs a member's machine with an engine, outside the container, until ctx ends.
func (c *container) machine(ctx context.Context, token string) {
	c.t.Helper()
	engine := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers := map[string]string{
			"/v1/models": `{"object":"list","data":[{"id":"tiny","object":"model"}]}`,
			"/v1/chat/completions": `{"id":"1","object":"chat.completion","created":1,"model":"tiny","choices":[{"index":0,"finish_reason":"stop",` +
				`"message":{"role":"assistant","content":"It runs."}}],"usage":{"prompt_tokens":1,"completion_tokens":3,"total_tokens":4}}`,
		}
		if !slices.Contains(slices.Collect(maps.Keys(answers)), r.URL.Path) {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answers[r.URL.Path])
	}))
	engine.Start()
	c.t.Cleanup(engine.Close)
	home := c.t.TempDir()
	config := "[daemon]\nlisten = \"127.0.0.1:0\"\n[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [\"" + engine.URL + "\"]\n"
	do(c.t, os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o600))
	for _, args := range [][]string{{"login", "--hub", "http://" + net.JoinHostPort("127.0.0.1", "8700"), "--token", token}, {"serve"}} {
		cmd := exec.CommandContext(ctx, c.bin, args...)
		cmd.Env = append(os.Environ(), "KITH_HOME="+home)
		if args[0] != "serve" {
			if out, err := cmd.CombinedOutput(); err != nil {
				c.t.Fatalf("kith %v: %v\n%s", args, err, out)
			}
			continue
		}
		do(c.t, cmd.Start())
		c.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
}
