package main

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kith/kith/internal/enginetest"
	"github.com/kith/kith/internal/fleet"
)

// sealed measures calls that a daemon seals beside calls that another daemon sends in
// clear, both through one hub: first to one machine, then to eight.
func (b *bench) sealed(ctx context.Context, rounds int) string {
	direct := b.directRig(ctx)
	h := b.startHub(ctx)
	machine := func(n int) int {
		_, pid := b.daemon(h, fmt.Sprint("machine", n), fmt.Sprintf("%q", "http://"+direct.engine), "prefer")
		return pid
	}
	sent := map[*target]*traffic{}
	callers := func(suffix string, machines ...int) (rigs []*target) {
		for _, mode := range []string{"off", "prefer"} {
			at, on := *h, new(traffic)
			at.addr = on.listen(h.addr)
			addr, caller := b.daemon(&at, "caller-"+mode+suffix, "", mode)
			t := &target{name: mode, base: "http://" + addr + "/v1", pids: append([]int{h.pid, caller}, machines...)}
			sent[t] = on
			b.ready(ctx, t, "hub", "machine0", "caller-"+mode+suffix)
			response := must(t.send(ctx, t.client(1), "POST", chat()))
			response.Body.Close()
			if sealed := response.Header.Get("X-Kith-Sealed"); (sealed == "yes") != (mode == "prefer") {
				check(fmt.Errorf("with %s, X-Kith-Sealed is %q", mode, sealed))
			}
			rigs = append(rigs, t)
		}
		return rigs
	}
	rigs := callers("", machine(0))
	s := &sealedTable{rigs: rigs}
	fmt.Fprintf(s, "Medians of %d interleaved rounds, %s.\n\n| | in clear | sealed | ratio |\n|---|---|---|---|\n", rounds, time.Now().UTC().Format("2006-01-02"))
	unary := workload{name: "unary", ask: chat(), connections: 16, length: 2 * time.Second}
	s.figures(results(ctx, rigs, []workload{
		unary,
		{name: "paced", ask: streamed(paced()), connections: 64, rounds: 4},
		{name: "open", ask: chat(), connections: 64, rate: 100, length: 2 * time.Second},
		{name: "prompt", ask: longPrompt(), connections: 4, length: 2 * time.Second},
	}, rounds), "")
	for _, one := range []struct {
		name string
		ask  ask
	}{{"0.6 KB prompt", chat()}, {fmt.Sprintf("%d MB prompt", promptMB), longPrompt()}, {"streamed answer", streamed(paced())}} {
		var up, down []float64
		for _, t := range rigs {
			u, d := sent[t].of(ctx, t, one.ask)
			up, down = append(up, u), append(down, d)
		}
		s.row("bytes to the hub, "+one.name, up[0], up[1])
		s.row("bytes from the hub, "+one.name, down[0], down[1])
	}

	for n := 1; n < 8; n++ {
		machine(n)
	}
	check(await(ctx, time.Minute, func() bool { return h.keyed(ctx, b.dir+"/caller-prefer/credential") == 8 }))
	s.rigs = callers("-eight") // the calls are spread over the machines
	s.figures(results(ctx, s.rigs, []workload{unary}, rounds), " of eight")
	clear, kept := b.kept(ctx, rounds)
	s.row("% of a conversation from the cache", clear, kept)
	return s.String()
}

// daemon starts a daemon of the member's beside the engines at endpoints, which seals its
// calls by the mode. It returns its address.
func (b *bench) daemon(h *hub, name, endpoints, mode string) (addr string, pid int) {
	addr = enginetest.FreeAddress()
	home := b.home(name, fmt.Sprintf("[daemon]\nlisten = %q\n[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%s]\n"+
		"[ratelimit]\nenabled = false\n[share]\nslots = 512\n[privacy]\nsealed = %q\n", addr, endpoints, mode))
	return addr, b.start(name, b.login(h, home), b.kith, "serve")
}

// sealedTable is the table of the figures of two rigs: in clear, and sealed.
type sealedTable struct {
	strings.Builder
	rigs []*target
}

func (s *sealedTable) row(name string, clear, sealed float64) {
	fmt.Fprintf(s, "| %s | %.0f | %.0f | %.2f |\n", name, clear, sealed, sealed/clear)
}

