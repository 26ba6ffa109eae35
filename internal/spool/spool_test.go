package spool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fault"
)

const mib = 1 << 20

func open(t *testing.T, limits Limits) *Spool {
	t.Helper()
	s := assert.Value(Open(filepath.Join(t.TempDir(), "spool"), limits))(t)
	t.Cleanup(func() { // every test gives back all that it took
		if u := s.Use(); u.Memory != 0 || u.Disk != 0 || len(s.members) != 0 {
			t.Errorf("still held: %+v of %d members", u, len(s.members))
		}
	})
	return s
}

// text is n bytes that are not all alike.
func text(n int) []byte { return bytes.Repeat(pattern, n/len(pattern)+1)[:n:n] }

// pattern is made once: byte by byte, megabytes take long under the race detector.
var pattern = func() (p []byte) {
	for i := range 23 * 3000 {
		p = append(p, byte('a'+i%23+i/1000%3))
	}
	return p
}()

// scarce are limits under which a body over 2 MiB goes to a file.
var scarce = Limits{Memory: 8 * mib}

func hold(s *Spool, member string, whole []byte, expected int64) (*Bytes, error) {
	b := s.Hold(Holder{Member: member, Answer: true}, expected)
	_, err := b.ReadFrom(bytes.NewReader(whole))
	return b, err
}

func refused(t *testing.T, err error) {
	t.Helper()
	if f := fault.Of(err); err == nil || f.Code != fault.CapacityFull {
		t.Errorf("got %v, want CAPACITY_FULL", err)
	}
}

// TestRoundTrip: whatever the size, however it comes, the same bytes come back by
// each way; memory has those that fit in a quarter of it and files the larger ones.
func TestRoundTrip(t *testing.T) {
	s := open(t, scarce)
	for _, n := range []int{0, 1, firstBuffer, chunkSize - 1, chunkSize, chunkSize + 1, maxSmall - 1, maxSmall + 1, 2*mib - 1, 3*mib + 17} {
		want := text(n)
		for _, expected := range []int64{-1, int64(n), int64(n) / 2, 1 << 40} {
			for _, slow := range []bool{false, true} {
				src := io.Reader(bytes.NewReader(want))
				if slow {
					src = iotest.HalfReader(iotest.DataErrReader(src))
				}
				b := s.Hold(Holder{Member: "m", Answer: true}, expected)
				got, err := b.ReadFrom(src)
				if err != nil || got != int64(n) || b.Len() != int64(n) {
					t.Fatalf("%d bytes, %d expected: read %d, %d long: %v", n, expected, got, b.Len(), err)
				}
				if large := n > 2*mib; large != (b.file != nil) && expected <= 2*mib {
					t.Errorf("%d bytes, %d expected: in a file: %v", n, expected, b.file != nil)
				}
				u := s.Use()
				assert.That(t, b.file == nil || u == Use{Disk: int64(n)}, n, "bytes in a file are counted as", u)
				if b.file == nil && (u != Use{Memory: int64(cap(b.memory))}) {
					t.Errorf("%d bytes in memory are counted as %+v; the buffer has %d", n, u, cap(b.memory))
				}
				same(t, b, want)
				b.Close()
			}
		}
		b := assert.Value(s.Keep(Holder{Member: "m", Answer: true}, bytes.Clone(want)))(t)
		same(t, b, want)
		b.Close()
	}
}

func same(t *testing.T, b *Bytes, want []byte) {
	t.Helper()
	check := func(way string, got []byte, err error) {
		t.Helper()
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%s of %d bytes: %d others, %v", way, len(want), len(got), err)
		}
	}
	err := b.View(t.Context(), func(whole []byte) error { check("View", whole, nil); return nil })
	check("View", want, err)
	r := b.Open()
	check("Open", want, alike(iotest.HalfReader(r), want))
	r.Close()
	out := expecting{want}
	_, err = b.WriteTo(&out)
	check("WriteTo", want[:len(want)-len(out.left)], err)
	got, err := b.Load()
	check("Load", got, err)
}

// alike reads to the end, a few bytes at first and then pieces of odd length, and fails
// unless what it reads is want.
func alike(r io.Reader, want []byte) error {
	out := expecting{want}
	_, err := io.CopyN(&out, r, 1001)
	if err == nil {
		_, err = io.CopyBuffer(&out, r, make([]byte, 20_001))
	}
	if err == io.EOF { // there are no more than that
		err = nil
	}
	if err == nil && len(out.left) > 0 {
		err = fmt.Errorf("%d bytes are missing", len(out.left))
	}
	return err
}

