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
	// RAM reads this machine's main memory; a Total of 0: the system does not
	// tell, and nothing is refused for it.
	RAM func() Memory
	// GPUs reads the memory of each graphics card that has its own.
	GPUs func(context.Context) []Memory
	Log  *slog.Logger
}

// Model is one model as it can be offered: as its file has it, and once it has
// been loaded as its server has it.
type Model struct {
	ID            string
	ContextLength int // tokens of each slot
	Slots         int
	Embeddings    bool // it embeds, else it chats
	Tools         bool // its template writes tools
	Vision, Audio bool // it takes pictures, sounds
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
	config   Config
	servers  []*server
	loading  chan struct{} // holds the one who loads: two at once could both find room
	offloads bool          // the program can use the GPUs

	mu      sync.Mutex
	ram     Memory
	ramRead time.Time
	gpu     Memory // of all, without what is spared
}

// New reads the headers of the model files, asks the program whether it uses a
// GPU if there is one, and starts nothing.
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
	p.offloads = c.GPUs(ctx) != nil && offloads(ctx, c.Program)
	p.readGPUs(ctx)
	return p
}

// Run starts and ends servers as they are wanted until ctx ends, and then ends
// them all; it returns nil.
func (p *Pool) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, s := range p.servers {
		all.Go(func() { s.run(ctx) })
	}
	if p.offloads {
		all.Go(func() { p.watchGPUs(ctx) })
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
func (p *Pool) Model(id string) Model {
	s := p.server(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.model
}

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
	return p.room().lacks(s.needs, p.reclaimable())
}
