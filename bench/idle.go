package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json/v2"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// The goals of docs/performance.md.
const (
	idleKB   = 46
	backSoon = time.Minute
)

// idle measures n tunnels without calls: memory of the hub for each, and how long all
// take to come back after the hub was killed and started again.
func (b *bench) idle(ctx context.Context, n int) {
	h := b.startHub(ctx)
	secrets := must(h.machines(ctx, n))
	before := h.memory()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var ready atomic.Int64 // tunnels that are acknowledged
	for _, secret := range secrets {
		go h.machine(ctx, secret, &ready)
	}
	began := time.Now()
	all := func() bool { return ready.Load() == int64(n) }
	if err := await(ctx, 5*time.Minute, all); err != nil {
		check(fmt.Errorf("%w: %d of %d tunnels are up%s", err, ready.Load(), n, b.logs("hub")))
	}
	fmt.Printf("%d tunnels up after %.1f s\n", n, time.Since(began).Seconds())
	time.Sleep(20 * time.Second) // pings have gone both ways
	after := h.memory()
	each := func(a, b int64) float64 { return float64(b-a) / float64(n) / 1024 }
	fmt.Printf("memory of the hub for each: %.1f KB in use after a collection, %.1f KB resident (goal %d KB)\n",
		each(before.used, after.used), each(before.resident, after.resident), idleKB)

	began = time.Now()
	check(syscall.Kill(h.pid, syscall.SIGKILL))
	if err := await(ctx, time.Minute, func() bool { return ready.Load() == 0 }); err != nil {
		check(fmt.Errorf("%w: %d tunnels outlive the hub", err, ready.Load()))
	}
	b.serve(ctx, h)
	if err := await(ctx, 5*time.Minute, all); err != nil {
		check(fmt.Errorf("%w: %d of %d tunnels came back", err, ready.Load(), n))
	}
	fmt.Printf("all back %.1f s after the hub was killed (goal %.0f s)\n", time.Since(began).Seconds(), backSoon.Seconds())
}

// machines makes n machines of the member and returns their credentials.
func (h *hub) machines(ctx context.Context, n int) ([]string, error) {
	operator := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(h.data, "admin.sock"))
	}}}
	public := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: h.pool}}}
	secrets := make([]string, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i := range n {
		g.Go(func() error {
			name := fmt.Sprintf("box%05d", i)
			var made struct{ Token, Secret string }
			if err := post(ctx, operator, "http://operator", "/machines/token", map[string]string{"member": "bench", "name": name}, &made); err != nil {
				return err
			}
			err := post(ctx, public, "https://"+h.addr, "/login", map[string]string{"token": made.Token, "name": name}, &made)
			secrets[i] = made.Secret
			return err
		})
	}
	return secrets, g.Wait()
}

func post(ctx context.Context, c *http.Client, base, path string, in map[string]string, into any) error {
	text, err := json.Marshal(in)
	if err != nil {
		return err
	}
	response, err := (&target{name: base, base: base}).send(ctx, c, http.MethodPost, ask{path: path, body: text})
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return json.UnmarshalRead(response.Body, into, json.MatchCaseInsensitiveNames(true))
}

// machine keeps one machine without work connected until ctx ends.
func (h *hub) machine(ctx context.Context, secret string, ready *atomic.Int64) {
	up := false
	seals := make([]fleet.SealKey, tunnel.MaxSeals)
	for i := range seals {
		_, _ = rand.Read(seals[i][:]) // it never fails
	}
	dialer := &tunnel.Dialer{
		HubURL:     "https://" + h.addr,
		Instance:   rand.Text(),
		Credential: func() string { return secret },
		Handler:    http.NotFoundHandler(),
		TLS:        &tls.Config{RootCAs: h.pool},
		Advertise: func() (tunnel.Advertisement, <-chan struct{}) {
			return tunnel.Advertisement{Slots: 1, Free: 1, Seals: seals, Models: []tunnel.Model{{ID: model, Families: []string{"chat"}, Endpoints: []string{"/v1/chat/completions"}, Slots: 1, Free: 1}}}, nil
		},
		OnState: func(s tunnel.State) {
			if is := s.Phase == tunnel.Acked; is != up {
				up = is
				ready.Add(map[bool]int64{true: 1, false: -1}[is])
			}
		},
	}
	if err := dialer.Run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
	}
}

// memory is what a process holds, in bytes.
type memory struct{ used, resident int64 }

// memory reads it after a collection.
func (h *hub) memory() (m memory) {
	for _, page := range []string{"/debug/pprof/heap?gc=1", "/debug/pprof/heap?gc=1", "/metrics"} {
		answer := must(http.Get("http://" + h.admin + page))
		text := must(io.ReadAll(answer.Body))
		answer.Body.Close()
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, _ := strconv.ParseFloat(value, 64) // other lines have no number
			switch name {
			case "go_memstats_heap_alloc_bytes", "go_memstats_stack_inuse_bytes":
				m.used += int64(n)
			case "process_resident_memory_bytes":
				m.resident = int64(n)
			}
		}
	}
	return m
}
