package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json/v2"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/kith/kith/internal/enginetest"
)

// rigs starts everything that is compared. Each leads to the engine of the first.
func (b *bench) rigs(ctx context.Context) []*target {
	direct := b.directRig(ctx)
	return []*target{direct, b.goRig(ctx, direct.engine), b.nginxRig(ctx, direct.engine), b.kithRig(ctx, direct.engine)}
}

// directRig is the engine double itself: what every hop is measured against.
func (b *bench) directRig(ctx context.Context) *target {
	addr := enginetest.FreeAddress()
	b.start("engine", nil, b.self, "engine", addr)
	t := &target{name: "direct", engine: addr, base: "http://" + addr + "/v1"}
	b.ready(ctx, t, "engine")
	return t
}

// twoHops starts two proxies before the engine. start starts the ith.
func (b *bench) twoHops(ctx context.Context, name, engine string, start func(i int, listen, next string) (pid int)) *target {
	t := &target{name: name}
	next := engine
	for i := range 2 {
		listen := enginetest.FreeAddress()
		t.pids = append(t.pids, start(i, listen, next))
		next = listen
	}
	t.base = "http://" + next + "/v1"
	b.ready(ctx, t, "proxy0")
	return t
}

// goRig is net/http/httputil.ReverseProxy twice, in two processes.
func (b *bench) goRig(ctx context.Context, engine string) *target {
	return b.twoHops(ctx, theirs, engine, func(i int, listen, next string) int {
		return b.start(fmt.Sprintf("proxy%d", i), nil, b.self, "proxy", listen, next)
	})
}

// proxy is one hop of goRig.
func proxy(listen, next string) {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: next})
	p.FlushInterval = -1
	p.Transport = &http.Transport{MaxIdleConnsPerHost: 256}
	check(http.ListenAndServe(listen, p))
}

const nginxConf = `worker_processes 1; daemon off; pid %[1]s/nginx%[2]d.pid; error_log stderr warn;
events { worker_connections 4096; }
http {
  access_log off; client_body_temp_path %[1]s/body%[2]d; proxy_temp_path %[1]s/temp%[2]d;
  fastcgi_temp_path %[1]s/f%[2]d; uwsgi_temp_path %[1]s/u%[2]d; scgi_temp_path %[1]s/s%[2]d;
  keepalive_requests 1000000;
  upstream next { server %[4]s; keepalive 256; keepalive_requests 1000000; }
  server { listen %[3]s; location / {
    proxy_pass http://next; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; client_max_body_size 64m; client_body_buffer_size 4m;
  } }
}
`

// nginxRig is Debian's nginx twice.
func (b *bench) nginxRig(ctx context.Context, engine string) *target {
	binary, err := exec.LookPath("nginx")
	if err != nil {
		check(errors.New("cannot find nginx: install Debian's nginx-light, which make setup-test does"))
	}
	t := b.twoHops(ctx, "nginx, two hops", engine, func(i int, listen, next string) int {
		conf := filepath.Join(b.dir, fmt.Sprintf("nginx%d.conf", i))
		check(os.WriteFile(conf, fmt.Appendf(nil, nginxConf, b.dir, i, listen, next), 0o600))
		return b.start(fmt.Sprintf("proxy%d", i), nil, binary, "-c", conf, "-e", "stderr")
	})
	for i, pid := range t.pids {
		t.pids[i] = children(pid)[0] // the work is the worker's, not the master's
	}
	return t
}

// hub is a running hub and how to reach it.
type hub struct {
	addr, admin string // of its surface, with TLS; of its metrics
	data, conf  string // its folder and its configuration
	cert        string // the file of its certificate, which
	pool        *x509.CertPool
	pid         int
}

// startHub starts a hub with TLS and a member named bench.
func (b *bench) startHub(ctx context.Context) *hub {
	h := &hub{
		data: filepath.Join(b.dir, "hub"), conf: filepath.Join(b.dir, "hub.toml"),
		addr: enginetest.FreeAddress(), admin: enginetest.FreeAddress(),
	}
	var key string
	h.cert, key, h.pool = certificate(b.dir)
	check(os.MkdirAll(h.data, 0o700))
	conf := fmt.Appendf(nil, "[hub]\nlisten = %q\ndata = %q\n[ratelimit]\nrps = 0\nconnections = 0\n"+
		"[limits]\nrunning = 0\nwaiting = 0\nmachines = 0\n[tls]\ncertificate = %q\nkey = %q\n", h.addr, h.data, h.cert, key)
	check(os.WriteFile(h.conf, conf, 0o600))
	b.serve(ctx, h)
	b.run(nil, "admin", "member", "create", "bench", "--data", h.data)
	return h
}

// serve starts the hub's process, for the first time or again.
func (b *bench) serve(ctx context.Context, h *hub) {
	socket := filepath.Join(h.data, "admin.sock")
	check(os.RemoveAll(socket))
	h.pid = b.start("hub", nil, b.kith, "hub", "--config", h.conf, "--admin", h.admin)
	if err := await(ctx, 20*time.Second, func() bool { _, err := os.Stat(socket); return err == nil }); err != nil {
		check(fmt.Errorf("the hub is not ready: %w%s", err, b.logs("hub")))
	}
}

