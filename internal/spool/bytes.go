package spool

import (
	"bytes"
	"context"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"io"
	"math"
	"math/bits"
	"os"
	"sync"
)

const (
	// small is how many bytes are held in memory; what is larger goes to a file.
	small = 1 << 20
	// step is how much is taken on an announced length's word alone, and the
	// buffer in front of a file.
	step = 64 << 10
	// least is the first buffer of what was not announced.
	least = 4 << 10
)

// Bytes is a body that is held for a member, of a request or an answer. It is
// filled once, by ReadFrom, and then read as often as needed. Close gives back
// all that it holds.
type Bytes struct {
	spool    *Spool
	holder   Holder
	expected int64  // announced length; -1: unknown
	memory   []byte // all of it while file is nil, or once loaded; in ReadFrom what is not yet written
	file     *os.File
	iv       [16]byte // where the file's keystream begins
	written  int64    // to the file

	mu      sync.Mutex
	counted amount
	readers int
	done    bool // given back with the last reader
	closed  bool
}

// Hold begins to hold a body for the holder. expected is its length as announced,
// negative where it is unknown; nothing is taken on its word but a first buffer.
func (s *Spool) Hold(holder Holder, expected int64) *Bytes {
	return &Bytes{spool: s, holder: holder, expected: min(expected, math.MaxInt64-1)} // with one more it still is a length
}

