package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/store"
)

// onBoth runs a benchmark on both databases.
func onBoth(b *testing.B, bench func(*testing.B, *store.DB)) {
	b.Run("sqlite", func(b *testing.B) { bench(b, openSQLite(b)) })
	b.Run("postgres", func(b *testing.B) { bench(b, openPostgres(b)) })
}

// BenchmarkRecordUsage writes batches, durably on SQLite.
func BenchmarkRecordUsage(b *testing.B) {
	for _, size := range []int{1, 512} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			onBoth(b, func(b *testing.B, db *store.DB) {
				batch := make([]account.Usage, size)
				b.ReportAllocs()
				for n := 0; b.Loop(); {
					for i := range batch {
						n++
						batch[i] = account.Usage{
							CallID: fmt.Sprint("call-", n), Attempt: 1, Started: time.Now(), MemberID: "mem_1", OwnerID: "mem_2",
							MachineID: "mch_1", Model: "tiny", Endpoint: "/v1/chat/completions", Status: 200,
							Duration: time.Second, TokensIn: 100, TokensOut: 200, TokensHow: account.TokensReported,
						}
					}
					if err := db.RecordUsage(b.Context(), batch); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "records/s")
			})
		})
	}
}
