// Package llamaserver runs the llama-server program of this machine, one process
// for each model file in use. The first call to a model starts its process, which
// listens on a private socket. The process ends after an idle time, or when
// another model needs its memory. After a crash it is not started again before a
// back-off. A model that does not fit into the free memory is not loaded, and
// Problem says why.
package llamaserver

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os/exec"
	"slices"
	"sync"
	"time"
)

const (
	defaultSlots   = 4
	maxSlots       = 64
	defaultContext = 8192
)

// File is a model file and the id under which it is offered.
type File struct{ ID, Path string }

// Config configures a Pool.
type Config struct {
	// Program is the path of llama-server, as returned by Find.
	Program string
	Models  []File
	// Slots is how many calls each model runs at once; 0 means 4.
	Slots int
	// Context is the length of each slot's context in tokens; 0 means 8192. It is
	// at most the length that the model was trained on.
	Context int
	// IdleUnload is how long after its last call a process ends; 0 means never.
	IdleUnload time.Duration
	// RAM reads this machine's main memory. A Total of 0 means unknown: no model
	// is refused then.
	RAM func() Memory
	// GPUs reads the memory of each graphics card that has its own.
	GPUs func(context.Context) []Memory
	Log  *slog.Logger
}

// Model is what a model offers: first from its file, then from its server once
// that has loaded it.
type Model struct {
	ID            string
	ContextLength int // tokens of each slot
	Slots         int
	Embeddings    bool // it embeds; otherwise it chats
	Tools         bool // its chat template knows tools
	Vision, Audio bool // it takes images, audio
}

// Find returns the path of a llama-server on the PATH that starts, or "".
func Find(ctx context.Context) string {
	program, err := exec.LookPath("llama-server")
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if exec.CommandContext(ctx, program, "--version").Run() != nil {
		return "" // for another architecture, or its libraries are missing
	}
	return program
}

// Pool runs the servers of all models. Make it with New and call Run once.
type Pool struct {
	config  Config
	servers []*server
	loading chan struct{} // a lock: two loads at once could both count the same memory
	usesGPU bool

	mu      sync.Mutex
	ram     Memory
	ramRead time.Time
	gpu     Memory // of all cards, without gpuReserve
}

// New reads the headers of the model files and, if this machine has a GPU, runs
// the program once to learn whether it uses it. It starts no server.
func New(ctx context.Context, c Config) *Pool {
	if c.Slots <= 0 {
		c.Slots = defaultSlots
	}
	if c.Context <= 0 {
		c.Context = defaultContext
	}
	c.Slots = min(c.Slots, maxSlots)
	p := &Pool{config: c, loading: make(chan struct{}, 1)}
	for _, file := range c.Models {
		p.servers = append(p.servers, newServer(p, file))
	}
	p.usesGPU = c.GPUs(ctx) != nil && canUseGPU(ctx, c.Program)
	p.readGPUs(ctx)
	return p
}

// Run starts and ends servers on demand until ctx ends, then ends all of them and
// returns nil.
func (p *Pool) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, s := range p.servers {
		all.Go(func() { s.run(ctx) })
	}
	if p.usesGPU {
		all.Go(func() { p.watchGPUs(ctx) })
	}
	all.Wait()
	return nil
}

// IDs returns the ids of all models in the configured order.
func (p *Pool) IDs() []string {
	var ids []string
	for _, s := range p.servers {
		ids = append(ids, s.file.ID)
	}
	return ids
}

func (p *Pool) server(id string) *server {
	return p.servers[slices.IndexFunc(p.servers, func(s *server) bool { return s.file.ID == id })]
}

// Model returns what the model with this id, one of IDs, offers.
func (p *Pool) Model(id string) Model {
	s := p.server(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model
}

// Transport returns a RoundTripper to the server of this id, one of IDs. It
// ignores the host of a request and starts the server if it does not run. If the
// server cannot run now, the error is a *net.OpError of a dial: nothing was sent.
func (p *Pool) Transport(id string) http.RoundTripper { return (*serverTransport)(p.server(id)) }

// Problem returns why the model cannot be served now, or "" if it can.
func (p *Pool) Problem(id string) string {
	s := p.server(id)
	s.mu.Lock()
	problem, running, pause, cause := s.problem, s.address != "", time.Until(s.notBefore), s.crash
	s.mu.Unlock()
	switch {
	case problem != "":
		return problem
	case running:
		return ""
	case pause > 0:
		return fmt.Sprintf("its llama-server ended (%v) and is started again at a call after %v", cause, pause.Round(time.Millisecond))
	}
	return p.capacity().shortage(s.needs, p.reclaimable())
}
