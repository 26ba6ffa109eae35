package ledger

import (
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
)

// everyField is an entry without zero fields.
func everyField(t *testing.T) entry {
	t.Helper()
	e := entry{Ended: true, Usage: account.Usage{
		CallID: "req_1", Attempt: 3, Started: time.UnixMilli(1_700_000_000_123).UTC(), MemberID: "mem_1", KeyID: "key_1",
		MachineID: "mch_1", OwnerID: "mem_2", GroupID: "grp_1", Model: "llama3:8b", Endpoint: "/v1/chat/completions", Stream: true,
		Status: 200, Code: "engine_error", Waited: 1, FirstByte: 2, Duration: 3, TokensIn: 4, TokensOut: 5, TokensHow: account.TokensCounted, FirstToken: 6,
	}}
	v := reflect.ValueOf(e.Usage)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Fatalf("the test leaves out %s", v.Type().Field(i).Name)
		}
	}
	return e
}

// onDisk is everyField in encoded form. Files with this content must stay readable.
const onDisk = "a201f502b401657265715f310203037818323032332d31312d31345432323a31333a32302e3132335a04656d656d5f3105656b65795f3106656d63685f3107656d656d5f3208656772705f3109696c6c616d61333a38620a742f76312f636861742f636f6d706c6574696f6e730bf50c18c80d6c656e67696e655f6572726f720e010f021003110412051367636f756e7465641406"

func TestEntryIsReadAsWritten(t *testing.T) {
	want := everyField(t)
	text := want.encode()
	assert.Equal(t, hex.EncodeToString(text), onDisk, "an entry is written as")
	intent := entry{Usage: account.Usage{CallID: "req_2", Attempt: 1, Started: want.Usage.Started.Add(time.Microsecond)}}
	for _, e := range []entry{want, intent} {
		if got, err := decodeEntry(e.encode()); err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%v\n got %+v\nwant %+v", err, got, e)
		}
	}
	refusesParts(t, text)
}

// refusesParts checks that neither a part of an entry nor an entry with more bytes after
// it is read as one.
func refusesParts(t *testing.T, text []byte) {
	t.Helper()
	for cut := range len(text) {
		if _, err := decodeEntry(text[:cut]); err == nil {
			t.Fatalf("half an entry is read: %d of %d bytes", cut, len(text))
		}
	}
	if _, err := decodeEntry(append(text[:len(text):len(text)], 0)); err == nil {
		t.Fatal("more than an entry is read")
	}
}
