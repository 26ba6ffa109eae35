// Command bench measures kith beside what else could carry a call: the engine
// asked directly, two hops of Go's ReverseProxy, two hops of nginx, and kith
// (hub and daemon, TLS, everything on). Rigs are interleaved, medians are printed,
// CPU is user plus system time of the rig's own processes.
//
//	go run ./bench [-rounds 5] [-out docs/performance.md]
//	go run ./bench -idle 10000
//	go run ./bench -builtin
//	go run ./bench -sealed
//
// The second form measures idle tunnels instead: what each costs the hub in
// memory, and how long all of them take to come back after the hub's restart. The
// third measures the built-in engine: conversations, and tokens a second beside
// node-llama-cpp and llama-server. The fourth measures sealed calls beside calls in clear.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// model is the id the engine double serves.
const model = "bench-model"

func main() {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			fmt.Fprintln(os.Stderr, "bench:", v.error)
			os.Exit(1)
		default:
			panic(v)
		}
	}()
	switch {
	case len(os.Args) > 2 && os.Args[1] == "engine":
		engine(os.Args[2])
	case len(os.Args) > 3 && os.Args[1] == "proxy":
		proxy(os.Args[2], os.Args[3])
	default:
		measure()
	}
}

// failure is the error that ends the run.
type failure struct{ error }

// check ends the run if there is an error. What the run started ends first.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns the value, or ends the run if there is an error.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func measure() {
	rounds := flag.Int("rounds", 5, "rounds of each workload on each rig")
	kith := flag.String("kith", "bin/kith", "the binary under measurement")
	out := flag.String("out", "", "a page whose part between the bench marks is replaced with the table")
	only := flag.String("only", "", "measure only rigs whose name holds this; with -builtin only parts: conversations, node-llama-cpp, llama-server")
	alone := flag.String("load", "", "run only this workload: unary, paced, messages, responses, batched, open or prompt")
	machines := flag.Int("idle", 0, "measure that many idle tunnels instead")
	seal := flag.Bool("sealed", false, "measure sealed calls beside calls in clear instead")
	engines := flag.Bool("builtin", false, "measure the built-in engine instead")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	b := &bench{self: must(os.Executable()), kith: must(filepath.Abs(*kith))}
	if _, err := os.Stat(b.kith); err != nil {
		check(fmt.Errorf("cannot find %s: run make build first", *kith))
	}
	b.dir = must(os.MkdirTemp("", "kith-bench-"))
	defer b.end()
	if *machines > 0 {
		b.idle(ctx, *machines)
		return
	}
	if *seal {
		fmt.Print(b.sealed(ctx, *rounds))
		return
	}
	if *engines {
		for _, part := range []struct {
			name    string
			measure func(context.Context, int) string
		}{{"conversations", b.conversations}, {"node-llama-cpp", b.decoding}, {"llama-server", b.besideServer}} {
			if strings.Contains(part.name, *only) {
				fmt.Print(part.measure(ctx, *rounds))
			}
		}
		return
	}
	rigs := slices.DeleteFunc(b.rigs(ctx), func(t *target) bool { return !strings.Contains(t.name, *only) })
	loads := []workload{
		{name: "unary", ask: chat(), connections: 16, length: 2 * time.Second},
		{name: "paced", ask: streamed(paced()), connections: 64, rounds: 4},
		{name: "messages", ask: messages(), connections: 64, rounds: 4, alone: true},
		{name: "responses", ask: responses(), connections: 64, rounds: 4, alone: true},
		{name: "batched", ask: streamed(body(true)), connections: 16, rounds: 40},
		{name: "open", ask: chat(), connections: 64, rate: 250, length: 2 * time.Second},
		{name: "prompt", ask: longPrompt(), connections: 4, length: 2 * time.Second},
	}
	if *alone != "" {
		loads = slices.DeleteFunc(loads, func(l workload) bool { return l.name != *alone })
	}
	if len(loads) == 0 || len(rigs) == 0 {
		check(errors.New("nothing to measure: see -load and -only in bench -help"))
	}
	text := table(rigs, results(ctx, rigs, loads, *rounds), *rounds)
	fmt.Print(text)
	if *out != "" {
		check(replace(*out, text))
	}
}

// results runs the workloads on the rigs and returns their figures by rig and workload.
func results(ctx context.Context, rigs []*target, loads []workload, rounds int) map[string]map[string][]figure {
	results := map[string]map[string][]figure{}
	for _, rig := range rigs {
		results[rig.name] = map[string][]figure{}
	}
	for round := range rounds {
		for _, load := range loads {
			for _, rig := range rigs {
				if load.alone && rig.name != ours {
					continue
				}
				fmt.Fprintf(os.Stderr, "round %d/%d  %-8s %s\n", round+1, rounds, load.name, rig.name)
				f, err := load.run(ctx, rig)
				if err != nil {
					check(errors.Join(fmt.Errorf("%s on %s: %w", load.name, rig.name, err), ctx.Err()))
				}
				results[rig.name][load.name] = append(results[rig.name][load.name], f)
			}
		}
	}
	return results
}

