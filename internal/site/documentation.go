package site

import (
	"html/template"
	"net/http"
	"path"
	"strings"

	"github.com/kith/kith"
	"github.com/kith/kith/internal/docsite"
	"github.com/kith/kith/internal/fault"
)

// documentationView is a page of the documentation, or what a search found.
type documentationView struct {
	Page   docsite.Page
	Text   template.HTML
	Groups []docsite.Group
	Query  string
	Hits   []docsite.Hit
}

// installScript is the script that installs kith, for a shell.
func (s *Site) installScript(*visit) (reply, error) {
	return reply{write: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(kith.InstallScript) // the client is gone: nothing to add
	}}, nil
}

// longestQuery limits what a search looks for.
const longestQuery = 200

// documentation shows a page of the documentation or a picture, or the sections that
// hold the words of the query. The file name of a page leads to it, too.
func (s *Site) documentation(v *visit) (reply, error) {
	name := v.PathValue("page")
	if data, found := docsite.Picture(name); found {
		return reply{write: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", assetKinds[path.Ext(name)])
			w.Header().Set("Cache-Control", "public, max-age=3600")
			_, _ = w.Write(data) // the browser is gone: nothing to add
		}}, nil
	}
	if name, isFile := strings.CutSuffix(name, ".md"); isFile {
		return reply{to: docsite.Page{Name: name}.Path()}, nil
	}
	if name == "" {
		name = "README"
	}
	page, found := docsite.Find(name)
	if !found || page.Path() != v.URL.Path {
		return reply{}, fault.New(fault.RouteNotFound, "the documentation has no such page; its first one is %s", docsite.Root)
	}
	query := v.URL.Query().Get("q")
	query = query[:min(len(query), longestQuery)]
	return reply{page: "documentation", title: page.Title, data: documentationView{
		Page: page, Groups: docsite.Groups(), Query: query, Hits: docsite.Search(query),
		Text: template.HTML(page.HTML), // of pages that are compiled in
	}}, nil
}
