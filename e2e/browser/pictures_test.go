package browser_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	cdppage "github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

var pictures = flag.String("pictures", "", "the folder to write the pictures of the documentation to; none are made without it")

// TestPictures writes the pictures of the README and of the documentation (make pictures).
func TestPictures(t *testing.T) {
	if *pictures == "" {
		t.Skip("make pictures runs it")
	}
	n := newTown(t)
	n.engine.Script(answers)
	browser := chromium(t, map[string]any{"host-resolver-rules": "MAP " + hubName + " " + n.listen, "ignore-certificate-errors": true, "force-color-profile": "srgb", "hide-scrollbars": true})
	n.op = newTab(t, browser, "https://"+hubName, true)
	n.enter(n.op, "ada")
	_, err := chromedp.Call(n.op.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: n.zone.String()})
	assert.OK(t, err)
	n.run()
	n.photograph()
	n.record()
	for scheme, name := range []string{"network.svg", "network-dark.svg"} {
		assert.OK(t, os.WriteFile(filepath.Join(*pictures, name), frontNetwork(t, scheme), 0o644))
	}
}

// hold is a prompt whose answer does not end.
const hold = "hold"

// answers chooses what the engines answer.
func answers(c enginetest.Call) enginetest.Behaviour {
	switch {
	case c.Input == hold:
		return enginetest.Behaviour{First: time.Hour}
	case strings.Contains(c.Input, question):
		return enginetest.Behaviour{Text: answer, First: 300 * time.Millisecond, Interval: 27 * time.Millisecond}
	}
	if strings.Contains(c.Input, "haiku") {
		return enginetest.Behaviour{Text: "Idle through the night,\nyour machine answers for me:\nwarm, the fan sings low.", First: 300 * time.Millisecond, Interval: 90 * time.Millisecond}
	}
	return enginetest.Behaviour{Text: "Yes."}
}

// run starts calls that run while the pictures are taken: three of ada, on her own machine, a
// shared one and one of the group, and two of others on machines of ada.
func (n *town) run() {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var calls sync.WaitGroup
	n.t.Cleanup(func() { cancel(); calls.Wait() })
	client := &http.Client{Transport: &http.Transport{DialContext: n.dial, TLSClientConfig: &tls.Config{RootCAs: n.roots}}}
	running := []struct{ member, model string }{{ada, "qwen3:8b"}, {ada, "qwen3-coder:30b"}, {ada, "mistral-small3.2:24b"}, {bob, "gpt-oss:120b"}, {chloe, "gemma3:12b"}}
	for _, call := range running {
		body := fmt.Sprintf(`{"model":%q,"stream":true,"messages":[{"role":"user","content":%q}]}`, call.model, hold)
		req := assert.Value(http.NewRequestWithContext(ctx, "POST", "https://"+hubName+"/v1/chat/completions", strings.NewReader(body)))(n.t)
		req.Header.Set("Authorization", "Bearer "+n.secrets[call.member].Reveal())
		req.Header.Set("Content-Type", "application/json")
		calls.Go(func() {
			if resp, err := client.Do(req); err == nil { // else ctx ended first
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	assert.OK(n.t, n.engine.Wait(n.t.Context(), func(c enginetest.Counts) bool { return c.Running == len(running) }))
}

// photograph takes the pictures.
func (n *town) photograph() {
	op := n.op
	op.open("/") // its script keeps the zone
	n.until("a call for a model of the machine that is away would be refused", func() bool {
		op.open("/models?model=mistral-nemo:12b")
		return strings.Contains(op.text("main"), "would be refused")
	})
	for _, page := range []struct {
		name, path string
		height     float64
	}{
		{"home", "/", 900},
		{"machines", "/machines", 720},
		{"models-why", "/models?model=mistral-nemo:12b", 680},
		{"map", "/map", 760},
		{"usage", "/usage?days=14", 900},
		{"request", "/requests/req_7k2v9m4x", 900},
	} {
		run(op, chromedp.EmulateViewport(width, int64(page.height), chromedp.EmulateScale(scale)))
		op.open(page.path)
		op.shoot(page.name, "light", width, page.height)
	}
	run(op, chromedp.EmulateViewport(width, 820, chromedp.EmulateScale(scale)))
	for _, text := range append(earlier, question) {
		op.open("/try?model=qwen3:32b")
		n.say(text)
		n.answered(1, "")
	}
	run(op, chromedp.Evaluate[chromedp.Void](`document.activeElement.blur(); undefined`)) // the cursor blinks
	op.shoot("chat", "light", width, 820)
	// The front page's is narrow, and of fewer pixels: that page is to be light.
	run(op, chromedp.EmulateViewport(760, 660, chromedp.EmulateScale(1.5)))
	op.shoot("front", "light", 744, 660) // without the room for a scroll bar
	op.shoot("front-dark", "dark", 744, 660)
	op.quiet()
}

// The pictures are as wide as this page, each of whose pixels is scale pixels of a picture.
const (
	width = 1200
	scale = 2
)

// shoot writes a picture of the top of the page.
func (b *tab) shoot(name, scheme string, width, height float64) {
	b.t.Helper()
	b.prefers(scheme, "reduce")
	run(b, chromedp.Evaluate[chromedp.Void](`document.fonts.ready.then(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))).then(() => undefined)`, chromedp.EvalAwaitPromise))
	shot := assert.Value(chromedp.Call(b.ctx, cdppage.CaptureScreenshot, cdppage.CaptureScreenshotParams{
		Clip: &cdppage.Viewport{Width: width, Height: height, Scale: 1},
	}))(b.t)
	picture := assert.Value(png.Decode(bytes.NewReader(shot.Data)))(b.t)
	var small bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	assert.OK(b.t, encoder.Encode(&small, paletted(picture)))
	assert.OK(b.t, os.WriteFile(filepath.Join(*pictures, name+".png"), small.Bytes(), 0o644))
	b.t.Logf("%s.png: %d KiB", name, small.Len()>>10)
}

// paletted returns the picture in its 256 most frequent colours. A page has few colours; the rest
// smooth the edges of text, and each is near one of these.
func paletted(picture image.Image) *image.Paletted {
	counts := map[color.RGBA]int{}
	bounds := picture.Bounds()
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[color.RGBAModel.Convert(picture.At(x, y)).(color.RGBA)]++
		}
	}
	var colours []color.RGBA
	for c := range counts {
		colours = append(colours, c)
	}
	slices.SortFunc(colours, func(a, b color.RGBA) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a.R, b.R), cmp.Compare(a.G, b.G), cmp.Compare(a.B, b.B))
	})
	palette := color.Palette{}
	for _, c := range colours[:min(len(colours), 256)] {
		palette = append(palette, c)
	}
	small := image.NewPaletted(bounds, palette)
	draw.Draw(small, bounds, picture, bounds.Min, draw.Src)
	return small
}

