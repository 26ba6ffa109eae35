// Package llamaserver runs the llama-server that this machine has, one process
// for each model file that is in use: started by the first call, reached over a
// private socket, ended when it was idle for long or its memory is wanted for
// another, and after a crash started again only after a pause. It never loads
// what memory does not hold, and says so.
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

// File is a model file and the id it is offered under.
type File struct{ ID, Path string }

// Config says what a Pool serves.
type Config struct {
	// Program is the llama-server, as Find found it.
	Program string
	Models  []File
	// Slots is how many calls each model runs at once; 0 means 4.
	Slots int
	// Context is the length of each slot's context in tokens; 0 means 8192. A
	// model trained on less gets what it was trained on.
	Context int
	// IdleUnload is how long after its last call a model's server ends; 0 means
	// never.
	IdleUnload time.Duration
	// System is the root below which /proc and /sys are read; empty: "/".
	System string
	Log    *slog.Logger
}

// Model is one model as it can be offered.
type Model struct {
	ID            string
	ContextLength int // tokens of each slot
	Slots         int
	Embeddings    bool // it embeds, else it chats
	Tools         bool // its template writes tools
}

// Find looks for a llama-server on the PATH that starts; empty: there is none.
func Find(ctx context.Context) string {
	program, err := exec.LookPath("llama-server")
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if exec.CommandContext(ctx, program, "--version").Run() != nil {
		return "" // of another machine, or without its libraries
	}
	return program
}

// Pool is the servers of all models. Make it with New; Run lives once.
type Pool struct {
	config  Config
	servers []*server
	loading chan struct{} // holds the one who loads: two at once could both find room

	mu   sync.Mutex
	read time.Time // when free was
	free memory
	told bool // free is known
}

// New reads the headers of the model files and starts nothing.
func New(c Config) *Pool {
	if c.Slots <= 0 {
		c.Slots = defaultSlots
	}
	if c.Context <= 0 {
		c.Context = defaultContext
	}
	if c.System == "" {
		c.System = "/"
	}
	c.Slots = min(c.Slots, maxSlots)
	p := &Pool{config: c, loading: make(chan struct{}, 1)}
	for _, file := range c.Models {
		p.servers = append(p.servers, newServer(p, file))
	}
	return p
}

// Run starts and ends servers as they are wanted until ctx ends, and then ends
// them all; it returns nil.
func (p *Pool) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, s := range p.servers {
		all.Go(func() { s.run(ctx) })
	}
	all.Wait()
	return nil
}

// IDs are the ids of all models, in the order configured.
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

// Model is what one of IDs offers.
func (p *Pool) Model(id string) Model { return p.server(id).model }

// Transport reaches the server of one of IDs, whatever host the request names,
// and starts it if it does not run. Where it cannot run now, the error is a
// *net.OpError of a dial: nothing was sent.
func (p *Pool) Transport(id string) http.RoundTripper { return (*toServer)(p.server(id)) }

// Why says why the model cannot be served just now; empty: it can.
func (p *Pool) Why(id string) string {
	s := p.server(id)
	s.mu.Lock()
	problem, running, cooling, cause := s.problem, s.address != "", time.Until(s.coolUntil), s.cause
	s.mu.Unlock()
	switch {
	case problem != "":
		return problem
	case running:
		return ""
	case cooling > 0:
		return fmt.Sprintf("its llama-server ended (%v) and is started again at a call after %v", cause, cooling.Round(time.Millisecond))
	}
	free, known := p.memory()
	if known && s.needs > free.free+p.reclaimable(s) {
		return fmt.Sprintf("it needs about %s of memory and %s are free; use fewer slots, a shorter context or a smaller model", size(s.needs), size(free.free))
	}
	return ""
}

// memory is what the machine has left beside what loaded models keep mapped: the
// system counts that as free, and it is not.
func (p *Pool) memory() (memory, bool) {
	p.mu.Lock()
	if time.Since(p.read) > time.Second {
		p.free, p.told = readMemory(p.config.System)
		p.read = time.Now()
	}
	m, known := p.free, p.told
	p.mu.Unlock()
	for _, s := range p.servers {
		s.mu.Lock()
		if s.address != "" {
			m.free -= min(m.free, s.facts.size)
		}
		s.mu.Unlock()
	}
	return m, known
}

// reclaimable is what ending all idle servers but that one would give back.
func (p *Pool) reclaimable(but *server) uint64 {
	total := uint64(0)
	for _, s := range p.servers {
		s.mu.Lock()
		if s != but && s.address != "" && s.users == 0 {
			total += s.needs
		}
		s.mu.Unlock()
	}
	return total
}

// makeRoom ends idle servers, the one idle longest first, until the model fits;
// the caller holds p.loading.
func (p *Pool) makeRoom(ctx context.Context, s *server) error {
	for {
		p.mu.Lock()
		p.read = time.Time{}
		p.mu.Unlock()
		m, known := p.memory()
		if !known || s.needs <= m.free {
			return nil
		}
		idlest := (*server)(nil)
		for _, o := range p.servers {
			if since, idle := o.idle(); o != s && idle && (idlest == nil || since.Before(idlest.idleFrom())) {
				idlest = o
			}
		}
		if idlest == nil || !idlest.evict(ctx) {
			return fmt.Errorf("cannot load %s: it needs about %s of memory and %s are free; use fewer slots, a shorter context or a smaller model", s.file.ID, size(s.needs), size(m.free))
		}
	}
}
