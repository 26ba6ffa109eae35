// Package deploy_test checks the files of this folder with the tools that read them: Helm's
// and Compose's libraries, promtool, HAProxy and systemd-analyze. `make setup-test` installs
// the tools. KITH_BIN is the kith that checks the hubs' configurations.
package deploy_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	compose "github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

// run runs a tool and returns what it prints. A tool that fails, or is not installed, ends
// the test.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Fatalf("%v: make setup-test installs it", err)
	}
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text := value(os.ReadFile(file))(t)
	return string(text)
}

// lastPort is the port that freePort returned last.
var lastPort = 13_000 + rand.IntN(16_000) // engines have 11434, 12434 and 30000

// freePort returns another port of 127.0.0.1 each time, for a process that a test starts:
// nothing listens there, and no outgoing connection is given it.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		lastPort++
		conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", lastPort))
		if err != nil {
			return lastPort
		}
		conn.Close()
	}
	t.Fatal("no port is free")
	panic("unreachable")
}

// checkHubFile checks a hub.toml with the code that reads it when a hub starts.
func checkHubFile(t *testing.T, text string) {
	t.Helper()
	bin := os.Getenv("KITH_BIN")
	if bin == "" {
		t.Fatal("KITH_BIN is not set: `make build-slim`, then KITH_BIN=$PWD/bin/kith-slim")
	}
	file := filepath.Join(t.TempDir(), "hub.toml")
	// The secret is not here.
	text = regexp.MustCompile(`url = "file:[^"]*"`).ReplaceAllString(text, `url = "postgres://kith@db/kith"`)
	ok(t, os.WriteFile(file, []byte(text), 0o600))
	run(t, []string{"KITH_HOME=" + t.TempDir()}, bin, "config", "check", file)
}

func TestCompose(t *testing.T) {
	options, err := compose.NewProjectOptions([]string{"compose/compose.yaml"}, compose.WithEnvFiles("compose/.env.example"), compose.WithDotEnv)
	ok(t, err)
	project, err := options.LoadProject(t.Context())
	ok(t, err)
	for name, service := range project.Services {
		if service.HealthCheck == nil {
			t.Errorf("%s has no health check", name)
		}
		if service.Restart == "" {
			t.Errorf("%s is not restarted", name)
		}
		for _, v := range service.Volumes {
			if v.Type != types.VolumeTypeBind {
				continue
			}
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s mounts a file that is not there: %v", name, err)
			}
		}
		for _, setting := range service.Environment {
			if setting == nil {
				t.Errorf("%s has a variable without a value", name)
			}
		}
	}
	for name, config := range project.Configs {
		if _, err := os.Stat(config.File); err != nil {
			t.Errorf("config %s: %v", name, err)
		}
	}
	setup := read(t, "compose/setup.sh")
	for name, secret := range project.Secrets {
		if !strings.Contains(setup, "secrets/"+filepath.Base(secret.File)) {
			t.Errorf("setup.sh does not make the secret %s", name)
		}
	}
	if a, b := project.Services["hub-1"], project.Services["hub-2"]; a.Hostname == b.Hostname || a.Volumes[0].Source == b.Volumes[0].Source {
		t.Error("two hubs share their name or their journal")
	}
	hub := read(t, "compose/hub.toml")
	checkHubFile(t, hub)
	if front := project.Networks["front"].Ipam.Config[0].Subnet; !strings.Contains(hub, strconv.Quote(front)) {
		t.Errorf("hub.toml does not trust the proxy's network %s", front)
	}
	for _, setting := range regexp.MustCompile(`\$\{(KITH_[A-Z0-9_]+)\}`).FindAllStringSubmatch(read(t, "compose/haproxy.cfg"), -1) {
		if project.Services["proxy"].Environment[setting[1]] == nil {
			t.Errorf("haproxy.cfg uses %s, which compose.yaml does not set", setting[1])
		}
	}
}

// TestHAProxy has HAProxy check its configuration, with the certificate that setup.sh makes.
func TestHAProxy(t *testing.T) {
	dir := t.TempDir()
	ok(t, os.CopyFS(dir, os.DirFS("compose")))
	run(t, nil, filepath.Join(dir, "setup.sh"), "hub.example.org")
	run(t, nil, filepath.Join(dir, "setup.sh")) // again: it changes nothing
	out := run(t, []string{
		"KITH_BIND=127.0.0.1:1", "KITH_BIND_PLAIN=127.0.0.1:2", "KITH_BIND_HEALTH=127.0.0.1:3", // it listens nowhere
		"KITH_CERTIFICATE=" + filepath.Join(dir, "secrets", "certificate.pem"),
		"KITH_HUB_1=127.0.0.1:1", "KITH_HUB_1_ADMIN=1", "KITH_HUB_2=127.0.0.1:1", "KITH_HUB_2_ADMIN=1",
	}, "haproxy", "-c", "-f", filepath.Join(dir, "haproxy.cfg"))
	if strings.Contains(out, "WARNING") {
		t.Error(out)
	}
}