// expecting is a writer that fails unless it gets these bytes, which are left. It needs no
// memory for them: megabytes of it take long under the race detector.
type expecting struct{ left []byte }

func (e *expecting) Write(p []byte) (int, error) {
	if !bytes.HasPrefix(e.left, p) {
		return 0, errors.New("other bytes than expected")
	}
	e.left = e.left[len(p):]
	return len(p), nil
}

// TestMemberLimit: who exceeds their own bound is refused at that byte, and no
// one else.
func TestMemberLimit(t *testing.T) {
	s := open(t, Limits{Memory: 64 * mib, Disk: 64 * mib, Member: 5 * mib})
	first, err := hold(s, "ann", text(4*mib), -1)
	assert.OK(t, err)
	defer first.Close()
	src := bytes.NewReader(text(8 * mib))
	second := s.Hold(Holder{Member: "ann", Answer: true}, -1)
	_, err = second.ReadFrom(src)
	refused(t, err)
	if taken := src.Size() - int64(src.Len()); taken > mib {
		t.Errorf("%d bytes were taken of one that had room for %d", taken, mib)
	}
	other, err := hold(s, "bob", text(4*mib), -1)
	if err != nil {
		t.Error("another member is refused, too:", err)
	}
	other.Close()
	second.Close()
	assert.Equal(t, s.Use(), (Use{Disk: 4 * mib, Refused: 1}), "held")
}

// TestHalfOfMemory: one member never has more than half of the memory, and all
// members together never more than all of it.
func TestHalfOfMemory(t *testing.T) {
	s := open(t, Limits{Memory: 4 * mib})
	var held []*Bytes
	for _, member := range []string{"ann", "bob", "eve"} {
		before := s.Use().Memory
		for {
			b, err := hold(s, member, text(mib/2), mib/2)
			held = append(held, b)
			if err != nil {
				refused(t, err)
				break
			}
		}
		if n := s.Use().Memory - before; member != "eve" && (n > 2*mib || n < 3*mib/2) {
			t.Errorf("%s has %d bytes of %d", member, n, 4*mib)
		}
	}
	if u := s.Use(); u.Memory > 4*mib {
		t.Errorf("all have %d bytes of %d", u.Memory, 4*mib)
	}
	for _, b := range held {
		b.Close()
	}
}

// TestLargeBodies: large bodies use no more than half of the memory, so that small ones
// have room, and one member's no more than half of the member's part. What comes later
// goes to files, also when it began in memory.
func TestLargeBodies(t *testing.T) {
	s := open(t, Limits{Memory: 32 * mib})
	var held []*Bytes
	take := func(member string, n int, expected int64) *Bytes {
		b := assert.Value(hold(s, member, text(n), expected))(t)
		held = append(held, b)
		return b
	}
	for _, step := range []struct {
		member string
		size   int
		file   bool
	}{
		{"ann", 6 * mib, false}, {"ann", 3 * mib, true}, {"ann", mib / 2, false},
		{"bob", 7 * mib, false}, {"eve", 3 * mib, true}, {"eve", mib / 2, false},
	} {
		b := take(step.member, step.size, int64(step.size))
		if (b.file != nil) != step.file {
			t.Errorf("%d bytes of %s beside %+v: in a file: %v", step.size, step.member, s.Use(), b.file != nil)
		}
	}
	held[0].Close()
	grows := s.Hold(Holder{Member: "eve", Answer: true}, -1)
	held = append(held, grows)
	room := &fills{first: bytes.NewReader(text(4 * mib)), then: func() { take("ann", 5*mib, 5*mib) }, rest: bytes.NewReader(text(4 * mib))}
	if _, err := grows.ReadFrom(room); err != nil || grows.file == nil {
		t.Errorf("a body that began in memory: in a file: %v, %v", grows.file != nil, err)
	}
	same(t, grows, append(text(4*mib), text(4*mib)...))
	for _, b := range held {
		b.Close()
	}
}

// fills is a reader of first and then of rest. Between them it calls then.
type fills struct {
	first, rest io.Reader
	then        func()
}

func (f *fills) Read(p []byte) (int, error) {
	n, err := f.first.Read(p)
	if err == io.EOF && f.then != nil {
		f.then()
		f.then = nil
	}
	if err == io.EOF {
		return f.rest.Read(p)
	}
	return n, err
}

