package cli

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestAcceptedSecrets: `kith config check` says why it accepts a secret that is mounted as
// orchestrators do. The mount is in a namespace of the command.
func TestAcceptedSecrets(t *testing.T) {
	if out, err := exec.CommandContext(t.Context(), "unshare", "-rm", "true").CombinedOutput(); err != nil {
		t.Skipf("users of this computer cannot make namespaces: %v: %s", err, out)
	}
	dir := t.TempDir()
	secrets := filepath.Join(dir, "secrets")
	url, key, own := filepath.Join(secrets, "url"), filepath.Join(secrets, "key"), filepath.Join(dir, "own")
	write(t, url, "postgres://kith:word@127.0.0.1/kith\n")
	write(t, key, "sk-1\n")
	write(t, own, "sk-2\n")
	chmod(t, url, 0o444)
	chmod(t, key, 0o644)
	hub, daemon := filepath.Join(dir, "hub.toml"), filepath.Join(dir, "config.toml")
	write(t, hub, "[database]\nurl = \"file:"+url+"\"\n")
	write(t, daemon, "[[upstream]]\nname = \"a\"\nurl = \"https://a.test/v1\"\nkey = \"file:"+key+"\"\n"+
		"[[upstream]]\nname = \"b\"\nurl = \"https://b.test/v1\"\nkey = \"file:"+own+"\"\n")
	mounted := func(want string, args ...string) {
		t.Helper()
		script := `mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec kith config check "$@"`
		cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"-rm", "sh", "-euc", script, "sh", secrets}, args...)...)
		cmd.Env = append(cmd.Environ(), "KITH_HOME="+dir)
		assert.Equal(t, string(assert.Value(cmd.CombinedOutput())(t)), want)
	}
	because := " gives others access, and it is accepted since it is on a mount of its own that is read-only, " + secrets
	mounted(hub+" is good\n"+url+": its mode 0444"+because+"\n", hub)
	mounted(daemon+" is good\n"+key+": its mode 0644"+because+"\n", daemon)
	mounted(`{"file":"`+daemon+`","ok":true,"problems":[],"accepted":[{"file":"`+key+`","why":"its mode 0644`+because+`"}]}`+"\n", "--json", daemon)
}
