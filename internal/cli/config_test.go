package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/site"
)

func TestConfigProblemsNamePlaceAndRemedy(t *testing.T) {
	for _, test := range []struct {
		name, text string
		hub        bool
		want       []string // lines of problems, without the file's name
	}{
		{name: "misspelled key", text: "[daemon]\nlisten = \"127.0.0.1:1\"\n[engine]\nslotz = 2\n",
			want: []string{`:4:1: unknown key "engine.slotz"; the nearest right key is "engine.slots"`}},
		{name: "two unknown keys", text: "[ratelimit]\n  rsp = 5\n  burts = 6\n",
			want: []string{
				`:2:3: unknown key "ratelimit.rsp"; the nearest right key is "ratelimit.rps"`,
				`:3:3: unknown key "ratelimit.burts"; the nearest right key is "ratelimit.burst"`,
			}},
		{name: "right key, wrong section", text: "[daemon]\nurl = \"https://hub.example\"\n",
			want: []string{`:2:1: unknown key "daemon.url"; the nearest right key is "hub.url"`}},
		{name: "unknown section", text: "[enigne]\nslots = 1\n",
			want: []string{`:1:2: unknown key "enigne"; the nearest right key is "engine"`}},
		{name: "wrong type", text: "[engine]\nslots = \"two\"\n",
			want: []string{":2:9: engine.slots takes an integer from 0 to 65535"}},
		{name: "a switch takes no number", text: "[engine]\nbuiltin = 1\n",
			want: []string{":2:11: engine.builtin takes true or false"}},
		{name: "a list takes no string", text: "[engine]\nmodels = \"a\"\n",
			want: []string{`:2:10: engine.models takes a list of strings, such as ["a", "b"]`}},
		{name: "negative number", text: "[engine]\nslots = -1\n",
			want: []string{":2:9: engine.slots takes an integer from 0 to 65535"}},
		{name: "too large a number", text: "[engine]\nslots = 70000\n",
			want: []string{":2:9: engine.slots takes an integer from 0 to 65535"}},
		{name: "address not loopback", text: "[daemon]\nlisten = \"0.0.0.0:8701\"\n",
			want: []string{`:2:10: daemon.listen takes a loopback address such as "127.0.0.1:8701": the local surface requires no key, so it is never opened to a network`}},
		{name: "a name is no loopback literal", text: "[daemon]\nlisten = \"localhost:8701\"\n",
			want: []string{`:2:10: daemon.listen takes a loopback address such as "127.0.0.1:8701": the local surface requires no key, so it is never opened to a network`}},
		{name: "not TOML", text: "[engine\nslots = 1\n", want: []string{":1:8: "}},
		{name: "twice", text: "[engine]\nslots = 1\nslots = 2\n", want: []string{":3:1: "}},
		{name: "zone", text: "[share]\ntimezone = \"Lisbon\"\n",
			want: []string{`:2:12: share.timezone takes an IANA time zone such as "Europe/Lisbon"`}},
		{name: "hours", text: "[share]\nhours = \"nights\"\n",
			want: []string{`:2:9: share.hours takes hours such as "Mon-Fri 18:00-23:00; Sat,Sun 00:00-24:00"`}},
		{name: "duration", hub: true, text: "[limits]\nwait = \"60 seconds\"\n",
			want: []string{`:2:8: limits.wait takes a time such as "60s" or "10m"`}},
		{name: "duration as a number", hub: true, text: "[limits]\nwait = 60\n",
			want: []string{`:2:8: limits.wait takes a time such as "60s" or "10m"`}},
		{name: "size", hub: true, text: "[limits]\nbody = \"32 megs\"\n",
			want: []string{`:2:8: limits.body takes a size such as "32MiB" or "500KB"`}},
		{name: "another database", hub: true, text: "[database]\nurl = \"mysql://db/kith\"\n",
			want: []string{`:2:7: database.url takes a URL such as postgres://USER:PASSWORD@HOST/NAME`}},
		{name: "no port of a database", hub: true, text: "[database]\nurl = \"postgres://kith:hunter2@db:port/kith\"\n",
			want: []string{`:2:7: database.url takes a URL such as postgres://USER:PASSWORD@HOST/NAME: invalid port`}},
		{name: "no name of a node", hub: true, text: "[hub]\nnode = \"My hub\"\n", want: []string{`:2:8: hub.node takes a name such as "hub-1"`}},
		{name: "no proxy", hub: true, text: "[hub]\nproxies = [\"proxy.lan\"]\n",
			want: []string{`:2:12: hub.proxies takes an address or a network such as "10.0.0.0/8"`}},
		{name: "every address a proxy", hub: true, text: "[hub]\nproxies = [\"10.0.0.1\", \"::/0\"]\n",
			want: []string{`:2:24: hub.proxies takes an address or a network such as "10.0.0.0/8": every client could claim`}},
		{name: "half a network", hub: true, text: "[hub]\nproxies = [\"10.0.0.1/8\"]\n", want: []string{`:2:12: hub.proxies takes an address or a network`}},
		{name: "every application", hub: true, text: "[hub]\ncors = [\"*\"]\n",
			want: []string{`:2:9: hub.cors takes an origin such as "https://app.example.org": with * every page`}},
		{name: "an address, no origin", hub: true, text: "[hub]\ncors = [\"https://app.example/\"]\n", want: []string{`:2:9: hub.cors takes an origin`}},
		{name: "an origin in the clear", hub: true, text: "[hub]\ncors = [\"http://localhost:5173\", \"http://app.example\"]\n",
			want: []string{`:2:34: hub.cors takes an origin such as "https://app.example.org": without https`}},
		{name: "no request at all", text: "[ratelimit]\nrps = 5\nburst = 0\n",
			want: []string{":3:9: ratelimit.burst takes 1 or more where there is a rate"}},
		{name: "no request at a hub", hub: true, text: "[ratelimit]\nburst = 0\n",
			want: []string{":2:9: ratelimit.burst takes 1 or more where there is a rate"}},
		{name: "half of TLS", hub: true, text: "[tls]\nkey = \"key.pem\"\n",
			want: []string{":2:7: tls.key is of no use without tls.certificate: set both"}},
		{name: "the other half", hub: true, text: "[tls]\ncertificate = \"cert.pem\"\n",
			want: []string{":2:15: tls.certificate is of no use without tls.key: set both"}},
		{name: "an issuer alone", hub: true, text: "[site.oidc]\nissuer = \"https://id.example\"\n",
			want: []string{":2:10: site.oidc.issuer is of no use without site.oidc.client_id"}},
		{name: "a client alone", hub: true, text: "[site.oidc]\nclient_id = \"kith\"\n",
			want: []string{":2:13: site.oidc.client_id is of no use without site.oidc.issuer: set both"}},
		{name: "an issuer in the clear", hub: true, text: "[site.oidc]\nissuer = \"http://id.example\"\n",
			want: []string{`:2:10: site.oidc.issuer takes an address such as "https://id.example.org": without https others on the network`}},
		{name: "no issuer", hub: true, text: "[site.oidc]\nissuer = \"id.example\"\n", want: []string{":2:10: site.oidc.issuer takes an address"}},
		{name: "a secret that is not there", hub: true, text: "[site]\nsignup = \"open\"\n[site.oidc]\nissuer = \"https://id.example/\"\nclient_id = \"kith\"\nclient_secret = \"env:KITH_TEST_NONE\"\n",
			want: []string{":6:17: site.oidc.client_secret names the environment variable KITH_TEST_NONE, which is not set"}},
		{name: "a button's name", hub: true, text: "[site.oidc]\nissuer = \"http://127.0.0.1:1\"\nclient_id = \"kith\"\nname = \" x\"\n",
			want: []string{":4:8: site.oidc.name is on a button"}},
		{name: "a mail server without an address", hub: true, text: "[site.smtp]\nhost = \"mail.example\"\n",
			want: []string{":2:8: site.smtp.host is of no use without site.smtp.from"}},
		{name: "no mail server", hub: true, text: "[site.smtp]\nport = 25\nfrom = \"kith@x.example\"\n", want: []string{":2:8: site.smtp.port is of no use without site.smtp.host"}},
		{name: "a mail server with its port", hub: true, text: "[site.smtp]\nfrom = \"kith@x.example\"\nhost = \"mail.example/x\"\n", want: []string{":3:8: site.smtp.host takes the name"}},
		{name: "mail from two", hub: true, text: "[site.smtp]\nhost = \"mail.example\"\nfrom = \"a@x.example, b@x.example\"\n", want: []string{":3:8: site.smtp.from takes an address"}},
		{name: "mail from a header", hub: true, text: "[site.smtp]\nhost = \"mail.example\"\nfrom = \"kith@x.example\\r\\nBcc: b@x.example\"\n", want: []string{":3:8: site.smtp.from takes an address"}},
		{name: "mail in the clear", hub: true, text: "[site.smtp]\nhost = \"mail.example\"\nfrom = \"kith@x.example\"\ntls = \"none\"\n",
			want: []string{":4:7: site.smtp.tls takes \"starttls\" or \"implicit\" for a server that is not on this machine"}},
		{name: "mail by ssl", hub: true, text: "[site.smtp]\nhost = \"mail.example\"\nfrom = \"kith@x.example\"\ntls = \"ssl\"\n", want: []string{":4:7: site.smtp.tls takes"}},
		{name: "a mail user alone", hub: true, text: "[site.smtp]\nhost = \"mail.example\"\nfrom = \"kith@x.example\"\nuser = \"kith\"\n",
			want: []string{":4:8: site.smtp.user is of no use without site.smtp.password"}},
		{name: "a mail password that is not there", hub: true, text: "[site.smtp]\nhost = \"mail.example\"\nfrom = \"kith@x.example\"\nuser = \"kith\"\npassword = \"env:KITH_TEST_NONE\"\n",
			want: []string{":5:12: site.smtp.password names the environment variable KITH_TEST_NONE, which is not set"}},
		{name: "a key of none", hub: true, text: "[site.oidc]\nisuer = \"x\"\n", want: []string{`:2:1: unknown key "site.oidc.isuer"; the nearest right key is "site.oidc.issuer"`}},
		{name: "backups of PostgreSQL", hub: true, text: "[backup]\nevery = \"24h\"\n[database]\nurl = \"postgres://x@db/kith\"\n",
			want: []string{":2:9: backup.every is for the embedded database"}},
		{name: "backups at every moment", hub: true, text: "[backup]\nevery = \"1s\"\n", want: []string{`:2:9: backup.every takes "1m" or longer`}},
		{name: "backups that do not stay", hub: true, text: "[backup]\nevery = \"24h\"\nkeep = 0\n", want: []string{":3:8: backup.keep takes 1 or more"}},
		{name: "later sections", hub: true, text: "[nats]\nurls = []\n", want: []string{`:1:2: unknown key "nats"`}},
		{name: "region", hub: true, text: "[hub]\nregion = \"EU West\"\n",
			want: []string{`:2:10: hub.region takes a region such as "eu-west": 1 to 16 of a-z, 0-9 and "-"`}},
		{name: "regions", hub: true, text: "[region]\nus = \"https://us.example\"\n", want: []string{`:1:2: unknown key "region"; the nearest right key is "regions"`}},
		{name: "an address with a path", hub: true, text: "[hub]\npublic_url = \"https://example.org/kith/\"\n",
			want: []string{`:2:14: hub.public_url takes an address such as "https://hub.example.org": without a path`}},
		{name: "its own region", hub: true, text: "[hub]\nregion = \"eu\"\n[regions]\nus = \"https://us.example\"\neu = \"https://eu.example\"\n",
			want: []string{`:5:6: regions.eu is the region of this hub (hub.region): name the others only`}},
		{name: "its own address", hub: true, text: "[hub]\npublic_url = \"https://eu.example/\"\n[regions]\nus = \"https://eu.example\"\n",
			want: []string{`:4:6: regions.us takes the address of another region: this is hub.public_url`}},
		{name: "no name of a region", hub: true, text: "[regions]\nUS = \"https://us.example\"\n", want: []string{`:2:6: regions.US is no region: a name is 1 to 16 of a-z, 0-9 and "-"`}},
		{name: "no address of a region", hub: true, text: "[regions]\nus = \"us.example\"\n",
			want: []string{`:2:6: regions.us takes an address such as "https://us.example.org"`}},
		{name: "a region with a path", hub: true, text: "[regions]\nus = \"https://us.example/v1\"\n",
			want: []string{`:2:6: regions.us takes an address such as "https://us.example.org": without a path`}},
		{name: "a region in the clear", hub: true, text: "[regions]\nus = \"http://us.example\"\n",
			want: []string{`:2:6: regions.us takes an address such as "https://us.example.org": without https members' keys would travel unencrypted`}},
		{name: "regions without a database", hub: true, text: "[regions]\nus = \"https://us.example\"\n",
			want: []string{`:2:6: regions.us is of no use without database.url: regions share a PostgreSQL database`}},
		{name: "a region of a number", hub: true, text: "[regions]\nus = 8700\n", want: []string{`:2:6: regions.us takes an address such as "https://us.example.org"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			into := any(defaultDaemonFile("/home"))
			if test.hub {
				into = defaultHubFile("/home")
			}
			var refused *configError
			if err := parseConfig("f", []byte(test.text), into); !errors.As(err, &refused) {
				t.Fatalf("accepted, or refused without a place: %v", err)
			}
			if len(refused.Problems) != len(test.want) {
				t.Fatalf("got problems %+v, want %d", refused.Problems, len(test.want))
			}
			for i, p := range refused.Problems {
				if got := refused.place(p); !strings.HasPrefix(got, "f"+test.want[i]) || strings.Contains(got, "hunter2") {
					t.Errorf("got  %s\nwant f%s", got, test.want[i])
				}
			}
		})
	}
}

// inside lets cmp look into the unexported fields of the configuration.
var inside = cmp.Exporter(func(reflect.Type) bool { return true })

// An empty list of groups differs from an absent one.
func TestConfigOfNoGroup(t *testing.T) {
	for text, want := range map[string][]string{"": nil, "[share]\ngroups = []\n": {}, "[share]\ngroups = [\"lab\"]\n": {"lab"}} {
		got := defaultDaemonFile("/home")
		assert.OK(t, parseConfig("f", []byte(text), got))
		assert.Same(t, got.Share.Groups, want, text)
	}
}

func TestConfigZeroValuesAreTheDefaults(t *testing.T) {
	for _, text := range []string{"", "[daemon]\n[hub]\n[ratelimit]\n[engine]\n[discovery]\n[share]\n"} {
		got := defaultDaemonFile("/home")
		assert.OK(t, parseConfig("f", []byte(text), got))
		if diff := cmp.Diff(defaultDaemonFile("/home"), got, inside); diff != "" {
			t.Errorf("%q changes the defaults:\n%s", text, diff)
		}
	}
	hub := defaultHubFile("/home")
	if err := parseConfig("f", []byte("[database]\nurl = \"\"\n[ratelimit]\nrps = 0\n[hub]\npublic_url = \"\"\n"), hub); err != nil {
		t.Fatal(err)
	}
	if hub.RateLimit.RPS != 0 || hub.RateLimit.Burst != 100 {
		t.Errorf("rate limit is %+v, want rps 0 (off) and the default burst", hub.RateLimit)
	}
}

func TestConfigIsRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "hub.toml")
	text := "[hub]\nlisten = \"0.0.0.0:443\"\npublic_url = \"https://hub.example/\"\ndata = \"data\"\n" +
		"[limits]\nbody = \"64KiB\"\nwait = \"90s\"\n[responses]\nkeep = \"1h\"\n[tls]\ncertificate = \"c.pem\"\nkey = \"/k.pem\"\n"
	assert.OK(t, os.WriteFile(file, []byte(text), 0o600))
	got := assert.Value(loadHubFile(dir, file))(t)
	want := defaultHubFile(dir)
	want.Hub.Listen.Text = "0.0.0.0:443"
	want.Hub.PublicURL.Text = "https://hub.example"
	want.Hub.Data = filepath.Join(dir, "data")
	want.Limits.Body.Bytes = 64 << 10
	want.Limits.Wait.Duration = 90 * time.Second
	want.Responses.Keep.Duration = time.Hour
	want.TLS.Certificate, want.TLS.Key = filepath.Join(dir, "c.pem"), "/k.pem"
	if diff := cmp.Diff(want, got, inside); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if _, err := loadHubFile(dir, filepath.Join(dir, "absent.toml")); err == nil {
		t.Error("a file asked for by name may be absent")
	}
}

// TestProviderConfig: what the hub is given of [site.oidc], and what is printed.
func TestProviderConfig(t *testing.T) {
	t.Setenv("KITH_TEST_SECRET", "canary-secret")
	c := defaultHubFile("/home")
	if err := parseConfig("f", []byte("[site.oidc]\nissuer = \"https://id.example:8443/x/\"\nclient_id = \"kith\"\nclient_secret = \"env:KITH_TEST_SECRET\"\n"), c); err != nil {
		t.Fatal(err)
	}
	want := site.Provider{Issuer: "https://id.example:8443/x/", ClientID: "kith", ClientSecret: "canary-secret", Name: "id.example:8443"}
	if got := c.Site.OIDC.provider(); got != want {
		t.Errorf("given %s", got.Issuer)
	}
	assert.Lacks(t, fmt.Sprintf("%v %+v %#v", c, c, *c), "canary", "the secret is printed")
	if got := defaultHubFile("/home").Site.OIDC.provider(); got != (site.Provider{}) {
		t.Errorf("without one: %s", got.Issuer)
	}
}

// TestMailConfig: what the hub is given of [site.smtp], and what is printed.
func TestMailConfig(t *testing.T) {
	t.Setenv("KITH_TEST_SECRET", "canary-secret")
	for text, want := range map[string]site.Mail{
		"": {},
		"host = \"mail.example\"\nfrom = \"kith <kith@x.example>\"\nuser = \"kith\"\npassword = \"env:KITH_TEST_SECRET\"\n": {
			Host: "mail.example", Port: 587, User: "kith", Password: "canary-secret", From: "kith <kith@x.example>",
		},
		"host = \"mail.example\"\nfrom = \"kith@x.example\"\ntls = \"implicit\"\n":              {Host: "mail.example", Port: 465, From: "kith@x.example", TLS: "implicit"},
		"host = \"127.0.0.1\"\nport = 25\nfrom = \"kith@x.example\"\ntls = \"none\"\n":          {Host: "127.0.0.1", Port: 25, From: "kith@x.example", TLS: "none"},
		"host = \"mail.example\"\nport = 2525\nfrom = \"kith@x.example\"\ntls = \"starttls\"\n": {Host: "mail.example", Port: 2525, From: "kith@x.example", TLS: "starttls"},
	} {
		c := defaultHubFile("/home")
		assert.OK(t, parseConfig("f", []byte("[site.smtp]\n"+text), c))
		if got := c.Site.SMTP.mail(); got != want {
			t.Errorf("%q: given port %d, %+v", text, got.Port, got.From)
		}
		assert.Lacks(t, fmt.Sprintf("%v %+v %#v", c, c, *c), "canary", "the password is printed")
	}
}
