package main

import (
	"bytes"
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
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/process"
)

// directRig is the engine double itself: what every hop is measured against.
func (b *bench) directRig(ctx context.Context) (*target, error) {
	addr, err := freePort()
	if err == nil {
		_, err = b.start("engine", nil, b.self, "engine", addr)
	}
	if err != nil {
		return nil, err
	}
	t := &target{name: "direct", engine: addr, base: "http://" + addr + "/v1"}
	return t, b.ready(ctx, t, "engine")
}

// twoHops starts two proxies before the engine. start starts the ith.
func (b *bench) twoHops(ctx context.Context, name, engine string, start func(i int, listen, next string) (pid int, err error)) (*target, error) {
	t := &target{name: name}
	next := engine
	for i := range 2 {
		listen, err := freePort()
		if err != nil {
			return nil, err
		}
		pid, err := start(i, listen, next)
		if err != nil {
			return nil, err
		}
		t.pids = append(t.pids, pid)
		next = listen
	}
	t.base = "http://" + next + "/v1"
	return t, b.ready(ctx, t, "proxy0")
}

// goRig is net/http/httputil.ReverseProxy twice, in two processes.
func (b *bench) goRig(ctx context.Context, engine string) (*target, error) {
	return b.twoHops(ctx, theirs, engine, func(i int, listen, next string) (int, error) {
		return b.start(fmt.Sprintf("proxy%d", i), nil, b.self, "proxy", listen, next)
	})
}

// proxy is one hop of goRig.
func proxy(listen, next string) error {
	p := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: next})
	p.FlushInterval = -1
	p.Transport = &http.Transport{MaxIdleConnsPerHost: 256}
	return http.ListenAndServe(listen, p)
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
func (b *bench) nginxRig(ctx context.Context, engine string) (*target, error) {
	binary, err := exec.LookPath("nginx")
	if err != nil {
		return nil, errors.New("cannot find nginx: install Debian's nginx-light, which make setup-test does")
	}
	t, err := b.twoHops(ctx, "nginx, two hops", engine, func(i int, listen, next string) (int, error) {
		conf := filepath.Join(b.dir, fmt.Sprintf("nginx%d.conf", i))
		if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, b.dir, i, listen, next), 0o600); err != nil {
			return 0, err
		}
		return b.start(fmt.Sprintf("proxy%d", i), nil, binary, "-c", conf, "-e", "stderr")
	})
	if err != nil {
		return nil, err
	}
	for i, pid := range t.pids { // the work is the worker's, not the master's
		if workers, err := (&process.Process{Pid: int32(pid)}).Children(); err == nil {
			t.pids[i] = int(workers[0].Pid)
		}
	}
	return t, nil
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
func (b *bench) startHub(ctx context.Context) (*hub, error) {
	h := &hub{data: filepath.Join(b.dir, "hub"), conf: filepath.Join(b.dir, "hub.toml")}
	var errs [4]error
	h.addr, errs[0] = freePort()
	h.admin, errs[1] = freePort()
	var key string
	h.cert, key, h.pool, errs[2] = certificate(b.dir)
	errs[3] = os.MkdirAll(h.data, 0o700)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	conf := fmt.Appendf(nil, "[hub]\nlisten = %q\ndata = %q\n[ratelimit]\nrps = 0\nconnections = 0\n[limits]\nrunning = 0\nwaiting = 0\nmachines = 0\n[tls]\ncertificate = %q\nkey = %q\n", h.addr, h.data, h.cert, key)
	if err := os.WriteFile(h.conf, conf, 0o600); err != nil {
		return nil, err
	}
	if err := b.serve(ctx, h); err != nil {
		return nil, err
	}
	_, err := b.run(nil, "admin", "member", "create", "bench", "--data", h.data)
	return h, err
}

// serve starts the hub's process, for the first time or again.
func (b *bench) serve(ctx context.Context, h *hub) (err error) {
	socket := filepath.Join(h.data, "admin.sock")
	if err := os.RemoveAll(socket); err != nil {
		return err
	}
	if h.pid, err = b.start("hub", nil, b.kith, "hub", "--config", h.conf, "--admin", h.admin); err != nil {
		return err
	}
	if err := await(ctx, 20*time.Second, func() bool { _, err := os.Stat(socket); return err == nil }); err != nil {
		return fmt.Errorf("the hub is not ready: %w%s", err, b.logs("hub"))
	}
	return nil
}

// run runs a command of kith with --json and returns the secret or token it prints.
func (b *bench) run(env []string, args ...string) (string, error) {
	cmd := exec.Command(b.kith, append(args, "--json")...)
	cmd.Env = append(os.Environ(), env...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kith %s: %w: %s", strings.Join(args, " "), err, errs.String())
	}
	var made struct {
		Secret string `json:"secret"`
		Token  string `json:"token"`
	}
	err = json.Unmarshal(out, &made)
	return made.Secret + made.Token, err
}

// kithRig is kith as members run it: a hub and a daemon, TLS to the hub and on
// the tunnel, key check, routing, usage records and logs on.
func (b *bench) kithRig(ctx context.Context, engine string) (*target, error) {
	localAddr, err := freePort()
	if err != nil {
		return nil, err
	}
	home := filepath.Join(b.dir, "home")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return nil, err
	}
	conf := fmt.Appendf(nil, "[daemon]\nlisten = %q\n[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%q]\n[share]\nslots = 512\n", localAddr, "http://"+engine)
	if err := os.WriteFile(filepath.Join(home, "config.toml"), conf, 0o600); err != nil {
		return nil, err
	}
	hub, err := b.startHub(ctx)
	if err != nil {
		return nil, err
	}
	key, err := b.run(nil, "admin", "key", "create", "--member", "bench", "--data", hub.data)
	if err != nil {
		return nil, err
	}
	token, err := b.run(nil, "admin", "machine", "token", "--member", "bench", "--data", hub.data)
	if err != nil {
		return nil, err
	}
	env := []string{"KITH_HOME=" + home, "SSL_CERT_FILE=" + hub.cert}
	if _, err := b.run(env, "login", "--hub", "https://"+hub.addr, "--token", token); err != nil {
		return nil, err
	}
	daemonPID, err := b.start("daemon", env, b.kith, "serve")
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "profiles of the hub at http://%s/debug/pprof/\n", hub.admin)
	t := &target{
		name: ours, base: "https://" + hub.addr + "/v1", key: key, cas: hub.pool, pids: []int{hub.pid, daemonPID},
	}
	return t, b.ready(ctx, t, "hub", "daemon")
}

// ready waits until a listing through the target names the model. An error holds the
// logs of the processes named.
func (b *bench) ready(ctx context.Context, t *target, processes ...string) error {
	c := t.client(1)
	defer c.CloseIdleConnections()
	err := await(ctx, 20*time.Second, func() bool {
		response, err := t.send(ctx, c, http.MethodGet, ask{path: "/models"})
		if err != nil {
			return false
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return bytes.Contains(text, []byte(model))
	})
	if err != nil {
		return fmt.Errorf("%s is not ready: %w%s", t.name, err, b.logs(processes...))
	}
	return nil
}

// certificate makes a self-signed pair for loopback.
func certificate(dir string) (cert, key string, pool *x509.CertPool, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kith bench"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return "", "", nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", nil, err
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	err = errors.Join(
		os.WriteFile(cert, certPEM, 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600),
	)
	pool = x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	return cert, key, pool, err
}
