// Command mutate breaks one package in every small way it knows, one at a time,
// and says which breaks no test notices:
//
//	go run ./scripts/mutate [-at hours.go] ./internal/fleet [flags for the tests]
//
// All mutants are in one test binary: a mutant is a copy of the function it
// breaks, and an environment variable says which copy runs. So a mutant costs a
// run of the tests, not a build. A constant cannot be chosen at run time: its
// mutants are built one by one. A mutant that does not compile is left out of
// the score; one that hangs is killed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
)

// variable tells a test binary which mutant it is.
const variable = "MUTANT"

// mutant is one edit of one file.
type mutant struct {
	id         int
	in         *source
	function   string   // or the variable, or the constant
	host       ast.Node // the outermost body around it, or the variable's ValueSpec; nil: built alone
	start, end int      // offsets of what is replaced
	text       string
	nth        int // of those with the same name
	unbuilt    bool
}

// String names the mutant without its line, so that a list of them keeps.
func (m *mutant) String() string {
	name := fmt.Sprintf("%s %s: %s → %s", filepath.Base(m.in.name), m.function, short(m.in.text[m.start:m.end]), short(m.text))
	if m.nth > 0 {
		name += fmt.Sprintf(" #%d", m.nth+1)
	}
	return name
}

func (m *mutant) line() int { return 1 + strings.Count(m.in.text[:m.start], "\n") }

// edited is the part of the source from one offset to another, with the edit.
func (m *mutant) edited(from, to int) string {
	return m.in.text[from:m.start] + m.text + m.in.text[m.end:to]
}

// short is a piece of source on one line, cut in its middle.
func short(text string) string {
	r := []rune(strings.Join(strings.Fields(text), " "))
	if len(r) > 80 {
		return string(r[:50]) + " … " + string(r[len(r)-25:])
	}
	return string(r)
}

func main() {
	at := flag.String("at", "", "only mutants whose file:line matches this regular expression")
	known := flag.String("equivalent", "docs/mutants.md", "where mutants that change nothing are listed, indented, with the reason")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	only, err := regexp.Compile(*at)
	if err == nil {
		err = run(flag.Arg(0), flag.Args()[1:], only, *known)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run(pkg string, testFlags []string, only *regexp.Regexp, known string) error {
	began := time.Now()
	scratch, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	sources, mutants, err := read(pkg)
	if err != nil {
		return err
	}
	same := map[string]int{}
	for i, m := range mutants {
		name := m.String()
		m.id, m.nth = i+1, same[name]
		same[name]++
	}
	mutants = slices.DeleteFunc(mutants, func(m *mutant) bool {
		return !only.MatchString(fmt.Sprintf("%s:%d", filepath.Base(m.in.name), m.line()))
	})
	b := &builder{pkg: pkg, scratch: scratch, flags: testFlags}
	binary, err := b.together(sources, mutants)
	if err != nil {
		return err
	}
	start := time.Now()
	if killed, out := b.kills(binary, 0, time.Hour); killed {
		return fmt.Errorf("the tests fail with nothing broken:\n%s", out)
	}
	patience := max(10*time.Second, 5*time.Since(start))
	listed, err := listing(known, sources)
	if err != nil {
		return err
	}
	unbuilt, killed, equivalent, survived := 0, 0, 0, 0
	for _, m := range mutants {
		name := m.String()
		if listed[name] {
			delete(listed, name)
			equivalent++
			continue
		}
		from := binary
		if m.host == nil && !m.unbuilt {
			from, err = b.alone(m)
			m.unbuilt = err != nil
		}
		if m.unbuilt {
			unbuilt++
		} else if dead, _ := b.kills(from, m.id, patience); dead {
			killed++
		} else {
			survived++
			fmt.Printf("%s:%d survives:\n    %s\n", m.in.name, m.line(), name)
		}
	}
	fmt.Printf("%s: %d mutants: %d killed, %d survived, %d listed, %d do not compile; score %.1f %%; %v\n",
		pkg, len(mutants), killed, survived, equivalent, unbuilt,
		100*float64(killed)/float64(max(1, killed+survived)), time.Since(began).Round(time.Second))
	for name := range listed {
		if only.String() == "" {
			survived++
			fmt.Printf("%s lists one that is gone:\n    %s\n", known, name)
		}
	}
	if survived > 0 {
		return errors.New("write a test that kills each survivor, or list it with the reason why it changes nothing")
	}
	return nil
}

// listing is the mutants of these sources that are listed.
func listing(known string, sources []*source) (map[string]bool, error) {
	text, err := os.ReadFile(known)
	listed := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		file, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.HasPrefix(line, "    ") && slices.ContainsFunc(sources, func(s *source) bool { return filepath.Base(s.name) == file }) {
			listed[strings.TrimSpace(line)] = true
		}
	}
	return listed, err
}

// builder makes test binaries and runs them.
type builder struct {
	pkg, scratch string
	flags        []string
	killer       string // the test that failed last
}

// chooser is the file that stands beside the broken ones.
const chooser = `package %s

import (
	"os"
	"slices"
	"strconv"
)

var mutant_, _ = strconv.Atoi(os.Getenv(%q))

func choose_[T any](ids []int, of ...T) T { // the last one is whole
	if i := slices.Index(ids, mutant_); i >= 0 {
		return of[i]
	}
	return of[len(ids)]
}
`

var errorIn = regexp.MustCompile(`mutant(\d+):\d+`)

// together builds all mutants that have a host into one binary, leaving out
// those that the compiler refuses.
func (b *builder) together(sources []*source, mutants []*mutant) (string, error) {
	for {
		files := map[string]string{"mutant_.go": fmt.Sprintf(chooser, sources[0].ast.Name.Name, variable)}
		for _, s := range sources {
			files[filepath.Base(s.name)] = s.withAll(slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool {
				return m.in != s || m.host == nil || m.unbuilt
			}))
		}
		out, err := b.build("together", files)
		if err == nil {
			return filepath.Join(b.scratch, "together"), nil
		}
		refused := map[string]bool{}
		for _, match := range errorIn.FindAllSubmatch(out, -1) {
			refused[string(match[1])] = true
		}
		if len(refused) == 0 {
			return "", fmt.Errorf("%w:\n%s", err, out)
		}
		for _, m := range mutants {
			m.unbuilt = m.unbuilt || refused[strconv.Itoa(m.id)]
		}
	}
}

