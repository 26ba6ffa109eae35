package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// TestSpoiltConfigurations: what editors, full disks and other spellings make of a file is
// named with what to do.
func TestSpoiltConfigurations(t *testing.T) {
	good := "[share]\nslots = 2\n"
	for name, c := range map[string]struct{ file, text, want string }{
		"a byte order mark":     {"config.toml", "\ufeff" + good, ""},
		"UTF-16":                {"config.toml", "\xff\xfe[\x00s\x00", "is in UTF-16"},
		"UTF-16, big":           {"config.toml", "\xfe\xff\x00[\x00s", "is in UTF-16"},
		"empty":                 {"config.toml", "", "is empty, as a full disk or a power cut leaves it"},
		"a key in capitals":     {"config.toml", "[share]\nSlots = 2\n", `:2:1: unknown key "share.Slots"; the nearest right key is "share.slots"`},
		"a section in capitals": {"config.toml", "[Share]\nslots = 2\n", `:1:2: unknown key "Share"; the nearest right key is "share"`},
		"all in capitals":       {"config.toml", "[[UPSTREAM]]\nname = \"a\"\n", `:1:3: unknown key "UPSTREAM"; the nearest right key is "upstream"`},
		"a dotted key":          {"hub.toml", "Hub.Listen = \"127.0.0.1:1\"\n", `:1:1: unknown key "Hub.Listen"; the nearest right key is "hub.listen"`},
		"within a section":      {"hub.toml", "[site.OIDC]\nissuer = \"x\"\n", `:1:2: unknown key "site.OIDC"; the nearest right key is "site.oidc"`},
		"no position":           {"config.toml", "upstream = [{name = \"a\", url = \"https://h/v1\", key = \"env:KITH_TEST_NONE\"}]\n", "1 to correct in it; correct it and check again"},
		"no certificate":        {"hub.toml", "[tls]\ncertificate = \"none.pem\"\nkey = \"none.key\"\n", ":2:15: tls.certificate names files that cannot be used: cannot look at "},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), c.file)
			write(t, file, c.text)
			said := kith(t, "", "config", "check", file)
			out := said.out + said.err
			status := said.status
			if (status == 0) != (c.want == "") || !strings.Contains(out, c.want) || strings.Contains(out, "line 0") {
				t.Errorf("status %d: %s", status, out)
			}
		})
	}
}

// TestPasswords: what a person chose as a password is taken as it is, from wherever.
func TestPasswords(t *testing.T) {
	const chosen = " grüne Äpfel, 3 Stück "
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, "\ufeff"+chosen+"\r\n")
	t.Setenv("KITH_TEST_PASSWORD", chosen)
	for _, source := range []string{chosen, "env:KITH_TEST_PASSWORD", "file:" + file} {
		p := password{secret{text: source}}
		if err := p.resolve(file); err != nil || p.text != chosen {
			t.Errorf("%s: %q, %v", source, p.text, err)
		}
	}
	for _, wrong := range []string{" ", "a\nb", "\xff"} {
		if err := (&password{secret{text: wrong}}).resolve(file); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
	c := defaultHubFile("/home")
	if err := parseConfig(file, []byte("[site.smtp]\nhost = \"mail.example\"\nfrom = \"k@x.example\"\nuser = \"k\"\npassword = \""+chosen+"\"\n"+
		"[site.oidc]\nissuer = \"https://id.example\"\nclient_id = \"k\"\nclient_secret = \"two words\"\n"), c); err != nil {
		t.Fatal(err)
	}
	if c.Site.SMTP.mail().Password != chosen || c.Site.OIDC.provider().ClientSecret != "two words" {
		t.Error("the passwords are others")
	}
}

// TestHomeInPaths: the ~ of KITH_HOME and of flags, which no shell has resolved, is the
// user's home.
func TestHomeInPaths(t *testing.T) {
	home := assert.Value(os.UserHomeDir())(t)
	for path, want := range map[string]string{
		"~": home, "~/x": filepath.Join(home, "x"), "~x": "~x", "a/~/x": "a/~/x", "": "",
	} {
		assert.Equal(t, pathHere(path), want, path)
	}
	t.Setenv("KITH_HOME", "~/of kith")
	assert.Equal(t, assert.Value(kithHome())(t), filepath.Join(home, "of kith"), "KITH_HOME")
}

// TestCommandsWithoutSecrets: a command beside a hub or a daemon does not need the secrets
// that its service has in its environment.
func TestCommandsWithoutSecrets(t *testing.T) {
	home := t.TempDir()
	file := filepath.Join(home, "hub.toml")
	write(t, file, "[hub]\ndata = \"data\"\n[database]\nurl = \"env:KITH_TEST_NONE\"\n[regions]\nus = \"https://us.example\"\n"+
		"[site.smtp]\nhost = \"mail.example\"\nfrom = \"k@x.example\"\nuser = \"k\"\npassword = \"file:none\"\n")
	o := &operator{app: &app{home: home}, file: file}
	assert.Equal(t, assert.Value(o.folder())(t), filepath.Join(home, "data"), "the hub's folder")
	assert.Fails(t, assert.Err(o.database()), "KITH_TEST_NONE, which is not set", "without the database's URL")
	t.Setenv("KITH_TEST_NONE", "postgres://k@db/kith")
	assert.Equal(t, assert.Value(o.database())(t).URL, "postgres://k@db/kith", "without the mail server's password")
	write(t, file, "[hub]\ndata = 1\n[database]\nurl = \"env:KITH_TEST_NONE\"\n")
	if _, err := o.folder(); err == nil {
		t.Error("a file that is wrong is taken")
	}
	write(t, filepath.Join(home, "config.toml"), "[daemon]\ndata = \"d\"\n[[upstream]]\nname = \"a\"\nurl = \"https://h/v1\"\nkey = \"env:KITH_TEST_NOT\"\n")
	if c, err := loadLocalFile(home); err != nil || c.Daemon.Data != filepath.Join(home, "d") {
		t.Errorf("the daemon's: %+v, %v", c, err)
	}
	if _, err := loadDaemonFile(home, ""); err == nil {
		t.Error("a daemon starts without its upstream's key")
	}
}
