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

// documentationView is a page of the documentation, or the results of a search.
type documentationView struct {
	Page   docsite.Page
	Text   template.HTML
	Groups []docsite.Group
	Query  string
	Hits   []docsite.Hit
}

// installScript serves the shell script that installs kith.
func (s *Site) installScript(*visit) (reply, error) {
	return reply{write: func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write(kith.InstallScript) // an error means that the client disconnected
	}}, nil
}

// longestQuery is the maximum length of a search query.
const longestQuery = 200

// documentation shows a page of the documentation, a picture, or the sections that
// contain the words of the query. A page's file name redirects to the page.
func (s *Site) documentation(v *visit) (reply, error) {
	name := v.PathValue("page")
	if data, found := docsite.Picture(name); found {
		return reply{write: func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", assetKinds[path.Ext(name)])
			w.Header().Set("Cache-Control", "public, max-age=3600")
			_, _ = w.Write(data) // an error means that the browser disconnected
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
		return reply{}, fault.New(fault.RouteNotFound, "the documentation has no such page; its first one is %s",
			docsite.Root)
	}
	query := v.URL.Query().Get("q")
	query = query[:min(len(query), longestQuery)]
	return reply{page: "documentation", title: page.Title, data: documentationView{
		Page: page, Groups: docsite.Groups(), Query: query, Hits: docsite.Search(query),
		Text: template.HTML(page.On(s.Base)), // from embedded pages
	}}, nil
}
