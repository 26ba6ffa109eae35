// Package internal_test holds the house together: the architecture as a test.
package internal_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/kith/kith/internal/"

// mayImport is the import table of docs/ARCHITECTURE.md: which of our packages
// a package may use. A package that is missing here fails the test, so a new
// one is placed on purpose.
var mayImport = map[string][]string{
	"fault":       {},
	"credential":  {},
	"account":     {},
	"certificate": {"host"},
	"llama":       {"llama/chatform"},
	"spool":       {"fault"},
	"llamaserver": {},
	"host":        {},
	"seal":        {},
	"mail":        {},
	"outbound":    {},
	"pull":        {"outbound"},
	"docsite":     {},
	"limit":       {},
	"fleet":       {"fault"},
	"dialect":     {"fault", "fleet", "spool"},
	"gateway":     {"fault", "fleet", "dialect", "limit", "spool", "outbound"},
	"tunnel":      {"fleet", "outbound"},
	"registry":    {"account", "fleet", "tunnel"},
	"engine":      {"fleet", "fault", "dialect", "spool", "outbound"},
	"store":       {"account", "fleet", "credential"},
	"api":         {"account", "fleet", "credential", "fault", "store"},
	"site":        {"api", "account", "fleet", "credential", "docsite", "fault", "limit", "mail"},
	"cluster":     {"account", "dispatch", "fleet", "gateway", "limit", "outbound", "registry", "tunnel"},
	"hub":         {"gateway", "account", "fleet", "fault", "credential", "registry", "tunnel", "ledger", "ledger/journal", "dispatch", "cluster", "limit", "spool", "store", "api", "site"},
	"ledger":      {"account", "credential", "fault", "fleet"},
	"dispatch":    {"account", "fault", "fleet", "gateway", "ledger", "registry", "spool", "tunnel"},
	"daemon":      {"gateway", "dialect", "fleet", "fault", "engine", "tunnel", "host", "spool"},
	"cli":         {"account", "api", "certificate", "site", "hub", "ledger/journal", "daemon", "daemon/private", "daemon/sealed", "cluster", "store", "registry", "llama", "llamaserver", "credential", "enginetest", "engine", "gateway", "fleet", "host", "postgres", "pull", "spool", "outbound"},
	"assert":      {},
	"enginetest":  {},
	"postgres":    {},
	"storetest":   {"postgres", "store"},
	"sim":         {"account", "credential", "daemon", "daemon/sealed", "engine", "enginetest", "fault", "fleet", "gateway", "hub", "cluster", "dispatch", "registry", "store", "tunnel"},

	"daemon/private":  {"host"},
	"daemon/sealed":   {"daemon/private", "dialect", "dispatch/prefix", "fault", "fleet", "gateway", "seal", "tunnel"},
	"dispatch/prefix": {"dialect"},
	"llama/chatform":  {},
	"llama/llamatest": {},
	"ledger/journal":  {},
	"mail/mailtest":   {},
}

// only says which packages alone may import a module (by prefix), and why.
var only = []struct {
	prefix, why string
	packages    []string
}{
	{"database/sql", "SQL stays in the store", []string{"store", "store/internal/column"}},
	{"modernc.org/sqlite", "drivers stay in the store", []string{"store"}},
	{"github.com/jackc/pgx", "drivers stay in the store", []string{"store"}},
	{"github.com/ardanlabs/jinja", "untrusted templates run in a process of their own", []string{"llama/chatform"}},
	{"github.com/ebitengine/purego", "foreign code is called from one place", []string{"llama"}},
	{"github.com/Microsoft/go-winio", "Windows' pipes are opened in one place", []string{"daemon"}},
	{"go.mau.fi/util", "what names look like is compared in one place", []string{"account"}},
	{"github.com/thlib/", "the time zone is found in one place", []string{"host"}},
	{"github.com/caddyserver/certmagic", "certificates are got in one place", []string{"certificate"}},
	{"github.com/spf13/cobra", "commands are cli's", []string{"cli"}},
	{"github.com/wneessen/go-mail", "a mail server is spoken to from one place", []string{"mail"}},
	{"github.com/prometheus/", "what is measured has its names in one place", []string{"hub", "cli"}},
	{"github.com/yuin/goldmark", "pages are rendered in one place", []string{"docsite"}},
	{"html/template", "pages are site's; it also keeps the linker from pruning", []string{"site"}},
}

// Budgets on the tails, from looking at codebases that age well.
const (
	maxFileLines     = 700
	maxFuncLines     = 100
	p95FuncLines     = 50
	maxOwnImports    = 8
	maxOwnInterfaces = 9
)

