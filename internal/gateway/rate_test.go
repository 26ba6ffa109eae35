package gateway

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// The local surface accepts 200 requests at once and then 100 a second, of any kind.
func TestLocalRateIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := localConfig(answers(chatAnswer))
		c.Rate = Rate{PerSecond: 100, Burst: 200}
		h := New(c)
		served := func(n int) (ok int) {
			for i := range n {
				r := ask("POST", "http://localhost:8701/v1/chat/completions", chatRequest)
				if i%2 == 0 {
					r = ask("HEAD", "http://localhost:8701/", "")
				}
				w, _ := do(h, r)
				switch w.Code {
				case 200:
					ok++
				case 429:
					if r.Method == "POST" {
						checkFault(t, w, 429, fault.RateLimitExceeded)
					}
					assert.Equal(t, w.Header().Get("Retry-After"), "1", "Retry-After")
				default:
					t.Fatal(w.Code)
				}
			}
			return ok
		}
		assert.Equal(t, served(250), 200, "of 250 at once served")
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, served(50), 10, "of 50 served after 100 ms")
		time.Sleep(time.Minute)
		assert.Equal(t, served(250), 200, "of 250 served after a minute")
	})
}

func TestHostedRateIsPerKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := buckets{rate: Rate{PerSecond: 0.1, Burst: 1}}
		now := time.Now()
		one, two := bucketOf(fleet.Caller{KeyID: "a"}), bucketOf(fleet.Caller{Machine: "a"})
		if b.take(one, now) != nil || b.take(two, now) != nil {
			t.Error("the first request of a key was refused")
		}
		f := fault.Of(b.take(one, now.Add(2*time.Second)))
		assert.That(t, f != nil && f.RetryAfter == 8, f)
		if b.take(one, now.Add(10*time.Second)) != nil {
			t.Error("the next token was not there")
		}
	})
}

// Requests that one node accepts count at the others. They can take a bucket as far below
// zero as its capacity (spec/peers.md#rates).
func TestRateIsShared(t *testing.T) {
	here, there := buckets{rate: Rate{PerSecond: 10, Burst: 40}, shared: true}, buckets{rate: Rate{PerSecond: 10, Burst: 40}, shared: true}
	now, key := time.Now(), bucketOf(fleet.Caller{KeyID: "a"})
	for range 39 {
		if here.take(key, now) != nil {
			t.Fatal("a request was refused")
		}
	}
	reports := here.collected()
	if len(reports) != 7 || here.collected() != nil { // 5 requests each
		t.Fatalf("reported %v", reports)
	}
	there.applyTaken(reports, now)
	for range 5 {
		if there.take(key, now) != nil {
			t.Error("refused, of the 5 requests that are left")
		}
	}
	if f := fault.Of(there.take(key, now)); f == nil || f.RetryAfter != 1 {
		t.Errorf("the sixth request: %v", f)
	}
	there.applyTaken([]Taken{{Key: "a", Requests: 1000}, {Key: "a", Requests: 1000}, {Key: "a", Requests: -1000}}, now)
	if f := fault.Of(there.take(key, now)); f == nil || f.RetryAfter != 5 {
		t.Errorf("after many requests at another node: %v, want 4.1 s to the next token", f)
	}
	alone := buckets{rate: Rate{PerSecond: 10, Burst: 40}}
	for range 40 {
		_ = alone.take(key, now)
	}
	if reports := alone.collected(); reports != nil {
		t.Errorf("a hub without other nodes keeps %v for them", reports)
	}
	for i := range maxTaken + 1 {
		for range 5 {
			_ = here.take(bucketOf(fleet.Caller{KeyID: fmt.Sprint(i)}), now)
		}
	}
	if first, rest := here.collected(), here.collected(); len(first) != maxTaken || len(rest) != 1 {
		t.Errorf("reported %d keys, then %d", len(first), len(rest))
	}
}

