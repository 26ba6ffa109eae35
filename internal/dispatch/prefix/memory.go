package prefix

import (
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

const (
	// lifetime is how long a prefix is remembered at least; at most it is twice that.
	lifetime = 30 * time.Minute
	// maxEntries limits each of the two generations: about 50 MiB in total.
	maxEntries = 400_000
	// machines is the maximum number of machines that are remembered for one prefix.
	machines = 4
	// maxMatches is the maximum number of matches that Match returns.
	maxMatches = 8
)

// Memory remembers the machines that each prefix was sent to, and how much text was sent
// to them afterwards: an engine drops a prompt when it needs the memory for others. The
// zero Memory is empty. It is safe for concurrent use.
type Memory struct {
	mu                sync.Mutex
	began             time.Time // when current began
	current, previous generation
}

// generation is what was remembered during one lifetime.
type generation struct {
	prefixes map[uint64]entry
	// text counts the bytes of prefixes that were new to each machine, modulo 2^32. A
	// count continues from one generation to the next.
	text map[uint32]uint32
}

// entry holds the machines that a prefix was sent to, the latest first.
type entry [machines]place

// place is a machine, 0 for none, and its count of text when the prefix was sent to it.
type place struct{ machine, text uint32 }

// Match is a machine that received a prefix of a prompt, with the length of the prefix,
// and the bytes of other prompts that it has received since.
type Match struct {
	Machine      uint32
	Bytes, Since int
}

// Seen is one prefix that was sent to a machine, with the number of its bytes that were
// new to the machine, in the form that nodes exchange.
type Seen struct {
	Sum     uint64
	Machine uint32
	Bytes   uint32
}

// Encode encodes s in 16 bytes.
func (s Seen) Encode() []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 16), s.Sum)
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, s.Machine), s.Bytes)
}

// ParseSeen parses the result of Encode. It returns false if b is anything else.
func ParseSeen(b []byte) (Seen, bool) {
	if len(b) != 16 {
		return Seen{}, false
	}
	return Seen{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]), binary.LittleEndian.Uint32(b[12:])}, true
}

// Sent remembers that a prompt was sent to a machine: the complete prompt, and its first
// message, which other conversations often share. It returns what the machine had
// received of it before and, for the other nodes, what is new. ok is false if the prompt
// has no messages.
func (m *Memory) Sent(marks []Mark, machine uint32, now time.Time) (before Match, seen Seen, ok bool) {
	if len(marks) == 0 {
		return before, seen, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rotate(now)
	before = m.longest(marks, machine)
	last := marks[len(marks)-1]
	seen = Seen{last.Sum, machine, uint32(last.Bytes - before.Bytes)}
	m.add(seen)
	m.add(Seen{Sum: marks[0].Sum, Machine: machine})
	return before, seen, true
}

// longest returns the longest prefix that was sent to the machine. mu must be held.
func (m *Memory) longest(marks []Mark, machine uint32) Match {
	for i := len(marks) - 1; i >= 0; i-- {
		for _, p := range m.entry(marks[i].Sum) {
			if p.machine == machine {
				return Match{machine, marks[i].Bytes, int(m.text(machine) - p.text)}
			}
		}
	}
	return Match{Machine: machine}
}

// Add remembers one prefix.
func (m *Memory) Add(s Seen, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rotate(now)
	m.add(s)
}

// add implements Add. mu must be held.
func (m *Memory) add(s Seen) {
	if s.Machine == 0 {
		return
	}
	if len(m.current.prefixes) >= maxEntries {
		m.previous, m.current = m.current, generation{}
	}
	if m.current.prefixes == nil {
		m.current = generation{make(map[uint64]entry), make(map[uint32]uint32)}
	}
	e := m.entry(s.Sum)
	for _, p := range e {
		m.current.text[p.machine] = m.text(p.machine)
	}
	text := m.text(s.Machine) + s.Bytes
	m.current.text[s.Machine] = text
	at := slices.IndexFunc(e[:], func(p place) bool { return p.machine == s.Machine })
	if at < 0 {
		at = len(e) - 1
	}
	copy(e[1:at+1], e[:at])
	e[0] = place{s.Machine, text}
	m.current.prefixes[s.Sum] = e
}

// entry returns what is remembered of a prefix. mu must be held.
func (m *Memory) entry(sum uint64) entry {
	if e, ok := m.current.prefixes[sum]; ok {
		return e
	}
	return m.previous.prefixes[sum]
}

// text returns the machine's count of text. mu must be held.
func (m *Memory) text(machine uint32) uint32 {
	if n, ok := m.current.text[machine]; ok {
		return n
	}
	return m.previous.text[machine]
}

// rotate drops what is too old. mu must be held.
func (m *Memory) rotate(now time.Time) {
	switch age := now.Sub(m.began); {
	case age >= 2*lifetime:
		m.previous, m.current, m.began = generation{}, generation{}, now
	case age >= lifetime:
		m.previous, m.current, m.began = m.current, generation{}, now
	}
}

// Match returns the machines that received prefixes of the prompt: each with its longest
// prefix, and with shorter ones that it received later. The longest come first.
func (m *Memory) Match(marks []Mark, now time.Time) (matches []Match) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rotate(now)
	for i := len(marks) - 1; i >= 0; i-- {
		for _, p := range m.entry(marks[i].Sum) {
			since := int(m.text(p.machine) - p.text)
			covered := func(match Match) bool { return match.Machine == p.machine && match.Since <= since }
			if p.machine == 0 || slices.ContainsFunc(matches, covered) {
				continue
			}
			if matches = append(matches, Match{p.machine, marks[i].Bytes, since}); len(matches) == maxMatches {
				return matches
			}
		}
	}
	return matches
}