// key returns a new key of the member.
func (b *bench) key(h *hub) string {
	return b.run(nil, "admin", "key", "create", "--member", "bench", "--data", h.data)
}

// home makes a machine's folder with its configuration, and returns the environment for it.
func (b *bench) home(name, conf string) []string {
	home := filepath.Join(b.dir, name)
	check(errors.Join(os.MkdirAll(home, 0o700), os.WriteFile(filepath.Join(home, "config.toml"), []byte(conf), 0o600)))
	return []string{"KITH_HOME=" + home}
}

// login signs a machine in to the hub, and returns its complete environment.
func (b *bench) login(h *hub, env []string) []string {
	env = append(env, "SSL_CERT_FILE="+h.cert)
	token := b.run(nil, "admin", "machine", "token", "--member", "bench", "--data", h.data)
	b.run(env, "login", "--hub", "https://"+h.addr, "--token", token)
	return env
}

// run runs a command of kith with --json and returns the secret or token it prints.
func (b *bench) run(env []string, args ...string) string {
	cmd := exec.Command(b.kith, append(args, "--json")...)
	cmd.Env = append(os.Environ(), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		check(fmt.Errorf("kith %s: %w: %s", strings.Join(args, " "), err, errs.String()))
	}
	var made struct {
		Secret string `json:"secret"`
		Token  string `json:"token"`
	}
	check(json.Unmarshal(out, &made))
	return made.Secret + made.Token
}

// kithRig is kith as members run it: a hub and a daemon, TLS to the hub and on
// the tunnel, key check, routing, usage records and logs on.
func (b *bench) kithRig(ctx context.Context, engine string) *target {
	home := b.home("home", fmt.Sprintf("[daemon]\nlisten = %q\n[engine]\nbuiltin = false\n"+
		"[discovery]\nenabled = false\nendpoints = [%q]\n[share]\nslots = 512\n", enginetest.FreeAddress(), "http://"+engine))
	h := b.startHub(ctx)
	daemon := b.start("daemon", b.login(h, home), b.kith, "serve")
	fmt.Fprintf(os.Stderr, "profiles of the hub at http://%s/debug/pprof/\n", h.admin)
	t := &target{name: ours, base: "https://" + h.addr + "/v1", key: b.key(h), cas: h.pool, pids: []int{h.pid, daemon}}
	b.ready(ctx, t, "hub", "daemon")
	return t
}

// ready waits until the target serves a call. An error holds the logs of the processes
// named.
func (b *bench) ready(ctx context.Context, t *target, processes ...string) {
	c := t.client(1)
	defer c.CloseIdleConnections()
	var last error
	err := await(ctx, 20*time.Second, func() bool {
		_, last = t.exchange(ctx, c, chat())
		return last == nil
	})
	if err != nil {
		check(fmt.Errorf("%s is not ready: %w: %w%s", t.name, err, last, b.logs(processes...)))
	}
}

// certificate makes a self-signed pair for loopback.
func certificate(dir string) (cert, key string, pool *x509.CertPool) {
	private := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kith bench"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private))
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(private))})
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	check(errors.Join(os.WriteFile(cert, certPEM, 0o600), os.WriteFile(key, keyPEM, 0o600)))
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return cert, key, pool
}

// cpu is the user and system time that each of the processes has used so far.
func cpu(pids []int) []time.Duration {
	used := make([]time.Duration, len(pids))
	for i, pid := range pids {
		if times, err := (&process.Process{Pid: int32(pid)}).Times(); err == nil {
			used[i] = time.Duration((times.User + times.System) * float64(time.Second))
		}
	}
	return used
}

// children returns the child processes of a process.
func children(pid int) (pids []int) {
	for _, child := range must((&process.Process{Pid: int32(pid)}).Children()) {
		pids = append(pids, int(child.Pid))
	}
	return pids
}

// bench holds what a run started, so that all of it ends with the run.
type bench struct {
	dir   string
	self  string
	kith  string
	procs []*exec.Cmd
}

// start runs a process whose output goes to a file in the bench's folder, and returns its
// id.
func (b *bench) start(name string, env []string, program string, args ...string) int {
	log := must(os.Create(filepath.Join(b.dir, name+".log")))
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		check(fmt.Errorf("cannot start %s: %w", name, err))
	}
	b.procs = append(b.procs, cmd)
	return cmd.Process.Pid
}

// end stops everything the bench started.
func (b *bench) end() {
	for _, cmd := range b.procs {
		cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range b.procs {
		kill := time.AfterFunc(3*time.Second, func() { cmd.Process.Kill() })
		cmd.Wait()
		kill.Stop()
	}
	os.RemoveAll(b.dir)
}

// logs is what processes of the bench wrote, for an error message.
func (b *bench) logs(names ...string) string {
	var all strings.Builder
	for _, name := range names {
		text, _ := os.ReadFile(filepath.Join(b.dir, name+".log"))
		fmt.Fprintf(&all, "\n%s: %s", name, text)
	}
	return all.String()
}

// await polls until ready reports true, for at most limit.
func await(ctx context.Context, limit time.Duration, ready func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !ready() {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
