package ledger

import (
	"bytes"
	"encoding/hex"
	"errors"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/ledger/journal"
)

// everyField is an entry in which no field is zero.
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

// onDisk is everyField as it is encoded now, and as the versions before encoded it:
// without FirstToken; as form 2; and as form 1, without the group. What is on a disk has
// to stay readable.
const (
	onDisk    = "a201f502b401657265715f310203037818323032332d31312d31345432323a31333a32302e3132335a04656d656d5f3105656b65795f3106656d63685f3107656d656d5f3208656772705f3109696c6c616d61333a38620a742f76312f636861742f636f6d706c6574696f6e730bf50c18c80d6c656e67696e655f6572726f720e010f021003110412051367636f756e7465641406"
	onDisk19  = "a201f502b301657265715f310203037818323032332d31312d31345432323a31333a32302e3132335a04656d656d5f3105656b65795f3106656d63685f3107656d656d5f3208656772705f3109696c6c616d61333a38620a742f76312f636861742f636f6d706c6574696f6e730bf50c18c80d6c656e67696e655f6572726f720e010f021003110412051367636f756e746564"
	onDiskOld = "04020a7265715f3106f6a1abfef9620a6d656d5f310a6b65795f310a6d63685f310a6d656d5f32126c6c616d61333a3862282f76312f636861742f636f6d706c6574696f6e7302900318656e67696e655f6572726f72020406080a0e636f756e7465640a6772705f31"
)

func TestEntryIsReadAsWritten(t *testing.T) {
	want := everyField(t)
	text := want.encode()
	if got := hex.EncodeToString(text); got != onDisk {
		t.Errorf("an entry is written as\n%s, not as\n%s", got, onDisk)
	}
	intent := entry{Usage: account.Usage{CallID: "req_2", Attempt: 1, Started: want.Usage.Started.Add(time.Microsecond)}}
	for _, e := range []entry{want, intent} {
		if got, err := decodeEntry(e.encode()); err != nil || !reflect.DeepEqual(got, e) {
			t.Errorf("%v\n got %+v\nwant %+v", err, got, e)
		}
	}
	refusesParts(t, text)
}

// An upgrade loses no call that the version before it wrote.
func TestEntryOfEarlierVersions(t *testing.T) {
	want := everyField(t)
	want.Usage.FirstToken = 0
	before, err := hex.DecodeString(onDisk19)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeEntry(before); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("without FirstToken: %v\n got %+v\nwant %+v", err, got, want)
	}
	form2, err := hex.DecodeString(onDiskOld)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeEntry(form2); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("form 2: %v\n got %+v\nwant %+v", err, got, want)
	}
	refusesParts(t, form2)
	form1 := append([]byte{2}, form2[1:len(form2)-1-len("grp_1")]...)
	want.Usage.GroupID = ""
	if got, err := decodeEntry(form1); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("form 1: %v\n got %+v\nwant %+v", err, got, want)
	}
	refusesParts(t, form1)
}

// A hub that starts after an upgrade records the calls that the version before it left
// in the journal: those that were over, and as interrupted those that were not.
func TestJournalOfEarlierVersions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger-")
	j, err := journal.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	ended, err := hex.DecodeString(onDiskOld)
	if err != nil {
		t.Fatal(err)
	}
	intent := bytes.Replace(ended, []byte("req_1"), []byte("req_2"), 1)
	intent[1] = 0
	if err := errors.Join(j.Restart(nil), j.Append(ended), j.Append(intent), j.Sync(), j.Close()); err != nil {
		t.Fatal(err)
	}
	b := &books{calls: map[string]account.Usage{}}
	begin(t, path, b).stop()
	all := b.all()
	want := everyField(t).Usage
	want.FirstToken = 0
	if len(all) != 2 || !reflect.DeepEqual(all["req_1"], want) {
		t.Errorf("%d calls; got %+v, want %+v", len(all), all["req_1"], want)
	}
	if u := all["req_2"]; u.Code != account.Interrupted || u.MachineID != "mch_1" {
		t.Errorf("%+v", u)
	}
}

// refusesParts checks that no part of an entry, and nothing longer, is read as one.
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
