package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/llama/llamatest"
)

const (
	tiny      = "tiny" // the id of the small model
	tinyModel = "internal/llama/data/tiny.gguf"
	// promptTokens is the length of the instructions before a conversation.
	promptTokens = 6000
	turns        = 10
	// storyTokens is the length of the answers whose tokens a second are measured.
	storyTokens = 150
)

// smallModel returns the small model's file.
func smallModel() []byte {
	file, err := os.ReadFile(tinyModel)
	if err != nil {
		check(fmt.Errorf("cannot read the small model: %w; run bench in the repository's folder", err))
	}
	return file
}

// longModel writes the small model with a context of 8,192 tokens: the answers make no
// sense beyond those that it was trained on, and take as long.
func (b *bench) longModel() string {
	return b.write(model+".gguf", llamatest.WithContext(smallModel(), 8192))
}

// write writes a file to the bench's folder.
func (b *bench) write(name string, content []byte) (path string) {
	path = filepath.Join(b.dir, name)
	check(os.WriteFile(path, content, 0o600))
	return path
}

// machine starts a daemon whose built-in engine runs the model file. It is signed in at
// the hub, if there is one.
func (b *bench) machine(name, file string, h *hub) (local string, pid int) {
	local = enginetest.FreeAddress()
	conf := fmt.Sprintf("[daemon]\nlisten = %q\n[engine]\nmodels = [%q]\nslots = 4\n[discovery]\nenabled = false\n", local, file)
	env := append(b.home(name, conf), "PATH=/nowhere") // no llama-server instead of the built-in engine
	if h != nil {
		env = b.login(h, env)
	}
	return local, b.start(name, env, b.kith, "serve")
}

// conversations measures the built-in engine: it holds conversations through a hub with two
// daemons. Each turn has the instructions and all turns before.
func (b *bench) conversations(ctx context.Context, rounds int) string {
	file := b.longModel()
	h := b.startHub(ctx)
	for _, name := range []string{"desk", "attic"} {
		b.machine(name, file, h)
	}
	t := &target{name: ours, base: "https://" + h.addr + "/v1", key: b.key(h), cas: h.pool}
	b.ready(ctx, t, "hub", "desk", "attic")
	c := t.client(1)
	defer c.CloseIdleConnections()
	all := make([][]turnFigure, turns)
	for round := range rounds {
		fmt.Fprintf(os.Stderr, "conversation %d/%d\n", round+1, rounds)
		for n, f := range t.conversation(ctx, c, uint64(round)) {
			all[n] = append(all[n], f)
		}
	}
	return conversationTable(all)
}