// TestLastEighth: where a request is refused, an answer still has room.
func TestLastEighth(t *testing.T) {
	for _, limits := range []Limits{{Memory: 8000}, {Member: 4000}} {
		s := open(t, limits)
		first, err := s.Keep(Holder{Member: "ann"}, make([]byte, 3500))
		assert.OK(t, err)
		_, err = s.Keep(Holder{Member: "ann"}, make([]byte, 1))
		refused(t, err)
		second, err := s.Keep(Holder{Member: "ann", Answer: true}, make([]byte, 500))
		if err != nil {
			t.Error(err)
		}
		_, err = s.Keep(Holder{Member: "ann", Answer: true}, make([]byte, 1))
		refused(t, err)
		first.Close()
		second.Close()
	}
}

// TestReserve: reserved bytes count as held ones do, until they are freed.
func TestReserve(t *testing.T) {
	s := open(t, Limits{Member: 4 * mib})
	free, err := s.Reserve(Holder{Member: "ann"}, 3*mib)
	assert.OK(t, err)
	if u := s.Use(); u.Memory != 3*mib {
		t.Errorf("%+v is held", u)
	}
	_, err = s.Reserve(Holder{Member: "ann"}, mib)
	refused(t, err)
	free()
	free()
}

// TestDisk: the bound of the files, of which one member has half, and a folder that
// takes none, refuse what they refuse and lose nothing of what is held.
func TestDisk(t *testing.T) {
	s := open(t, Limits{Memory: scarce.Memory, Disk: 9 * mib})
	want := text(4 * mib)
	first, err := hold(s, "ann", want, -1)
	assert.OK(t, err)
	defer first.Close()
	more, err := hold(s, "ann", text(3*mib), -1)
	refused(t, err)
	more.Close()
	other, err := hold(s, "eve", want, -1)
	assert.OK(t, err)
	second, err := hold(s, "bob", want, -1)
	refused(t, err)
	second.Close()
	other.Close()
	assert.OK(t, os.RemoveAll(s.folder))
	third, err := hold(s, "bob", text(2*mib+1), -1)
	refused(t, err)
	third.Close()
	if _, err := s.Keep(Holder{Member: "bob", Answer: true}, text(2*mib+1)); err == nil {
		t.Error("kept without a folder")
	}
	same(t, first, want)
	if u := s.Use(); u.Disk != 4*mib || u.Refused != 4 {
		t.Errorf("held %+v", u)
	}
}

// TestAnnounced: a length that is announced takes no more than a first buffer.
func TestAnnounced(t *testing.T) {
	s := open(t, Limits{})
	broken := errors.New("broken")
	for _, expected := range []int64{32 * mib, -1} {
		b := s.Hold(Holder{Member: "m", Answer: true}, expected)
		if _, err := b.ReadFrom(io.MultiReader(strings.NewReader("{"), iotest.ErrReader(broken))); err != broken {
			t.Error(err)
		}
		if u := s.Use(); u.Memory > chunkSize || u.Disk != 0 {
			t.Errorf("one byte of %d takes %+v", expected, u)
		}
		b.Close()
	}
}

// TestAnnouncedLargest: the largest length that HTTP can announce takes a first
// buffer on its word, like any other.
func TestAnnouncedLargest(t *testing.T) {
	s := open(t, Limits{Memory: 64 * mib})
	b := s.Hold(Holder{Member: "m", Answer: true}, math.MaxInt64)
	defer b.Close()
	assert.Value(b.ReadFrom(bytes.NewReader(text(10))))(t)
	if u := s.Use(); u.Memory != chunkSize {
		t.Errorf("10 bytes of %d announced are counted as %+v", int64(math.MaxInt64), u)
	}
}

// TestKeepChangesNothing: what is kept stays as it was, for others who have it.
func TestKeepChangesNothing(t *testing.T) {
	s := open(t, scarce)
	for _, n := range []int{maxSmall, maxSmall + 1, 3 * mib} {
		whole := text(n)
		b := assert.Value(s.Keep(Holder{Member: "m"}, whole))(t)
		var got bytes.Buffer
		if _, err := b.WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), text(n)) {
			t.Errorf("%d bytes come back otherwise: %v", n, err)
		}
		assert.That(t, bytes.Equal(whole, text(n)), n, "bytes were changed")
		if u := s.Use(); u.Memory+u.Disk != int64(n) {
			t.Errorf("%d bytes are counted as %+v", n, u)
		}
		b.Close()
	}
}

