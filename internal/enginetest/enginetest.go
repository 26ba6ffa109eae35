// Package enginetest is an engine double: an http.Handler that speaks as one of
// the engines that kith knows does, or a plain server, or a service elsewhere,
// and fails on demand in every way an engine can. Tests, the benchmark and `kith
// rehearse` use it, over a real loopback port or, in a synctest bubble,
// through a Transport without sockets.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Kind is which engine the double speaks as.
type Kind string

// The kinds, by the words the engine package has for them.
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

// Kinds are those that can be told apart by what they answer.
var Kinds = []Kind{LlamaCpp, Ollama, LMStudio, VLLM, SGLang, Docker, LocalAI, LlamaSwap, KoboldCpp, TabbyAPI, MLX, Jan}

// Model is one model the double offers.
type Model struct {
	ID            string
	ContextLength int  // tokens; 0: 4096
	Embeddings    bool // for embeddings, not for chat
	Tools         bool
	Vision        bool
	Thinking      bool
}

// Options say what the double offers.
type Options struct {
	// Models are what it lists; nil: one chat model, "test-model".
	Models []Model
	// Slots is the parallelism it tells, where its kind tells one; 0: 1.
	Slots int
	// Limit is how many calls it runs at once before it answers 503; 0: any.
	Limit int
	// MaxUpload is the largest clip that a Speech double takes, in bytes; beyond it
	// answers 413. 0: any.
	MaxUpload int64
	// Key, if not empty, is asked for as a bearer token, or in x-api-key.
	Key string
	// Behaviour is how it answers until Set or Script say otherwise.
	Behaviour Behaviour
}

// Fault is a way to go wrong, at the point that Behaviour.After says.
type Fault uint8

// The faults. Of an unary answer all but None, Hang and Die spoil the body.
const (
	None       Fault = iota
	Hang             // falls silent until the caller leaves
	Die              // breaks the connection; After 0: before the first byte
	Cut              // ends cleanly, without finish reason and end mark
	Unmarked         // says all but the end mark
	Garbage          // one chunk is not JSON
	Endless          // never stops
	Unstreamed       // answers a stream call with an unary answer
	Zipped           // compresses, unasked
)

// Behaviour is how the double answers a call.
type Behaviour struct {
	// Text is what it says, a chunk for each word; empty: what the last user
	// message said.
	Text string
	// Chunks, if not 0, is how many chunks it says, the words over and over.
	Chunks int
	// Reasoning is what it thinks before that, under the name its kind uses.
	Reasoning string
	// First is the wait before the first byte, Interval that before each chunk
	// after the first.
	First, Interval time.Duration
	// Status, if neither 0 nor 200, is an error's, in the form of its kind.
	Status int
	// Fault happens after that many chunks of content.
	Fault Fault
	After int
	// Raw, if not nil, is the whole body of a streamed answer, each string
	// written and flushed on its own.
	Raw []string
	// Answer, if not empty, is the whole body of an unary answer, or of the error
	// that Status asks for.
	Answer string
}

// Call is a chat or embeddings call, or one to transcribe, as the double received it.
type Call struct {
	Path   string
	From   string // the caller's address, one a connection
	Header http.Header
	Body   []byte
	Model  string
	Stream bool
	Said   string // the last user message, or the input
	Usage  bool   // include_usage
	Base64 bool   // encoding_format
	Clip   *Clip  // what was to be transcribed; nil: another call
}

// Counts are what happened so far.
type Counts struct {
	Runs      int // calls begun, refusals not counted
	Running   int
	Completed int // answered whole
	Cancelled int // the caller left first
	Failed    int // ended by a Fault or a Status
	Refused   int // over the limit
	TooLarge  int // clips over MaxUpload
	Chunks    int // of content sent, all calls together
}

// Engine is one double. It is safe for concurrent use.
type Engine struct {
	kind   Kind
	models []Model
	slots  int
	limit  int
	key    string
	mux    *http.ServeMux

	maxUpload int64

	mu      sync.Mutex
	script  func(Call) Behaviour
	counts  Counts
	last    Call
	changed chan struct{} // nil while nobody waits

	server *http.Server
	url    string
}

// New makes a double of the kind; it serves once it is started or asked
// through its Transport.
func New(kind Kind, o Options) *Engine {
	e := &Engine{kind: kind, models: o.Models, slots: max(o.Slots, 1), limit: o.Limit, key: o.Key, maxUpload: o.MaxUpload}
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

// Set makes every call from now on behave so.
func (e *Engine) Set(b Behaviour) { e.Script(func(Call) Behaviour { return b }) }

// Script asks f how each call from now on is to be answered.
func (e *Engine) Script(f func(Call) Behaviour) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.script = f
}

// Counts is what happened so far.
func (e *Engine) Counts() Counts {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts
}

// Last is the last call that was run.
func (e *Engine) Last() Call {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.last
}

// Wait returns when holds is true of the counts, or ctx's error.
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
			return fmt.Errorf("the engine double stands at %+v: %w", counts, ctx.Err())
		case <-changed:
		}
	}
}

// count changes the counts and tells who waits for that.
func (e *Engine) count(change func(c *Counts)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change(&e.counts)
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// Start serves on a loopback port; Close ends that.
func (e *Engine) Start() error { return e.Listen("127.0.0.1:0") }

// Listen serves on the address, for one who restarts where it was.
func (e *Engine) Listen(addr string) error {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("cannot start the engine double: %w", err)
	}
	e.server = &http.Server{Handler: e, ReadHeaderTimeout: 10 * time.Second}
	e.url = "http://" + ln.Addr().String()
	go func(server *http.Server) {
		if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // the listener of a test broke: nothing sensible follows
		}
	}(e.server)
	return nil
}

// URL is where the double listens, without /v1; empty: it was not started.
func (e *Engine) URL() string { return e.url }

// Close stops listening and breaks every connection.
func (e *Engine) Close() error {
	if e.server == nil {
		return nil
	}
	return e.server.Close()
}
