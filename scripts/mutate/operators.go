package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
)

// source is one file to be broken.
type source struct {
	name  string
	text  string
	ast   *ast.File
	set   *token.FileSet
	leave map[ast.Node]string // how a body ends that must not fall through
}

func (s *source) offset(p token.Pos) int { return s.set.Position(p).Offset }

func (s *source) of(n ast.Node) string { return s.text[s.offset(n.Pos()):s.offset(n.End())] }

// read parses the package's files, except tests, and makes the mutants.
func read(pkg string) (sources []*source, mutants []*mutant, err error) {
	names, err := filepath.Glob(filepath.Join(pkg, "*.go"))
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, nil, err
		}
		s := &source{name: name, text: string(text), set: token.NewFileSet(), leave: map[ast.Node]string{}}
		if s.ast, err = parser.ParseFile(s.set, name, text, parser.SkipObjectResolution); err != nil {
			return nil, nil, err
		}
		b := breaker{s: s}
		for _, decl := range s.ast.Decls {
			b.decl(decl)
		}
		sources, mutants = append(sources, s), append(mutants, b.mutants...)
	}
	return sources, mutants, err
}

// breaker makes the mutants of one source. Below, the text after → replaces
// the text before it.
type breaker struct {
	s        *source
	function string
	host     ast.Node
	mutants  []*mutant
}

func (b *breaker) put(from, to token.Pos, text string) {
	start, end := b.s.offset(from), b.s.offset(to)
	if b.s.text[start:end] != text {
		b.mutants = append(b.mutants, &mutant{in: b.s, function: b.function, host: b.host, start: start, end: end, text: text})
	}
}

func (b *breaker) replace(n ast.Node, text string) { b.put(n.Pos(), n.End(), text) }

// exchange x with y, which follows it.
func (b *breaker) exchange(x, y ast.Node) {
	if b.s.of(x) != b.s.of(y) {
		b.put(x.Pos(), y.End(), b.s.of(y)+b.s.text[b.s.offset(x.End()):b.s.offset(y.Pos())]+b.s.of(x))
	}
}

// either makes a condition hold always, and never; what it names stays in use.
func (b *breaker) either(cond ast.Expr) {
	b.replace(cond, "("+b.s.of(cond)+") || true")
	b.replace(cond, "("+b.s.of(cond)+") && false")
}

func (b *breaker) never(n ast.Node) { b.replace(n, "if false { "+b.s.of(n)+" }") }

func (b *breaker) decl(decl ast.Decl) {
	switch decl := decl.(type) {
	case *ast.FuncDecl:
		b.function = decl.Name.Name
		b.body(decl.Type, decl.Body)
	case *ast.GenDecl:
		for _, spec := range decl.Specs {
			spec, ok := spec.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 || len(spec.Names) != 1 {
				continue
			}
			b.function, b.host = spec.Names[0].Name, nil
			if decl.Tok == token.VAR {
				b.host = spec
			}
			b.inside(nil, spec.Values[0])
		}
	}
}

// body breaks what is inside an outermost function.
func (b *breaker) body(of *ast.FuncType, body *ast.BlockStmt) {
	b.host, b.s.leave[body] = body, "return"
	if of.Results != nil {
		b.s.leave[body] = `panic("the broken function does not return")`
	}
	b.inside(of, body)
}

// inside breaks everything below n, which is in a function of that type.
func (b *breaker) inside(of *ast.FuncType, n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			if of == nil { // in a variable: an outermost function of its own
				variable := b.host
				b.body(n.Type, n.Body)
				b.host = variable
			} else {
				b.inside(n.Type, n.Body)
			}
			return false
		case ast.Expr:
			b.expr(n)
		case *ast.ReturnStmt:
			b.results(of, n)
		case ast.Stmt:
			b.stmt(n)
		}
		return true
	})
}

// results: a truth value that is returned → always, never.
func (b *breaker) results(of *ast.FuncType, n *ast.ReturnStmt) {
	if of.Results == nil || len(of.Results.List) != len(n.Results) {
		return
	}
	for i, value := range n.Results {
		if typ, ok := of.Results.List[i].Type.(*ast.Ident); !ok || typ.Name != "bool" {
			continue
		}
		if word := b.s.of(value); word != "true" && word != "false" {
			b.either(value)
		}
	}
}

var operators = map[token.Token][]token.Token{
	token.EQL: {token.NEQ}, token.NEQ: {token.EQL}, token.LAND: {token.LOR}, token.LOR: {token.LAND},
	token.LSS: {token.LEQ, token.GEQ}, token.LEQ: {token.LSS, token.GTR}, token.GTR: {token.GEQ, token.LEQ}, token.GEQ: {token.GTR, token.LSS},
	token.ADD: {token.SUB}, token.SUB: {token.ADD}, token.MUL: {token.QUO}, token.QUO: {token.MUL}, token.REM: {token.MUL},
	token.AND: {token.OR}, token.OR: {token.AND}, token.XOR: {token.OR}, token.AND_NOT: {token.AND}, token.SHL: {token.SHR}, token.SHR: {token.SHL},
	token.ADD_ASSIGN: {token.SUB_ASSIGN}, token.SUB_ASSIGN: {token.ADD_ASSIGN}, token.MUL_ASSIGN: {token.QUO_ASSIGN}, token.QUO_ASSIGN: {token.MUL_ASSIGN},
	token.OR_ASSIGN: {token.AND_ASSIGN}, token.AND_ASSIGN: {token.OR_ASSIGN}, token.INC: {token.DEC}, token.DEC: {token.INC},
}

