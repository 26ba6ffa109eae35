package llamaserver

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"time"
)

// Memory is the total and the free size of a memory, in bytes.
type Memory struct{ Total, Free uint64 }

const (
	// A reading of the main memory is used for maxRAMAge. The GPUs are read every
	// gpuInterval, because that requires running a program.
	maxRAMAge   = time.Second
	gpuInterval = 15 * time.Second
	// gpuReserve is what llama-server leaves free on each card (--fit-target).
	gpuReserve = 1 << 30
)

// capacity is the memory available for models. llama-server puts as many layers as fit on
// the GPUs and the rest into main memory (--fit), so the sum matters.
type capacity struct{ ram, gpu Memory }

// shortage returns why a model of the given size does not fit, or "" if it fits or the
// memory is unknown. reclaimable is how much could be freed for it.
func (r capacity) shortage(needs, reclaimable uint64) string {
	const advice = "use fewer slots, a shorter context or a smaller model"
	free := r.ram.Free + r.gpu.Free
	switch {
	case r.ram.Total == 0:
		return ""
	case needs > r.ram.Total+r.gpu.Total:
		return fmt.Sprintf("it needs about %s of memory and this machine has %s; %s", formatSize(needs), formatMemory(r.ram.Total, r.gpu.Total), advice)
	case needs > free+reclaimable:
		return fmt.Sprintf("it needs about %s of memory and %s are free; %s", formatSize(needs), formatMemory(r.ram.Free, r.gpu.Free), advice)
	}
	return ""
}

// formatMemory formats an amount of memory, with the part on GPUs if there is one.
func formatMemory(ram, gpu uint64) string {
	if gpu == 0 {
		return formatSize(ram)
	}
	return fmt.Sprintf("%s (%s and %s of its GPU's)", formatSize(ram+gpu), formatSize(ram), formatSize(gpu))
}

// deviceLine matches a device in the output of `llama-server --list-devices`.
var deviceLine = regexp.MustCompile(`\(([0-9]+) MiB, [0-9]+ MiB free\)`)

// canUseGPU reports whether the program was built for one of this machine's GPUs. A
// version without --list-devices counts as not.
func canUseGPU(ctx context.Context, program string) bool {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--list-devices")
	cmd.WaitDelay = time.Second // child processes of a wrapper may keep the pipe open
	output, err := cmd.Output()
	if err != nil {
		return false
	}
	for _, device := range deviceLine.FindAllSubmatch(output, -1) {
		if string(device[1]) != "0" { // CPU libraries are listed without memory
			return true
		}
	}
	return false
}

// readGPUs reads the free memory of the GPUs.
func (p *Pool) readGPUs(ctx context.Context) {
	if !p.usesGPU {
		return
	}
	var sum Memory
	for _, card := range p.config.GPUs(ctx) {
		sum.Total += card.Total - min(card.Total, gpuReserve)
		sum.Free += card.Free - min(card.Free, gpuReserve)
	}
	p.mu.Lock()
	p.gpu = sum
	p.mu.Unlock()
}

// freeGPU returns the free GPU memory of the last reading.
func (p *Pool) freeGPU() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gpu.Free
}

// watchGPUs reads the GPUs at intervals until ctx ends.
func (p *Pool) watchGPUs(ctx context.Context) {
	for {
		select {
		case <-time.After(gpuInterval):
			p.readGPUs(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// capacity returns the free memory of the machine. The system counts the mapped weights
// of loaded models as free, so their part outside GPUs is subtracted.
func (p *Pool) capacity() capacity {
	p.mu.Lock()
	if time.Since(p.ramRead) > maxRAMAge {
		p.ram, p.ramRead = p.config.RAM(), time.Now()
	}
	r := capacity{p.ram, p.gpu}
	p.mu.Unlock()
	for _, s := range p.all() {
		s.mu.Lock()
		if s.address != "" {
			r.ram.Free -= min(r.ram.Free, s.info.size-min(s.info.size, s.onGPU))
		}
		s.mu.Unlock()
	}
	return r
}

// reclaimable returns how many bytes the idle servers use.
func (p *Pool) reclaimable() uint64 {
	total := uint64(0)
	for _, s := range p.all() {
		s.mu.Lock()
		if s.address != "" && s.users == 0 {
			total += s.needs
		}
		s.mu.Unlock()
	}
	return total
}

// makeRoom ends idle servers, the longest idle first, until the model of s fits. The
// caller must hold p.loading, and s must not be running.
func (p *Pool) makeRoom(ctx context.Context, s *Server) error {
	for {
		p.mu.Lock()
		p.ramRead = time.Time{}
		p.mu.Unlock()
		p.readGPUs(ctx)
		r := p.capacity()
		if r.shortage(s.needs, 0) == "" {
			return nil
		}
		if why := r.shortage(s.needs, p.reclaimable()); why != "" { // even ending all idle servers would not be enough
			return fmt.Errorf("cannot load %s: %s", s.file.ID, why)
		}
		var victim *Server
		var idleSince time.Time
		for _, o := range p.all() {
			if since, idle := o.idle(); idle && (victim == nil || since.Before(idleSince)) {
				victim, idleSince = o, since
			}
		}
		if victim == nil || !victim.evict(ctx) && ctx.Err() != nil { // if the victim is in use again, check again
			return fmt.Errorf("cannot load %s: %s", s.file.ID, r.shortage(s.needs, 0))
		}
	}
}

// formatSize formats a number of bytes.
func formatSize(bytes uint64) string {
	if bytes < 1<<30 {
		return strconv.FormatUint(bytes>>20, 10) + " MiB"
	}
	return strconv.FormatFloat(float64(bytes)/(1<<30), 'f', 1, 64) + " GiB"
}
