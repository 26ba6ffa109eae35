//go:build unix

package llamaserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/enginetest"
)

// TestMain makes this program a llama-server that the tests start.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "llama-server" {
		fakeServer(os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// fakeServer is a llama-server whose behaviour the name of the model file selects.
func fakeServer(args []string) {
	flags := map[string]string{}
	for i := 0; i < len(args); i++ {
		if i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
			flags[args[i]] = args[i+1]
			i++
		} else {
			flags[args[i]] = "yes"
		}
	}
	if flags["--list-devices"] != "" {
		says, err := os.ReadFile(filepath.Join(filepath.Dir(os.Args[0]), "devices"))
		if err != nil {
			os.Exit(1) // an old one
		}
		os.Stdout.Write(says)
		return
	}
	model := flags["-m"]
	record, err := os.OpenFile(filepath.Join(filepath.Dir(model), "starts"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		os.Exit(3)
	}
	fmt.Fprintln(record, os.Getpid(), strings.Join(args, " "), "cache_ram="+os.Getenv("LLAMA_ARG_CACHE_RAM"))
	record.Close()
	if strings.Contains(model, "broken") {
		fmt.Fprintln(os.Stderr, "error: unknown model architecture")
		os.Exit(1)
	}
	l, err := net.Listen("unix", flags["--host"])
	if err != nil {
		os.Exit(3)
	}
	_, roomy := os.Stat(filepath.Join(filepath.Dir(model), "roomy"))
	double := enginetest.New(enginetest.LlamaCpp, enginetest.Options{
		Slots: 2,
		Models: []enginetest.Model{{ID: flags["--alias"], Vision: strings.Contains(model, "sees"), Tools: !strings.Contains(model, "plain"),
			ContextLength: map[bool]int{true: 2048}[strings.Contains(model, "short") && roomy != nil]}},
	})
	double.Script(func(c enginetest.Call) enginetest.Behaviour {
		switch c.Input {
		case "die":
			os.Exit(139)
		case "hang":
			return enginetest.Behaviour{Fault: enginetest.Hang}
		}
		return enginetest.Behaviour{}
	})
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, syscall.SIGTERM)
	go func() {
		<-interrupted
		os.Exit(0)
	}()
	_ = (&http.Server{Handler: double, ReadHeaderTimeout: 10 * time.Second}).Serve(l)
}

// entry is one key of a GGUF header: a uint32, a string, or a list of uint32.
type entry struct {
	key   string
	value any
}

// gguf returns a file with that header and size more bytes.
func gguf(entries []entry, behind int) []byte {
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	text := func(s string) { put(uint64(len(s))); b.WriteString(s) }
	b.WriteString("GGUF")
	put(uint32(3))
	put(uint64(0))
	put(uint64(len(entries)))
	for _, e := range entries {
		text(e.key)
		switch v := e.value.(type) {
		case uint32:
			put(uint32(ggufUint32))
			put(v)
		case string:
			put(uint32(ggufString))
			text(v)
		case []uint32:
			put(uint32(ggufArray))
			put(uint32(ggufUint32))
			put(uint64(len(v)))
			put(v)
		case []string:
			put(uint32(ggufArray))
			put(uint32(ggufString))
			put(uint64(len(v)))
			for _, s := range v {
				text(s)
			}
		}
	}
	b.Write(make([]byte, behind))
	return b.Bytes()
}

// chats is the header of a small chat model: 2 layers, 2 heads of 64, trained on
// 4096 tokens; a token of context takes 2*2*(64+64)*2 = 1024 bytes.
func chats() []entry {
	return []entry{
		{"general.architecture", "llama"}, {"llama.context_length", uint32(4096)}, {"llama.block_count", uint32(2)},
		{"llama.embedding_length", uint32(128)}, {"llama.attention.head_count", uint32(2)},
		{"llama.attention.head_count_kv", []uint32{1, 2}},
		{"tokenizer.ggml.tokens", []string{"<s>", "a", ""}},
		{"tokenizer.chat_template", "{% if tools %}{{ tools }}{% endif %}"},
	}
}

// computer is the memory of a rig's machine.
type computer struct {
	mu  sync.Mutex
	ram Memory
	gpu func() []Memory // nil: no card
}