// alone builds one mutant by itself.
func (b *builder) alone(m *mutant) (string, error) {
	_, err := b.build("alone", map[string]string{filepath.Base(m.in.name): m.edited(0, len(m.in.text))})
	return filepath.Join(b.scratch, "alone"), err
}

// build compiles the package's tests with these files over, or beside, its own.
func (b *builder) build(name string, files map[string]string) ([]byte, error) {
	dir, err := filepath.Abs(b.pkg)
	if err != nil {
		return nil, err
	}
	over := map[string]string{}
	for file, text := range files {
		over[filepath.Join(dir, file)] = filepath.Join(b.scratch, file)
		if err := os.WriteFile(over[filepath.Join(dir, file)], []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": over})
	if err != nil {
		return nil, err
	}
	list := filepath.Join(b.scratch, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return nil, err
	}
	return exec.Command("go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", list, "-o", filepath.Join(b.scratch, name), b.pkg).CombinedOutput()
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// kills reports whether the tests fail, or do not end, as that mutant. The test
// that killed the one before is tried first: it mostly kills its neighbours.
func (b *builder) kills(binary string, id int, patience time.Duration) (bool, []byte) {
	try := func(flags ...string) (bool, []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, binary, append([]string{"-test.failfast"}, flags...)...)
		cmd.Dir = b.pkg
		cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(id))
		out, err := cmd.CombinedOutput()
		return err != nil, out
	}
	if b.killer != "" {
		if dead, out := try(append(slices.Clone(b.flags), "-test.run=^"+b.killer+"$")...); dead {
			return true, out
		}
	}
	dead, out := try(b.flags...)
	if match := failed.FindSubmatch(out); match != nil {
		b.killer = string(match[1])
	}
	return dead, out
}

// withAll is the source with every mutant in it. Each body begins with a choice
// of its broken copies; a variable is the choice of its values.
func (s *source) withAll(mutants []*mutant) string {
	choices := map[ast.Node]string{}
	numbers := map[ast.Node]string{}
	for _, m := range mutants {
		head := fmt.Sprintf("\n//line mutant%d:1\n", m.id)
		if spec, ok := m.host.(*ast.ValueSpec); ok {
			numbers[spec] += strconv.Itoa(m.id) + ", "
			choices[spec] += head + m.edited(s.offset(spec.Values[0].Pos()), s.offset(spec.Values[0].End())) + ","
			continue
		}
		broken := m.edited(s.offset(m.host.Pos())+1, s.offset(m.host.End())-1)
		choices[m.host] += fmt.Sprintf("\ncase %d:%s%s\n%s", m.id, head, broken, s.leave[m.host])
	}
	insert := map[int]string{}
	for host, choice := range choices {
		if spec, ok := host.(*ast.ValueSpec); ok {
			at := s.offset(spec.Values[0].Pos())
			insert[at] = fmt.Sprintf("choose_([]int{%s}, %s%s", numbers[spec], choice, s.back(at))
			insert[s.offset(spec.Values[0].End())] = ")"
		} else {
			at := s.offset(host.Pos()) + 1
			insert[at] = "\nswitch mutant_ {" + choice + "\n}" + s.back(at)
		}
	}
	out, done := "", 0
	for _, at := range slices.Sorted(maps.Keys(insert)) {
		out, done = out+s.text[done:at]+insert[at], at
	}
	return out + s.text[done:]
}

// back leads the compiler's messages back to that offset of the source.
func (s *source) back(at int) string {
	return fmt.Sprintf("\n//line %s:%d\n", filepath.Base(s.name), 1+strings.Count(s.text[:at], "\n"))
}