var (
	variable = regexp.MustCompile(`(--[a-z-]+): (?:light-dark\(([^,]+), ([^)]+)\)|([^;]+));`)
	useOf    = regexp.MustCompile(`var\((--[a-z-]+)\)`)
)

// frontNetwork returns the moving picture of the front page as a file of its own, for a light
// (scheme 0) or a dark page (1).
func frontNetwork(t *testing.T, scheme int) []byte {
	t.Helper()
	read := func(name string) string {
		return string(assert.Value(os.ReadFile(filepath.Join("../../internal/site", name)))(t))
	}
	between := func(text, from, to string) string {
		_, text, found := strings.Cut(text, from)
		text, _, ends := strings.Cut(text, to)
		assert.Require(t, found && ends, "nothing is between", from, "and", to)
		return text
	}
	values := map[string]string{}
	for _, m := range variable.FindAllStringSubmatch(read("static/tokens.css"), -1) {
		if values[m[1]] == "" { // phones have others
			values[m[1]] = cmp.Or(m[2+scheme], m[4])
		}
	}
	css := read("static/app.css")
	_, keyframes, _ := strings.Cut(css, "\n@keyframes travel {")
	style := "text{font-family:var(--sans)}" + ".network .lines " + between(css, "  .network .lines ", "\n}\n@keyframes travel {") + "@keyframes travel {" + keyframes
	style = regexp.MustCompile(`(?m)^ *(@media \(max-width|/\*).*$`).ReplaceAllString(style, "") // what is for phones would hold for a small picture
	style = useOf.ReplaceAllStringFunc(style, func(use string) string {
		value := values[between(use, "(", ")")]
		assert.Require(t, value != "", use, "has no value")
		return value
	})
	box := between(read("templates/start.html"), `<svg class="network" `, "</svg>")
	return fmt.Appendf(nil, `<svg class="network" xmlns="http://www.w3.org/2000/svg" width="720" height="386" %s<style>%s</style></svg>`+"\n", box, style)
}

const question = "What limits how fast a 70B model answers?"

// earlier are the chats before it.
var earlier = []string{"A name for a reading group", "Which of these tests are slow?", "Explain this stack trace", "Write to the landlord"}

// answer has a heading, a formula, a table and code.
const answer = `## The memory's bandwidth

Each token reads all weights once, so the tokens per second are at most

$$ v = \frac{\text{bandwidth}}{\text{size of the weights}} $$

| Machine | Bandwidth | Weights | At most |
|---|--:|--:|--:|
| studio, M2 Ultra | 800 GB/s | 40 GB | 20 tokens/s |
| tower, 2 × RTX 3090 | 936 GB/s | 40 GB | 23 tokens/s |
| lab-a100 | 1,935 GB/s | 40 GB | 48 tokens/s |

` + "```python\ndef most(bandwidth, weights):\n    \"\"\"Return the tokens per second; both are in GB.\"\"\"\n    return bandwidth / weights\n```\n"
