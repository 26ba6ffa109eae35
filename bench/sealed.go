package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/enginetest"
)

// sealed measures calls that a daemon seals beside calls that another daemon sends in
// clear, both through one hub to one machine.
func (b *bench) sealed(ctx context.Context, rounds int) string {
	direct := b.directRig(ctx)
	h := b.startHub(ctx)
	daemon := func(name, endpoints, mode string) (addr string, pid int) {
		addr = enginetest.FreeAddress()
		home := b.home(name, fmt.Sprintf("[daemon]\nlisten = %q\n[engine]\nbuiltin = false\n[discovery]\nenabled = false\nendpoints = [%s]\n"+
			"[ratelimit]\nenabled = false\n[share]\nslots = 512\n[privacy]\nsealed = %q\n", addr, endpoints, mode))
		return addr, b.start(name, b.login(h, home), b.kith, "serve")
	}
	_, machine := daemon("machine", fmt.Sprintf("%q", "http://"+direct.engine), "prefer")
	var rigs []*target
	for _, mode := range []string{"off", "prefer"} {
		addr, caller := daemon("caller-"+mode, "", mode)
		t := &target{name: mode, base: "http://" + addr + "/v1", pids: []int{h.pid, caller, machine}}
		b.ready(ctx, t, "hub", "machine", "caller-"+mode)
		rigs = append(rigs, t)
		response := must(t.send(ctx, t.client(1), "POST", chat()))
		response.Body.Close()
		if sealed := response.Header.Get("X-Kith-Sealed"); (sealed == "yes") != (mode == "prefer") {
			check(fmt.Errorf("with %s, X-Kith-Sealed is %q", mode, sealed))
		}
	}
	loads := []workload{
		{name: "unary", ask: chat(), connections: 16, length: 2 * time.Second},
		{name: "paced", ask: streamed(paced()), connections: 64, rounds: 4},
		{name: "open", ask: chat(), connections: 64, rate: 100, length: 2 * time.Second},
		{name: "prompt", ask: longPrompt(), connections: 4, length: 2 * time.Second},
	}
	got := results(ctx, rigs, loads, rounds)
	var s strings.Builder
	fmt.Fprintf(&s, "Medians of %d interleaved rounds, %s.\n\n| | in clear | sealed | ratio |\n|---|---|---|---|\n", rounds, time.Now().UTC().Format("2006-01-02"))
	row := func(name, load string, read func(figure) float64) {
		clear, sealed := median(got["off"][load], read), median(got["prefer"][load], read)
		fmt.Fprintf(&s, "| %s | %.0f | %.0f | %.2f |\n", name, clear, sealed, sealed/clear)
	}
	for _, load := range []struct{ name, text string }{
		{"unary", "unary"}, {"paced", "paced chunk"}, {"prompt", fmt.Sprintf("%d MB prompt", promptMB)},
	} {
		for i, part := range []string{"hub", "caller's daemon", "machine's daemon"} {
			row(fmt.Sprintf("CPU µs, %s, %s", load.text, part), load.name, func(f figure) float64 { return f.each[i] })
		}
	}
	row("p50 µs of a call at 100/s", "open", func(f figure) float64 { return float64(f.p50.Microseconds()) })
	row("requests/s, c=16", "unary", func(f figure) float64 { return f.rate })
	if slices.ContainsFunc(rigs, func(t *target) bool { return broken(got[t.name]) > 0 }) {
		s.WriteString("\nCalls failed.\n")
	}
	return s.String()
}
