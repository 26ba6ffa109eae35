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
	// maxSmall is the size of the largest body that is always kept in memory. A larger one
	// is moved to a file, if there is a folder, when memory becomes scarce (Spool.ample).
	maxSmall = 1 << 20
	// chunkSize is the largest buffer that is allocated because of an announced length
	// alone, and the size of the write buffer of a file.
	chunkSize = 64 << 10
	// firstBuffer is the size of the first buffer of a body of unknown length.
	firstBuffer = 4 << 10
)

// Bytes is the body of a request or an answer, counted for a member. ReadFrom fills it
// once; then it can be read any number of times. Close releases its memory and its file.
type Bytes struct {
	spool    *Spool
	holder   Holder
	expected int64  // announced length; -1: unknown
	memory   []byte // the complete body if there is no file or it was loaded; in ReadFrom the bytes not yet written
	file     *os.File
	iv       [16]byte // the initial counter of the file's keystream
	written  int64    // bytes in the file

	mu      sync.Mutex
	counted amount
	readers int
	done    bool // the last reader's Close releases it
	closed  bool
}

// Hold returns an empty body for the holder. expected is its announced length, negative
// if unknown; no more than a first buffer is allocated for it.
func (s *Spool) Hold(holder Holder, expected int64) *Bytes {
	return &Bytes{spool: s, holder: holder, expected: min(expected, math.MaxInt64-1)} // adding one must not overflow
}

