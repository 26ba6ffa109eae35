package fleet

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// FileVerb is the kind of a FileAct.
type FileVerb string

// The acts on model files.
const (
	ActList   FileVerb = "list"
	ActPull   FileVerb = "pull"
	ActCancel FileVerb = "cancel" // of a pull
	ActRemove FileVerb = "remove"
	ActLoad   FileVerb = "load"
	ActUnload FileVerb = "unload"
)

// FileActs are all acts that change something, in the order of the pages.
var FileActs = []FileVerb{ActPull, ActCancel, ActRemove, ActLoad, ActUnload}

// FileAct is what an owner does with the model files of a machine: the member models of the
// body of POST /control on the tunnel (spec/tunnel.md#models), and the body of POST /models
// on the daemon's socket.
type FileAct struct {
	Act FileVerb `json:"act"`
	// Model is what to pull, as for kith pull, or the id of a model.
	Model string `json:"model,omitzero"`
	// By names who asks from elsewhere, for the machine's log.
	By string `json:"by,omitzero"`
}

// Shown returns Model as it may be logged and shown: a URL without its query, which may be a
// signature, and without a password.
func (a FileAct) Shown() string {
	name, _, _ := strings.Cut(a.Model, "?")
	scheme, rest, isURL := strings.Cut(name, "://")
	host, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndex(host, "@"); isURL && at >= 0 {
		return scheme + "://" + host[at+1:] + "/" + path
	}
	return name
}

// MaxReference is the largest length of FileAct.Model, in bytes.
const MaxReference = 1024

// ModelFiles is the state of a machine's model files after a FileAct.
type ModelFiles struct {
	Files []ModelFile `json:"files"`
	Pulls []ModelPull `json:"pulls"` // in the order in which they were requested
	// List are recommended models, and which of them fit the machine's memory.
	List []ListedModel `json:"list"`
	// DiskFree is the free space of the folder that models are fetched into; absent:
	// unknown. Memory is what one model can use; absent: unknown. Both are in bytes.
	DiskFree int64 `json:"disk_free,omitzero"`
	Memory   int64 `json:"memory,omitzero"`
	// Gauges is how busy the computer is, in the answer to ActList from elsewhere; absent:
	// unknown.
	Gauges *Gauges `json:"gauges,omitzero"`
}

// File returns the file with an id.
func (m *ModelFiles) File(id string) (file ModelFile, ok bool) {
	at := slices.IndexFunc(m.Files, func(f ModelFile) bool { return f.ID == id })
	if at < 0 {
		return file, false
	}
	return m.Files[at], true
}

// ModelFile is a model in files of a machine.
type ModelFile struct {
	ID    string    `json:"id"`
	Size  int64     `json:"size"` // of all its files, in bytes
	State FileState `json:"state"`
	// Problem is why the model cannot be served, or why the last load failed.
	Problem string `json:"problem,omitzero"`
}

// FileState is whether a model is in memory.
type FileState string

// The states of a model file.
const (
	FileUnloaded FileState = "unloaded"
	FileLoading  FileState = "loading"
	FileLoaded   FileState = "loaded"
)

// ModelPull is the download of a model that was asked for from elsewhere.
type ModelPull struct {
	Model string    `json:"model"`       // as it was asked for
	ID    string    `json:"id,omitzero"` // of the model, once it is known
	By    string    `json:"by,omitzero"` // who asked
	At    time.Time `json:"at"`          // when
	State PullState `json:"state"`
	File  string    `json:"file,omitzero"` // that is fetched or verified now
	Done  int64     `json:"done"`          // bytes
	Total int64     `json:"total"`         // bytes; -1: unknown
	// Verifying reports that bytes that came before are being read.
	Verifying bool `json:"verifying,omitzero"`
	// Problem is why it failed, or why it pauses and is tried again.
	Problem string `json:"problem,omitzero"`
}

// PullState is how far a pull is.
type PullState string

// The states of a pull.
const (
	PullWaiting PullState = "waiting" // for the pulls before it, or until it is tried again
	PullRunning PullState = "running"
	PullFailed  PullState = "failed"   // until it is asked for again or canceled
	PullDone    PullState = "complete" // listed for a short while
)

// ListedModel is a recommended model.
type ListedModel struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`   // bytes
	Memory int64  `json:"memory"` // needed, in bytes
	Fits   bool   `json:"fits"`
	// Tools is how it calls tools, as in the list of kith pull; Context is the context length
	// that it would have there, in tokens; absent: unknown.
	Tools    string `json:"tools,omitzero"`
	Thinking bool   `json:"thinking,omitzero"`
	Context  int    `json:"context,omitzero"`
	Licence  string `json:"licence"`
	About    string `json:"about"`
}

var (
	// ErrFilesOff is returned for a FileAct from elsewhere on a machine that takes none.
	ErrFilesOff = errors.New("this machine lets its model files be managed only on itself ([hub] remote = false in its config.toml)")
	// ErrFilesUnknown is returned for a FileAct on a machine whose kith knows none.
	ErrFilesUnknown = errors.New("its kith is older and cannot do that: update kith there")
)

// FileRefusal is why a machine refused a FileAct, in its own words.
type FileRefusal string

// Error implements error.
func (r FileRefusal) Error() string { return string(r) }
