package sealed

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/seal"
)

// What the caller's daemon does for a call beside sending it: deciding, and sealing a prompt
// of 20 KB; and, to compare, checking the prompt once.
func BenchmarkCaller(b *testing.B) {
	text := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("What is 7+5? ", 1600) + `"}]}`)
	b.Run("check", func(b *testing.B) {
		for b.Loop() {
			assert.OK(b, assert.Err(dialect.ReadHead(text)))
		}
	})
	for _, n := range []int{1, 8, maxListed} {
		c := newCaller(b, nil)
		var machines []listed
		for i := range n {
			id := fmt.Sprint("m", i)
			prekey := assert.Value(seal.NewPrekey())(b)
			s := assert.Value(seal.ParseStatement(assert.Value(accountOf(byte(i)).Sign(id, prekey, time.Now(), nil))(b)))(b)
			l := shows(id, fmt.Sprint("member", i), "shared", 0)
			l.statement = s
			machines = append(machines, l)
		}
		o := &outgoing{Caller: c, call: &gateway.Call{Model: "m", Stream: true}, mode: Prefer, endpoint: fleet.ChatCompletions,
			view: func(_ context.Context, use func([]byte) error) error { return use(text) }}
		b.Run(fmt.Sprint("listed ", n), func(b *testing.B) {
			for b.Loop() {
				now := time.Now()
				p := assert.Value(c.Keys.plan(question{Prefer, "m", fleet.Chat, now, now}, machines))(b)
				assert.OK(b, assert.Err(o.seal(b.Context(), p, now)))
			}
		})
	}
}
