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
			"Calls from kith on your machine are encrypted all the way", `<a href="/docs/privacy">`, `href="/signin">Sign in`)
		assert.Equal(t, strings.Contains(front.body, "Sign up"), rule == SignUpOpen, rule)
	}
}

// The picture on the front page is light or dark as the page is.
func TestFrontPictureFollowsTheTheme(t *testing.T) {
	browser := newTown(t, nil).browser()
	for theme, want := range map[string]string{
		"":      `<source srcset="/docs/pictures/front-dark.png" media="(prefers-color-scheme: dark)"><img class="shot" src="/docs/pictures/front.png"`,
		"light": `<img class="shot" src="/docs/pictures/front.png"`,
		"dark":  `<img class="shot" src="/docs/pictures/front-dark.png"`,
	} {
		browser.post("/theme", "theme", theme)
		page := browser.get("/").want(t, 200, want)
		assert.Equal(t, strings.Contains(page.body, "<source"), theme == "", theme)
	}
}