type source struct {
	pkg  string // folder below internal/
	file string
	ast  *ast.File
	set  *token.FileSet
}

// sources parses every non-test, non-generated Go file below internal/.
func sources(t *testing.T) []source {
	t.Helper()
	var out []source
	set := token.NewFileSet()
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == "testdata" {
			return fs.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if head, _, _ := bytes.Cut(text, []byte("\npackage ")); bytes.Contains(head, []byte("DO NOT EDIT")) {
			return nil
		}
		file, err := parser.ParseFile(set, name, text, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, source{filepath.ToSlash(filepath.Dir(name)), name, file, set})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestImportsFollowTheTable(t *testing.T) {
	own := map[string]map[string]bool{}
	for _, src := range sources(t) {
		allowed, known := mayImport[src.pkg]
		if !known && !strings.HasPrefix(src.pkg, "store/") {
			t.Errorf("%s: package %q has no row in the import table (internal/house_test.go)", src.file, src.pkg)
			continue
		}
		if own[src.pkg] == nil {
			own[src.pkg] = map[string]bool{}
		}
		for _, spec := range src.ast.Imports {
			name, _ := strconv.Unquote(spec.Path.Value)
			if ours, ok := strings.CutPrefix(name, module); ok {
				inside := strings.HasPrefix(ours, src.pkg+"/")
				if !inside {
					own[src.pkg][ours] = true
				}
				if !inside && !slices.Contains(allowed, ours) {
					t.Errorf("%s imports %s, which its row does not allow", src.file, ours)
				}
			}
			if name == "encoding/json" {
				t.Errorf("%s imports encoding/json: use encoding/json/v2, which is strict", src.file)
			}
			for _, rule := range only {
				if (name == rule.prefix || strings.HasPrefix(name, strings.TrimSuffix(rule.prefix, "/")+"/")) && !slices.Contains(rule.packages, src.pkg) {
					t.Errorf("%s imports %s: %s", src.file, name, rule.why)
				}
			}
		}
	}
	for pkg, imports := range own {
		if len(imports) > maxOwnImports && pkg != "cli" && pkg != "hub" && pkg != "sim" {
			t.Errorf("package %s imports %d of our packages; the budget is %d", pkg, len(imports), maxOwnImports)
		}
	}
}

// TestProgramsEnd: a program that is run has a context, and a limit on how long what it
// started may hold its output open: without, one that hangs holds the daemon's start, or
// a command that was interrupted.
func TestProgramsEnd(t *testing.T) {
	free := map[string]string{
		"cli.start":      "it is in the foreground, and ends as its user likes",
		"postgres.Start": "it lives as long as the server",
	}
	for _, src := range sources(t) {
		for _, decl := range src.ast.Decls {
			runs, bounded := "", false
			ast.Inspect(decl, func(n ast.Node) bool {
				selector, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if from, ok := selector.X.(*ast.Ident); ok && from.Name == "exec" && strings.HasPrefix(selector.Sel.Name, "Command") {
					runs = selector.Sel.Name
				}
				bounded = bounded || selector.Sel.Name == "WaitDelay"
				return true
			})
			function, ok := decl.(*ast.FuncDecl)
			if runs == "" || !ok || free[src.pkg+"."+function.Name.Name] != "" {
				continue
			}
			if runs != "CommandContext" || !bounded {
				t.Errorf("%s: %s runs a program without a context or a WaitDelay", src.file, function.Name.Name)
			}
		}
	}
}

// TestOrCallsNothing: cmp.Or evaluates all its arguments, so one that can fail or changes
// something runs although an earlier one has failed: a commit, a write, a rate token spent.
func TestOrCallsNothing(t *testing.T) {
	fails := map[string]bool{"Close": true, "Commit": true, "Flush": true, "Sync": true, "Wait": true, "Write": true, "WriteToken": true}
	all := sources(t)
	for _, src := range all {
		for _, decl := range src.ast.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Type.Results != nil && len(f.Type.Results.List) == 1 {
				if result, ok := f.Type.Results.List[0].Type.(*ast.Ident); ok && result.Name == "error" {
					fails[f.Name.Name] = true
				}
			}
		}
	}
	delete(fails, "Err") // it returns what is known
	for _, src := range all {
		ast.Inspect(src.ast, func(n ast.Node) bool {
			or, ok := n.(*ast.CallExpr)
			if !ok || nameOf(or) != "cmp.Or" {
				return true
			}
			for _, arg := range or.Args[1:] {
				if call, ok := arg.(*ast.CallExpr); ok && fails[path.Ext("." + nameOf(call))[1:]] {
					t.Errorf("%s: cmp.Or calls %s although what is before it has failed: use if", src.set.Position(call.Pos()), nameOf(call))
				}
			}
			return true
		})
	}
}

// TestLocksFromInside: the lock of a type is taken by its own methods, not by those of a type
// that has one as a field.
func TestLocksFromInside(t *testing.T) {
	free := map[string]string{
		"gateway/stream.go": "a stream writes by its reply, whose lock orders the writes",
		"spool/bytes.go":    "a Reader is a view of its Bytes",
		"cluster/limits.go": "pruneLimits",
	}
	for _, src := range sources(t) {
		ast.Inspect(src.ast, func(n ast.Node) bool {
			lock, ok := n.(*ast.SelectorExpr)
			if !ok || lock.Sel.Name != "Lock" && lock.Sel.Name != "RLock" {
				return true
			}
			if mu, ok := lock.X.(*ast.SelectorExpr); ok && mu.Sel.Name == "mu" && free[filepath.ToSlash(src.file)] == "" {
				if _, ok := mu.X.(*ast.SelectorExpr); ok {
					t.Errorf("%s: the lock of a field is taken from outside: make it a method of the field's type", src.set.Position(lock.Pos()))
				}
			}
			return true
		})
	}
}

// TestRouteNotFound: route_not_found, whose help is to check the base URL, is for paths alone.
// A thing that is not there is not_found.
func TestRouteNotFound(t *testing.T) {
	paths := []string{"api/serve.go", "daemon/hubclient.go", "daemon/sealed/lists.go", "gateway/request.go", "site/documentation.go", "site/site.go"}
	for _, src := range sources(t) {
		ast.Inspect(src.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "RouteNotFound" && !slices.Contains(paths, filepath.ToSlash(src.file)) {
				t.Errorf("%s: no path is missing here: use fault.NotFound", src.set.Position(s.Pos()))
			}
			return true
		})
	}
}