// has sets its main memory, in MiB.
func (c *computer) has(total, free uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ram = Memory{total << 20, free << 20}
}

// hasCard sets the memory of its one card, in MiB.
func (c *computer) hasCard(total, free uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gpu = func() []Memory { return []Memory{{total << 20, free << 20}} }
}

func (c *computer) RAM() Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ram
}

func (c *computer) GPUs(context.Context) []Memory {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gpu == nil {
		return nil
	}
	return c.gpu()
}

// rig is a running pool with models in a folder of its own.
type rig struct {
	*Pool
	*computer
	t   *testing.T
	dir string
}

// fit sets the main memory of a machine, in MiB, and lets the pool read it again.
func (r *rig) fit(total, free uint64) {
	r.has(total, free)
	r.Pool.mu.Lock()
	r.ramRead = time.Time{}
	r.Pool.mu.Unlock()
}

// newRig returns a rig with a llama-server that lists these devices; "" means that
// it is too old to list any.
func newRig(t *testing.T, idle time.Duration, devices string, c *computer, names ...string) *rig {
	t.Helper()
	r := &rig{computer: c, t: t, dir: t.TempDir()}
	exe := assert.Value(os.Executable())(t)
	program := filepath.Join(r.dir, "llama-server")
	assert.OK(t, os.Symlink(exe, program))
	if devices != "" {
		assert.OK(t, os.WriteFile(filepath.Join(r.dir, "devices"), []byte(devices), 0o600))
	}
	config := Config{Program: program, RAM: c.RAM, GPUs: c.GPUs, IdleUnload: idle, Slots: 2, Log: slog.New(slog.DiscardHandler)}
	for _, name := range names {
		path := filepath.Join(r.dir, name+".gguf")
		header := chats()
		if name == "large" { // 64 KiB a token
			header = append(header, entry{"llama.attention.key_length", uint32(4096)})
		}
		assert.OK(t, os.WriteFile(path, gguf(header, 1<<20), 0o600))
		config.Models = append(config.Models, File{ID: name, Path: path})
	}
	r.Pool = New(t.Context(), config)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = r.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		for _, line := range r.starts() {
			pid, _ := strconv.Atoi(strings.Fields(line)[0])
			if err := syscall.Kill(pid, 0); err == nil {
				t.Errorf("llama-server %d outlives the pool", pid)
			}
		}
	})
	return r
}

// free is a computer of 1,000 MiB with that much free, and no card.
func free(mib uint64) *computer { return &computer{ram: Memory{1000 << 20, mib << 20}} }

// server returns the server of a model.
func (r *rig) server(id string) *Server {
	servers := r.Servers()
	return servers[slices.IndexFunc(servers, func(s *Server) bool { return s.file.ID == id })]
}

func (r *rig) starts() []string {
	text, err := os.ReadFile(filepath.Join(r.dir, "starts"))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

func (r *rig) ask(ctx context.Context, model, text string) (string, error) {
	body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, model, text)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://any/v1/chat/completions", strings.NewReader(body))
	assert.OK(r.t, err)
	resp, err := r.server(model).RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}

func (r *rig) says(model, text string) {
	r.t.Helper()
	answer, err := r.ask(r.t.Context(), model, text)
	assert.Require(r.t, err == nil && strings.Contains(answer, text), model, "answered", answer, err)
}

// until waits for a condition.
func (r *rig) until(what string, holds func() bool) {
	r.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !holds(); <-time.After(2 * time.Millisecond) {
		assert.Require(r.t, !time.Now().After(end), "never", what)
	}
}

func TestStartedOnceByTheFirstCall(t *testing.T) {
	r := newRig(t, 0, "", free(900), "one", "other")
	if len(r.starts()) != 0 || r.server("one").Problem() != "" {
		t.Fatalf("before any call: %v, %q", r.starts(), r.server("one").Problem())
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if answer, err := r.ask(t.Context(), "one", "hello"); err != nil || !strings.Contains(answer, "hello") {
				t.Errorf("%q, %v", answer, err)
			}
		})
	}
	all.Wait()
	starts := r.starts()
	assert.Require(t, len(starts) == 1, "started", len(starts), "times", starts)
	for _, want := range []string{"--alias one", "-np 2", "-c 8192", "--offline", "--metrics", ".sock", "cache_ram=0", filepath.Join(r.dir, "one.gguf")} {
		assert.Contains(t, starts[0], want, "started without")
	}
	if m := r.server("one").Model(); m.ContextLength != 4096 || m.Slots != 2 || !m.Tools || m.Embeddings {
		t.Errorf("%+v", m)
	}
}

