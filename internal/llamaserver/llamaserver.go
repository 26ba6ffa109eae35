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
type File struct {
	ID, Path string
	// Projector is the file that turns images into tokens; empty is none.
	Projector string
	// Version changes with the contents of the files.
	Version string
}

// Config configures a Pool.
type Config struct {
	// Program is the path of llama-server, as returned by Find.
	Program string
	// Models are the files to serve, until SetModels changes them.
	Models []File
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
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second
	if cmd.Run() != nil {
		return "" // for another architecture, or its libraries are missing
	}
	return program
}

// Pool runs the servers of all models. Make it with New and call Run once.
type Pool struct {
	config  Config
	loading chan struct{} // a lock: two loads at once could both count the same memory
	usesGPU bool

	mu      sync.Mutex
	start   func(*Server) // runs a server; nil before and after Run
	servers []*Server     // of the models
	ending  []*Server     // of models that are removed, until their last call has ended
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
	p.SetModels(c.Models)
	p.usesGPU = c.GPUs(ctx) != nil && canUseGPU(ctx, c.Program)
	p.readGPUs(ctx)
	return p
}

// SetModels makes the files those that are served. A server whose files are the same
// goes on; that of a model which is removed ends after the calls that it has.
func (p *Pool) SetModels(files []File) {
	before := p.all()
	servers := make([]*Server, len(files))
	for i, file := range files {
		if at := slices.IndexFunc(before, func(s *Server) bool { return s.file == file && !s.isRemoved() }); at >= 0 {
			servers[i] = before[at]
		} else {
			servers[i] = newServer(p, file)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.servers {
		if !slices.Contains(servers, s) {
			s.remove()
			if p.start != nil {
				p.ending = append(p.ending, s)
			}
		}
	}
	for _, s := range servers {
		if p.start != nil && !slices.Contains(before, s) {
			p.start(s)
		}
	}
	p.servers = servers
}

// all returns the servers, those that are ending included.
func (p *Pool) all() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.servers, p.ending)
}

// Run starts and ends servers on demand until ctx ends, then ends all of them and
// returns nil.
func (p *Pool) Run(ctx context.Context) error {
	var all sync.WaitGroup
	p.mu.Lock()
	p.start = func(s *Server) {
		all.Go(func() {
			s.run(ctx)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.ending = slices.DeleteFunc(p.ending, func(e *Server) bool { return e == s })
		})
	}
	for _, s := range p.servers {
		p.start(s)
	}
	p.mu.Unlock()
	if p.usesGPU {
		p.watchGPUs(ctx)
	}
	<-ctx.Done()
	p.mu.Lock()
	p.start = nil
	p.mu.Unlock()
	all.Wait()
	return nil
}

// Servers returns the servers of all models in the configured order.
func (p *Pool) Servers() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.servers)
}

// Model returns what the model offers.
func (s *Server) Model() Model {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model
}

// Problem returns why the model cannot be served now, or "" if it can. A back-off after
// a server that had loaded the model is none: the model is still offered, and a call in
// that time finds its machine busy instead of its model unknown.
func (s *Server) Problem() string {
	p := s.pool
	s.mu.Lock()
	problem, running, pause, cause, loads := s.problem, s.address != "", time.Until(s.notBefore), s.crash, s.loads
	s.mu.Unlock()
	switch {
	case problem != "":
		return problem
	case running:
		return ""
	case pause > 0 && !loads:
		return fmt.Sprintf("its llama-server ended (%v) and is started again at a call after %v", cause, pause.Round(time.Millisecond))
	}
	return p.capacity().shortage(s.needs, p.reclaimable())
}
