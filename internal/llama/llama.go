// Package llama is the built-in engine: llama.cpp's shared libraries, called
// without cgo, behind an HTTP handler in a child process.
//
// A Supervisor starts this very program again as the worker (Worker), because
// an assertion in C++ aborts the whole process that meets it; it restarts the
// worker with back-off, and is reached through Transport. One worker holds all
// models: at start it reads only their vocabularies, at the first request for a
// model its weights, which it gives back after IdleUnload.
//
// Inside the worker each model has one goroutine that owns its llama.cpp
// contexts (runner). It batches the requests of all slots into one decode step,
// so there is no lock around C state, and a request that was cancelled leaves
// at the next step. A sequence always starts empty: nothing of one caller's
// prompt is ever reused for another's.
//
// The package knows nothing of the rest of kith: it speaks the chat and
// embeddings dialects on a socket, as any engine does.
package llama

import (
	"log/slog"
	"time"
)

// WorkerArg is the hidden argument with which the program starts itself as the
// worker; main hands such a process to Worker and exits.
const WorkerArg = "llama-worker"

// ModelFile is a model to serve: a GGUF file and the id it is offered under.
type ModelFile struct {
	ID   string `json:"id"`
	Path string `json:"path"`
}

// Config says what a Supervisor serves. Models and Data must be set.
type Config struct {
	// Models are the files to serve, each under its own id.
	Models []ModelFile
	// Slots is how many requests a model answers at once; 0 means 4.
	Slots int
	// Context is the length of each slot's context in tokens; 0 means 8192.
	// A model trained on less gets what it was trained on.
	Context int
	// IdleUnload is how long after its last request a model's weights leave
	// memory; 0 means never.
	IdleUnload time.Duration
	// Data is a folder of the owner's where the libraries are unpacked.
	Data string
	// Log tells of starts and failures of the worker; never of what it answers.
	Log *slog.Logger
}

const (
	defaultSlots   = 4
	maxSlots       = 64
	defaultContext = 8192
)

// Model is what the worker learned about a ModelFile at start.
type Model struct {
	ID string `json:"id"`
	// ContextLength is each slot's context in tokens: prompt and answer.
	ContextLength int `json:"context_length"`
	// Slots is how many requests it answers at once.
	Slots int `json:"slots"`
	// Chat and Embeddings say which routes serve it.
	Chat       bool `json:"chat"`
	Embeddings bool `json:"embeddings"`
	// Thinking says that its chat template is of a model that thinks first.
	Thinking bool `json:"thinking"`
	// Dimensions is the length of its embeddings, 0 without.
	Dimensions int `json:"dimensions"`
	// Problem is why it cannot be served; then the rest is zero.
	Problem string `json:"problem,omitempty"`
}
