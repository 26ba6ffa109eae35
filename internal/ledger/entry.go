package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"github.com/fxamacker/cbor/v2"

	"github.com/kith/kith/internal/account"
)

// entry is one record of the journal: the intent to send a call to a machine, or
// how the call ended. In an intent Status and the fields after it are zero. On the disk
// it is a CBOR map; a reader skips numbers that it does not know.
type entry struct {
	Ended bool          `cbor:"1,keyasint,omitempty"`
	Usage account.Usage `cbor:"2,keyasint"`
}

var encoder, _ = cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode() // the options are valid

func (e entry) encode() []byte {
	text, err := encoder.Marshal(e)
	if err != nil {
		panic(err) // every field has an encoding
	}
	return text
}

// decodeEntry reads what encode wrote, and the entries of the versions before it,
// so that an upgrade loses no call.
func decodeEntry(text []byte) (e entry, err error) {
	if len(text) > 0 && text[0] < cborMap {
		return decodeVarints(text)
	}
	if err := cbor.Unmarshal(text, &e); err != nil {
		return entry{}, errors.Join(errEntry, err)
	}
	return e, nil
}

// cborMap is the lowest first byte of a CBOR map. An older entry begins with its
// form, 1 or 2, as a varint.
const cborMap = 0xa0

var errEntry = errors.New("an entry of the journal cannot be read: another version of kith wrote it")

// decodeVarints reads an entry of the older forms: numbers as varints, strings
// with their length first. Form 1 has no group.
func decodeVarints(text []byte) (e entry, err error) {
	r := bytes.NewReader(text)
	number := func() int64 {
		n, fails := binary.ReadVarint(r)
		err = errors.Join(err, fails)
		return n
	}
	words := func() string {
		b := make([]byte, min(max(number(), 0), int64(len(text))))
		n, _ := r.Read(b)
		if n < len(b) {
			err = errEntry
		}
		return string(b)
	}
	form := number()
	u := &e.Usage
	e.Ended = number() == 1
	u.CallID, u.Attempt, u.Started = words(), int(number()), time.UnixMilli(number()).UTC()
	u.MemberID, u.KeyID, u.MachineID, u.OwnerID, u.Model, u.Endpoint = words(), words(), words(), words(), words(), words()
	u.Stream, u.Status, u.Code = number() == 1, int(number()), words()
	u.Waited, u.FirstByte, u.Duration = time.Duration(number()), time.Duration(number()), time.Duration(number())
	u.TokensIn, u.TokensOut, u.TokensHow = number(), number(), account.TokensHow(words())
	if form == 2 {
		u.GroupID = words()
	}
	if err != nil || form < 1 || form > 2 || r.Len() > 0 {
		return entry{}, errEntry
	}
	return e, nil
}
