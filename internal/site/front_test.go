package site

import (
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// The front page says what kith is, and what of it is encrypted with a link to what is not.
// It offers an account only where a visitor can make one.
func TestFrontPage(t *testing.T) {
	for _, rule := range []SignUp{SignUpOpen, SignUpClosed} {
		tn := newTown(t, func(c *Config) { c.SignUp = rule })
		front := tn.browser().get("/").want(t, 200, "<h1>Run AI models with people you trust</h1>", `class="network"`, "curl -fsSL "+tn.web.URL+"/install.sh",
			"What the kith on your machine sends to another machine is encrypted", `<a href="/docs/privacy">`, `href="/signin">Sign in`)
		assert.Equal(t, strings.Contains(front.body, "Sign up"), rule == SignUpOpen, rule)
	}
}