// A model that is added serves, one that is removed ends after its calls, one that
// stays is not disturbed, and one whose file changed starts again.
func TestSetModels(t *testing.T) {
	r := newRig(t, 0, "", free(900), "one", "other")
	one, other := r.server("one"), r.server("other")
	r.says("one", "hello")
	ctx, cancel := context.WithCancel(t.Context())
	hung := make(chan error, 1)
	go func() {
		_, err := r.ask(ctx, "other", "hang")
		hung <- err
	}()
	r.until("the call is there", func() bool { _, idle := other.idle(); return !idle && len(r.starts()) == 2 && other.Problem() == "" })
	r.until("it runs", func() bool { other.mu.Lock(); defer other.mu.Unlock(); return other.address != "" })
	seeing := File{ID: "sees", Path: filepath.Join(r.dir, "sees.gguf"), Projector: filepath.Join(r.dir, "mmproj.gguf")}
	for from, to := range map[string]string{one.file.Path: seeing.Path, other.file.Path: seeing.Projector} {
		assert.OK(t, os.Link(from, to))
	}
	r.SetModels([]File{one.file, seeing})
	r.says("sees", "hello")
	if starts := r.starts(); len(starts) != 3 || !strings.Contains(starts[2], "--mmproj "+seeing.Projector) || !r.server("sees").Model().Vision {
		t.Errorf("%v", starts)
	}
	if r.server("one") != one || other.Problem() != isRemoved || len(r.all()) != 3 {
		t.Errorf("%q, %d servers", other.Problem(), len(r.all()))
	}
	select {
	case err := <-hung:
		t.Errorf("the call of a model that was removed ended: %v", err)
	default:
	}
	cancel()
	<-hung
	r.until("the removed model's server ends", func() bool { return len(r.all()) == 2 })
	again := one.file
	again.Version = "2"
	r.SetModels([]File{again})
	r.says("one", "hello")
	r.until("only the new one is left", func() bool { return len(r.all()) == 1 })
	assert.That(t, r.server("one") != one && len(r.starts()) == 4, r.starts())
}

// Counting tokens uses a running model and loads none.
func TestOnlyCallsStart(t *testing.T) {
	r := newRig(t, 0, "", free(900), "one")
	count := func() (int, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://llama-server/tokenize", strings.NewReader(`{"content":"one two"}`))
		assert.OK(t, err)
		resp, err := r.server("one").RoundTrip(req)
		if err != nil {
			return 0, err
		}
		defer resp.Body.Close()
		return resp.StatusCode, nil
	}
	if status, err := count(); err == nil || len(r.starts()) != 0 || r.server("one").users != 0 {
		t.Errorf("status %d, %v, started %v", status, err, r.starts())
	}
	r.says("one", "hello")
	if status, err := count(); err != nil || status != http.StatusOK || len(r.starts()) != 1 {
		t.Errorf("status %d, %v", status, err)
	}
}

func TestIdleUnload(t *testing.T) {
	r := newRig(t, 50*time.Millisecond, "", free(900), "one")
	r.says("one", "hello")
	r.until("it ends when idle", func() bool { _, idle := r.server("one").idle(); return !idle })
	r.says("one", "again")
	assert.Equal(t, len(r.starts()), 2, "started")
}

