package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/llama/llamatest"
)

// manyTokens is the size of the vocabulary of models such as Qwen3.
const manyTokens = 151_936

// besideServer compares the tokens a second of a daemon's built-in engine with those of
// llama-server, which has the same libraries, on the same file and one thread. The two take
// turns. The grammar of answers in JSON is checked for each token, so the same answer is
// compared with and without it.
func (b *bench) besideServer(ctx context.Context, rounds int) string {
	server := must(filepath.Abs("build/llama-server/llama-server"))
	if _, err := os.Stat(server); err != nil {
		check(fmt.Errorf("cannot find llama-server: %w; run make setup-test first", err))
	}
	const person, inJSON = "Give me JSON for Anna, who is 42.", `,"response_format":{"type":"json_object"}`
	kinds := []generation{
		story,
		{"JSON", person, ""},
		{"the same in JSON mode", person, inJSON},
		{"JSON mode, where the model would write text", "What is 7+5?", inJSON},
	}
	var text strings.Builder
	fmt.Fprintf(&text, "\nBeside llama-server, medians of %d rounds in turn:\n\n", rounds)
	text.WriteString("| Vocabulary, answer | built-in engine, tokens/s | llama-server | ratio (lowest to highest) | tokens a second of CPU | llama-server | ratio |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, vocabulary := range []int{2048, manyTokens} {
		name := fmt.Sprintf("tokens-%d", vocabulary)
		check(os.Mkdir(filepath.Join(b.dir, name), 0o700))
		file := b.write(filepath.Join(name, tiny+".gguf"), llamatest.WithTokens(smallModel(), vocabulary))
		here, there := b.alone(ctx, name, file), b.llamaServer(ctx, server, file)
		speeds := map[*target][][]speed{here: make([][]speed, len(kinds)), there: make([][]speed, len(kinds))}
		for round := range rounds {
			turns := []*target{here, there}
			if round%2 == 1 {
				slices.Reverse(turns)
			}
			for i, kind := range kinds {
				fmt.Fprintf(os.Stderr, "%d tokens, %s, round %d/%d\n", vocabulary, kind.name, round+1, rounds)
				for _, t := range turns {
					speeds[t][i] = append(speeds[t][i], must(t.speed(ctx, kind, 1)))
				}
			}
		}
		own, other := speeds[here], speeds[there]
		wall, used := func(s speed) float64 { return s.wall }, func(s speed) float64 { return s.cpu }
		for i, kind := range kinds {
			fmt.Fprintf(&text, "| %d, %s | %.0f | %.0f | %s | %.0f | %.0f | %s |\n", vocabulary, kind.name,
				median(own[i], wall), median(other[i], wall), spread(own[i], other[i], wall),
				median(own[i], used), median(other[i], used), spread(own[i], other[i], used))
		}
		fmt.Fprintf(&text, "| %d, JSON mode beside the same answer without | %s | %s | | %s | %s | |\n", vocabulary,
			spread(own[2], own[1], wall), spread(other[2], other[1], wall), spread(own[2], own[1], used), spread(other[2], other[1], used))
	}
	return text.String()
}

// spread returns the median of the ratios of rounds, and the lowest and the highest.
func spread(own, other []speed, read func(speed) float64) string {
	ratios := make([]float64, len(own))
	for i := range own {
		ratios[i] = read(own[i]) / read(other[i])
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", middle(ratios), slices.Min(ratios), slices.Max(ratios))
}

// llamaServer starts a llama-server with the slots and the context of a daemon's.
func (b *bench) llamaServer(ctx context.Context, program, file string) *target {
	address := enginetest.FreeAddress()
	host, port, err := net.SplitHostPort(address)
	check(err)
	pid := b.start("llama-server", nil, program, "--model", file, "--host", host, "--port", port,
		"--threads", "1", "--threads-batch", "1", "--parallel", "4", "--ctx-size", "4096")
	t := &target{name: "llama-server", base: "http://" + address + "/v1", pids: []int{pid}}
	b.speaks(ctx, t, "llama-server")
	return t
}