// Keep holds bytes that are there already, which no one changes from then on: a
// caller may hold others of the same array.
func (s *Spool) Keep(holder Holder, whole []byte) (*Bytes, error) {
	b := s.Hold(holder, int64(len(whole)))
	var err error
	if b.memory = whole; len(whole) <= small || s.folder == "" {
		err = b.take(amount{memory: int64(cap(whole))})
	} else {
		b.memory = nil
		_, err = b.ReadFrom(bytes.NewReader(whole))
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// ReadFrom fills b with src, to its end. Its errors are those of src, and the
// *fault.Fault of what there is no room for.
func (b *Bytes) ReadFrom(src io.Reader) (n int64, err error) {
	for {
		if len(b.memory) == cap(b.memory) {
			if err := b.grow(); err != nil {
				return n, err
			}
		}
		m, err := src.Read(b.memory[len(b.memory):cap(b.memory)])
		b.memory = b.memory[:len(b.memory)+m]
		n += int64(m)
		switch {
		case err == io.EOF && b.file != nil:
			err := b.flush()
			b.give(amount{memory: int64(cap(b.memory))})
			b.memory = nil
			return n, err
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// grow makes room for more in memory: a larger buffer, or the one in front of
// the file emptied. Where the length was announced, the end is seen without
// growing.
func (b *Bytes) grow() error {
	size := cap(b.memory)
	if b.file == nil && b.spool.folder != "" && size >= step && (b.expected > small || size >= small) {
		if err := b.begin(); err != nil {
			return err
		}
	}
	if b.file != nil {
		if err := b.flush(); err != nil {
			return err
		}
		if size > step { // it has done its work
			b.give(amount{memory: int64(size - step)})
			b.memory = make([]byte, 0, step)
		}
		return nil
	}
	larger := 2 * size
	switch {
	case size == 0 && b.expected < 0:
		larger = least
	case size == 0:
		larger = int(min(b.expected+1, step))
	case b.expected >= int64(size):
		larger = min(larger, int(b.expected)+1)
	}
	if b.spool.folder != "" {
		larger = min(larger, small)
	}
	if err := b.take(amount{memory: int64(larger - size)}); err != nil {
		return err
	}
	grown := make([]byte, len(b.memory), larger)
	copy(grown, b.memory)
	b.memory = grown
	return nil
}

// begin makes the file.
func (b *Bytes) begin() (err error) {
	if b.file, err = create(b.spool.folder); err != nil {
		return b.spool.noFile(err)
	}
	_, _ = rand.Read(b.iv[:]) // it never fails
	return nil
}

// flush moves what is in memory to the end of the file.
func (b *Bytes) flush() error {
	n := int64(len(b.memory))
	if err := b.take(amount{disk: n}); err != nil {
		return err
	}
	b.keystream(b.written).XORKeyStream(b.memory, b.memory)
	if _, err := b.file.WriteAt(b.memory, b.written); err != nil {
		return b.spool.noFile(err)
	}
	b.written += n
	b.memory = b.memory[:0]
	return nil
}

// keystream is that of the file from an offset on: AES in counter mode.
func (b *Bytes) keystream(offset int64) cipher.Stream {
	high, low := binary.BigEndian.Uint64(b.iv[:8]), binary.BigEndian.Uint64(b.iv[8:])
	low, carry := bits.Add64(low, uint64(offset)/16, 0)
	var iv [16]byte
	binary.BigEndian.PutUint64(iv[:8], high+carry)
	binary.BigEndian.PutUint64(iv[8:], low)
	stream := cipher.NewCTR(b.spool.block, iv[:])
	var passed [16]byte
	stream.XORKeyStream(passed[:offset%16], passed[:offset%16])
	return stream
}

// Len is how many bytes b has.
func (b *Bytes) Len() int64 {
	if b.file != nil {
		return b.written
	}
	return int64(len(b.memory))
}

// View hands all of b to use, which keeps nothing of it. What is in a file is
// read back for it, only so many bytes of all files at once: ctx ends the wait.
func (b *Bytes) View(ctx context.Context, use func(whole []byte) error) error {
	if b.memory != nil || b.file == nil {
		return use(b.memory)
	}
	room := min(b.written, viewRoom)
	if err := b.spool.views.Acquire(ctx, room); err != nil {
		return context.Cause(ctx)
	}
	defer b.spool.views.Release(room)
	whole := make([]byte, b.written)
	if err := b.readAt(whole, 0); err != nil {
		return err
	}
	return use(whole)
}

// Load is all of b in memory, counted there until b is closed.
func (b *Bytes) Load() ([]byte, error) {
	if b.memory != nil || b.file == nil {
		return b.memory, nil
	}
	if err := b.take(amount{memory: b.written}); err != nil {
		return nil, err
	}
	whole := make([]byte, b.written)
	if err := b.readAt(whole, 0); err != nil {
		return nil, err
	}
	b.memory = whole
	return whole, nil
}

// readAt fills p from that offset of the file, which has as much.
func (b *Bytes) readAt(p []byte, offset int64) error {
	if _, err := b.file.ReadAt(p, offset); err != nil {
		return err
	}
	b.keystream(offset).XORKeyStream(p, p)
	return nil
}

// WriteTo writes all of b, without a copy where it is in memory.
func (b *Bytes) WriteTo(w io.Writer) (n int64, err error) {
	if b.memory != nil || b.file == nil {
		m, err := w.Write(b.memory)
		return int64(m), err
	}
	chunk := make([]byte, min(step, b.written))
	for n < b.written {
		part := chunk[:min(step, b.written-n)]
		if err := b.readAt(part, n); err != nil {
			return n, err
		}
		m, err := w.Write(part)
		if n += int64(m); err != nil {
			return n, err
		}
	}
	return n, nil
}

// Reader reads b from its beginning. It is to be closed.
type Reader struct {
	of     *Bytes
	memory []byte // where all of it is there
	at     int64
	late   bool // b was closed before
	closed bool
}

// Open is a reader of its own.
func (b *Bytes) Open() *Reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers++
	return &Reader{of: b, memory: b.memory, late: b.closed}
}

// Read satisfies io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if r.memory != nil || r.of.file == nil {
		if r.memory == nil && r.late {
			return 0, os.ErrClosed
		}
		if r.at == int64(len(r.memory)) {
			return 0, io.EOF
		}
		n := copy(p, r.memory[r.at:])
		r.at += int64(n)
		return n, nil
	}
	if r.at == r.of.written {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.of.written-r.at)]
	if err := r.of.readAt(p, r.at); err != nil {
		return 0, err
	}
	r.at += int64(len(p))
	return len(p), nil
}

// Close satisfies io.Closer. The last one gives b back, where b is done.
func (r *Reader) Close() error {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if !r.closed {
		r.closed = true
		if r.of.readers--; r.of.readers == 0 && r.of.done {
			r.of.free()
		}
	}
	return nil
}

// Done gives b back as soon as no reader is open: a transport may still send
// what is answered already.
func (b *Bytes) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done = true; b.readers == 0 {
		b.free()
	}
}

// Close gives b back now, once; who still reads its file gets an error.
func (b *Bytes) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free()
}

func (b *Bytes) free() {
	if b.closed {
		return
	}
	b.closed = true
	b.spool.give(b.holder.Member, b.counted)
	b.counted, b.memory = amount{}, nil // readers have their own view of it
	if b.file != nil {
		_ = b.file.Close() // nothing of it is to last
	}
}

func (b *Bytes) take(more amount) error {
	if err := b.spool.take(b.holder, more); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counted.memory += more.memory
	b.counted.disk += more.disk
	return nil
}

func (b *Bytes) give(less amount) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counted.memory -= less.memory
	b.counted.disk -= less.disk
	b.spool.give(b.holder.Member, less)
}