// After a crash the server is not started again during the back-off, in which its model
// is still offered, and a later call starts it.
func TestCrash(t *testing.T) {
	r := newRig(t, 0, "", free(900), "one")
	if _, err := r.ask(t.Context(), "one", "die"); err == nil {
		t.Fatal("a call in which the server died was answered")
	}
	r.until("the crash is seen", func() bool {
		s := r.server("one")
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.crash != nil && s.address == ""
	})
	s := r.server("one")
	s.mu.Lock()
	s.notBefore = time.Now().Add(time.Hour)
	s.mu.Unlock()
	_, err := r.ask(t.Context(), "one", "hello")
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" || !strings.Contains(err.Error(), "exit status 139") {
		t.Errorf("during the back-off: %v", err)
	}
	assert.Equal(t, s.Problem(), "", "a model that was loaded is not offered")
	s.mu.Lock()
	s.notBefore = time.Time{}
	s.mu.Unlock()
	r.says("one", "hello")
}

func TestBrokenModel(t *testing.T) {
	r := newRig(t, 0, "", free(900), "broken")
	_, err := r.ask(t.Context(), "broken", "hello")
	assert.Fails(t, err, "unknown model architecture")
	s := r.server("broken")
	s.mu.Lock()
	s.notBefore = time.Now().Add(time.Hour)
	s.mu.Unlock()
	assert.Contains(t, s.Problem(), "unknown model architecture", "problem")
}

// Each model needs 128 MiB besides its 9 MiB, so 200 MiB hold one.
func TestMemory(t *testing.T) {
	r := newRig(t, 0, "", free(100), "one", "other")
	_, err := r.ask(t.Context(), "one", "hello")
	if op, ok := errors.AsType[*net.OpError](err); !ok || op.Op != "dial" || !strings.Contains(err.Error(), "137 MiB of memory and 100 MiB are free") {
		t.Errorf("no room: %v", err)
	}
	assert.Contains(t, r.server("one").Problem(), "137 MiB", "problem")
	assert.Require(t, len(r.starts()) == 0, "started all the same", r.starts())

	r.fit(1000, 200)
	r.says("one", "hello")
	if m := r.capacity(); m.ram.Free != 200<<20-r.server("one").info.size {
		t.Errorf("%d bytes are free beside what is mapped", m.ram.Free)
	}
	r.fit(1000, 70) // as the system sees it now
	assert.Equal(t, r.server("other").Problem(), "", "the idle one can make room, but")
	hang, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = r.ask(hang, "one", "hang")
	}()
	r.until("the call runs", func() bool { _, idle := r.server("one").idle(); return !idle })
	if _, err := r.ask(t.Context(), "other", "hello"); err == nil || r.server("other").Problem() == "" {
		t.Errorf("a server in use was ended, or memory was overdrawn: %v", err)
	}
	cancel()
	<-over
	r.until("the call is over", func() bool { _, idle := r.server("one").idle(); return idle })
	go func() { // the memory comes back with the end of the process
		gone := func() chan struct{} {
			r.server("one").mu.Lock()
			defer r.server("one").mu.Unlock()
			return r.server("one").exited
		}()
		<-gone
		r.has(1000, 200)
	}()
	r.until("the idle one gives way", func() bool {
		answer, err := r.ask(t.Context(), "other", "hello")
		return err == nil && strings.Contains(answer, "hello")
	})
	if _, idle := r.server("one").idle(); idle {
		t.Error("both run")
	}
}

func TestTooLargeForThisMachine(t *testing.T) {
	dir, c := t.TempDir(), &computer{ram: Memory{100 << 20, 90 << 20}}
	path := filepath.Join(dir, "m.gguf")
	assert.OK(t, os.WriteFile(path, gguf(chats(), 0), 0o600))
	p := New(t.Context(), Config{
		Models: []File{{ID: "m", Path: path}, {ID: "none", Path: filepath.Join(dir, "none")}}, RAM: c.RAM, GPUs: c.GPUs, Slots: 1, Log: slog.New(slog.DiscardHandler),
	})
	if why := p.Servers()[0].Problem(); why != "it needs about 132 MiB of memory and this machine has 100 MiB; use fewer slots, a shorter context or a smaller model" {
		t.Errorf("problem: %q", why)
	}
	assert.Contains(t, p.Servers()[1].Problem(), "no such file", "problem")
}

