package llamaserver

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// Memory is how much there is of a kind of memory, and how much of it is free,
// in bytes.
type Memory struct{ Total, Free uint64 }

const (
	// ramAge is how old a reading of the main memory may be, gpuEvery how often
	// the cards are asked: a program answers for them.
	ramAge   = time.Second
	gpuEvery = 15 * time.Second
	// spared is what llama-server leaves free on each card (--fit-target).
	spared = 1 << 30
)

// room is what can hold models: the main memory, and the GPUs' own. llama-server
// itself puts as many layers as fit on the GPUs and the rest beside (--fit), so
// the sum of both decides.
type room struct{ ram, gpu Memory }

// lacks says that a model that needs so many bytes does not fit; empty: it fits,
// or nobody knows. more is what could be freed for it.
func (r room) lacks(needs, more uint64) string {
	const advice = "use fewer slots, a shorter context or a smaller model"
	free := r.ram.Free + r.gpu.Free
	switch {
	case r.ram.Total == 0:
		return ""
	case needs > r.ram.Total+r.gpu.Total:
		return fmt.Sprintf("it needs about %s of memory and this machine has %s; %s", size(needs), shares(r.ram.Total, r.gpu.Total), advice)
	case needs > free+more:
		return fmt.Sprintf("it needs about %s of memory and %s are free; %s", size(needs), shares(r.ram.Free, r.gpu.Free), advice)
	}
	return ""
}

// shares writes an amount of memory for a person, and where it is if a GPU has a
// part of it.
func shares(ram, gpu uint64) string {
	if gpu == 0 {
		return size(ram)
	}
	return fmt.Sprintf("%s (%s and %s of its GPU's)", size(ram+gpu), size(ram), size(gpu))
}

// listed is a device in what `llama-server --list-devices` prints: its memory,
// and how much of it is free.
var listed = regexp.MustCompile(`\(([0-9]+) MiB, [0-9]+ MiB free\)`)

// offloads asks the program whether it was built for a GPU of this machine: one
// that was not computes beside the best card. Programs too old to know the
// question count as such.
func offloads(ctx context.Context, program string) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	told, err := exec.CommandContext(ctx, program, "--list-devices").Output()
	if err != nil {
		return false
	}
	for _, device := range listed.FindAllSubmatch(told, -1) {
		if string(device[1]) != "0" { // a library for the processor is listed, too, with none
			return true
		}
	}
	return false
}

// readGPUs asks how much memory the GPUs have left.
func (p *Pool) readGPUs(ctx context.Context) {
	if !p.offloads {
		return
	}
	var sum Memory
	for _, card := range p.config.GPUs(ctx) {
		sum.Total += card.Total - min(card.Total, spared)
		sum.Free += card.Free - min(card.Free, spared)
	}
	p.mu.Lock()
	p.gpu = sum
	p.mu.Unlock()
}

// freeOnGPUs is what readGPUs found free last.
func (p *Pool) freeOnGPUs() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gpu.Free
}

// watchGPUs keeps the reading of the GPUs fresh until ctx ends.
func (p *Pool) watchGPUs(ctx context.Context) {
	for {
		select {
		case <-time.After(gpuEvery):
			p.readGPUs(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// room is what the machine has left beside what loaded models keep mapped: the
// system counts that as free, and it is not, but for what lies on a GPU.
func (p *Pool) room() room {
	p.mu.Lock()
	if time.Since(p.ramRead) > ramAge {
		p.ram, p.ramRead = p.config.RAM(), time.Now()
	}
	r := room{p.ram, p.gpu}
	p.mu.Unlock()
	for _, s := range p.servers {
		s.mu.Lock()
		if s.address != "" {
			r.ram.Free -= min(r.ram.Free, s.facts.size-min(s.facts.size, s.onGPU))
		}
		s.mu.Unlock()
	}
	return r
}

// reclaimable is what ending all idle servers would give back.
func (p *Pool) reclaimable() uint64 {
	total := uint64(0)
	for _, s := range p.servers {
		s.mu.Lock()
		if s.address != "" && s.users == 0 {
			total += s.needs
		}
		s.mu.Unlock()
	}
	return total
}

// makeRoom ends idle servers, the one idle longest first, until the model fits,
// whose own does not run; the caller holds p.loading.
func (p *Pool) makeRoom(ctx context.Context, s *server) error {
	for {
		p.mu.Lock()
		p.ramRead = time.Time{}
		p.mu.Unlock()
		p.readGPUs(ctx)
		r := p.room()
		if r.lacks(s.needs, 0) == "" {
			return nil
		}
		if why := r.lacks(s.needs, p.reclaimable()); why != "" { // nobody is ended in vain
			return fmt.Errorf("cannot load %s: %s", s.file.ID, why)
		}
		idlest := (*server)(nil)
		for _, o := range p.servers {
			if since, idle := o.idle(); idle && (idlest == nil || since.Before(idlest.idleFrom())) {
				idlest = o
			}
		}
		if idlest == nil || !idlest.evict(ctx) && ctx.Err() != nil { // one that is in use again is counted anew
			return fmt.Errorf("cannot load %s: %s", s.file.ID, r.lacks(s.needs, 0))
		}
	}
}

// size writes bytes for a person.
func size(bytes uint64) string {
	if bytes < 1<<30 {
		return strconv.FormatUint(bytes>>20, 10) + " MiB"
	}
	return strconv.FormatFloat(float64(bytes)/(1<<30), 'f', 1, 64) + " GiB"
}
