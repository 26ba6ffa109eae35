// Package llamaserver runs this machine's llama-server program, with one process for each
// model file in use. The first call to a model starts its process, which listens on a
// private socket. The process ends after an idle time, or when another model needs its
// memory. After a crash it is restarted with a back-off. A model that does not fit into
// the free memory is not loaded; Problem returns the reason.
package llamaserver

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	defaultSlots   = 4
	maxSlots       = 64
	defaultContext = 8192
)

// File is a model file and the id that it is offered as.
type File struct {
	ID, Path string
	// Projector is the file that converts images to tokens; empty means none.
	Projector string
	// Version changes when the content of the files does.
	Version string
}

// Config configures a Pool.
type Config struct {
	// Program is the path of llama-server, as returned by Find.
	Program string
	// Models are the files to serve, until SetModels changes them.
	Models []File
	// Slots is the number of concurrent calls per model; 0 means 4.
	Slots int
	// Context is the context length of each slot in tokens; 0 means 8192. The maximum is
	// the length that the model was trained on.
	Context int
	// IdleUnload is how long after its last call a process ends; 0 means never.
	IdleUnload time.Duration
	// RAM returns this machine's main memory. If Total is 0 it is unknown, and then no
	// model is refused.
	RAM func() Memory
	// GPUs returns the memory of each graphics card that has its own.
	GPUs func(context.Context) []Memory
	Log  *slog.Logger
}

// Model is what a model offers. The values come from its file first, and from its server
// once the model is loaded.
type Model struct {
	ID            string
	ContextLength int // per slot, in tokens
	Slots         int
	Embeddings    bool // for embeddings rather than chat
	Tools         bool // its chat template supports tools
	Vision, Audio bool // it accepts images, audio
	Facts         Facts
}

// Find returns the path of a llama-server on the PATH that works, and its version, which
// may be unknown. Without one, both are "".
func Find(ctx context.Context) (program, version string) {
	program, err := exec.LookPath("llama-server")
	if err != nil {
		return "", ""
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--version")
	cmd.WaitDelay = time.Second
	output, err := cmd.CombinedOutput() // older ones write it to standard error
	if err != nil {
		return "", "" // it is for another architecture or its libraries are missing
	}
	for line := range strings.Lines(string(output)) {
		if text, ok := strings.CutPrefix(line, "version: "); ok {
			version = strings.TrimSpace(text)
		}
	}
	return program, version
}

// Pool runs the servers for all models. Create it with New and call Run once.
type Pool struct {
	config  Config
	loading chan struct{} // a lock, because concurrent loads could both count the same memory
	usesGPU bool

	mu      sync.Mutex
	start   func(*Server) // runs a server; nil before and after Run
	servers []*Server     // for the current models
	ending  []*Server     // for removed models, until their last call has ended
	ram     Memory
	ramRead time.Time
	gpu     Memory // of all cards, without gpuReserve
}

// New reads the headers of the model files. If this machine has a GPU, it runs the
// program once to find out whether it uses the GPU. It starts no server.
func New(ctx context.Context, c Config) *Pool {
	c.Slots, c.Context = min(cmp.Or(c.Slots, defaultSlots), maxSlots), cmp.Or(c.Context, defaultContext)
	p := &Pool{config: c, loading: make(chan struct{}, 1)}
	p.SetModels(c.Models)
	p.usesGPU = c.GPUs(ctx) != nil && canUseGPU(ctx, c.Program)
	p.readGPUs(ctx)
	return p
}

// SetModels changes the files to serve. A server with unchanged files keeps running; the
// server of a removed model ends after its current calls.
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

// all returns all servers, including those that are ending.
func (p *Pool) all() []*Server {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(p.servers, p.ending)
}

// Run starts and ends servers on demand until ctx ends. Then it ends all of them and
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

// Problem returns why the model cannot be served now, or "". The back-off of a server
// that had loaded the model is not a problem: the model stays offered, and calls during
// that time find the machine busy instead of the model unknown.
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