// A model that does not fit ends no other.
func TestNobodyIsEndedInVain(t *testing.T) {
	r := newRig(t, 0, "", free(200), "one", "other")
	r.says("one", "hello")
	r.fit(130, 100)
	assert.Fails(t, assert.Err(r.ask(t.Context(), "other", "hello")), "this machine has 130 MiB")
	if _, idle := r.server("one").idle(); !idle {
		t.Error("the idle one was ended")
	}
}

// No model is ended if that would not free enough.
func TestNobodyIsEndedForTooLittle(t *testing.T) {
	r := newRig(t, 0, "", free(900), "one", "other", "large")
	r.says("one", "hello")
	r.fit(1000, 400)
	const why = "it needs about 641 MiB of memory and 398 MiB are free"
	assert.Contains(t, r.server("large").Problem(), why, "problem")
	assert.Fails(t, assert.Err(r.ask(t.Context(), "large", "hello")), why)
	if _, idle := r.server("one").idle(); !idle || len(r.starts()) != 1 {
		t.Errorf("the idle one was ended: %v", r.starts())
	}
}

// The model idle for longest is ended, and no more than are needed.
func TestIdleLongestGivesWay(t *testing.T) {
	r := newRig(t, 0, "", free(900), "one", "other", "third")
	r.Pool.config.RAM = func() Memory { // before anything asks: 400 MiB, of which each takes 150
		left := uint64(400 << 20)
		for _, s := range r.servers {
			s.mu.Lock()
			if s.address != "" {
				left -= 150 << 20
			}
			s.mu.Unlock()
		}
		return Memory{1000 << 20, left}
	}
	for _, model := range []string{"other", "one", "other", "third"} { // one is idle for longest
		r.says(model, "hello")
	}
	if _, idle := r.server("other").idle(); !idle || len(r.starts()) != 3 {
		t.Errorf("the last one used was ended: %v", r.starts())
	}
	if _, idle := r.server("one").idle(); idle {
		t.Error("all three run")
	}
}

// A server that ends takes no call with it: either it does not end, or the call
// waits for the next start.
func TestRetiresWhenNobodyIsIn(t *testing.T) {
	s := &Server{address: "x"}
	if err := s.acquire(t.Context(), false); err != nil || s.closeIfIdle() {
		t.Fatalf("retired with a call in it: %v", err)
	}
	s.release()
	assert.That(t, s.closeIfIdle(), "does not retire")
	assert.Is(t, s.acquire(t.Context(), false), errNotRunning, "let in after that")
}

// The memory of a GPU counts, without what llama-server leaves free, and only if
// the llama-server was built for a GPU.
func TestMemoryOfTheGPU(t *testing.T) {
	const cuda = "Available devices:\n  CUDA0: NVIDIA GeForce RTX 3060 (12044 MiB, 11802 MiB free)\n"
	for _, c := range []struct {
		devices     string
		total, free uint64 // MiB of the card
		why         string
	}{
		{cuda, 2048, 1124, ""}, // 100 MiB beside what is gpuReserve
		{cuda, 2048, 1054, "it needs about 137 MiB of memory and 130 MiB (100 MiB and 30 MiB of its GPU's) are free"},
		{cuda, 2048, 500, "137 MiB of memory and 100 MiB are free"},
		{"Available devices:\n  (none)\n", 2048, 2048, "137 MiB of memory and 100 MiB are free"},
		{"Available devices:\n  BLAS: OpenBLAS (0 MiB, 0 MiB free)\n", 2048, 2048, "137 MiB of memory and 100 MiB are free"},
		{"", 2048, 2048, "137 MiB of memory and 100 MiB are free"},
	} {
		computer := free(100)
		computer.hasCard(c.total, c.free)
		r := newRig(t, 0, c.devices, computer, "one")
		if why := r.server("one").Problem(); !strings.Contains(why, c.why) || (why == "") != (c.why == "") {
			t.Errorf("%d MiB free, %q: %q", c.free, c.devices, why)
		}
		if _, err := r.ask(t.Context(), "one", "hello"); (err == nil) != (c.why == "") || err != nil && !strings.Contains(err.Error(), c.why) {
			t.Errorf("%d MiB free, %q: %v", c.free, c.devices, err)
		}
	}
	computer := free(20)
	computer.ram.Total = 100 << 20
	computer.hasCard(1050, 1050)
	r := newRig(t, 0, cuda, computer, "one")
	if why := r.server("one").Problem(); !strings.Contains(why, "this machine has 126 MiB (100 MiB and 26 MiB of its GPU's)") {
		t.Errorf("problem: %q", why)
	}
}

