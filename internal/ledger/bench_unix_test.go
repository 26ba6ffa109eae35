//go:build unix

package ledger

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kith/kith/internal/ledger/journal"
)

// BenchmarkLedger measures the cost of a call, with 16 concurrent calls: with and without
// a journal, and with and without waiting for the disk, as for an engine that responds at
// once. cpu-µs/call is the CPU time of the whole process, including the syncs.
func BenchmarkLedger(b *testing.B) {
	for _, mode := range []string{"memory", "journal", "journal, awaited"} {
		b.Run(mode, func(b *testing.B) {
			var j *journal.Journal
			if mode != "memory" {
				var err error
				if j, err = journal.Open(filepath.Join(b.TempDir(), "ledger-")); err != nil {
					b.Fatal(err)
				}
				defer j.Close()
			}
			l := New(forgetful{}, j, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithCancel(b.Context())
			var all sync.WaitGroup
			all.Go(func() { _ = l.Run(ctx) })
			var next sync.Mutex
			n := 0
			before := cpu()
			b.ReportAllocs()
			b.SetParallelism(8)
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					next.Lock()
					n++
					call := aCall(fmt.Sprint("req_0190e9f2-0000-7000-8000-", n))
					next.Unlock()
					receipt, err := l.Begin(call.attempt())
					if err == nil && mode == "journal, awaited" {
						err = l.Await(b.Context(), receipt)
					}
					if err != nil {
						b.Error(err)
						return
					}
					l.End(call.ended(""))
				}
			})
			b.StopTimer()
			cancel()
			all.Wait()
			b.ReportMetric(float64((cpu()-before).Nanoseconds())/1e3/float64(b.N), "cpu-µs/call")
		})
	}
}

func cpu() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
