package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// texts returns the records as strings.
func texts(records [][]byte) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r)
	}
	return out
}

func bytesOf(texts []string) [][]byte {
	out := make([][]byte, len(texts))
	for i, r := range texts {
		out[i] = []byte(r)
	}
	return out
}

func reopen(t *testing.T, path string, size int64) (*Journal, []string) {
	t.Helper()
	j := assert.Value(open(path, size))(t)
	t.Cleanup(func() { j.Close() })
	return j, texts(j.Found())
}

func ok(t *testing.T, errs ...error) {
	t.Helper()
	assert.OK(t, errors.Join(errs...))
}

func same(t *testing.T, got, want []string) {
	t.Helper()
	assert.Require(t, slices.Equal(got, want), got, want)
}

// TestKept checks that appended records are found after the process has ended, together
// with the records that the last Restart dropped. Those dropped by the Restart before are
// gone.
func TestKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j-")
	j, found := reopen(t, path, 4<<10)
	same(t, found, nil)
	if err := j.Append([]byte("early")); err == nil {
		t.Fatal("a record was taken before the first Restart")
	}
	if err := j.Sync(); err == nil {
		t.Fatal("Sync succeeds before the first Restart")
	}
	ok(t, j.Restart(nil), j.Append([]byte("one")), j.Append([]byte("two")), j.Sync())
	_, found = reopen(t, path, 4<<10)
	same(t, found, []string{"one", "two"})

	ok(t, j.Restart([][]byte{[]byte("two")}), j.Append([]byte("three")), j.Sync())
	_, found = reopen(t, path, 4<<10)
	same(t, found, []string{"one", "two", "two", "three"})

	ok(t, j.Restart([][]byte{[]byte("three")}), j.Sync())
	_, found = reopen(t, path, 4<<10)
	same(t, found, []string{"two", "three", "three"})
}

// TestNotSynced checks that, while the last Restart is not synced, another Restart does
// not overwrite the previous slot, even in a new process.
func TestNotSynced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j-")
	j, _ := reopen(t, path, 4<<10)
	ok(t, j.Restart(nil), j.Append([]byte("kept")), j.Sync())
	for range 3 {
		ok(t, j.Restart([][]byte{[]byte("again")}))
	}
	_, found := reopen(t, path, 4<<10)
	same(t, found, []string{"kept", "again"})

	// A power cut damaged the first record of the newest slot.
	spoil(t, path+"b", int64(headerSize+frameSize))
	j, found = reopen(t, path, 4<<10)
	same(t, found, []string{"kept"})
	ok(t, j.Restart([][]byte{[]byte("kept")}))
	spoil(t, path+"b", int64(headerSize+frameSize))
	_, found = reopen(t, path, 4<<10)
	same(t, found, []string{"kept"})
}

// spoil changes one byte of a file.
func spoil(t *testing.T, path string, at int64) {
	t.Helper()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	ok(t, err)
	defer file.Close()
	var b [1]byte
	_, err = file.ReadAt(b[:], at)
	ok(t, err)
	b[0] ^= 0x40
	_, err = file.WriteAt(b[:], at)
	ok(t, err)
}

// TestDamage checks that a flipped bit anywhere in a slot loses only the record with the
// bit, and is reported. In the last record it has the same effect as if the record had
// not been written.
func TestDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j-")
	j, _ := reopen(t, path, 4<<10)
	all := []string{"one", "two", "three", "four"}
	ok(t, j.Restart(nil), j.Append(make([]byte, 300)), j.Sync()) // slot "a"; later contents are shorter
	ok(t, j.Restart(nil), j.Sync())
	ok(t, j.Restart(bytesOf(all[:1])))
	for _, text := range all[1:] {
		ok(t, j.Append([]byte(text)))
	}
	ok(t, j.Sync())
	end := j.Bytes()
	for at := range end {
		damaged := filepath.Join(t.TempDir(), "j-")
		for _, slot := range []string{"a", "b"} {
			text, err := os.ReadFile(path + slot)
			ok(t, err, os.WriteFile(damaged+slot, text, 0o600))
		}
		spoil(t, damaged+"a", at)
		again, found := reopen(t, damaged, 4<<10)
		at := int(at) - headerSize
		want := slices.Clone(all)
		for i, text := range all {
			if length := frameSize + len(text); at >= 0 && at < length {
				want = slices.Delete(want, i, i+1)
				break
			} else if at >= 0 {
				at -= length
			}
		}
		if !slices.Equal(found, want) || (again.Damage() > 0) != slices.Contains(want, "four") {
			t.Errorf("byte %d: found %q, want %q; %d bytes are reported", at, found, want, again.Damage())
		}
		ok(t, again.Restart(bytesOf(found)), again.Append([]byte("five")), again.Sync())
		if _, found := reopen(t, damaged, 4<<10); !slices.Contains(found, "five") {
			t.Errorf("byte %d: after a restart found %q", at, found)
		}
	}
}

func TestFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j-")
	j, _ := reopen(t, path, 1<<10)
	ok(t, j.Restart(nil))
	record := make([]byte, 100)
	n := 0
	for ; ; n++ {
		if err := j.Append(record); err != nil {
			assert.Require(t, errors.Is(err, ErrFull), err)
			break
		}
	}
	if n != (1<<10-headerSize)/(100+frameSize) || j.Used() < 0.9 {
		t.Fatalf("%d records of 100 bytes in 1 KiB, %.2f of it", n, j.Used())
	}
	ok(t, j.Append([]byte("a small one")))
	if err := j.Restart([][]byte{make([]byte, 1<<10)}); !errors.Is(err, ErrFull) {
		t.Fatal(err)
	}
	ok(t, j.Sync(), j.Restart([][]byte{record}), j.Append(record), j.Sync())
	if _, found := reopen(t, path, 1<<10); len(found) != n+3 {
		t.Fatalf("%d records, want %d", len(found), n+3)
	}
}

// TestAnyMoment checks that the synced records are found, whatever prefix of the writes
// since the last Sync has reached the disk, and whatever the file contained before.
func TestAnyMoment(t *testing.T) {
	const size = 2 << 10
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		path := filepath.Join(t.TempDir(), "j-")
		j, err := open(path, size)
		ok(t, err)
		var live, synced []string // live since the last Sync, and at the last Sync
		ok(t, j.Restart(nil), j.Sync())
		disk := snapshot(t, path)
		for i := range 60 {
			switch random.IntN(8) {
			case 0:
				live = live[random.IntN(len(live)+1):]
				ok(t, j.Restart(bytesOf(live)))
			case 1:
				ok(t, j.Sync())
				synced, disk = slices.Clone(live), snapshot(t, path)
			default:
				text := fmt.Sprint(seed, "/", i)
				if err := j.Append([]byte(text)); err == nil {
					live = append(live, text)
				} else if !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
			}
		}
		// Records that are no longer live need not be found.
		synced = slices.DeleteFunc(synced, func(s string) bool { return !slices.Contains(live, s) })
		now := snapshot(t, path)
		ok(t, j.Close())
		for slot, name := range []string{path + "a", path + "b"} {
			cut := random.IntN(size)
			ok(t, os.WriteFile(name, slices.Concat(now[slot][:cut], disk[slot][cut:]), 0o600))
		}
		j, err = open(path, size)
		assert.OK(t, err, "seed", seed)
		found := texts(j.Found())
		for _, s := range synced {
			assert.Require(t, slices.Contains(found, s), "seed", seed, s, "was synced and is lost; found", found)
		}
		ok(t, j.Close())
	}
}

func snapshot(t *testing.T, path string) (slots [2][]byte) {
	t.Helper()
	for i, name := range []string{path + "a", path + "b"} {
		text, err := os.ReadFile(name)
		ok(t, err)
		slots[i] = text
	}
	return slots
}

func TestOpenFails(t *testing.T) {
	if _, err := Open(filepath.Join(t.TempDir(), "no folder", "j-")); err == nil {
		t.Fatal("it opened")
	}
	// Content that is not a journal counts as an empty one. A record with a wrong length
	// is not a record.
	path := filepath.Join(t.TempDir(), "j-")
	text := binary.BigEndian.AppendUint64([]byte(magic), 1)
	ok(t, os.WriteFile(path+"a", text, 0o600))
	_, found := reopen(t, path, 1<<10)
	same(t, found, nil)
}