// What a model takes of the GPU is not subtracted from main memory, too.
func TestModelsOnTheGPU(t *testing.T) {
	const card, took = 2048 << 20, 1 << 19
	var r *rig
	computer := free(150)
	computer.gpu = func() []Memory {
		if r != nil && len(r.starts()) > 0 {
			return []Memory{{card, card - took}}
		}
		return []Memory{{card, card}}
	}
	r = newRig(t, 0, "  ROCm0: AMD Radeon RX 7800 XT (16368 MiB, 16342 MiB free)\n", computer, "one")
	r.says("one", "hello")
	want := capacity{Memory{1000 << 20, 150<<20 - (r.server("one").info.size - took)}, Memory{1024 << 20, 1024<<20 - took}}
	assert.That(t, took < r.server("one").info.size && r.capacity() == want, r.capacity(), want)
}

// What the server reports of a loaded model replaces what the file says.
func TestAbilitiesOnceLoaded(t *testing.T) {
	r := newRig(t, 0, "", free(900), "one", "plain", "sees", "short")
	for id, want := range map[string]Model{
		"one":   {ID: "one", ContextLength: 4096, Slots: 2, Tools: true},
		"plain": {ID: "plain", ContextLength: 4096, Slots: 2},
		"sees":  {ID: "sees", ContextLength: 4096, Slots: 2, Tools: true, Vision: true},
		"short": {ID: "short", ContextLength: 2048, Slots: 2, Tools: true},
	} {
		want.Facts = r.server(id).Model().Facts
		assert.Equal(t, want.Facts.Architecture, "llama")
		assert.Equal(t, r.server(id).Model(), (Model{ID: id, ContextLength: 4096, Slots: 2, Tools: true, Facts: want.Facts}), "before")
		r.says(id, "hello")
		assert.Equal(t, r.server(id).Model(), want)
	}
}

// What a server reports holds while it runs: the next one may have more memory.
func TestAbilitiesOfTheNextStart(t *testing.T) {
	r := newRig(t, 0, "", free(900), "short")
	for _, want := range []int{2048, 4096} {
		r.says("short", "hello")
		if m := r.server("short").Model(); m.ContextLength != want {
			t.Errorf("%+v, want %d tokens", m, want)
		}
		if err := os.WriteFile(filepath.Join(r.dir, "roomy"), nil, 0o600); err != nil || !r.server("short").evict(t.Context()) {
			t.Fatal(err)
		}
	}
}