// conversation holds a conversation, another one for each seed, and returns its turns.
func (t *target) conversation(ctx context.Context, c *http.Client, seed uint64) (all []turnFigure) {
	talk := []message{{"system", instructions(seed)}}
	for n := range turns {
		talk = append(talk, message{"user", fmt.Sprintf("Turn %d: what is %d+%d?", n, n+1, n+2)})
		f := must(t.turn(ctx, c, talk))
		talk = append(talk, message{"assistant", f.text})
		all = append(all, f)
	}
	return all
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// instructions returns about promptTokens tokens of text, another one for each seed.
func instructions(seed uint64) string {
	random := rand.New(rand.NewPCG(seed, 6000))
	words := strings.Fields("the owl sat in a tree and a fox ran to the river where two men built the house of the king by night with fire")
	var text strings.Builder
	for range promptTokens {
		text.WriteString(words[random.IntN(len(words))] + " ")
	}
	return text.String()
}

// turnFigure is what one turn of a conversation took.
type turnFigure struct {
	text           string
	first          time.Duration
	prompt, cached int
}

// turn sends a conversation and reads its streamed answer.
func (t *target) turn(ctx context.Context, c *http.Client, talk []message) (f turnFigure, err error) {
	payload, err := json.Marshal(map[string]any{
		"model": model, "messages": talk, "stream": true, "max_tokens": 16, "temperature": 0,
		"stream_options": map[string]bool{"include_usage": true},
	})
	if err != nil {
		return f, err
	}
	began := time.Now()
	response, err := t.send(ctx, c, http.MethodPost, streamed(payload))
	if err != nil {
		return f, err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: {"))
		if !ok {
			continue
		}
		var frame struct {
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
			Usage struct {
				Prompt  int `json:"prompt_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			} `json:"usage"`
		}
		if err := json.Unmarshal(append([]byte("{"), data...), &frame); err != nil {
			return f, err
		}
		for _, choice := range frame.Choices {
			if f.text += choice.Delta.Content; f.first == 0 && f.text != "" {
				f.first = time.Since(began)
			}
		}
		if frame.Usage.Prompt > 0 {
			f.prompt, f.cached = frame.Usage.Prompt, frame.Usage.Details.Cached
		}
	}
	if f.prompt == 0 {
		return f, errors.Join(errors.New("the answer has no token counts"), lines.Err())
	}
	return f, nil
}

// conversationTable returns the medians of each turn, and the ratio of the later turns'
// first token to the first turn's.
func conversationTable(all [][]turnFigure) string {
	var text strings.Builder
	fmt.Fprintf(&text, "Two daemons, the built-in engine, medians of %d conversations:\n\n| Turn | Tokens of the prompt | Computed | First token |\n|---|---|---|---|\n", len(all[0]))
	var ratios []float64
	for n, turn := range all {
		prompt, computed, first := []int{}, []int{}, []time.Duration{}
		for i, f := range turn {
			prompt, computed, first = append(prompt, f.prompt), append(computed, f.prompt-f.cached), append(first, f.first)
			if n > 0 {
				ratios = append(ratios, float64(f.first)/float64(all[0][i].first))
			}
		}
		fmt.Fprintf(&text, "| %d | %d | %d | %.1f ms |\n", n+1, middle(prompt), middle(computed), float64(middle(first))/1e6)
	}
	fmt.Fprintf(&text, "\nFirst token of turns 2 to %d against turn 1, at the median: %.3f\n\n", turns, middle(ratios))
	return text.String()
}

// middle returns the median of a list.
func middle[T int | float64 | time.Duration](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// speed is the tokens a second of all answers together, and those a second of CPU.
type speed struct{ wall, cpu float64 }

// decoding compares the tokens a second of a daemon's built-in engine with those of
// node-llama-cpp, which has the same libraries, for one answer and for four at once, on one
// thread. The two take turns.
func (b *bench) decoding(ctx context.Context, rounds int) string {
	folder := b.installNode(ctx)
	file := must(filepath.Abs(tinyModel))
	t := b.alone(ctx, "alone", file)
	var text strings.Builder
	text.WriteString("| At once | built-in engine, tokens/s | node-llama-cpp | ratio | tokens a second of CPU | node-llama-cpp | ratio |\n" +
		"|---|---|---|---|---|---|---|\n")
	for _, atOnce := range []int{1, 4} {
		var here, there []speed
		for round := range rounds {
			fmt.Fprintf(os.Stderr, "decoding %d at once, round %d/%d\n", atOnce, round+1, rounds)
			there = append(there, must(nodeSpeed(ctx, folder, file, atOnce)))
			here = append(here, must(t.speed(ctx, story, atOnce)))
		}
		fmt.Fprintf(&text, "| %d |", atOnce)
		for _, read := range []func(speed) float64{func(s speed) float64 { return s.wall }, func(s speed) float64 { return s.cpu }} {
			own, other := median(here, read), median(there, read)
			fmt.Fprintf(&text, " %.0f | %.0f | %.2f |", own, other, own/other)
		}
		text.WriteString("\n")
	}
	return text.String()
}

// alone starts a daemon whose built-in engine runs the model file, without a hub.
func (b *bench) alone(ctx context.Context, name, file string) *target {
	local, pid := b.machine(name, file, nil)
	t := &target{name: "the built-in engine", base: "http://" + local + "/v1"}
	b.speaks(ctx, t, name)
	t.pids = append(children(pid), pid)
	return t
}

// speaks waits until a target without a hub answers.
func (b *bench) speaks(ctx context.Context, t *target, process string) {
	if err := await(ctx, 20*time.Second, func() bool { _, err := t.generate(ctx, story); return err == nil }); err != nil {
		check(fmt.Errorf("%s is not ready: %w%s", t.name, err, b.logs(process)))
	}
}

const storyQuestion = "Tell me a long story about an owl."

// generation is a kind of answer: the question, and further members of the request.
type generation struct{ name, question, more string }

var story = generation{"a story", storyQuestion, ""}

// installNode installs node-llama-cpp in the bench's folder.
func (b *bench) installNode(ctx context.Context) string {
	folder := filepath.Join(b.dir, "nodellama")
	check(os.CopyFS(folder, os.DirFS("bench/nodellama")))
	cmd := exec.CommandContext(ctx, "npm", "install", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund")
	cmd.Dir = folder
	if out, err := cmd.CombinedOutput(); err != nil {
		check(fmt.Errorf("cannot install node-llama-cpp: %w: %s", err, out))
	}
	return folder
}

// nodeSpeed runs node-llama-cpp once.
func nodeSpeed(ctx context.Context, folder, file string, atOnce int) (s speed, err error) {
	prompt := "<|im_start|>user\n" + storyQuestion + "<|im_end|>\n<|im_start|>assistant\n"
	cmd := exec.CommandContext(ctx, "node", "tokens.mjs", file, "1", fmt.Sprint(atOnce), fmt.Sprint(storyTokens), prompt)
	cmd.Dir, cmd.Stderr = folder, os.Stderr
	out, err := cmd.Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &s.wall, &s.cpu)
	}
	return s, err
}

// speed makes atOnce answers at a time, for a second and more, and returns the tokens a
// second, and those a second of CPU of the target's processes.
func (t *target) speed(ctx context.Context, g generation, atOnce int) (s speed, err error) {
	if _, err := t.generateAll(ctx, g, atOnce); err != nil {
		return s, err
	}
	before, began, tokens := cpu(t.pids), time.Now(), 0
	for time.Since(began) < time.Second { // CPU is counted in hundredths of a second
		more, err := t.generateAll(ctx, g, atOnce)
		if err != nil {
			return s, err
		}
		tokens += more
	}
	seconds, used := time.Since(began).Seconds(), time.Duration(0)
	for i, after := range cpu(t.pids) {
		used += after - before[i]
	}
	return speed{float64(tokens) / seconds, float64(tokens) / used.Seconds()}, nil
}

// generateAll makes atOnce answers at the same time and returns their tokens.
func (t *target) generateAll(ctx context.Context, g generation, atOnce int) (tokens int, err error) {
	counts, errs := make([]int, atOnce), make([]error, atOnce)
	var all sync.WaitGroup
	for i := range atOnce {
		all.Go(func() { counts[i], errs[i] = t.generate(ctx, g) })
	}
	all.Wait()
	for _, n := range counts {
		tokens += n
	}
	return tokens, errors.Join(errs...)
}

// generate makes one streamed answer and returns its tokens.
func (t *target) generate(ctx context.Context, g generation) (int, error) {
	payload := fmt.Appendf(nil, `{"model":%q,"stream":true,"stream_options":{"include_usage":true},"temperature":0,"max_tokens":%d,"messages":[{"role":"user","content":%q}]%s}`,
		tiny, storyTokens, g.question, g.more)
	c := t.client(1)
	defer c.CloseIdleConnections()
	response, err := t.send(ctx, c, http.MethodPost, streamed(payload))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	tokens := 0
	if _, counts, ok := bytes.Cut(answer, []byte(`"completion_tokens":`)); ok {
		_, err = fmt.Sscanf(string(counts), "%d", &tokens)
	}
	if tokens == 0 {
		return 0, errors.Join(errors.New("the answer has no token counts"), err)
	}
	return tokens, err
}
