package prefix

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

const (
	// generation is how long a prefix is remembered at least, and half of how long it is
	// remembered at most.
	generation = 30 * time.Minute
	// maxEntries bounds each of the two generations: some 60 MiB in all.
	maxEntries = 500_000
	// machines is how many machines are remembered of one prefix.
	machines = 4
	// maxMatches is how many machines Match returns.
	maxMatches = 8
)

// Memory remembers which machines got which prefixes. The zero Memory is empty. It is safe
// for concurrent use.
type Memory struct {
	mu          sync.Mutex
	began       time.Time // of now
	now, before map[uint64]entry
}

// entry is the keys of the machines that got a prefix, the last first; 0: none.
type entry [machines]uint32

// Match is a machine that got a prefix of a prompt, of that many bytes.
type Match struct {
	Machine uint32
	Bytes   int
}

// Seen is one prefix that was sent to a machine, as nodes share it.
type Seen struct {
	Sum     uint64
	Machine uint32
}

// Bytes returns the 12 bytes of s.
func (s Seen) Bytes() []byte {
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint64(nil, s.Sum), s.Machine)
}

// ParseSeen returns what Bytes made; false for anything else.
func ParseSeen(b []byte) (Seen, bool) {
	if len(b) != 12 {
		return Seen{}, false
	}
	return Seen{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])}, true
}

// Sent remembers that a prompt was sent to a machine: all of it, and its first message,
// which is often that of other conversations too. It returns the first of these for the
// other nodes; false for a prompt without messages.
func (m *Memory) Sent(marks []Mark, machine uint32, now time.Time) (Seen, bool) {
	if len(marks) == 0 {
		return Seen{}, false
	}
	last := Seen{marks[len(marks)-1].Sum, machine}
	m.Add(Seen{marks[0].Sum, machine}, now)
	m.Add(last, now)
	return last, true
}

// Add remembers one prefix.
func (m *Memory) Add(s Seen, now time.Time) {
	if s.Machine == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rotate(now)
	if len(m.now) >= maxEntries {
		m.before, m.now, m.began = m.now, nil, now
	}
	if m.now == nil {
		m.now = make(map[uint64]entry)
	}
	e, ok := m.now[s.Sum]
	if !ok {
		e = m.before[s.Sum]
	}
	at := slices.Index(e[:], s.Machine)
	if at < 0 {
		at = len(e) - 1
	}
	copy(e[1:at+1], e[:at])
	e[0] = s.Machine
	m.now[s.Sum] = e
}

// rotate drops what is too old. Needs mu.
func (m *Memory) rotate(now time.Time) {
	switch age := now.Sub(m.began); {
	case age >= 2*generation:
		m.before, m.now, m.began = nil, nil, now
	case age >= generation:
		m.before, m.now, m.began = m.now, nil, now
	}
}

// Match returns the machines that got prefixes of the prompt, each with the longest, the
// longest first.
func (m *Memory) Match(marks []Mark, now time.Time) (matches []Match) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rotate(now)
	for i := len(marks) - 1; i >= 0; i-- {
		for _, generation := range [...]map[uint64]entry{m.now, m.before} {
			for _, machine := range generation[marks[i].Sum] {
				known := func(match Match) bool { return match.Machine == machine }
				if machine == 0 || slices.ContainsFunc(matches, known) {
					continue
				}
				if matches = append(matches, Match{machine, marks[i].Bytes}); len(matches) == maxMatches {
					return matches
				}
			}
		}
	}
	return matches
}
