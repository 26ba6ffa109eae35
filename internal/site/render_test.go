package site

import (
	"testing"

	"github.com/kith/kith/internal/assert"
)

// Commands in our texts become code, and everything else in them stays text.
func TestInCode(t *testing.T) {
	for text, want := range map[string]string{
		"its hours (`kith hours`); or not":  "its hours (<code>kith hours</code>); or not",
		"`a` and `<b>`":                     "<code>a</code> and <code>&lt;b&gt;</code>",
		"<script>alert(1)</script>":         "&lt;script&gt;alert(1)&lt;/script&gt;",
		"half a quote ` and <i>no more</i>": "half a quote ` and &lt;i&gt;no more&lt;/i&gt;",
	} {
		if got := string(inCode(text)); got != want {
			t.Errorf("inCode(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestBrowserName(t *testing.T) {
	for agent, want := range map[string]string{
		"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36":                                   "Chrome on Linux",
		"Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Safari/537.36 Edg/156.0.0.0":           "Edge on Windows",
		"Mozilla/5.0 (Linux; Android 16; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/156.0.0.0 Mobile Safari/537.36":                         "Chrome on Android",
		"Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/19.0 Mobile/15E148 Safari/604.1": "Safari on iPhone",
		"Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15; rv:150.0) Gecko/20100101 Firefox/150.0":                                                    "Firefox on macOS",
		"Mozilla/5.0 (iPad; CPU OS 19_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) CriOS/156.0.0.0 Mobile/15E148 Safari/604.1":       "Chrome on iPad",
		"curl/8.14.1": "curl/8.14.1",
		"":            "unknown",
	} {
		if got := browserName(agent); got != want {
			t.Errorf("browserName(%q) = %q, want %q", agent, got, want)
		}
	}
}

func TestRate(t *testing.T) {
	for x, want := range map[float64]string{4.26: "4.3", 48: "48.0", 123.4: "123", 11411.2: "11,411"} {
		assert.Equal(t, rate(x), want, x, "tokens a second")
	}
}