// TestSiteStore: the pages reach the database through site.Store alone, which lists what
// they need; the API that they embed has all of it.
func TestSiteStore(t *testing.T) {
	for _, src := range sources(t) {
		ast.Inspect(src.ast, func(n ast.Node) bool {
			db, ok := n.(*ast.SelectorExpr)
			if !ok || src.pkg != "site" || db.Sel.Name != "DB" {
				return true
			}
			if from, ok := db.X.(*ast.Ident); !ok || from.Name != "s" && src.file != filepath.Join("site", "site.go") {
				t.Errorf("%s: use Site.DB", src.set.Position(db.Pos()))
			}
			return true
		})
	}
}

// nameOf returns the name of the function that is called, such as cmp.Or, with that of a
// package, a value or a field before a method's.
func nameOf(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		if from, ok := f.X.(*ast.Ident); ok {
			return from.Name + "." + f.Sel.Name
		}
		return f.Sel.Name
	}
	return ""
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	said := map[string]bool{}
	for _, src := range sources(t) {
		said[src.pkg] = said[src.pkg] || src.ast.Doc != nil && strings.HasPrefix(src.ast.Doc.Text(), "Package "+path.Base(src.pkg)+" ")
	}
	for pkg, ok := range said {
		if !ok && !strings.HasPrefix(pkg, "store/") {
			t.Errorf("package %s has no comment that begins \"Package %s\"", pkg, path.Base(pkg))
		}
	}
}

func TestSizesStayInBudget(t *testing.T) {
	var lengths []int
	interfaces := []string{}
	for _, src := range sources(t) {
		if n := src.set.Position(src.ast.End()).Line; n > maxFileLines {
			t.Errorf("%s has %d lines; the budget is %d: which second thing lives in it?", src.file, n, maxFileLines)
		}
		for _, decl := range src.ast.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				n := src.set.Position(decl.End()).Line - src.set.Position(decl.Pos()).Line + 1
				lengths = append(lengths, n)
				if n > maxFuncLines {
					t.Errorf("%s: func %s has %d lines; the budget is %d", src.file, decl.Name.Name, n, maxFuncLines)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if typ, ok := spec.(*ast.TypeSpec); ok {
						if _, ok := typ.Type.(*ast.InterfaceType); ok {
							interfaces = append(interfaces, src.pkg+"."+typ.Name.Name)
						}
					}
				}
			}
		}
	}
	sort.Ints(lengths)
	if p95 := lengths[len(lengths)*95/100]; p95 > p95FuncLines {
		t.Errorf("the 95th percentile of function lengths is %d lines; the budget is %d", p95, p95FuncLines)
	}
	if len(interfaces) > maxOwnInterfaces {
		t.Errorf("%d interfaces of our own, the budget is %d: %v", len(interfaces), maxOwnInterfaces, interfaces)
	}
}
