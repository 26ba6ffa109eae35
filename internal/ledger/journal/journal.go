// Package journal keeps records on this computer's own disk until they are kept
// elsewhere. An appended record survives a crash of the process, and once Sync
// returned a power cut.
//
// A journal is two slots: files of a fixed size that is reserved when they are made,
// so that a full disk does not stop it. Append writes to the active slot. Restart
// makes the other slot active, with the records that are still needed. Whenever a
// crash comes, one of the two is complete.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// slotSize is the size of one slot in bytes, some 100,000 records.
const slotSize = 32 << 20

// A slot begins with a header: the magic word, the slot's generation (each
// Restart's is one higher), the offset at which that Restart's own records end,
// and a checksum. The records follow: length, checksum, bytes. The checksum of a
// record includes the generation, so that records of an earlier one are not read.
const (
	magic      = "kithjnl1"
	headerSize = len(magic) + 8 + 8 + 4
	frameSize  = 4 + 4
	maxRecord  = 64 << 10
)

// ErrFull is the error for a slot that has no room for a record.
var ErrFull = errors.New("the journal is full")

// errNotStarted is the error before the first Restart, and after one that failed.
var errNotStarted = errors.New("the journal was not started")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Journal is an open journal. Append and Sync may run at the same time; Restart may
// not run with either.
type Journal struct {
	slots      [2]*os.File
	size       int64
	active     int
	generation uint64
	end        int64 // of the active slot: where the next record goes
	started    bool  // the active slot holds all of its Restart's records
	// synced says that these are on the disk. Until then the other slot is needed, and
	// Restart does not write it.
	synced bool
	found  [][]byte
	damage int64
	frame  []byte // buffer of Append
}

// Open opens the journal at path, or makes it: two files, path with "a" and "b"
// appended. Append fails before the first Restart. One process at a time may have a
// journal open.
func Open(path string) (*Journal, error) {
	return open(path, slotSize)
}

func open(path string, size int64) (_ *Journal, err error) {
	j := &Journal{size: size}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot open the journal %s: %w", filepath.Dir(path), errors.Join(err, j.Close()))
		}
	}()
	var text [2][]byte
	for i, name := range []string{path + "a", path + "b"} {
		if j.slots[i], err = os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600); err != nil {
			return nil, err
		}
		if err := reserve(j.slots[i], size); err != nil {
			return nil, fmt.Errorf("cannot reserve %d MiB for it: %w", size>>20, err)
		}
		text[i] = make([]byte, size)
		if _, err := j.slots[i].ReadAt(text[i], 0); err != nil {
			return nil, err // every slot has its full size
		}
	}
	found := [2]content{read(text[0], 0), read(text[1], 0)}
	for i := range found {
		if found[i].generation == 0 {
			found[i] = read(text[i], found[1-i].generation)
		}
	}
	if found[1].generation > found[0].generation {
		j.active = 1
	}
	newest, older := found[j.active], found[1-j.active]
	j.generation, j.synced = newest.generation, newest.complete
	j.found, j.damage = append(older.records, newest.records...), older.skipped+newest.skipped
	return j, nil
}

// Found returns, once, the records that Open found, the oldest first. It may hold a
// record twice.
func (j *Journal) Found() [][]byte {
	found := j.found
	j.found = nil
	return found
}

// Holds returns how many records Open found, those of Found that are there twice included.
func (j *Journal) Holds() int { return len(j.found) }

// Damage returns how many bytes Open found that are no record any more, though records
// follow them.
func (j *Journal) Damage() int64 { return j.damage }

// content is what a slot holds.
type content struct {
	generation uint64
	complete   bool // it has all records of its Restart
	records    [][]byte
	skipped    int64 // bytes before a record that are none
}

// read returns what a slot holds. other is the generation of the other slot, 0 if it is
// not known: it helps with a header that is damaged.
func read(slot []byte, other uint64) content {
	head, records := slot[:headerSize-4], slot[headerSize:]
	generation := binary.BigEndian.Uint64(head[len(magic):])
	if string(head[:len(magic)]) == magic && crc32.Checksum(head, castagnoli) == binary.BigEndian.Uint32(slot[headerSize-4:]) {
		c := content{generation: generation}
		restarted := binary.BigEndian.Uint64(head[len(magic)+8:]) - uint64(headerSize)
		unbroken := c.scan(records)
		c.complete = uint64(unbroken) >= restarted
		return c
	}
	// One bit of the header loses no record: the first record has its generation, which is
	// the one in the header, or is near that of the other slot.
	for _, generation := range []uint64{generation, other + 1, other - 1, other + 2, other + 3} {
		if record := frame(records, generation); record != nil {
			c := content{generation: generation, skipped: int64(headerSize)}
			c.scan(records)
			return c
		}
	}
	return content{}
}

// scan reads all records of c's generation. Where bytes are damaged it goes on at the next
// record. It returns the length of the records before the first such place.
func (c *content) scan(text []byte) (unbroken int) {
	end := 0 // of the last record
	for at := 0; at < len(text); {
		record := frame(text[at:], c.generation)
		if record == nil {
			at++
			continue
		}
		if at == unbroken {
			unbroken += frameSize + len(record)
		}
		c.skipped += int64(at - end)
		c.records = append(c.records, record)
		at += frameSize + len(record)
		end = at
	}
	return unbroken
}

// frame returns the record at the beginning of text; nil if there is none of the
// generation.
func frame(text []byte, generation uint64) []byte {
	if len(text) <= frameSize || text[0] != 0 { // no record is that long
		return nil
	}
	size := binary.BigEndian.Uint32(text)
	if size == 0 || size > maxRecord || int(size) > len(text)-frameSize {
		return nil
	}
	record := text[frameSize : frameSize+size]
	if checksum(generation, record) != binary.BigEndian.Uint32(text[4:]) {
		return nil
	}
	return record
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

// Append writes one record, of 1 byte to 64 KiB. After an error nothing of it is
// kept, and the next Append may succeed.
func (j *Journal) Append(record []byte) error {
	if !j.started {
		return errNotStarted
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

// Restart starts a slot with these records. Once Sync has returned all others are
// dropped. ErrFull changes nothing; after any other error the records that were there
// are kept, and Restart has to succeed before the next Append.
func (j *Journal) Restart(records [][]byte) error {
	target := j.active
	if j.synced {
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
	j.active, j.generation, j.synced, j.started = target, generation, false, false
	if _, err := j.slots[target].WriteAt(text, 0); err != nil {
		return fmt.Errorf("cannot restart the journal: %w", err)
	}
	j.end, j.started = int64(len(text)), true
	return nil
}

// Sync makes all that was appended before it survive a power cut. After an error the
// journal needs a Restart.
func (j *Journal) Sync() error {
	if !j.started {
		return errNotStarted
	}
	if err := flush(j.slots[j.active]); err != nil {
		return fmt.Errorf("cannot bring the journal to the disk: %w", err)
	}
	j.synced = true
	return nil
}

// Used returns how much of the active slot is used, from 0 to 1.
func (j *Journal) Used() float64 { return float64(j.end) / float64(j.size) }

// Bytes returns how many bytes of the active slot are used.
func (j *Journal) Bytes() int64 { return j.end }

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