// median returns the median of one reading, or 0 if there is none.
func median[T any](list []T, read func(T) float64) float64 {
	values := make([]float64, len(list))
	for i, one := range list {
		values[i] = read(one)
	}
	if len(values) == 0 {
		return 0
	}
	return middle(values)
}

func table(rigs []*target, results map[string]map[string][]figure, rounds int) string {
	var s strings.Builder
	cost := func(format string, rig *target, figures []figure) string {
		if len(figures) == 0 {
			return "–"
		}
		text := fmt.Sprintf(format, median(figures, func(f figure) float64 { return f.cpu }))
		if rig.name == ours {
			text += " (hub " + fmt.Sprintf(format, median(figures, func(f figure) float64 { return f.each[0] })) + ")"
		}
		return text
	}
	rate := func(f figure) float64 { return f.rate }
	ms := func(read func(figure) time.Duration) func(figure) float64 {
		return func(f figure) float64 { return float64(read(f).Microseconds()) / 1000 }
	}
	p50 := ms(func(f figure) time.Duration { return f.p50 })
	base := median(results["direct"]["open"], p50)
	fmt.Fprintf(&s, "Medians of %d interleaved rounds, %s.\n\n", rounds, time.Now().UTC().Format("2006-01-02"))
	s.WriteString("| | unary CPU µs | paced chunk CPU µs | to messages | to responses | batched chunk CPU µs | 2 MB prompt CPU ms | requests/s, c=16 | p50 / p99 ms, c=16 | added p50 at 250/s, µs | failed |\n|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, rig := range rigs {
		r := results[rig.name]
		fmt.Fprintf(&s, "| %s | %s | %s | %s | %s | %s | %s | %.0f | %.2f / %.2f | %.0f | %d |\n", rig.name,
			cost("%.0f", rig, r["unary"]), cost("%.1f", rig, r["paced"]), cost("%.1f", rig, r["messages"]), cost("%.1f", rig, r["responses"]), cost("%.1f", rig, r["batched"]), cost("%.1f", rig, milli(r["prompt"])), median(r["unary"], rate),
			median(r["unary"], p50), median(r["unary"], ms(func(f figure) time.Duration { return f.p99 })),
			1000*(median(r["open"], p50)-base), broken(r))
	}
	s.WriteString(ratios(results, base))
	return s.String()
}

// milli returns the figures with CPU in milliseconds.
func milli(figures []figure) []figure {
	figures = slices.Clone(figures)
	for i := range figures {
		figures[i].cpu /= 1000
		figures[i].each = slices.Clone(figures[i].each)
		for j := range figures[i].each {
			figures[i].each[j] /= 1000
		}
	}
	return figures
}

// The rigs that are compared.
const (
	ours   = "kith, hub and daemon, TLS"
	theirs = "Go ReverseProxy, two hops"
)

// ratios is the table of the goals: kith beside two hops of Go's ReverseProxy.
// base is the median wait in ms of the engine asked directly.
func ratios(results map[string]map[string][]figure, base float64) string {
	if results[ours] == nil || results[theirs] == nil {
		return ""
	}
	cost := func(f figure) float64 { return f.cpu }
	added := func(f figure) float64 { return float64(f.p50.Microseconds())/1000 - base }
	var s strings.Builder
	s.WriteString("\n| kith beside two hops of Go's ReverseProxy | ratio | goal |\n|---|---|---|\n")
	for _, row := range []struct {
		name, load, beside, goal string
		read                     func(figure) float64
	}{
		{"CPU, unary", "unary", "unary", "≤ 1.25", cost},
		{"CPU, paced chunk", "paced", "paced", "≤ 1.25", cost},
		{"CPU, paced chunk, to messages", "messages", "paced", "≤ 1.35", cost},
		{"CPU, paced chunk, to responses", "responses", "paced", "≤ 1.35", cost},
		{"CPU, 2 MB prompt", "prompt", "prompt", "", cost},
		{"requests/s, c=16", "unary", "unary", "≥ 0.75", func(f figure) float64 { return f.rate }},
		{"added p50 at 250/s", "open", "open", "≤ 1.5", added},
	} {
		fmt.Fprintf(&s, "| %s | %.2f | %s |\n", row.name, median(results[ours][row.load], row.read)/median(results[theirs][row.beside], row.read), row.goal)
	}
	return s.String()
}

// broken is how many operations failed in all rounds of a rig.
func broken(loads map[string][]figure) int {
	n := 0
	for _, figures := range loads {
		for _, f := range figures {
			n += f.broken
		}
	}
	return n
}

const beginMark, endMark = "<!-- bench:begin -->\n", "<!-- bench:end -->\n"

// replace writes text between the marks of a page.
func replace(page, text string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, ok := strings.Cut(string(old), beginMark)
	_, tail, ok2 := strings.Cut(rest, endMark)
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the marks %q and %q", page, strings.TrimSpace(beginMark), strings.TrimSpace(endMark))
	}
	return os.WriteFile(page, []byte(head+beginMark+text+endMark+tail), 0o644)
}
