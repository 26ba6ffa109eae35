package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/kith/kith/internal/engine"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/host"
)

// serviceURL is the base URL of an upstream, including /v1.
type serviceURL struct{ Text string }

func (serviceURL) takes() string { return `an address such as "https://api.example.com/v1"` }

func (s *serviceURL) UnmarshalText(text []byte) error {
	s.Text = string(text)
	u, err := parseURL(s, s.Text, "the key would travel unencrypted")
	if err == nil && strings.Trim(u.Path, "/") == "" {
		err = fmt.Errorf("takes %s: the /v1 is missing", s.takes())
	}
	return err
}

// secret is a value that is never printed, or its source. After resolve, text is the
// value and file the file that contains it; file is empty for an environment variable.
type secret struct{ text, file string }

func (secret) takes() string {
	return `a key, or its source "env:NAME" or "file:PATH"`
}

// String hides the secret.
func (secret) String() string { return "[key]" }

func (secret) GoString() string { return "[key]" }

func (secret) LogValue() slog.Value { return slog.StringValue("[key]") }

func (s *secret) UnmarshalText(text []byte) error {
	s.text = string(text)
	return nil
}

// resolve replaces the secret's source by the secret. Its errors contain no part of the
// secret.
func (s *secret) resolve(file string) error {
	if s.text == "" {
		return nil
	}
	if err := s.read(file); err != nil {
		return err
	}
	s.text = strings.TrimSpace(s.text)
	if s.text == "" || len(s.text) > 4096 || strings.ContainsFunc(s.text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return errors.New("is empty or holds spaces, line ends or other characters that no key has")
	}
	return nil
}

// read replaces the secret's source by the unchanged secret without the end of the line.
func (s *secret) read(file string) error {
	if name, ok := strings.CutPrefix(s.text, "env:"); ok {
		value := os.Getenv(name)
		if strings.TrimSpace(value) == "" {
			return fmt.Errorf("names the environment variable %s, which is not set", name)
		}
		s.text = value
		return nil
	}
	path, elsewhere := strings.CutPrefix(s.text, "file:")
	if elsewhere {
		path = pathIn(file, path)
		text, err := host.ReadText(path)
		if err != nil {
			return fmt.Errorf("names a file that cannot be read: %w", err)
		}
		s.text = strings.TrimRight(string(text), "\r\n")
	} else {
		path = file
	}
	if err := host.CheckSecretFile(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("is in %s: %w", path, err)
	}
	s.file = path
	return nil
}

// password is a secret chosen by a person: it may contain spaces and umlauts.
type password struct{ secret }

// resolve replaces the source of the password by the password.
func (p *password) resolve(file string) error {
	if p.text == "" {
		return nil
	}
	if err := p.read(file); err != nil {
		return err
	}
	if strings.TrimSpace(p.text) == "" || len(p.text) > 4096 || !utf8.ValidString(p.text) || strings.ContainsFunc(p.text, unicode.IsControl) {
		return errors.New("is empty, longer than 4,096 bytes, no UTF-8, or holds a line end or another control character")
	}
	return nil
}

// resolveUpstreams validates the keys of each [[upstream]] and reads the secrets.
func (c *daemonFile) resolveUpstreams(file string, text []byte) (problems []problem) {
	if len(c.Upstream) == 0 {
		return nil
	}
	places := tables(text, "upstream")
	refuse := func(i int, key, format string, args ...any) {
		var at problem // positions in inline tables are unknown
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
			problems[len(problems)-1].secret = true
			u.Key.text = ""
		}
		for _, id := range u.Models {
			if !id.Valid() {
				refuse(i, "models", "takes ids of 1 to 256 printable bytes")
			}
		}
		if u.Share && (u.Dialect.Text == "responses" || u.Dialect.Text == "messages") {
			refuse(i, "share", "cannot be true if the dialect is %q: others are served in the chat dialect only", u.Dialect.Text)
		}
	}
	return problems
}

// tables returns the positions of each [[name]] by key; "" is the table itself.
func tables(text []byte, name string) (found []map[string]problem) {
	walk(text, func(e entry) {
		if !slices.Equal(e.table, []string{name}) {
			return
		}
		if e.value == nil {
			found = append(found, map[string]problem{})
		}
		found[len(found)-1][strings.Join(e.key, ".")] = problem{Line: e.keyAt.Line, Column: e.keyAt.Column}
	})
	return found
}

func (c *daemonFile) upstreams() (all []engine.UpstreamConfig) {
	for _, u := range c.Upstream {
		all = append(all, engine.UpstreamConfig{
			Name: u.Name, URL: u.URL.Text, Dialect: u.Dialect.Text, Key: engine.Key(u.Key.text), Models: u.Models, Share: u.Share,
		})
	}
	return all
}
