package credential

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"github.com/kith/kith/internal/assert"
)

func TestSeal(t *testing.T) {
	text := []byte("what only the name opens")
	sealed := Seal("resp_1", "mem_ann", text)
	assert.That(t, !bytes.Contains(sealed, text[:8]) && len(sealed) >= len(text)+28, sealed)
	if again := Seal("resp_1", "mem_ann", text); bytes.Equal(again, sealed) {
		t.Error("two seals are the same")
	}
	got, err := Unseal("resp_1", "mem_ann", sealed)
	assert.That(t, err == nil && bytes.Equal(got, text), got, err)
	assert.Equal(t, len(assert.Value(Unseal("resp_1", "mem_ann", Seal("resp_1", "mem_ann", nil)))(t)), 0)
	damaged := func(i int) []byte {
		d := bytes.Clone(sealed)
		d[i] ^= 1
		return d
	}
	for name, c := range map[string]struct {
		id, owner string
		sealed    []byte
	}{
		"another name":  {"resp_2", "mem_ann", sealed},
		"another owner": {"resp_1", "mem_bob", sealed},
		"nonce":         {"resp_1", "mem_ann", damaged(0)},
		"text":          {"resp_1", "mem_ann", damaged(len(sealed) / 2)},
		"tag":           {"resp_1", "mem_ann", damaged(len(sealed) - 1)},
		"cut":           {"resp_1", "mem_ann", sealed[:len(sealed)-1]},
		"nothing":       {"resp_1", "mem_ann", nil},
	} {
		if got, err := Unseal(c.id, c.owner, c.sealed); err == nil || got != nil {
			t.Errorf("%s: %q", name, got)
		}
	}
	assert.That(t, SealName("resp_1") != SealName("resp_2"), "two names are found as one")
}

// The key of a seal is not the hash by which it is found, nor made of it.
func TestSealNameOpensNothing(t *testing.T) {
	name := SealName("resp_1")
	if _, err := Unseal(string(name[:]), "mem_ann", Seal("resp_1", "mem_ann", []byte("x"))); err == nil {
		t.Error("the hash opens it")
	}
}

// What was sealed once opens for as long as it is kept, whatever kith is newer.
func TestUnsealWhatWasSealedBefore(t *testing.T) {
	sealed, err := hex.DecodeString("3f6a94f4239b984891249f0fc3d4442db4f2a94d5574774e9a66e8c4183be77c97eb947f4640a4112277b7caf71851ede707a6e4")
	assert.OK(t, err)
	assert.Equal(t, string(assert.Value(Unseal("resp_1", "mem_ann", sealed))(t)), "what only the name opens")
}

// Nothing is sealed by a cipher that could not be made.
func TestMust(t *testing.T) {
	wrong := errors.New("wrong")
	defer func() {
		assert.Equal[any](t, recover(), wrong, "it stopped at")
	}()
	must(1, wrong)
}