// TestFiles: a file is of use to no other process, has no name where the system
// can do without one, and what an earlier process left is taken away.
func TestFiles(t *testing.T) {
	folder := t.TempDir()
	left, other := filepath.Join(folder, prefix+"1"), filepath.Join(folder, "other")
	for _, name := range []string{left, other} {
		assert.OK(t, os.WriteFile(name, []byte("x"), 0o600))
	}
	s := assert.Value(Open(folder, scarce))(t)
	assert.Is(t, assert.Err(os.Stat(left)), os.ErrNotExist, "what was left is still there:")
	if _, err := os.Stat(other); err != nil {
		t.Error("a file that is not ours:", err)
	}
	secret := bytes.Repeat([]byte("a prompt of mine"), mib/4)
	b := assert.Value(hold(s, "m", secret, -1))(t)
	defer b.Close()
	raw := make([]byte, len(secret))
	assert.Value(b.file.ReadAt(raw, 0))(t)
	if bytes.Contains(raw, []byte("prompt")) || bytes.Equal(raw[:16], raw[16:32]) {
		t.Error("the file holds it in the clear")
	}
}

// TestGivenBack: at the first Close, or after Done with the last reader; once,
// and all of it.
func TestGivenBack(t *testing.T) {
	s := open(t, scarce)
	for _, n := range []int{100, 2 * mib, 3 * mib} {
		want := text(n)
		b, err := hold(s, "m", want, -1)
		assert.OK(t, err)
		one, two := b.Open(), b.Open()
		b.Done()
		one.Close()
		one.Close()
		assert.That(t, s.Use() != (Use{}), "given back under a reader")
		if got, err := io.ReadAll(two); err != nil || !bytes.Equal(got, want) {
			t.Error("a reader of what is done:", len(got), err)
		}
		two.Close()
		assert.Equal(t, s.Use(), (Use{}), "after the last reader", "is held")
		b.Close()
		b.Close()
		b.Done()
		if b, err = hold(s, "m", want, -1); err != nil {
			t.Fatal(err)
		}
		late := b.Open()
		b.Close()
		late.Close()
		assert.Equal(t, s.Use(), (Use{}), "after Close", "is held")
	}
}

// TestLoad: what is loaded is counted in memory, too, and refused where there is
// no room.
func TestLoad(t *testing.T) {
	s := open(t, Limits{Memory: 8 * mib})
	want := text(3 * mib)
	one, err := hold(s, "m", want, -1)
	assert.OK(t, err)
	defer one.Close()
	two, err := hold(s, "m", want, -1)
	assert.OK(t, err)
	defer two.Close()
	assert.Value(one.Load())(t)
	assert.Equal(t, s.Use(), (Use{Memory: 3 * mib, Disk: 6 * mib}), "held")
	_, err = two.Load()
	refused(t, err)
}

// TestViewsWait: files are read back one after another where all at once would
// be too much, and a wait ends with its context.
func TestViewsWait(t *testing.T) {
	s := open(t, scarce)
	b := assert.Value(hold(s, "m", text(3*mib), -1))(t)
	defer b.Close()
	assert.OK(t, s.views.Acquire(t.Context(), viewRoom))
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	assert.Equal(t, b.View(ctx, func([]byte) error { return nil }), gone)
	s.views.Release(viewRoom)
	assert.Equal(t, b.View(t.Context(), func([]byte) error { return gone }), gone)
}

// TestGivesMemoryBack: within 10 s of the last large body, its memory is the system's
// again; not while bodies are in use.
func TestGivesMemoryBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := open(t, Limits{})
		collections := func() uint32 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.NumForcedGC
		}
		first := assert.Value(hold(s, "m", text(8*mib), 8*mib))(t)
		second := assert.Value(hold(s, "m", text(2*mib), 2*mib))(t)
		before := collections()
		first.Close()
		time.Sleep(10 * time.Second)
		assert.Equal(t, collections()-before, 0, "collections while a body is in use")
		second.Close()
		time.Sleep(10 * time.Second)
		assert.Equal(t, collections()-before, 1, "collections after the last body")
	})
}

// TestMany: many at once, of all sizes, some refused, leave nothing counted.
func TestMany(t *testing.T) {
	s := open(t, Limits{Memory: 4 * mib, Disk: 16 * mib, Member: 8 * mib})
	all := text(3 * mib)
	var wg sync.WaitGroup
	for i := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, i))
			for range 15 {
				want := all[:r.IntN(len(all))]
				b, err := hold(s, string(rune('a'+r.IntN(3))), want, int64(r.IntN(4*mib))-1)
				if err == nil {
					reader := b.Open()
					if r.IntN(2) == 0 {
						b.Done()
					}
					if err := alike(reader, want); err != nil {
						t.Error("other bytes came back:", err)
					}
					reader.Close()
				}
				if u := s.Use(); u.Memory > 4*mib || u.Disk > 16*mib {
					t.Errorf("more than the limits is held: %+v", u)
				}
				b.Close()
			}
		})
	}
	wg.Wait()
}
