// Package enginetest is a simulated engine: an http.Handler that behaves like one of the
// engines that kith knows, like a plain server, or like a service elsewhere. On request
// it fails in all the ways that engines fail. Tests, the benchmark and `kith rehearse`
// use it over a loopback port or, in a synctest bubble, through a Transport without
// sockets.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"time"
)

// Kind is the kind of engine that the double imitates.
type Kind string

// The kinds have the ids of package engine.
const (
	LlamaCpp  Kind = "llama.cpp"
	Ollama    Kind = "ollama"
	LMStudio  Kind = "lmstudio"
	VLLM      Kind = "vllm"
	SGLang    Kind = "sglang"
	Docker    Kind = "dmr"
	LocalAI   Kind = "localai"
	LlamaSwap Kind = "llama-swap"
	KoboldCpp Kind = "koboldcpp"
	TabbyAPI  Kind = "tabbyapi"
	MLX       Kind = "mlx"
	Jan       Kind = "jan"
	Plain     Kind = "openai"
)

// Kinds are those that package engine recognizes by their answers.
var Kinds = []Kind{LlamaCpp, Ollama, LMStudio, VLLM, SGLang, Docker, LocalAI, LlamaSwap, KoboldCpp, TabbyAPI, MLX, Jan}

// Model is a model that the double offers.
type Model struct {
	ID            string
	ContextLength int  // in tokens; 0 means 4096
	Embeddings    bool // for embeddings instead of chat
	Tools         bool
	Vision        bool
	Audio         bool
	Thinking      bool
}

// Options configure a double.
type Options struct {
	// Models are the models that it lists; nil means one chat model, "test-model".
	Models []Model
	// Slots is the parallelism that it reports, if its kind does; 0 means 1.
	Slots int
	// Limit is the number of concurrent calls above which it answers 503; 0 means no
	// limit.
	Limit int
	// MaxUpload is the largest clip of a Speech double in bytes, before it answers
	// 413; 0 means any.
	MaxUpload int64
	// Key, if not empty, is required as a bearer token or in x-api-key.
	Key string
	// Timing, if not nil, adds the computing time of a machine to the Behaviour of chat
	// calls.
	Timing *Timing
	// Behaviour applies until Set or Script is called.
	Behaviour Behaviour
}

// Fault is a kind of failure. Behaviour.After determines when it happens.
type Fault uint8

// The faults. Those of a unary answer damage its body, except None, Hang and Die.
const (
	None       Fault = iota
	Hang             // sends nothing more until the caller leaves
	Die              // breaks the connection; with After 0 before the first byte
	Cut              // ends cleanly, without finish reason and end mark
	Unmarked         // omits the end mark
	Garbage          // sends one chunk that is not JSON
	Endless          // never ends
	Unstreamed       // answers a stream call with a unary answer
	Zipped           // compresses although that was not accepted
)

// Behaviour is how the double answers a call.
type Behaviour struct {
	// Text is the text of the answer, a chunk for each word; empty means the text of
	// the last user message, or with a Tool none.
	Text string
	// Tool, if not nil, is called after the text.
	Tool *ToolCall
	// Chunks, if not 0, is the number of chunks; the words are repeated.
	Chunks int
	// Reasoning is sent before the text, prefix the name that the kind uses.
	Reasoning string
	// First is the wait before the first byte. Each further chunk is due an Interval after
	// the previous one was due, so after a late chunk all chunks that are due are sent at
	// once.
	First, Interval time.Duration
	// Status, if neither 0 nor 200, is the status of an error in the kind's form.
	Status int
	// Fault happens after After chunks of content.
	Fault Fault
	After int
	// Raw, if not nil, is the body of a streamed answer. Each string is written and
	// flushed.
	Raw []string
	// Answer, if not empty, is the body of a unary answer, or of the error with
	// Status.
	Answer string
}

// ToolCall is a call of one of the caller's tools.
type ToolCall struct {
	ID, Name string
	Input    string // JSON
}

// Call is a call that the double received.
type Call struct {
	Path   string
	From   string // the caller's address, one for each connection
	Header http.Header
	Body   []byte
	Model  string
	Stream bool
	Input  string // the last user message, or the input
	Usage  bool   // include_usage
	Base64 bool   // encoding_format
	Clip   *Clip  // the clip of a transcription, or nil

	hasMessages bool
}

// Counts count the calls so far.
type Counts struct {
	Runs      int // calls that were started
	Running   int
	Completed int // answered completely
	Cancelled int // the caller left first
	Failed    int // ended by a Fault or a Status
	Refused   int // over the limit
	TooLarge  int // clips over MaxUpload
	Chunks    int // of content, in all calls
	Prompt    int // tokens of prompts; with a Timing only
	Computed  int // of these, those that were not kept from an earlier prompt
}