func TestUnknownKeysTakeNoTokens(t *testing.T) {
	c := hostedConfig(answers(chatAnswer))
	c.Rate = Rate{PerSecond: 0.001, Burst: 1}
	h := New(c)
	for range 5 {
		if w, _ := do(h, ask("GET", "/v1/models", "", "Authorization", "")); w.Code != 401 {
			t.Fatal(w.Code)
		}
	}
	if w, _ := do(h, ask("GET", "/v1/models", "")); w.Code != 200 {
		t.Error(w.Code)
	}
	if w, _ := do(h, ask("GET", "/v1/models", "")); w.Code != 429 {
		t.Error(w.Code)
	}
}

func TestBucketsAreBounded(t *testing.T) {
	const keys = 20_000
	b := buckets{rate: Rate{PerSecond: 100, Burst: 1}}
	now := time.Now()
	for i := range keys {
		_ = b.take(bucketKey{key: fmt.Sprint(i)}, now.Add(time.Duration(i)*time.Millisecond))
	}
	if n := b.by.Len(); n > keys/4 {
		t.Errorf("%d buckets kept", n)
	}
	var m misses
	for i := range keys {
		_ = m.add(bucketKey{key: fmt.Sprint(i)}, "x", now.Add(time.Duration(i)*time.Second))
	}
	if n := m.by.Len(); n > keys/4 {
		t.Errorf("%d windows kept", n)
	}
}

// A key may miss 60 different models a minute; after that it learns nothing more
// (spec/api.md#limit-misses).
func TestMissesAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refusal error
		h := New(hostedConfig(&backend{do: func(context.Context, *Call) (*Answer, error) { return nil, refusal }}))
		miss := func(model string) int {
			w, _ := do(h, ask("POST", "/v1/chat/completions", `{"model":"`+model+`"}`))
			return w.Code
		}
		kinds := []*fault.Fault{
			fault.New(fault.ModelNotFound, "x"), fault.New(fault.NotInCircle, "x"), fault.New(fault.CascadeExhausted, "x").WithNoRetry(),
		}
		for i := range maxMisses {
			refusal = kinds[i%3]
			if got := miss(fmt.Sprint("m", i)); got != kinds[i%3].Status() {
				t.Fatalf("miss %d: %d", i, got)
			}
		}
		assert.Equal(t, miss("m0"), 503, "a model asked for before")
		refusal = fault.New(fault.MachineOffline, "x")
		assert.Equal(t, miss("other"), 503, "what is no miss")
		time.Sleep(45 * time.Second)
		for _, refusal = range []error{kinds[0], kinds[1], kinds[2]} {
			w, _ := do(h, ask("POST", "/v1/chat/completions", `{"model":"m60"}`))
			checkFault(t, w, 429, fault.RateLimitExceeded)
			assert.Equal(t, w.Header().Get("Retry-After"), "15", "Retry-After")
		}
		time.Sleep(15 * time.Second)
		refusal = kinds[1]
		assert.Equal(t, miss("m60"), 403, "a minute later")
	})
}

// Answers of another handler of the address count against the same limits.
func TestLimitsHoldBesideTheEdge(t *testing.T) {
	c := hostedConfig(refuses(fault.New(fault.ModelNotFound, "no")))
	c.Rate = Rate{PerSecond: 1, Burst: 61 + 1}
	g := New(c)
	ann := fleet.Caller{Member: "ann", KeyID: "key_ann"}
	out := fault.New(fault.NotInCircle, "not yours")
	for i := range maxMisses {
		if f := g.Miss(ann, fleet.ModelID(fmt.Sprint(i)), out); f != out {
			t.Fatalf("miss %d: %v", i, f)
		}
	}
	if f := g.Miss(ann, "one more", out); f.Code != fault.RateLimitExceeded {
		t.Errorf("one miss too many: %v", f)
	}
	assert.Equal(t, g.Miss(ann, "0", out), out, "one missed before")
	if f := fault.New(fault.CapacityFull, "busy"); g.Miss(ann, "busy", f) != f {
		t.Error("a refusal within reach is a miss")
	}
	assert.Equal(t, g.Miss(fleet.Caller{Member: "bob", KeyID: "key_bob"}, "x", out), out, "another's")
	admitted := 0
	for g.Admit(ann) == nil {
		admitted++
	}
	assert.That(t, admitted >= 62 && admitted <= 64, admitted, "admitted with a burst of 62")
}
