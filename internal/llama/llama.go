// Package llama is the built-in engine: llama.cpp's shared libraries, called without cgo,
// behind an HTTP handler in a child process.
//
// A Supervisor starts this program again as the worker (Worker), because a failed
// assertion in C++ aborts its process. It restarts the worker with a back-off, and
// Transport connects to the current worker. One worker serves all models. At its start it
// only reads their vocabularies; it loads the weights of a model at the first request and
// frees them after IdleUnload.
//
// Inside the worker each model has one goroutine (runner) that owns its llama.cpp
// contexts. It batches the requests of all slots into one decode step, so that no lock
// protects C state and a canceled request ends at the next step. A slot keeps its tokens
// after an answer. The next prompt of the same caller reuses the tokens that it has in
// common with them; nothing of a caller's prompt is reused for other callers.
//
// The package knows nothing about the rest of kith: like any engine, it serves the chat
// and embeddings dialects on a socket.
package llama

import (
	"log/slog"
	"time"
)

// WorkerArg is the hidden argument that makes this program the worker: main then calls
// Worker and exits.
const WorkerArg = "llama-worker"

// ModelFile is a GGUF file and the id that it is offered as.
type ModelFile struct {
	ID   string `json:"id"`
	Path string `json:"path"`
	// Version changes when the file's content does.
	Version string `json:"version"`
}

// Config configures a Supervisor. Models and Data are required.
type Config struct {
	// Models are the files to serve, until SetModels changes them.
	Models []ModelFile
	// OnModels is called when Models and Problems have changed; it may be nil.
	OnModels func()
	// Slots is the number of concurrent requests per model; 0 means up to 4, as many as
	// fit into the memory.
	Slots int
	// Context is the context length of each slot in tokens; 0 means up to 32,768, as many
	// as fit. The maximum is the length that the model was trained on.
	Context int
	// IdleUnload is how long after its last request a model's weights are freed; 0 means
	// never.
	IdleUnload time.Duration
	// Data is a private folder for the unpacked libraries and for stored prompts.
	Data string
	// KeepPrompts is how many bytes of computed prompts are kept in Data while their model
	// is not loaded, encrypted with PromptKey (see NewPromptKey); 0 means none.
	KeepPrompts int64
	PromptKey   string
	// GPUs are the GPU libraries to use if they are installed in Data, in order of
	// preference.
	GPUs []GPULibrary
	// Log logs starts and failures of the worker, but nothing of its answers.
	Log *slog.Logger
}

const (
	defaultSlots = 4
	maxSlots     = 64
	// The context length that is chosen if none is configured.
	maxDefaultContext = 32_768
	minDefaultContext = 4096
	// leaveTimeout is how long the worker may take to store its prompts when it ends.
	leaveTimeout = 15 * time.Second
)

// Model is what the worker has read from a ModelFile.
type Model struct {
	ID string `json:"id"`
	// ContextLength is the context length of each slot in tokens.
	ContextLength int `json:"context_length"`
	// Slots is the number of concurrent requests.
	Slots int `json:"slots"`
	// Chat and Embeddings are the supported routes.
	Chat       bool `json:"chat"`
	Embeddings bool `json:"embeddings"`
	// Thinking reports that the chat template is that of a thinking model.
	Thinking bool `json:"thinking"`
	// Tools reports that the model can call tools. ToolProblem is why a chat model cannot.
	Tools       bool   `json:"tools"`
	ToolProblem string `json:"tool_problem,omitempty"`
	// DefaultTools reports that its chat template writes no tool calls, so that they are
	// described to the model in the default form.
	DefaultTools bool `json:"default_tools,omitempty"`
	// Dimensions is the length of the model's embeddings, or 0.
	Dimensions int `json:"dimensions"`
	// Problem is why it cannot be served; the other fields are then zero.
	Problem string `json:"problem,omitempty"`
}
