package cli

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
)

// serviceURL is the base URL of an upstream, with its /v1.
type serviceURL struct{ Text string }

func (serviceURL) takes() string { return `an address such as "https://api.example.com/v1", in quotes` }

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (s *serviceURL) UnmarshalText(text []byte) error {
	u, err := url.Parse(string(text))
	switch {
	case err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("takes " + s.takes())
	case strings.Trim(u.Path, "/") == "":
		return fmt.Errorf("takes %s: the /v1 is missing", s.takes())
	case u.Scheme == "http" && !isLocalHost(u.Hostname()):
		return fmt.Errorf("takes %s: without https the key would travel unencrypted", s.takes())
	}
	s.Text = string(text)
	return nil
}

// isLocalHost reports whether the host is "localhost" or a loopback address.
func isLocalHost(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// dialectWord is the dialect of an upstream; empty is "chat".
type dialectWord struct{ Text string }

func (dialectWord) takes() string { return `"chat", "embeddings", "responses" or "messages"` }

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (d *dialectWord) UnmarshalText(text []byte) error {
	if d.Text = string(text); !slices.Contains([]string{"chat", "embeddings", "responses", "messages"}, d.Text) {
		return errors.New("takes " + d.takes())
	}
	return nil
}

// secret is a value that is never printed, or its source. After resolve text is the
// value.
type secret struct{ text string }

func (secret) takes() string {
	return `a key, or its source "env:NAME" or "file:PATH", in quotes`
}

// String hides the secret.
func (secret) String() string { return "[key]" }

// GoString hides the secret from %#v too.
func (secret) GoString() string { return "[key]" }

// LogValue hides the secret from slog.
func (secret) LogValue() slog.Value { return slog.StringValue("[key]") }

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (s *secret) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}

// resolve replaces the source of the secret by the secret. An error holds no part of
// the secret.
func (s *secret) resolve(file string) error {
	if name, ok := strings.CutPrefix(s.text, "env:"); ok {
		if s.text = strings.TrimSpace(os.Getenv(name)); s.text == "" {
			return fmt.Errorf("names the environment variable %s, which is not set", name)
		}
		return checkSecret(s.text)
	}
	path, elsewhere := strings.CutPrefix(s.text, "file:")
	if elsewhere {
		path = pathIn(file, path)
		text, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("names a file that cannot be read: %w", err)
		}
		s.text = strings.TrimSpace(string(text))
	} else if path = file; s.text == "" {
		return nil
	}
	// Windows has no mode bits; the access list of the profile protects the file there.
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("is in %s, which others may read; run `chmod 600 %s`", path, path)
	}
	return checkSecret(s.text)
}

// checkSecret refuses what a header cannot hold.
func checkSecret(text string) error {
	if text == "" || len(text) > 4096 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is empty or holds spaces, line ends or other characters that no key has")
	}
	return nil
}

// resolveUpstreams checks the keys of each [[upstream]] against each other, and reads
// the secrets.
func (c *daemonFile) resolveUpstreams(file string, text []byte) (problems []problem) {
	if len(c.Upstream) == 0 {
		return nil
	}
	places := tables(text, "upstream")
	refuse := func(i int, key, format string, args ...any) {
		var at problem // the position in an inline table is not known
		if i < len(places) {
			at = cmp.Or(places[i][key], places[i][""])
		}
		at.Key = "upstream." + key
		at.Message = at.Key + " " + fmt.Sprintf(format, args...)
		problems = append(problems, at)
	}
	names := map[string]bool{}
	for i := range c.Upstream {
		u := &c.Upstream[i]
		if u.Dialect.Text == "" {
			u.Dialect.Text = "chat"
		}
		switch {
		case u.Name == "" || len(u.Name) > 64 || !fleet.ModelID(u.Name).Valid():
			refuse(i, "name", "is your name for this upstream: give it 1 to 64 printable bytes")
		case names[u.Name]:
			refuse(i, "name", "is the name of another upstream: give each its own")
		}
		names[u.Name] = true
		if u.URL.Text == "" {
			refuse(i, "url", "is missing: it takes %s", u.URL.takes())
		}
		if err := u.Key.resolve(file); err != nil {
			refuse(i, "key", "%v", err)
		}
		for _, id := range u.Models {
			if !fleet.ModelID(id).Valid() {
				refuse(i, "models", "takes ids of 1 to 256 printable bytes")
			}
		}
		if u.Share && (u.Dialect.Text == "responses" || u.Dialect.Text == "messages") {
			refuse(i, "share", "cannot be true where the dialect is %q: others are served in the chat dialect only", u.Dialect.Text)
		}
	}
	return problems
}

// tables returns the positions of each [[name]] by key; "" is the table itself.
func tables(text []byte, name string) []map[string]problem {
	var parser unstable.Parser
	parser.Reset(text)
	var found []map[string]problem
	inside := false
	for parser.NextExpression() {
		expression := parser.Expression()
		var parts []string
		var raw unstable.Range
		for it := expression.Key(); it.Next(); {
			if parts == nil {
				raw = it.Node().Raw
			}
			parts = append(parts, string(it.Node().Data))
		}
		at := parser.Shape(raw).Start
		switch {
		case expression.Kind == unstable.ArrayTable:
			if inside = len(parts) == 1 && parts[0] == name; inside {
				found = append(found, map[string]problem{"": {Line: at.Line, Column: at.Column}})
			}
		case expression.Kind == unstable.Table:
			inside = false
		case inside && len(parts) == 1:
			found[len(found)-1][parts[0]] = problem{Line: at.Line, Column: at.Column}
		}
	}
	return found
}

// upstreams converts the configured upstreams.
func (c *daemonFile) upstreams() []engine.UpstreamConfig {
	var all []engine.UpstreamConfig
	for _, u := range c.Upstream {
		config := engine.UpstreamConfig{Name: u.Name, URL: u.URL.Text, Dialect: u.Dialect.Text, Key: engine.Key(u.Key.text), Share: u.Share}
		for _, id := range u.Models {
			config.Models = append(config.Models, fleet.ModelID(id))
		}
		all = append(all, config)
	}
	return all
}
