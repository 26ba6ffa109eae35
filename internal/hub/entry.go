package hub

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/kith/kith/internal/account"
)

// entry is a record of the ledger as the journal keeps it: the intent to send a
// call to a machine, or how the call ended. An intent is the usage as far as it
// is known before: Status and what follows it are zero.
type entry struct {
	ended bool
	usage account.Usage
}

// entryForm is the first byte of an entry; it grows with the fields below. What an
// earlier version of kith wrote is read as well: form 1 knows no group.
const entryForm = 2

var errEntry = errors.New("an entry of the journal cannot be read: another version of kith wrote it")

// encode is the entry as bytes.
func (e entry) encode() []byte {
	c := coder{text: make([]byte, 0, 320), writes: true}
	c.entry(&e)
	return c.text
}

// decodeEntry reads what encode wrote.
func decodeEntry(text []byte) (entry, error) {
	var e entry
	c := coder{text: text}
	c.entry(&e)
	if c.bad || len(c.text) > 0 {
		return entry{}, errEntry
	}
	return e, nil
}

// coder writes fields to the end of text, or reads them from its beginning, so
// that there is one list of them.
type coder struct {
	text   []byte
	writes bool
	bad    bool // text was not what is read
}

func (c *coder) entry(e *entry) {
	form := int64(entryForm)
	c.number(&form)
	if form < 1 || form > entryForm {
		c.bad = true
		return
	}
	u := &e.usage
	c.flag(&e.ended)
	c.words(&u.CallID)
	c.small(&u.Attempt)
	started := u.Started.UnixMilli()
	c.number(&started)
	u.Started = time.UnixMilli(started).UTC()
	c.words(&u.MemberID)
	c.words(&u.KeyID)
	c.words(&u.MachineID)
	c.words(&u.OwnerID)
	c.words(&u.Model)
	c.words(&u.Endpoint)
	c.flag(&u.Stream)
	c.small(&u.Status)
	c.words(&u.Code)
	c.number((*int64)(&u.Waited))
	c.number((*int64)(&u.FirstByte))
	c.number((*int64)(&u.Duration))
	c.number(&u.TokensIn)
	c.number(&u.TokensOut)
	c.words((*string)(&u.TokensHow))
	if form >= 2 {
		c.words(&u.GroupID)
	}
}

func (c *coder) number(n *int64) {
	if c.writes {
		c.text = binary.AppendVarint(c.text, *n)
		return
	}
	value, size := binary.Varint(c.text)
	if size <= 0 {
		c.bad, c.text = true, nil
		return
	}
	*n, c.text = value, c.text[size:]
}

func (c *coder) small(n *int) {
	wide := int64(*n)
	c.number(&wide)
	*n = int(wide)
}

func (c *coder) flag(b *bool) {
	var n int64
	if *b {
		n = 1
	}
	c.number(&n)
	*b = n == 1
}

func (c *coder) words(s *string) {
	size := int64(len(*s))
	c.number(&size)
	switch {
	case c.writes:
		c.text = append(c.text, *s...)
	case size < 0 || size > int64(len(c.text)):
		c.bad, c.text = true, nil
	default:
		*s, c.text = string(c.text[:size]), c.text[size:]
	}
}