func (b *breaker) expr(n ast.Expr) {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		for _, op := range operators[n.Op] {
			b.replace(n, "("+b.s.of(n.X)+" "+op.String()+" "+b.s.of(n.Y)+")")
		}
		if neutral, ok := map[token.Token]string{token.LAND: "true || ", token.LOR: "false && "}[n.Op]; ok {
			for _, side := range []ast.Expr{n.X, n.Y} { // left out, but still in use
				b.replace(side, "("+neutral+"("+b.s.of(side)+"))")
			}
		}
	case *ast.UnaryExpr:
		if n.Op == token.NOT || n.Op == token.SUB {
			b.replace(n, b.s.of(n.X))
		}
	case *ast.BasicLit:
		if n.Kind == token.INT {
			b.replace(n, "("+n.Value+"+1)")
			if n.Value != "0" {
				b.replace(n, "("+n.Value+"-1)")
			}
		}
	case *ast.Ident:
		if other, ok := map[string]string{"true": "false", "false": "true"}[n.Name]; ok {
			b.replace(n, other)
		}
	case *ast.CallExpr:
		switch b.s.of(n.Fun) {
		case "min", "max", "strings.EqualFold", "slices.Equal", "slices.EqualFunc", "v.In":
			return // where the order is nothing
		}
		for i := range len(n.Args) - 1 {
			b.exchange(n.Args[i], n.Args[i+1])
		}
	case *ast.CompositeLit:
		b.literal(n)
	}
}

// literal: a field left out; neighbours exchanged; of a table, a row put in the
// place of the one before it, as a line and cell by cell.
func (b *breaker) literal(n *ast.CompositeLit) {
	for i, element := range n.Elts {
		if _, ok := element.(*ast.KeyValueExpr); ok {
			rest := ""
			for j, other := range n.Elts {
				if j != i {
					rest += b.s.of(other) + ", "
				}
			}
			b.put(n.Lbrace, n.End(), "{"+strings.TrimSuffix(rest, ", ")+"}")
			continue
		}
		if i+1 == len(n.Elts) {
			break
		}
		next := n.Elts[i+1]
		b.exchange(element, next)
		row, ok1 := element.(*ast.CompositeLit)
		below, ok2 := next.(*ast.CompositeLit)
		if !ok1 || !ok2 {
			continue
		}
		b.replace(row, b.s.of(below))
		for cell := range min(len(row.Elts), len(below.Elts)) {
			b.replace(row.Elts[cell], b.s.of(below.Elts[cell]))
		}
	}
}

func (b *breaker) stmt(n ast.Stmt) {
	switch n := n.(type) {
	case *ast.IfStmt:
		b.either(n.Cond)
	case *ast.ForStmt:
		if n.Cond != nil {
			b.replace(n.Cond, "("+b.s.of(n.Cond)+") && false")
		}
	case *ast.SwitchStmt:
		b.cases(n)
	case *ast.AssignStmt:
		for _, op := range operators[n.Tok] {
			b.put(n.TokPos, n.TokPos+token.Pos(len(n.Tok.String())), op.String())
		}
		if n.Tok == token.ASSIGN {
			b.put(n.Pos(), n.Rhs[0].Pos(), strings.Repeat("_, ", len(n.Lhs)-1)+"_ = ")
		} else if n.Tok != token.DEFINE {
			b.never(n)
		}
	case *ast.IncDecStmt:
		b.put(n.TokPos, n.End(), operators[n.Tok][0].String())
		b.never(n)
	case *ast.BranchStmt:
		b.never(n)
		if n.Tok == token.CONTINUE {
			b.replace(n, "break")
		}
	case *ast.ExprStmt, *ast.RangeStmt:
		b.never(n)
	}
}

// cases: each left empty; where they are conditions, each always and never, and
// each in the place of the one before it.
func (b *breaker) cases(n *ast.SwitchStmt) {
	for i, one := range n.Body.List {
		clause := one.(*ast.CaseClause)
		if len(clause.Body) > 0 {
			b.put(clause.Body[0].Pos(), clause.Body[len(clause.Body)-1].End(), "")
		}
		if n.Tag != nil || clause.List == nil {
			continue
		}
		for _, cond := range clause.List {
			b.either(cond)
		}
		if i+1 < len(n.Body.List) && n.Body.List[i+1].(*ast.CaseClause).List != nil {
			b.exchange(clause, n.Body.List[i+1])
		}
	}
}
