// Package llama is the built-in engine: llama.cpp's shared libraries, called
// without cgo, behind an HTTP handler in a child process.
//
// A Supervisor starts this program again as the worker (Worker), because an
// assertion in C++ aborts its process. It restarts the worker with a back-off, and
// Transport reaches the worker that runs. One worker serves all models. At its
// start it reads only their vocabularies; it loads the weights of a model at the
// first request and frees them after IdleUnload.
//
// Inside the worker each model has one goroutine (runner) that owns its llama.cpp
// contexts. It batches the requests of all slots into one decode step, so that no
// lock protects C state and a canceled request ends at the next step. A slot keeps its
// tokens after an answer. The next prompt of the same caller reuses those at its start;
// nothing of a caller's prompt is reused for another caller.
//
// The package knows nothing of the rest of kith: it serves the chat and embeddings
// dialects on a socket, as any engine does.
package llama

import (
	"log/slog"
	"time"
)

// WorkerArg is the hidden argument with which the program starts itself as the
// worker: main then calls Worker and exits.
const WorkerArg = "llama-worker"

// ModelFile is a GGUF file and the id under which it is offered.
type ModelFile struct {
	ID   string `json:"id"`
	Path string `json:"path"`
	// Version changes with the contents of the file.
	Version string `json:"version"`
}

// Config configures a Supervisor. Models and Data are required.
type Config struct {
	// Models are the files to serve, until SetModels changes them.
	Models []ModelFile
	// OnModels is called when Models and Problems have changed; it may be nil.
	OnModels func()
	// Slots is how many requests a model answers at once; 0 means 4.
	Slots int
	// Context is the length of each slot's context in tokens; 0 means 8192. It is
	// at most the length that the model was trained on.
	Context int
	// IdleUnload is how long after its last request a model's weights are freed; 0
	// means never.
	IdleUnload time.Duration
	// Data is a private folder where the libraries are unpacked.
	Data string
	// GPUs are the GPU libraries that are used if they are installed in Data, the
	// preferred one first.
	GPUs []GPULibrary
	// Log receives starts and failures of the worker, but nothing of its answers.
	Log *slog.Logger
}

const (
	defaultSlots   = 4
	maxSlots       = 64
	defaultContext = 8192
)

// Model is what the worker read from a ModelFile.
type Model struct {
	ID string `json:"id"`
	// ContextLength is the length of each slot's context in tokens.
	ContextLength int `json:"context_length"`
	// Slots is how many requests it answers at once.
	Slots int `json:"slots"`
	// Chat and Embeddings are the supported routes.
	Chat       bool `json:"chat"`
	Embeddings bool `json:"embeddings"`
	// Thinking reports a chat template of a model that thinks first.
	Thinking bool `json:"thinking"`
	// Dimensions is the length of its embeddings, or 0.
	Dimensions int `json:"dimensions"`
	// Problem is why it cannot be served; the other fields are then zero.
	Problem string `json:"problem,omitempty"`
}