// Engine is a double. It is safe for concurrent use.
type Engine struct {
	kind   Kind
	models []Model
	slots  int
	limit  int
	key    string
	mux    *http.ServeMux

	maxUpload int64
	timing    *Timing

	mu      sync.Mutex
	script  func(Call) Behaviour
	counts  Counts
	last    Call
	kept    []kept        // oldest first
	changed chan struct{} // closed at the next change; nil if no one waits

	server *http.Server
	url    string
}

// New returns a double. It serves after Start, or through its Transport.
func New(kind Kind, o Options) *Engine {
	e := &Engine{kind: kind, models: o.Models, slots: max(o.Slots, 1), limit: o.Limit, key: o.Key, maxUpload: o.MaxUpload, timing: o.Timing}
	if e.models == nil {
		e.models = []Model{{ID: "test-model"}}
	}
	for i := range e.models {
		if e.models[i].ContextLength == 0 {
			e.models[i].ContextLength = 4096
		}
	}
	e.Set(o.Behaviour)
	e.mux = e.routes()
	return e
}

// Set sets the behaviour of all calls from now on.
func (e *Engine) Set(b Behaviour) { e.Script(func(Call) Behaviour { return b }) }

// Script makes f choose the behaviour of each call from now on.
func (e *Engine) Script(f func(Call) Behaviour) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = f
}

// Counts returns the counts so far.
func (e *Engine) Counts() Counts {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts
}

// Last returns the last call that was run.
func (e *Engine) Last() Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// Wait waits until holds reports true for the counts, or ctx ends.
func (e *Engine) Wait(ctx context.Context, holds func(Counts) bool) error {
	for {
		e.mu.Lock()
		counts := e.counts
		if e.changed == nil {
			e.changed = make(chan struct{})
		}
		changed := e.changed
		e.mu.Unlock()
		if holds(counts) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the engine double has %+v: %w", counts, ctx.Err())
		case <-changed:
		}
	}
}

// count changes the counts and wakes Wait.
func (e *Engine) count(change func(c *Counts)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.counts)
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// Start serves on a loopback port until Close.
func (e *Engine) Start() error { return e.Listen("127.0.0.1:0") }

// Listen serves on the address. To listen on the same address again later, use
// FreeAddress for it: no other program is assigned that address in between.
func (e *Engine) Listen(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("cannot start the engine double: %w", err)
	}
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: 10 * time.Second}
	e.url = "http://" + ln.Addr().String()
	if e.kind == LlamaCpp {
		ln = listener{ln}
		connections(e.server)
	}
	go func(server *http.Server) {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // the listener failed
		}
	}(e.server)
	return nil
}

// URL returns the address of a started double, without /v1, or "".
func (e *Engine) URL() string { return e.url }

// Close stops listening and breaks every connection.
func (e *Engine) Close() error {
	if e.server == nil {
		return nil
	}
	return e.server.Close()
}

var chosen sync.Map // the addresses that FreeAddress has tried

// FreeAddress returns a loopback address for a process that a test starts. Nothing
// listens there, outgoing connections do not use its port, and it is returned only once.
// FreeAddress does not listen there itself, because a process started at that moment
// would inherit the listener. It panics if it finds no address.
func FreeAddress() string {
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 13_000+rand.IntN(17_000)) // engines use 11434, 12434 and 30000
		if _, again := chosen.LoadOrStore(address, true); again {
			continue
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return address
		}
		conn.Close()
	}
	panic("enginetest: no port is free")
}

// OneDay waits until the UTC day has at least a minute left, so that everything a test
// counts per day in real time falls on one day.
func OneDay() {
	now := time.Now()
	if left := now.Truncate(24 * time.Hour).Add(24 * time.Hour).Sub(now); left < time.Minute {
		time.Sleep(left)
	}
}

// Relay passes the connections to l on to an address, byte for byte, until l is closed. up
// gets a copy of what goes there, and down of what comes back, both from several goroutines.
func Relay(l net.Listener, to string, up, down io.Writer) {
	pass := func(into, from net.Conn, copied io.Writer) {
		_, _ = io.Copy(io.MultiWriter(copied, into), from) // either end may leave at any time
		into.Close()
		from.Close()
	}
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", to)
		if err != nil {
			client.Close()
			continue
		}
		go pass(server, client, up)
		go pass(client, server, down)
	}
}
