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

// serviceURL is the base of a service elsewhere, with its /v1.
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
	case u.Scheme == "http" && !hereOnly(u.Hostname()):
		return fmt.Errorf("takes %s: without https the key would travel in the clear", s.takes())
	}
	s.Text = string(text)
	return nil
}

// hereOnly reports whether the host is this machine by its own words.
func hereOnly(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// dialectWord is what an upstream speaks; empty is "chat".
type dialectWord struct{ Text string }

func (dialectWord) takes() string { return `"chat", "embeddings", "responses" or "messages"` }

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (d *dialectWord) UnmarshalText(text []byte) error {
	if d.Text = string(text); !slices.Contains([]string{"chat", "embeddings", "responses", "messages"}, d.Text) {
		return errors.New("takes " + d.takes())
	}
	return nil
}

// secret is a value that nobody is shown, or where it stands. text is the value
// once the file was read.
type secret struct{ text string }

func (secret) takes() string {
	return `a key, or where it stands: "env:NAME" or "file:PATH", in quotes`
}

// String hides the secret.
func (secret) String() string { return "[key]" }

// GoString hides the secret from %#v, too.
func (secret) GoString() string { return "[key]" }

// LogValue hides the secret from slog.
func (secret) LogValue() slog.Value { return slog.StringValue("[key]") }

// UnmarshalText satisfies encoding.TextUnmarshaler.
func (s *secret) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}

// resolve puts the secret itself in place of where it stands. An error quotes
// nothing of it.
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
	// Windows keeps no mode bits; there the profile's own access list protects it.
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 && runtime.GOOS != "windows" {
		return fmt.Errorf("stands in %s, which others may read; run `chmod 600 %s`", path, path)
	}
	return checkSecret(s.text)
}

// checkSecret refuses what cannot stand in a header.
func checkSecret(text string) error {
	if text == "" || len(text) > 4096 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is empty or holds what no key has: spaces, line ends or other signs")
	}
	return nil
}

// resolveUpstreams checks what one key of an [[upstream]] says beside another,
// and reads the keys.
func (c *daemonFile) resolveUpstreams(file string, text []byte) (problems []problem) {
	if len(c.Upstream) == 0 {
		return nil
	}
	places := tables(text, "upstream")
	refuse := func(i int, key, format string, args ...any) {
		var at problem // of an inline table nothing is known
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
			refuse(i, "name", "is what you call this upstream: give it 1 to 64 printable bytes")
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

// tables finds where each [[name]] stands and, by name, each of its keys; "" is
// the table itself.
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

// upstreams are the configured ones in the daemon's words.
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
