package docsite

import (
	"bytes"
	"fmt"
	"html"
	"image/png"
	"path"
	"strconv"
	"strings"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	markup "github.com/yuin/goldmark/renderer/html"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// source is the address of the repository's files that are not pages.
const source = "https://github.com/kith/kith/blob/main/"

// markdown renders the pages. It passes raw HTML through: the pages are part of the
// program and use it for anchors.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.Table),
	goldmark.WithRendererOptions(markup.WithUnsafe(), renderer.WithNodeRenderers(util.Prioritized(codeRenderer{}, 1))),
)

// render renders a page. titles maps the paths of pages to their titles.
func render(name string, source []byte, titles map[string]string) (Page, error) {
	page := Page{Name: name}
	doc := markdown.Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext()))
	var comments []ast.Node
	used := map[string]int{}
	err := ast.Walk(doc, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		if node.Type() == ast.TypeBlock {
			page.addText(" ")
		}
		switch node := node.(type) {
		case *ast.Heading:
			page.addSection(node, source, used)
			return ast.WalkSkipChildren, nil
		case *ast.HTMLBlock:
			if bytes.HasPrefix(bytes.TrimSpace(lines(node, source)), []byte("<!--")) {
				comments = append(comments, node)
			}
		case *ast.FencedCodeBlock:
			page.addText(string(lines(node, source)))
		case *ast.Text:
			page.addText(string(node.Value(source)))
			if node.SoftLineBreak() || node.HardLineBreak() {
				page.addText(" ")
			}
		case *ast.Image:
			node.Destination = []byte(page.target(string(node.Destination)))
			setSize(node)
		case *ast.Link:
			node.Destination = []byte(page.target(string(node.Destination)))
			page.addLink(node, source, titles)
		}
		return ast.WalkContinue, nil
	})
	if err != nil {
		return page, err
	}
	for _, comment := range comments {
		comment.Parent().RemoveChild(comment.Parent(), comment)
	}
	var out bytes.Buffer
	if err := markdown.Renderer().Render(&out, source, doc); err != nil {
		return page, fmt.Errorf("cannot render docs/%s.md: %w", name, err)
	}
	// Code is escaped, so these tags can only be those of tables.
	page.HTML = strings.NewReplacer("<table>", `<div class="scroll" tabindex="0"><table class="stack">`, "</table>", "</table></div>").Replace(out.String())
	if len(page.Sections) == 0 {
		return page, fmt.Errorf("docs/%s.md has no title", name)
	}
	page.Title = page.Sections[0].Title
	return page, nil
}

// addSection starts a section of the page. It gives the heading an id and a link to
// itself.
func (p *Page) addSection(heading *ast.Heading, source []byte, used map[string]int) {
	title := words(heading, source)
	id := slug(title)
	used[id]++
	if n := used[id]; n > 1 {
		id = fmt.Sprintf("%s-%d", id, n-1)
	}
	p.Sections = append(p.Sections, Section{ID: id, Title: title, Level: heading.Level})
	heading.SetAttributeString("id", []byte(id))
	if heading.Level == 1 {
		return
	}
	link := ast.NewLink()
	link.Destination = []byte("#" + id)
	link.Title = []byte("Link to this section")
	link.SetAttributeString("class", []byte("anchor"))
	link.AppendChild(link, ast.NewString([]byte("#")))
	heading.AppendChild(heading, link)
}

// setSize gives a PNG its size on the page, so that nothing moves when it arrives. Two of its
// pixels are one of the page. It is loaded when it comes into sight.
func setSize(node *ast.Image) {
	data, _ := Picture(strings.TrimPrefix(string(node.Destination), Root+"/"))
	size, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return // an SVG has its own
	}
	node.SetAttributeString("width", strconv.AppendInt(nil, int64(size.Width/2), 10))
	node.SetAttributeString("height", strconv.AppendInt(nil, int64(size.Height/2), 10))
	node.SetAttributeString("loading", []byte("lazy"))
}

// addText adds text to the last section for searching.
func (p *Page) addText(text string) {
	if n := len(p.Sections); n > 0 {
		p.Sections[n-1].text += text
	}
}

// addLink records a link to another page. If its text is a file name, it replaces that by
// the title of the page.
func (p *Page) addLink(link *ast.Link, source []byte, titles map[string]string) {
	to, n := string(link.Destination), len(p.Sections)
	name, _, _ := strings.Cut(to, "#")
	if title := titles[name]; title != "" && strings.HasSuffix(words(link, source), ".md") {
		link.RemoveChildren(link)
		link.AppendChild(link, ast.NewString([]byte(title)))
	}
	if n > 0 && strings.HasPrefix(to, Root+"/") && !strings.Contains(to, "#") {
		p.links = append(p.links, Link{Path: to, Title: words(link, source), below: p.Sections[n-1].Title})
	}
}

// target returns the address on a hub for a link of the page: another page, a picture, an
// anchor on the same page, or a file in the repository.
func (p *Page) target(to string) string {
	if strings.HasPrefix(to, "#") || strings.Contains(to, ":") {
		return to
	}
	file, id, hasID := strings.Cut(to, "#")
	file = path.Join("docs", path.Dir(p.Name), file)
	inside, isOurs := strings.CutPrefix(file, "docs/")
	name, isPage := strings.CutSuffix(inside, ".md")
	switch {
	case !isOurs, !isPage && path.Dir(inside) != pictures:
		file = source + file
	default:
		file = Page{Name: name}.Path()
	}
	if hasID {
		file += "#" + id
	}
	return file
}

func words(node ast.Node, source []byte) string {
	var out strings.Builder
	_ = ast.Walk(node, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if text, ok := n.(*ast.Text); ok && entering {
			out.Write(text.Value(source))
		}
		return ast.WalkContinue, nil
	})
	return out.String()
}

// slug returns the id of a heading as code hosts generate it: its letters and digits in
// lower case, with hyphens for spaces.
func slug(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, heading)
}

func lines(block ast.Node, source []byte) []byte {
	var out bytes.Buffer
	for _, line := range block.Lines().Sliced(0, block.Lines().Len()) {
		out.Write(line.Value(source))
	}
	return out.Bytes()
}

// codeRenderer renders code blocks, with their language above them, and inline code.
type codeRenderer struct{}

// longestUnbroken is the number of bytes of a word of code that are kept on one line: the
// width of a small phone.
const longestUnbroken = 32

// RegisterFuncs implements renderer.NodeRenderer.
func (codeRenderer) RegisterFuncs(to renderer.NodeRendererFuncRegisterer) {
	to.Register(ast.KindFencedCodeBlock, func(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		language := string(node.(*ast.FencedCodeBlock).Language(source))
		before, copied, after := "", "", "" // a block without a language is a drawing
		if language != "" {
			before = `<figure class="code-block"><figcaption>` + html.EscapeString(language) + `</figcaption>`
			copied, after = " data-copy", "</figure>"
		}
		_, err := fmt.Fprintf(w, `%s<pre tabindex="0"%s aria-label="these lines"><code>%s</code></pre>%s`+"\n",
			before, copied, html.EscapeString(string(lines(node, source))), after)
		return ast.WalkSkipChildren, err
	})
	to.Register(ast.KindCodeSpan, func(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		unbroken := strings.Fields(words(node, source))
		for i, word := range unbroken {
			unbroken[i] = html.EscapeString(word)
			if len(word) <= longestUnbroken {
				unbroken[i] = "<span>" + unbroken[i] + "</span>"
			}
		}
		_, err := fmt.Fprintf(w, "<code>%s</code>", strings.Join(unbroken, " "))
		return ast.WalkSkipChildren, err
	})
}