// TestAlerts checks the alerts and runs their tests. Each alert has one, and a section in the
// operator's page.
func TestAlerts(t *testing.T) {
	run(t, nil, "promtool", "check", "config", "prometheus/prometheus.yml") // and its alerts
	run(t, nil, "promtool", "test", "rules", "prometheus/alerts_test.yml")
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert  string
				Labels map[string]string
			}
		}
	}
	ok(t, yaml.Unmarshal([]byte(read(t, "prometheus/alerts.yml")), &file))
	tests, page := read(t, "prometheus/alerts_test.yml"), read(t, "../docs/operate/cluster.md")
	for _, rule := range file.Groups[0].Rules {
		if !strings.Contains(tests, "- name: "+rule.Alert+"\n") {
			t.Errorf("%s has no test", rule.Alert)
		}
		if !strings.Contains(page, "| `"+rule.Alert+"` |") {
			t.Errorf("docs/operate/cluster.md does not explain %s", rule.Alert)
		}
		if severity := rule.Labels["severity"]; severity != "page" && severity != "ticket" {
			t.Errorf("%s has the severity %q", rule.Alert, severity)
		}
	}
}

// TestDashboard checks the form of the dashboard, and has promtool read its queries.
func TestDashboard(t *testing.T) {
	var board struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ RefID, Expr string }
		}
	}
	ok(t, json.Unmarshal([]byte(read(t, "grafana/kith.json")), &board))
	var ids []int
	var rules strings.Builder
	rules.WriteString("groups:\n- name: dashboard\n  rules:\n")
	for _, panel := range board.Panels {
		if slices.Contains(ids, panel.ID) || panel.GridPos.X+panel.GridPos.W > 24 {
			t.Errorf("panel %d, %s: doubled, or beyond the edge", panel.ID, panel.Title)
		}
		ids = append(ids, panel.ID)
		for _, target := range panel.Targets {
			query := strings.NewReplacer("$__rate_interval", "5m", "$hub", "a|b").Replace(target.Expr)
			fmt.Fprintf(&rules, "  - {record: 'panel_%d_%s', expr: %s}\n", panel.ID, target.RefID, strconv.Quote(query))
		}
	}
	file := filepath.Join(t.TempDir(), "dashboard.yml")
	ok(t, os.WriteFile(file, []byte(rules.String()), 0o600))
	run(t, nil, "promtool", "check", "rules", file)
}

// TestSystemd checks the units, and how far the hub is shut in.
func TestSystemd(t *testing.T) {
	out := run(t, []string{"SYSTEMD_COLORS=0"}, "systemd-analyze", "security", "--offline=yes", "systemd/kith-hub.service")
	level := regexp.MustCompile(`Overall exposure level for kith-hub\.service: ([0-9.]+)`).FindStringSubmatch(out)
	if level == nil {
		t.Fatal(out)
	}
	if n, err := strconv.ParseFloat(level[1], 64); err != nil || n > 2.0 {
		t.Errorf("the exposure level is %s; at most 2.0: %v", level[1], err)
	}
	dir := t.TempDir()
	for _, unit := range []string{"kith-hub.service", "kith.service"} {
		text := strings.NewReplacer("/usr/bin/kith", "/bin/true", "Documentation=", "#").Replace(read(t, "systemd/"+unit))
		file := filepath.Join(dir, unit)
		ok(t, os.WriteFile(file, []byte(text), 0o600))
		if out := run(t, nil, "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", file); strings.Contains(out, unit) {
			t.Errorf("%s: %s", unit, out)
		}
	}
}

// TestTraefikRecipe reads proxies/traefik.yml strictly, by the part of Traefik's schema that
// it uses. No test runs Traefik.
func TestTraefikRecipe(t *testing.T) {
	var file struct {
		HTTP struct {
			Routers map[string]struct {
				Rule, Service string
				EntryPoints   []string
				TLS           *struct{}
			}
			Services map[string]struct {
				LoadBalancer struct {
					PassHostHeader     bool
					ResponseForwarding struct{ FlushInterval string }
					Servers            []struct{ URL string }
					ServersTransport   string
				}
			}
			ServersTransports map[string]struct {
				MaxIdleConnsPerHost int
				ForwardingTimeouts  struct{ DialTimeout, ResponseHeaderTimeout string }
			}
		}
	}
	ok(t, yaml.UnmarshalStrict([]byte(read(t, "proxies/traefik.yml")), &file))
	for _, router := range file.HTTP.Routers {
		service, there := file.HTTP.Services[router.Service]
		if !there || len(service.LoadBalancer.Servers) != 1 || service.LoadBalancer.ResponseForwarding.FlushInterval != "-1ms" {
			t.Errorf("%+v leads to %+v", router, service)
		}
		if _, there := file.HTTP.ServersTransports[service.LoadBalancer.ServersTransport]; !there {
			t.Errorf("%+v has no transport", service)
		}
	}
	if len(file.HTTP.Routers) != 1 {
		t.Errorf("%+v", file)
	}
}
