// Package journal keeps records on this computer's own disk until they are kept
// elsewhere. A record that was appended survives the death of the process; once
// Sync returned it survives a power cut.
//
// A journal is two slots, files of a fixed size whose room is reserved when they
// are made, so that a disk that others filled does not stop it. Records go to one
// slot. Restart begins the other with what is still needed, and what the first
// held is let go; whatever moment a crash picks, one of the two is whole.
package journal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// slotSize is the room of one slot in bytes, some 100,000 records.
const slotSize = 32 << 20

// A slot begins with a header: the magic word, the slot's generation (each
// Restart's is one higher), the offset at which that Restart's own records end,
// and a checksum. Then come the records: length, checksum, bytes. Checksums of
// records begin with the generation, so that what an earlier one left behind is
// never read.
const (
	magic      = "kithjnl1"
	headerSize = len(magic) + 8 + 8 + 4
	frameSize  = 4 + 4
	maxRecord  = 64 << 10
)

// ErrFull is Append's when the slot has no room for the record.
var ErrFull = errors.New("the journal is full")

// errTorn: no Restart has succeeded yet, or the last one failed.
var errTorn = errors.New("the journal was not begun")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Journal is an open journal. Append and Restart exclude each other, as do Sync
// and Restart; Append and Sync may run at once. Its users see to that.
type Journal struct {
	slots      [2]*os.File
	size       int64
	active     int
	generation uint64
	end        int64 // of the active slot: where the next record goes
	torn       bool  // the active slot was not begun whole
	// firm says that all which the active slot began with is on the disk. Until
	// then the other slot is needed, and Restart leaves it alone.
	firm  bool
	found [][]byte
	frame []byte // for Append, which so makes one write
}

// Open opens the journal at path, or makes it: two files, path and "a" or "b".
// Nothing may be appended before the first Restart. One process at a time may
// have a journal open; its users see to that, too.
func Open(path string) (*Journal, error) {
	return open(path, slotSize)
}

func open(path string, size int64) (_ *Journal, err error) {
	j := &Journal{size: size, torn: true}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot open the journal %s: %w", filepath.Dir(path), errors.Join(err, j.Close()))
		}
	}()
	var found [2]content
	for i, name := range []string{path + "a", path + "b"} {
		if j.slots[i], err = os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			return nil, err
		}
		if err := reserve(j.slots[i], size); err != nil {
			return nil, fmt.Errorf("cannot reserve %d MiB for it: %w", size>>20, err)
		}
		if found[i], err = read(j.slots[i]); err != nil {
			return nil, err
		}
	}
	if found[1].generation > found[0].generation {
		j.active = 1
	}
	newest, older := found[j.active], found[1-j.active]
	j.generation, j.firm = newest.generation, newest.whole
	j.found = append(older.records, newest.records...)
	return j, nil
}

// Found gives, once, the records that Open found, the oldest first, some of them
// perhaps twice.
func (j *Journal) Found() [][]byte {
	found := j.found
	j.found = nil
	return found
}

// content is what a slot holds.
type content struct {
	generation uint64
	whole      bool // nothing is missing of what the slot began with
	records    [][]byte
}

// read reads a slot as far as it is sound; a slot that holds nothing sound is
// the empty content.
func read(slot *os.File) (content, error) {
	if _, err := slot.Seek(0, io.SeekStart); err != nil {
		return content{}, err
	}
	from := bufio.NewReaderSize(slot, maxRecord)
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(from, head); err != nil {
		return content{}, err // a slot has its size from its first moment on
	}
	sum := binary.BigEndian.Uint32(head[headerSize-4:])
	head = head[:headerSize-4]
	if string(head[:len(magic)]) != magic || crc32.Checksum(head, castagnoli) != sum {
		return content{}, nil
	}
	c := content{generation: binary.BigEndian.Uint64(head[len(magic):])}
	offset := uint64(headerSize)
	for {
		record, err := readFrame(from, c.generation)
		if err != nil {
			return content{}, err
		}
		if record == nil {
			c.whole = offset >= binary.BigEndian.Uint64(head[len(magic)+8:])
			return c, nil
		}
		c.records = append(c.records, record)
		offset += frameSize + uint64(len(record))
	}
}

// readFrame reads the next record; where no sound one follows it is nil.
func readFrame(from io.Reader, generation uint64) ([]byte, error) {
	var head [frameSize]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, pastEnd(err)
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 || size > maxRecord {
		return nil, nil
	}
	record := make([]byte, size)
	if _, err := io.ReadFull(from, record); err != nil {
		return nil, pastEnd(err)
	}
	if checksum(generation, record) != binary.BigEndian.Uint32(head[4:]) {
		return nil, nil
	}
	return record, nil
}

// pastEnd is err unless it only says that the slot ends here.
func pastEnd(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil
	}
	return err
}

func checksum(generation uint64, record []byte) uint32 {
	seed := binary.BigEndian.AppendUint64(make([]byte, 0, 8), generation)
	return crc32.Update(crc32.Checksum(seed, castagnoli), castagnoli, record)
}

func appendFrame(b []byte, generation uint64, record []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(record)))
	b = binary.BigEndian.AppendUint32(b, checksum(generation, record))
	return append(b, record...)
}

// Append writes one record, of 1 byte to 64 KiB. After an error nothing of it
// stays, and a later Append may well succeed.
func (j *Journal) Append(record []byte) error {
	if j.torn {
		return errTorn
	}
	j.frame = appendFrame(j.frame[:0], j.generation, record)
	if j.end+int64(len(j.frame)) > j.size {
		return ErrFull
	}
	if _, err := j.slots[j.active].WriteAt(j.frame, j.end); err != nil {
		return fmt.Errorf("cannot write the journal: %w", err)
	}
	j.end += int64(len(j.frame))
	return nil
}

// Restart begins a slot anew with these records; all others are let go once
// Sync has returned. After an error (but ErrFull, which changes nothing) it has
// to be tried again before anything may be appended; what was there is kept.
func (j *Journal) Restart(records [][]byte) error {
	target := j.active
	if j.firm {
		target = 1 - target
	}
	generation := j.generation + 1
	text := make([]byte, headerSize, headerSize+len(records)*512)
	for _, record := range records {
		text = appendFrame(text, generation, record)
	}
	head := append(text[:0], magic...)
	head = binary.BigEndian.AppendUint64(head, generation)
	head = binary.BigEndian.AppendUint64(head, uint64(len(text)))
	binary.BigEndian.AppendUint32(head, crc32.Checksum(head, castagnoli))
	if int64(len(text)) > j.size {
		return ErrFull
	}
	j.active, j.generation, j.firm, j.torn = target, generation, false, true
	if _, err := j.slots[target].WriteAt(text, 0); err != nil {
		return fmt.Errorf("cannot begin the journal anew: %w", err)
	}
	j.end, j.torn = int64(len(text)), false
	return nil
}

// Sync makes all that was appended before it survive a power cut. After an
// error that is unknown, and the journal needs a Restart.
func (j *Journal) Sync() error {
	if j.torn {
		return errTorn
	}
	if err := flush(j.slots[j.active]); err != nil {
		return fmt.Errorf("cannot bring the journal to the disk: %w", err)
	}
	j.firm = true
	return nil
}

// Used is how much of the slot is taken, from 0 to 1.
func (j *Journal) Used() float64 { return float64(j.end) / float64(j.size) }

// Close closes the files.
func (j *Journal) Close() error {
	var err error
	for _, slot := range j.slots {
		if slot != nil {
			err = errors.Join(err, slot.Close())
		}
	}
	return err
}
