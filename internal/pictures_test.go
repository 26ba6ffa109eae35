package internal_test

import (
	"encoding/xml"
	"image/png"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

var (
	markdownPicture = regexp.MustCompile(`!\[([^\]]*)\]\(([^)]*)\)`)
	pictureTag      = regexp.MustCompile(`<(?:img|source)\s[^>]*>`)
	attribute       = regexp.MustCompile(`(\w+)="([^"]*)"`)
)

// TestPictures checks each picture that the README, a page of the documentation or the front page
// shows: it exists, it is small, it has a text for those who do not see it, and a tag has its
// proportions. Each picture is shown somewhere.
func TestPictures(t *testing.T) {
	shown := map[string]bool{}
	show := func(page, name, alt string) (width, height float64) {
		t.Helper()
		assert.That(t, len(alt) > 10, page, "has no text for", name)
		shown[name] = true
		file := filepath.Join("..", name)
		info, err := os.Stat(file)
		if err != nil {
			t.Errorf("%s shows %s, which does not exist: make pictures makes it", page, name)
			return 0, 0
		}
		limit := map[string]int64{".png": 150, ".svg": 300}[path.Ext(name)]
		if strings.HasPrefix(path.Base(name), "front") {
			limit = 48 // with it the front page is within its budget
		}
		assert.That(t, info.Size() <= limit<<10, name, "has", info.Size()>>10, "KiB, want", limit, "at most")
		return pictureSize(t, file)
	}
	pages := []string{"README.md", "internal/site/templates/start.html"}
	assert.OK(t, filepath.WalkDir("../docs", func(name string, _ fs.DirEntry, err error) error {
		if path.Ext(name) == ".md" {
			pages = append(pages, strings.TrimPrefix(filepath.ToSlash(name), "../"))
		}
		return err
	}))
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join("..", page))
		assert.OK(t, err)
		for _, m := range markdownPicture.FindAllStringSubmatch(string(text), -1) {
			show(page, path.Join(path.Dir(page), m[2]), m[1])
		}
		var width, height float64 // of the source before
		for _, tag := range pictureTag.FindAllString(string(text), -1) {
			has := map[string]string{}
			for _, m := range attribute.FindAllStringSubmatch(tag, -1) {
				has[m[1]] = m[2]
			}
			if name, isSource := has["srcset"]; isSource {
				width, height = show(page, inRepository(page, name), "of the img that follows")
				continue
			}
			w, h := show(page, inRepository(page, has["src"]), has["alt"])
			assert.That(t, width == 0 || width == w && height == h, page, has["src"], "differs in size from its source")
			tagWidth, err := strconv.ParseFloat(has["width"], 64)
			assert.OK(t, err, page, tag)
			tagHeight, err := strconv.ParseFloat(has["height"], 64)
			assert.OK(t, err, page, tag)
			assert.That(t, max(tagWidth*h-tagHeight*w, tagHeight*w-tagWidth*h) < w, page, has["src"], "is", w, "by", h, "but its tag", tagWidth, "by", tagHeight)
			width, height = 0, 0
		}
	}
	all, err := filepath.Glob("../docs/pictures/*")
	assert.OK(t, err)
	assert.That(t, len(all) > 5, len(all), "pictures")
	for _, file := range all {
		assert.That(t, shown[strings.TrimPrefix(filepath.ToSlash(file), "../")], file, "is shown nowhere")
	}
}

// inRepository returns the path of a picture from the repository's root. The hub serves docs.
func inRepository(page, to string) string {
	if strings.HasPrefix(to, "/") {
		return strings.TrimPrefix(to, "/")
	}
	return path.Join(path.Dir(page), to)
}

// pictureSize returns the width and height of a PNG or SVG.
func pictureSize(t *testing.T, file string) (width, height float64) {
	t.Helper()
	f, err := os.Open(file)
	assert.OK(t, err)
	defer f.Close()
	if path.Ext(file) == ".png" {
		size, err := png.DecodeConfig(f)
		assert.OK(t, err, file)
		return float64(size.Width), float64(size.Height)
	}
	var root struct {
		Box string `xml:"viewBox,attr"`
	}
	assert.OK(t, xml.NewDecoder(f).Decode(&root), file)
	sides := strings.Fields(root.Box)
	assert.Require(t, len(sides) == 4, file, "has no viewBox")
	for i, side := range []*float64{&width, &height} {
		*side, err = strconv.ParseFloat(sides[2+i], 64)
		assert.OK(t, err, file)
	}
	return width, height
}