// A server without /props changes nothing.
func TestPropsOfAnOldServer(t *testing.T) {
	old := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"error":{"code":404}}`)
	}))
	defer old.Close()
	if err := getProps(t.Context(), old.Listener.Addr().String(), new(props)); err == nil {
		t.Error("it reported something")
	}
}

func TestHeader(t *testing.T) {
	dir := t.TempDir()
	inspected := func(entries []entry, name string) (*modelInfo, error) {
		path := filepath.Join(dir, name)
		assert.OK(t, os.WriteFile(path, gguf(entries, 1000), 0o600))
		return inspect(path)
	}
	f, err := inspected(chats(), "m.gguf")
	assert.That(t, err == nil && f.context == 4096 && f.perSlot == 1024 && !f.embeds && f.tools, f, err)
	f, err = inspected([]entry{{"general.architecture", "nomic-bert"}, {"nomic-bert.context_length", uint32(2048)}, {"nomic-bert.pooling_type", uint32(1)}}, "e.gguf")
	assert.That(t, err == nil && f.embeds && f.pooled, f, err)
	if _, err := inspected([]entry{{"general.architecture", "llama"}}, "c.gguf"); err == nil {
		t.Error("a model without a context was taken")
	}
	if _, err := inspected(append(chats(), entry{"split.count", uint32(2)}), "p-00001-of-00002.gguf"); err == nil || !strings.Contains(err.Error(), "p-00002-of-00002.gguf is missing") {
		t.Errorf("a part is missing: %v", err)
	}
	second, _ := inspected(chats(), "p-00002-of-00002.gguf")
	if f, err := inspected(append(chats(), entry{"split.count", uint32(2)}), "p-00001-of-00002.gguf"); err != nil || f.size <= second.size {
		t.Errorf("both parts: %+v, %v", f, err)
	}
	f, err = inspected(append(chats(), entry{"general.file_type", uint32(15)}), "q.gguf")
	assert.That(t, err == nil && f.facts.Quantization == "Q4_K_M", f, err)
	f, err = inspected(append(chats(), entry{"general.file_type", uint32(999)}), "n.gguf")
	assert.That(t, err == nil && f.facts.Quantization == "", "a newer quantization", f, err)
}

// The facts of the small model are those that llama.cpp's own llama-server lists of it.
func TestFacts(t *testing.T) {
	facts := assert.Value(FactsOf("../llama/data/tiny.gguf"))(t)
	file := assert.Value(os.Stat("../llama/data/tiny.gguf"))(t)
	assert.Equal(t, facts, Facts{Architecture: "llama", Parameters: 1246592, Quantization: "F16", Size: file.Size()})
	_, err := FactsOf("../llama/data/README.md")
	assert.Fails(t, err, "not GGUF")
}

// A file that was not written to its end is named before a server is started for it.
func TestIncompleteFile(t *testing.T) {
	whole := assert.Value(os.ReadFile("../llama/data/tiny.gguf"))(t)
	dir := t.TempDir()
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		assert.OK(t, os.WriteFile(path, content, 0o600))
		return path
	}
	assert.Equal(t, assert.Value(readHeader(write("whole.gguf", whole)))(t).bytes, uint64(len(whole)), "a whole file")
	for _, n := range []int{len(whole) - 1, len(whole) / 2, 5000, 100, 0} {
		assert.Fails(t, assert.Err(inspect(write("cut.gguf", whole[:n]))), "not complete", n, "bytes of", len(whole))
	}
	write("p-00002-of-00002.gguf", whole[:len(whole)/2])
	first := write("p-00001-of-00002.gguf", gguf(append(chats(), entry{"split.count", uint32(2)}), 1000))
	assert.Fails(t, assert.Err(inspect(first)), "its part p-00002-of-00002.gguf: it is not complete", "a part is cut")
}

// What is no header is refused, whatever it claims, without using memory.
func FuzzHeader(f *testing.F) {
	whole := gguf(chats(), 0)
	f.Add(whole)
	for i := range whole {
		if i%16 == 0 {
			f.Add(whole[:i])
		}
	}
	huge := bytes.Clone(whole)
	for i := 24; i < 32; i++ { // the length of the first key
		huge[i] = 0xff
	}
	f.Add(huge)
	f.Fuzz(func(t *testing.T, data []byte) {
		h, err := parseHeader(bytes.NewReader(data))
		assert.That(t, err != nil || h != nil, "neither a header nor why not")
	})
}

// TestLoadAndUnload: without a call, and not under one.
func TestLoadAndUnload(t *testing.T) {
	r := newRig(t, 0, "", free(900), "one", "large")
	one := r.server("one")
	loaded := func() bool { is, _ := one.Loaded(); return is }
	assert.OK(t, one.Unload(t.Context()), "nothing to end")
	assert.OK(t, one.Load(t.Context()))
	assert.OK(t, one.Load(t.Context()), "again")
	assert.That(t, loaded() && len(r.starts()) == 1, "after Load", r.starts())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = r.ask(ctx, "one", "hang")
	}()
	r.until("the call runs", func() bool { _, idle := one.idle(); return !idle })
	assert.Is(t, one.Unload(t.Context()), ErrRunning, "under a call")
	cancel()
	<-ended
	r.until("the call is over", func() bool { _, idle := one.idle(); return idle })
	assert.OK(t, one.Unload(t.Context()))
	assert.That(t, !loaded(), "after Unload")
	r.fit(1000, 70)
	assert.Fails(t, r.server("large").Load(t.Context()), "of memory", "too large")
}
