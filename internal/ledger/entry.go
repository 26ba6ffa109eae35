package ledger

import (
	"errors"

	"github.com/fxamacker/cbor/v2"

	"github.com/kith/kith/internal/account"
)

// entry is one record of the journal: the intent to send a call to a machine, or the
// result of a call. In an intent, Status and the fields after it are zero. On disk it is
// a CBOR map. Readers skip unknown keys.
type entry struct {
	Ended bool          `cbor:"1,keyasint,omitempty"`
	Usage account.Usage `cbor:"2,keyasint"`
}

var encoder, _ = cbor.EncOptions{Time: cbor.TimeRFC3339Nano}.EncMode() // the options are valid

func (e entry) encode() []byte {
	text, err := encoder.Marshal(e)
	if err != nil {
		panic(err) // cannot happen: every field can be encoded
	}
	return text
}

func decodeEntry(text []byte) (e entry, err error) {
	if err := cbor.Unmarshal(text, &e); err != nil {
		return entry{}, errors.Join(errEntry, err)
	}
	return e, nil
}

var errEntry = errors.New("an entry of the journal cannot be read: another version of kith wrote it")