// figures adds the rows of workloads. about follows their names.
func (s *sealedTable) figures(got map[string]map[string][]figure, about string) {
	row := func(name, load string, read func(figure) float64) {
		if len(got["off"][load]) > 0 {
			s.row(name, median(got["off"][load], read), median(got["prefer"][load], read))
		}
	}
	for _, load := range []struct{ name, text string }{
		{"unary", "unary"}, {"paced", "paced chunk"}, {"prompt", fmt.Sprintf("%d MB prompt", promptMB)},
	} {
		for i, part := range []string{"hub", "caller's daemon", "machine's daemon"}[:len(s.rigs[0].pids)] {
			row(fmt.Sprintf("CPU µs, %s%s, %s", load.text, about, part), load.name, func(f figure) float64 { return f.each[i] })
		}
	}
	row("p50 µs of a call at 100/s"+about, "open", func(f figure) float64 { return float64(f.p50.Microseconds()) })
	row("requests/s, c=16"+about, "unary", func(f figure) float64 { return f.rate })
	if slices.ContainsFunc(s.rigs, func(t *target) bool { return broken(got[t.name]) > 0 }) {
		check(fmt.Errorf("calls%s failed", about))
	}
}

// traffic counts what passes between a daemon and the hub, with TLS and heartbeats.
type traffic struct{ up, down counter }

// listen starts a proxy to the hub and returns its address.
func (c *traffic) listen(hub string) string {
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	go enginetest.Relay(listener, hub, &c.up, &c.down)
	return listener.Addr().String()
}

// counter counts the bytes that are written to it.
type counter struct{ atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.Add(int64(len(p)))
	return len(p), nil
}

// of returns the bytes of one call, to the hub and from it.
func (c *traffic) of(ctx context.Context, t *target, a ask) (up, down float64) {
	const calls = 20
	client := t.client(1)
	defer client.CloseIdleConnections()
	ask := func() { must(t.exchange(ctx, client, a)) }
	ask() // the connection to the hub is there
	beforeUp, beforeDown := c.up.Load(), c.down.Load()
	for range calls {
		ask()
	}
	return float64(c.up.Load()-beforeUp) / calls, float64(c.down.Load()-beforeDown) / calls
}

// keyed returns how many machines have a key that calls for the model can be sealed for, as
// the hub lists them for the machine with a credential.
func (h *hub) keyed(ctx context.Context, credential string) (n int) {
	var saved struct{ Secret string }
	check(json.Unmarshal(must(os.ReadFile(credential)), &saved, json.MatchCaseInsensitiveNames(true)))
	t := &target{name: "hub", base: "https://" + h.addr, key: saved.Secret, cas: h.pool}
	response, err := t.send(ctx, t.client(1), http.MethodGet, ask{path: "/api/seals?model=" + model})
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	var list fleet.SealList
	check(json.UnmarshalRead(response.Body, &list))
	for _, m := range list.Machines {
		if len(m.Statement) > 0 {
			n++
		}
	}
	return n
}

// kept returns the percentage of the prompts of conversations, without the first turn of each,
// that the machine had in its cache: two machines with the built-in engine have the model.
func (b *bench) kept(ctx context.Context, rounds int) (clear, sealed float64) {
	b = &bench{self: b.self, kith: b.kith, dir: filepath.Join(b.dir, "conversations")}
	check(os.Mkdir(b.dir, 0o700))
	defer b.end()
	h, file := b.startHub(ctx), b.longModel()
	for _, name := range []string{"desk", "attic"} {
		b.machine(name, file, h)
	}
	percent := func(mode string, seed int) float64 {
		addr, _ := b.daemon(h, mode, "", mode)
		t := &target{name: mode, base: "http://" + addr + "/v1"}
		b.ready(ctx, t, "hub", "desk", "attic", mode)
		c := t.client(1)
		defer c.CloseIdleConnections()
		prompt, cached := 0, 0
		for round := range rounds {
			fmt.Fprintf(os.Stderr, "conversation %d/%d  %s\n", round+1, rounds, mode)
			for _, f := range t.conversation(ctx, c, uint64(seed+round))[1:] {
				prompt, cached = prompt+f.prompt, cached+f.cached
			}
		}
		return 100 * float64(cached) / float64(prompt)
	}
	return percent("off", 0), percent("prefer", 1000)
}
