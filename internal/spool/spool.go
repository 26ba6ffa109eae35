// Package spool holds the bytes of requests and answers while they are in use:
// small ones in memory, large ones in files, and none that are not counted.
// What would be more than a member, the memory or the disk may hold is refused
// at that byte, to its member alone.
package spool

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sync/semaphore"

	"github.com/kith/kith/internal/fault"
)

// Limits bound what is held at once, in bytes. Zero is no limit.
type Limits struct {
	// Memory is for what is in memory, Disk for what is in files. One member has at
	// most half of either, so that there is room for another.
	Memory, Disk int64
	// Member is for all that one member has held, wherever it is.
	Member int64
}

// Holder is the member that bytes are counted for, and whether they are an
// answer's. The last eighth of every limit is for answers: what is underway can end where nothing new may begin.
type Holder struct {
	Member string
	Answer bool
}

// Use is what is held now, in bytes, and how often something was refused for
// want of room.
type Use struct {
	Memory, Disk int64
	Refused      uint64
}

// Spool counts what is held, and has a folder for the files. It is safe for
// concurrent use.
type Spool struct {
	folder string // empty: all is in memory
	limits Limits
	block  cipher.Block        // of the files' keystreams
	views  *semaphore.Weighted // bytes of files that are read back just now

	mu      sync.Mutex
	use     Use
	members map[string]amount // only those that have something held
}

// amount is a number of bytes at either place.
type amount struct{ memory, disk int64 }

// viewRoom is how many bytes of files are read back into memory at once to be
// looked at. It comes on top of Limits.Memory.
const viewRoom = 64 << 20

// prefix begins the name of every file.
const prefix = "held-"

// Open makes a spool over a folder, which it makes if it is not there, and takes
// away the files that an earlier process left in it. With an empty folder
// everything is held in memory.
func Open(folder string, limits Limits) (*Spool, error) {
	// A key of this process alone: nothing is stored in the clear (spec/api.md#at-rest).
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
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

// clean makes the folder, or empties it of files of a process that died before
// it could take them away.
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

// Use is what is held now.
func (s *Spool) Use() Use {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.use
}

// Full reports whether the memory or the disk is at its limit for requests, or
// nearly.
func (s *Spool) Full() bool {
	full := func(n, limit int64) bool { return limit > 0 && n > limit/4*3 }
	use := s.Use()
	return full(use.Memory, s.limits.Memory) || full(use.Disk, s.limits.Disk)
}

// take counts more bytes as the holder's, or returns the *fault.Fault that says
// which limit they are over; then nothing is counted.
func (s *Spool) take(holder Holder, more amount) error {
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
		return fault.New(fault.CapacityFull, "your requests and answers underway fill the room that one member has here; try again when some of them are done")
	case more.memory > 0 && over(s.use.Memory+more.memory, l.Memory), more.disk > 0 && over(s.use.Disk+more.disk, l.Disk):
		s.use.Refused++
		return full()
	}
	s.members[holder.Member] = has
	s.use.Memory += more.memory
	s.use.Disk += more.disk
	return nil
}

// give counts bytes as the member's no longer.
func (s *Spool) give(member string, less amount) {
	s.mu.Lock()
	defer s.mu.Unlock()
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

// noFile is the refusal of what the disk does not take.
func (s *Spool) noFile(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use.Refused++
	return full().Because(cause)
}

func full() *fault.Fault {
	return fault.New(fault.CapacityFull, "the service has no room for one more request or answer of this size just now; try again shortly")
}
