package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// configured writes a config.toml of that mode and loads it.
func configured(t *testing.T, text string, mode os.FileMode) (*daemonFile, error) {
	t.Helper()
	dir := t.TempDir()
	for name, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"config.toml": {text, mode},
		"good.key":    {"sk-canary-file\n", 0o600},
		"open.key":    {"sk-canary-open\n", 0o644},
		"empty.key":   {"\n", 0o600},
		"two.key":     {"sk-canary-1\nsk-canary-2\n", 0o600},
	} {
		assert.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(file.text), file.mode))
	}
	return loadDaemonFile(dir, "")
}

func TestUpstreamTables(t *testing.T) {
	t.Setenv("KITH_TEST_KEY", "sk-canary-env")
	c := assert.Value(configured(t, `[[upstream]]
name = "a"
url = "https://api.example.com/v1"
key = "env:KITH_TEST_KEY"
models = ["big", "text-embedding-9"]
share = true
[[upstream]]
name = "b"
url = "http://127.0.0.1:9/v1/"
dialect = "messages"
key = "file:good.key"
[[upstream]]
name = "c"
url = "https://api.example.com/v1beta/openai"
`, 0o644))(t)
	var got []string
	for _, u := range c.upstreams() {
		got = append(got, fmt.Sprint(u.Name, " ", u.URL, " ", u.Dialect, " ", string(u.Key), " ", u.Models, " ", u.Share))
	}
	want := []string{
		"a https://api.example.com/v1 chat sk-canary-env [big text-embedding-9] true",
		"b http://127.0.0.1:9/v1/ messages sk-canary-file [] false",
		"c https://api.example.com/v1beta/openai chat  [] false",
	}
	assert.Same(t, got, want)
	assert.Lacks(t, fmt.Sprintf("%v %+v %#v", c.Upstream, c, c.upstreams()), "canary", "the key is printed")
	if _, err := configured(t, "[[upstream]]\nname = \"a\"\nurl = \"https://h/v1\"\nkey = \"sk-canary\"\n", 0o600); err != nil {
		t.Errorf("a key in a private file: %v", err)
	}
}

// Each problem has its line and column, and none quotes a key.
func TestUpstreamProblems(t *testing.T) {
	const head = "[daemon]\n[[upstream]]\nname = \"a\"\nurl = \"https://h/v1\"\n"
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":    {head + "modles = []\n", `:5:1: unknown key "upstream.modles"; the nearest right key is "upstream.models"`},
		"one table":      {"[upstream]\nname = \"a\"\n", `upstream`},
		"wrong type":     {head + "share = 1\n", ":5:9: upstream.share takes true or false"},
		"dialect":        {head + "dialect = \"gemini\"\n", `:5:11: upstream.dialect takes "chat", "embeddings", "responses" or "messages"`},
		"no https":       {strings.Replace(head, "https://h", "http://h", 1), ":4:7: upstream.url takes an address such as \"https://api.example.com/v1\": without https the key would travel unencrypted"},
		"no v1":          {strings.Replace(head, "/v1", "", 1), ":4:7: upstream.url takes an address such as \"https://api.example.com/v1\": the /v1 is missing"},
		"a user":         {strings.Replace(head, "//h", "//u:sk-canary@h", 1), ":4:7: upstream.url takes an address"},
		"no url":         {strings.Replace(head, "url", "# url", 1), ":2:3: upstream.url is missing"},
		"no name":        {strings.Replace(head, "name", "# name", 1), ":2:3: upstream.name is your name for this upstream"},
		"a name twice":   {head + "[[upstream]]\nurl = \"https://h/v1\"\nname = \"a\"\n", ":7:1: upstream.name is the name of another upstream: give each its own"},
		"shared":         {head + "dialect = \"messages\"\nshare = true\n", `:6:1: upstream.share cannot be true if the dialect is "messages": others are served in the chat dialect only`},
		"no such env":    {head + "key = \"env:KITH_TEST_NONE\"\n", ":5:1: upstream.key names the environment variable KITH_TEST_NONE, which is not set"},
		"no such file":   {head + "key = \"file:none.key\"\n", ":5:1: upstream.key names a file that cannot be read: "},
		"an open file":   {head + "key = \"file:open.key\"\n", ":5:1: upstream.key is in "},
		"an empty file":  {head + "key = \"file:empty.key\"\n", ":5:1: upstream.key is empty or holds spaces"},
		"two lines":      {head + "key = \"file:two.key\"\n", ":5:1: upstream.key is empty or holds spaces"},
		"in an open one": {head + "key = \"sk-canary-plain\"\n", "its mode 0644 gives others access; run `chmod 600 "},
		"a model's id":   {head + "models = [\" x\"]\n", ":5:1: upstream.models takes ids of 1 to 256 printable bytes"},
		"inline":         {"upstream = [{name = \"a\", url = \"https://h/v1\", key = \"env:KITH_TEST_NONE\"}]\n", "upstream.key names the environment variable"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := configured(t, c.text, 0o644)
			var refused *configError
			assert.Require(t, errors.As(err, &refused), err)
			text := ""
			for _, p := range refused.Problems {
				text += refused.place(p) + "\n"
			}
			assert.That(t, strings.Contains(text, c.want) && !strings.Contains(text, "canary"), c.want, text)
		})
	}
}
