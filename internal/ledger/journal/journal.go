// Package journal stores records on this computer's disk until they are stored elsewhere.
// An appended record survives a crash of the process and, after Sync has returned, a
// power cut.
//
// A journal is two slots: files of a fixed size that is allocated when they are created,
// so that a full disk does not stop it. Append writes to the active slot. Restart makes
// the other slot active, with the records that are still needed. At any time one of the
// two is complete, so that a crash loses nothing.
package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
)

// slotSize is the size of one slot in bytes, enough for about 100,000 records.
const slotSize = 32 << 20

// A slot begins with a header: the magic word, the slot's generation (each Restart
// increases it), the offset of the end of that Restart's records, and a checksum. Then
// come the records: length, checksum, bytes. The checksum of a record includes the
// generation, so that records of an earlier generation are not read.
const (
	magic      = "kithjnl1"
	headerSize = len(magic) + 8 + 8 + 4
	frameSize  = 4 + 4
	maxRecord  = 64 << 10
)

// ErrFull is the error if a slot has no room for a record.
var ErrFull = errors.New("the journal is full")

// errNotStarted is the error before the first Restart, and after one that failed.
var errNotStarted = errors.New("the journal was not started")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Journal is an open journal. Append and Sync may be called concurrently, but not with
// Restart.
type Journal struct {
	slots      [2]*os.File
	size       int64
	active     int
	generation uint64
	end        int64 // of the active slot: offset of the next record
	started    bool  // the active slot has all records of its Restart
	// synced means that these records are on disk. Until then the other slot is needed,
	// and Restart does not write to it.
	synced bool
	found  [][]byte
	damage int64
	frame  []byte // buffer of Append
}

// Open opens or creates the journal at path. It has two files: path with "a" and "b"
// appended. Append fails before the first Restart. Only one process at a time may open a
// journal.
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

// Found returns the records that Open found, oldest first. A record may be in it twice.
// Only the first call returns them.
func (j *Journal) Found() [][]byte {
	found := j.found
	j.found = nil
	return found
}

// Holds returns the number of records that Open found, including duplicates.
func (j *Journal) Holds() int { return len(j.found) }

// Damage returns the number of bytes that are no longer a valid record but have records
// after them, as found by Open.
func (j *Journal) Damage() int64 { return j.damage }

type content struct {
	generation uint64
	complete   bool // it has all records of its Restart
	records    [][]byte
	skipped    int64 // invalid bytes before a record
}

// read returns the content of a slot. other is the generation of the other slot, or 0 if
// that is unknown. It helps if the header is damaged.
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
	// A damaged bit in the header loses no record. The generation of the first record is
	// in the header, or close to that of the other slot.
	for _, generation := range []uint64{generation, other + 1, other - 1, other + 2, other + 3} {
		if record := frame(records, generation); record != nil {
			c := content{generation: generation, skipped: int64(headerSize)}
			c.scan(records)
			return c
		}
	}
	return content{}
}

// scan reads all records of c's generation. After damaged bytes it continues with the
// next record. It returns the length of the records before the first damage.
func (c *content) scan(text []byte) (unbroken int) {
	end := 0 // end of the last record
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

// frame returns the record at the start of text, or nil if there is none of the
// generation.
func frame(text []byte, generation uint64) []byte {
	if len(text) <= frameSize || text[0] != 0 { // records are never that long
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

// Append writes one record of 1 byte to 64 KiB. After an error nothing of the record is
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

// Restart starts a slot with the given records. After Sync has returned, all others are
// dropped. ErrFull changes nothing. After any other error the previous records are kept,
// and Restart has to succeed before the next Append.
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

// Sync makes everything appended before it survive a power cut. After an error the
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

// Used returns the used part of the active slot, from 0 to 1.
func (j *Journal) Used() float64 { return float64(j.end) / float64(j.size) }

// Bytes returns the number of used bytes of the active slot.
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