// Keep holds the given bytes without a copy. No one may change them afterwards; the
// caller may hold other parts of the same array.
func (s *Spool) Keep(holder Holder, all []byte) (*Bytes, error) {
	b := s.Hold(holder, int64(len(all)))
	var err error
	if b.memory = all; len(all) <= maxSmall || s.ample(holder, int64(cap(all))) {
		err = b.count(amount{memory: int64(cap(all))})
	} else {
		b.memory = nil
		_, err = b.ReadFrom(bytes.NewReader(all))
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// ReadFrom fills b from src until the end. It fails with the error of src, or with a
// *fault.Fault if a limit is reached.
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
			b.uncount(amount{memory: int64(cap(b.memory))})
			b.memory = nil
			return n, err
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// grow makes room in memory: it allocates a larger buffer, or writes the buffer to the
// file. The buffer for an announced length has one extra byte, so that the end is
// detected without growing.
func (b *Bytes) grow() error {
	size, larger := cap(b.memory), b.larger()
	// A body whose announced length is too large for memory goes to a file at once.
	if coming := max(int64(larger), b.expected); b.file == nil && size >= chunkSize && coming > maxSmall && !b.spool.ample(b.holder, coming-int64(size)) {
		if err := b.createFile(); err != nil {
			return err
		}
	}
	if b.file != nil {
		if err := b.flush(); err != nil {
			return err
		}
		if size > chunkSize { // from now on it is only the file's write buffer
			b.uncount(amount{memory: int64(size - chunkSize)})
			b.memory = make([]byte, 0, chunkSize)
		}
		return nil
	}
	if err := b.count(amount{memory: int64(larger - size)}); err != nil {
		return err
	}
	grown := make([]byte, len(b.memory), larger)
	copy(grown, b.memory)
	b.memory = grown
	return nil
}

// larger returns the size of the next buffer in memory.
func (b *Bytes) larger() int {
	size := cap(b.memory)
	switch {
	case size == 0 && b.expected < 0:
		return firstBuffer
	case size == 0:
		return int(min(b.expected+1, chunkSize))
	case b.expected >= int64(size): // few copies, and not much more than what arrived
		return int(min(4*int64(size), b.expected+1))
	default:
		return 2 * size
	}
}

func (b *Bytes) createFile() (err error) {
	if b.file, err = create(b.spool.folder); err != nil {
		return b.spool.noFile(err)
	}
	_, _ = rand.Read(b.iv[:]) // never fails
	return nil
}

// flush appends the buffer to the file.
func (b *Bytes) flush() error {
	n := int64(len(b.memory))
	if err := b.count(amount{disk: n}); err != nil {
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

// keystream returns the file's keystream from the given offset: AES in counter mode.
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

// Len returns the number of bytes.
func (b *Bytes) Len() int64 {
	if b.file != nil {
		return b.written
	}
	return int64(len(b.memory))
}

// inMemory reports whether the complete body is in memory.
func (b *Bytes) inMemory() bool { return b.memory != nil || b.file == nil }

// View calls use with the complete body, which use must not retain. The body of a file is
// read into memory for the duration of the call. All such reads share a limit, and ctx
// bounds the wait for it.
func (b *Bytes) View(ctx context.Context, use func(all []byte) error) error {
	if b.inMemory() {
		return use(b.memory)
	}
	room := min(b.written, viewRoom)
	if err := b.spool.views.Acquire(ctx, room); err != nil {
		return context.Cause(ctx)
	}
	defer b.spool.views.Release(room)
	all, err := b.readFile()
	if err != nil {
		return err
	}
	return use(all)
}

// Load returns the complete body in memory. That memory is counted until b is closed.
func (b *Bytes) Load() ([]byte, error) {
	if b.inMemory() {
		return b.memory, nil
	}
	err := b.count(amount{memory: b.written})
	if err == nil {
		b.memory, err = b.readFile()
	}
	return b.memory, err
}

func (b *Bytes) readFile() ([]byte, error) {
	all := make([]byte, b.written)
	if _, err := b.ReadAt(all, 0); err != nil {
		return nil, err
	}
	return all, nil
}

// ReadAt implements io.ReaderAt for a body in a file.
func (b *Bytes) ReadAt(p []byte, offset int64) (int, error) {
	if b.file == nil {
		return 0, os.ErrClosed
	}
	n, err := b.file.ReadAt(p, offset)
	b.keystream(offset).XORKeyStream(p[:n], p[:n])
	return n, err
}

// WriteTo writes the complete body, without a copy if it is in memory.
func (b *Bytes) WriteTo(w io.Writer) (int64, error) {
	if b.inMemory() {
		n, err := w.Write(b.memory)
		return int64(n), err
	}
	return io.CopyBuffer(w, io.NewSectionReader(b, 0, b.written), make([]byte, chunkSize))
}

// Reader reads a Bytes. It must be closed.
type Reader struct {
	io.Reader
	of     *Bytes
	closed bool
}

// Open returns a new reader of b. A reader of a closed Bytes fails with os.ErrClosed.
func (b *Bytes) Open() *Reader { return b.OpenAt(0) }

// OpenAt returns a new reader of b from an offset on.
func (b *Bytes) OpenAt(offset int64) *Reader {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readers++
	switch {
	case b.closed:
		return &Reader{Reader: io.NewSectionReader(b, offset, math.MaxInt64-offset), of: b}
	case b.inMemory():
		return &Reader{Reader: bytes.NewReader(b.memory[min(offset, int64(len(b.memory))):]), of: b}
	default:
		return &Reader{Reader: io.NewSectionReader(b, offset, b.written-offset), of: b}
	}
}

// Close implements io.Closer. After Done, closing the last reader releases the Bytes.
func (r *Reader) Close() error {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	if !r.closed {
		r.closed = true
		if r.of.readers--; r.of.readers == 0 && r.of.done {
			r.of.release()
		}
	}
	return nil
}

// Done closes b as soon as no reader is open: a transport may still be sending a request
// that was already answered.
func (b *Bytes) Done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done = true; b.readers == 0 {
		b.release()
	}
}

// Close releases b at once. Readers of its file fail.
func (b *Bytes) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.release()
}

// release releases b's memory and file, once. mu must be held.
func (b *Bytes) release() {
	if b.closed {
		return
	}
	b.closed = true
	b.spool.uncount(b.holder.Member, b.counted)
	b.counted, b.memory = amount{}, nil // readers keep their own reference
	if b.file != nil {
		_ = b.file.Close() // the file is deleted, so its content does not matter
	}
}

// count counts more bytes for b. It fails with the fault of Spool.count.
func (b *Bytes) count(more amount) error {
	if err := b.spool.count(b.holder, more); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counted.memory += more.memory
	b.counted.disk += more.disk
	return nil
}

func (b *Bytes) uncount(less amount) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.counted.memory -= less.memory
	b.counted.disk -= less.disk
	b.spool.uncount(b.holder.Member, less)
}
