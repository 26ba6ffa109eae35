package store_test

import (
	"crypto/sha256"
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

// BenchmarkKeyByHash looks up one of 1,000 keys.
func BenchmarkKeyByHash(b *testing.B) {
	onBoth(b, func(b *testing.B, db *store.DB) {
		member := account.Member{ID: account.NewID("mem_"), Name: "ada", Created: time.UnixMilli(1)}
		if err := db.CreateMember(b.Context(), member); err != nil {
			b.Fatal(err)
		}
		hashes := make([][32]byte, 1000)
		for i := range hashes {
			hashes[i] = sha256.Sum256([]byte{byte(i), byte(i >> 8)})
			k := account.Key{ID: account.NewID("key_"), MemberID: member.ID, Region: "eu", Reach: account.ReachAll, Hash: hashes[i]}
			if err := db.CreateKey(b.Context(), k); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if _, _, err := db.KeyByHash(b.Context(), hashes[i%len(hashes)]); err != nil {
				b.Fatal(err)
			}
		}
	})
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
