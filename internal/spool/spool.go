// Package spool holds the bodies of requests and answers while they are in use: in
// memory, and large ones in encrypted files when memory becomes scarce. It counts every
// byte for a member and refuses bytes over the limits for the member, the memory or the
// disk.
package spool

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kith/kith/internal/fault"
)

// Limits are in bytes. Zero is no limit.
type Limits struct {
	// Memory limits the bytes in memory and Disk those in files. One member can use at
	// most half of each, which leaves room for others.
	Memory, Disk int64
	// Member limits the bytes of one member, in memory and in files together.
	Member int64
}

// Holder is the member that bytes are counted for, and whether they belong to an answer.
// The last eighth of every limit is reserved for answers, so that running calls can end
// when no new ones can start.
type Holder struct {
	Member string
	Answer bool
}

// Use is the number of bytes in use, and how often a limit was reached.
type Use struct {
	Memory, Disk int64
	Refused      uint64
}

// Spool counts bytes and creates the files. It is safe for concurrent use.
type Spool struct {
	folder string // empty: everything is in memory
	limits Limits
	block  cipher.Block        // for the keystreams of files
	views  *semaphore.Weighted // bytes of files that Bytes.View has in memory

	mu      sync.Mutex
	use     Use
	members map[string]amount // only members that hold bytes
	idle    *time.Timer       // calls giveBack
}

// amount is a number of bytes in memory and on disk.
type amount struct{ memory, disk int64 }

// viewRoom limits the bytes of files that Bytes.View has in memory at once, in addition
// to Limits.Memory.
const viewRoom = 64 << 20

// idleTime is how long after the last large body its memory is returned to the system.
const idleTime = 5 * time.Second

// prefix is the prefix of every file's name.
const prefix = "held-"

// Open returns a spool with its files in the given folder, which it creates if necessary.
// It deletes the files that an earlier process left in the folder. Without a folder
// everything is in memory.
func Open(folder string, limits Limits) (*Spool, error) {
	// The key exists only in this process: nothing is stored in the clear
	// (spec/api.md#at-rest).
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	s := &Spool{folder: folder, limits: limits, block: block, views: semaphore.NewWeighted(viewRoom), members: map[string]amount{}}
	if folder == "" {
		return s, nil
	}
	if err := s.clean(); err != nil {
		return nil, fmt.Errorf("cannot use the folder for large requests and answers: %w; see that it can be written", err)
	}
	return s, nil
}

// clean creates the folder, or deletes the files in it that a process left when it died.
func (s *Spool) clean() error {
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			if err := os.Remove(filepath.Join(s.folder, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Use returns what is in use now.
func (s *Spool) Use() Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.use
}

// Reserve counts bytes of memory that the caller is about to use for the holder; free
// uncounts them. It fails with a *fault.Fault if a limit is reached.
func (s *Spool) Reserve(holder Holder, bytes int64) (free func(), err error) {
	all := amount{memory: bytes}
	if err := s.count(holder, all); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { s.uncount(holder.Member, all) }), nil
}

// Full reports whether more than three quarters of the memory or of the disk are in use.
func (s *Spool) Full() bool {
	full := func(n, limit int64) bool { return limit > 0 && n > limit/4*3 }
	use := s.Use()
	return full(use.Memory, s.limits.Memory) || full(use.Disk, s.limits.Disk)
}

// ample reports whether a large body may use more bytes of memory. Large bodies use at
// most half of the memory, and of one member's part of it: the rest is for small ones.
// Without a folder it is always true.
func (s *Spool) ample(holder Holder, more int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	within := func(n, limit int64) bool { return limit <= 0 || n <= limit }
	has := s.members[holder.Member].memory + more
	return s.folder == "" || within(s.use.Memory+more, s.limits.Memory/2) && within(has, s.limits.Memory/4) && within(has, s.limits.Member/2)
}

// count counts more bytes for the holder. If a limit is reached, it counts nothing and
// fails with a *fault.Fault.
func (s *Spool) count(holder Holder, more amount) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	has := s.members[holder.Member]
	has.memory += more.memory
	has.disk += more.disk
	over := func(n, limit int64) bool {
		if limit > 0 && !holder.Answer {
			limit -= limit / 8
		}
		return limit > 0 && n > limit
	}
	switch l := &s.limits; {
	case over(has.memory+has.disk, l.Member),
		more.memory > 0 && over(has.memory, l.Memory/2), more.disk > 0 && over(has.disk, l.Disk/2):
		s.use.Refused++
		return fault.New(fault.CapacityFull, "your current requests and answers use all the memory that one member may use here; try again when some of them are done")
	case more.memory > 0 && over(s.use.Memory+more.memory, l.Memory), more.disk > 0 && over(s.use.Disk+more.disk, l.Disk):
		s.use.Refused++
		return full()
	}
	s.members[holder.Member] = has
	s.use.Memory += more.memory
	s.use.Disk += more.disk
	return nil
}

// giveBack returns the memory of large bodies to the system: otherwise it stays with the
// process for minutes, on a machine whose memory is for models. While bodies are in use, a
// later release calls it again.
func (s *Spool) giveBack() {
	if s.Use().Memory <= maxSmall {
		debug.FreeOSMemory()
	}
}

// uncount subtracts bytes from the member's count.
func (s *Spool) uncount(member string, less amount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if less.memory > maxSmall {
		if s.idle == nil {
			s.idle = time.AfterFunc(idleTime, s.giveBack)
		}
		s.idle.Reset(idleTime)
	}
	has := s.members[member]
	has.memory -= less.memory
	has.disk -= less.disk
	if has == (amount{}) {
		delete(s.members, member)
	} else {
		s.members[member] = has
	}
	s.use.Memory -= less.memory
	s.use.Disk -= less.disk
}

// noFile returns the fault for a failed write to a file.
func (s *Spool) noFile(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use.Refused++
	return full().Because(cause)
}

func full() *fault.Fault {
	return fault.New(fault.CapacityFull, "the service has no memory for another request or answer of this size at the moment; try again shortly")
}
