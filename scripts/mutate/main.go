// Command mutate breaks one package in every small way it knows, one at a time,
// says which breaks no test notices, and gives the score: the part of them that
// a test noticed. It fails for each that is not listed as changing nothing, and
// below 95 % of all, listed or not:
//
//	go run ./scripts/mutate [-at hours.go] ./internal/fleet [flags for the tests]
//
// All mutants are in one test binary: a mutant is a copy of the function it
// breaks, and an environment variable says which copy runs. So a mutant costs a
// run of the tests, not a build. A constant cannot be chosen at run time: its
// mutants are built one by one. A mutant that does not compile is left out of
// the score. One that does not end is noticed; it and what it started is killed.
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
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
)

// variable says to a test binary which mutant it is.
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
	became     fate
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
	abreast := flag.Int("n", 2, "how many to run at a time")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	only, err := regexp.Compile(*at)
	if err == nil {
		err = run(ctx, flag.Arg(0), flag.Args()[1:], only, *known, *abreast)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

// floor is the least part of all mutants, in percent, that tests must notice.
const floor = 95

// fate is what became of a mutant.
type fate int

const (
	survived fate = iota
	killed
	hung // and so killed as well
	unbuilt
)

func run(ctx context.Context, pkg string, testFlags []string, only *regexp.Regexp, known string, abreast int) error {
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
	listed, err := listing(known, sources)
	if err != nil {
		return err
	}
	b := &builder{pkg: pkg, scratch: scratch}
	binary, err := b.together(ctx, sources, mutants)
	if err != nil {
		return err
	}
	clean, out := (&runner{dir: pkg, flags: testFlags, computing: time.Hour, waiting: time.Hour}).run(ctx, binary, 0)
	if clean.fate != survived {
		return fmt.Errorf("the tests fail with nothing broken:\n%s", out)
	}

	todo := make(chan *mutant, len(mutants))
	for _, m := range mutants {
		todo <- m
	}
	close(todo)
	var all sync.WaitGroup
	var done atomic.Int64
	for range abreast {
		all.Go(func() {
			r := &runner{
				dir: pkg, flags: testFlags,
				computing: max(5*time.Second, 4*clean.computed), waiting: max(time.Minute, 20*clean.took),
			}
			for m := range todo {
				m.became = b.try(ctx, r, binary, m)
				for again := 0; again < 2 && m.became == survived && !listed[m.String()]; again++ {
					m.became = b.try(ctx, r, binary, m) // a race is lost now and then
				}
				if m.became == survived && !listed[m.String()] && ctx.Err() == nil {
					fmt.Printf("%s:%d survives:\n    %s\n", m.in.name, m.line(), m)
				}
				if n := done.Add(1); n%100 == 0 {
					fmt.Fprintf(os.Stderr, "mutate: %d of %d, %v\n", n, len(mutants), time.Since(began).Round(time.Second))
				}
			}
		})
	}
	if all.Wait(); ctx.Err() != nil {
		return ctx.Err()
	}
	return report(pkg, mutants, listed, known, only.String() == "", time.Since(began))
}

// report says what became of the mutants; an error if that is not good enough.
func report(pkg string, mutants []*mutant, listed map[string]bool, known string, complete bool, took time.Duration) error {
	number := map[fate]int{}
	equivalent, wrong := 0, 0
	for _, m := range mutants {
		number[m.became]++
		switch name := m.String(); {
		case listed[name] && m.became != survived:
			wrong++
			fmt.Printf("%s lists one that a test notices:\n    %s\n", known, name)
		case listed[name]:
			equivalent++
		case m.became == survived:
			wrong++
		}
		delete(listed, m.String())
	}
	for name := range listed {
		if complete {
			wrong++
			fmt.Printf("%s lists one that is gone:\n    %s\n", known, name)
		}
	}
	noticed := number[killed] + number[hung]
	compiled := noticed + number[survived]
	ofAll := percent(noticed, compiled)
	fmt.Printf("%s: %d mutants compile and %d do not; %d killed (%d of them did not end), %d survived, of which %d change nothing\n"+
		"%s: score %.1f %% of all, %.1f %% of those that change something; %v\n",
		pkg, compiled, number[unbuilt], noticed, number[hung], number[survived], equivalent,
		pkg, ofAll, percent(noticed, compiled-equivalent), took.Round(time.Second))
	if ofAll < floor {
		return fmt.Errorf("the score is below %d %%", floor)
	}
	if wrong > 0 {
		return errors.New("write a test that kills each survivor, or list it with the reason why it changes nothing")
	}
	return nil
}

func percent(part, of int) float64 { return 100 * float64(part) / float64(max(1, of)) }

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

// builder makes test binaries of a package.
type builder struct{ pkg, scratch string }

// chooser is the file beside the changed ones.
const chooser = `package %s

import (
	"os"
	"slices"
	"strconv"
)

var mutant_, _ = strconv.Atoi(os.Getenv(%q))

func choose_[T any](ids []int, of ...T) T { // the last one is unchanged
	if i := slices.Index(ids, mutant_); i >= 0 {
		return of[i]
	}
	return of[len(ids)]
}
`

var errorIn = regexp.MustCompile(`mutant(\d+):\d+`)

// together builds all mutants that have a host into one binary, leaving out
// those that the compiler refuses.
func (b *builder) together(ctx context.Context, sources []*source, mutants []*mutant) (string, error) {
	for {
		files := map[string]string{"mutant_.go": fmt.Sprintf(chooser, sources[0].ast.Name.Name, variable)}
		for _, s := range sources {
			files[filepath.Base(s.name)] = s.withAll(slices.DeleteFunc(slices.Clone(mutants), func(m *mutant) bool {
				return m.in != s || m.host == nil || m.became == unbuilt
			}))
		}
		binary, out, err := b.build(ctx, "together", files)
		if err == nil {
			return binary, nil
		}
		refused := map[string]bool{}
		for _, match := range errorIn.FindAllSubmatch(out, -1) {
			refused[string(match[1])] = true
		}
		if len(refused) == 0 {
			return "", fmt.Errorf("%w:\n%s", err, out)
		}
		for _, m := range mutants {
			if refused[strconv.Itoa(m.id)] {
				m.became = unbuilt
			}
		}
	}
}

// try runs the tests as that mutant, in that binary or, where it is not in
// there, in one of its own.
func (b *builder) try(ctx context.Context, r *runner, binary string, m *mutant) fate {
	if m.became == unbuilt {
		return unbuilt
	}
	if m.host == nil {
		alone, _, err := b.build(ctx, strconv.Itoa(m.id), map[string]string{filepath.Base(m.in.name): m.edited(0, len(m.in.text))})
		if err != nil {
			return unbuilt
		}
		defer os.RemoveAll(filepath.Dir(alone))
		binary = alone
	}
	end, _ := r.run(ctx, binary, m.id)
	return end.fate
}

// build compiles the package's tests with these files over, or beside, its own.
func (b *builder) build(ctx context.Context, name string, files map[string]string) (binary string, out []byte, err error) {
	pkg, err := filepath.Abs(b.pkg)
	if err != nil {
		return "", nil, err
	}
	dir := filepath.Join(b.scratch, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, err
	}
	over := map[string]string{}
	for file, text := range files {
		over[filepath.Join(pkg, file)] = filepath.Join(dir, file)
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			return "", nil, err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": over})
	if err != nil {
		return "", nil, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		return "", nil, err
	}
	binary = filepath.Join(dir, "tests")
	out, err = exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-gcflags=-e", "-overlay", list, "-o", binary, b.pkg).CombinedOutput()
	return binary, out, err
}

// runner runs test binaries, one after the other. What one may take is for the
// most part processor time, which does not depend on what else the machine does.
type runner struct {
	dir                string
	flags              []string
	computing, waiting time.Duration // at most: processor time, and the wall's
	killer             string        // the test that failed last
}

// end is how one run ended.
type end struct {
	fate           fate
	computed, took time.Duration
}

var failed = regexp.MustCompile(`(?m)^--- FAIL: (\w+)`)

// run says what becomes of that mutant. The test that killed the one before is
// tried first: it mostly kills its neighbours.
func (r *runner) run(ctx context.Context, binary string, id int) (end, []byte) {
	if r.killer != "" {
		if end, out := r.tests(ctx, binary, id, "-test.run=^"+r.killer+"$"); end.fate != survived {
			return end, out
		}
	}
	end, out := r.tests(ctx, binary, id)
	if match := failed.FindSubmatch(out); match != nil {
		r.killer = string(match[1])
	}
	return end, out
}

// limits bounds what a mutant may take: 8 GiB, since what it repeats may be what
// allocates, and that many seconds of processor time.
const limits = `ulimit -v 8388608 2>/dev/null; ulimit -t %d; exec "$0" "$@"`

// tests runs them in a group of processes of their own, of which nothing is left.
func (r *runner) tests(ctx context.Context, binary string, id int, more ...string) (end, []byte) {
	ctx, cancel := context.WithTimeout(ctx, r.waiting)
	defer cancel()
	began := time.Now()
	args := append([]string{"-c", fmt.Sprintf(limits, int(r.computing.Seconds())), binary, "-test.failfast"}, r.flags...)
	cmd := exec.CommandContext(ctx, "sh", append(args, more...)...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), variable+"="+strconv.Itoa(id))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process == nil {
		return end{fate: unbuilt}, []byte(err.Error())
	}
	_ = cmd.Cancel() // what it left running, if anything
	how := end{computed: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), took: time.Since(began)}
	switch {
	case err == nil:
		how.fate = survived
	case ctx.Err() != nil, how.computed >= r.computing-time.Second:
		how.fate = hung
	default:
		how.fate = killed
	}
	return how, out
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
