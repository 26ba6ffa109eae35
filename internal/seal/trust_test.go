package seal

import (
	"bytes"
	"crypto/hpke"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// A statement says what was signed; one of which anything was changed is refused.
func TestStatement(t *testing.T) {
	oldest, older, account := newAccount(), newAccount(), newAccount()
	prekey := assert.Value(NewPrekey())(t)
	made := time.Unix(1_795_000_000, 0)
	former := []Succession{oldest.Succeed(older.Key()), older.Succeed(account.Key())}
	text := assert.Value(account.Sign("m-1", prekey, made, former))(t)
	s := assert.Value(ParseStatement(text))(t)
	assert.That(t, s.Made.Equal(made) && s.Machine == "m-1" && s.Account == account.Key() && s.KeyID == prekey.ID(), s)
	assert.That(t, slices.Equal(s.Former, former), s.Former)
	for i := range text {
		for bit := range 8 {
			text[i] ^= 1 << bit
			if _, err := ParseStatement(text); err == nil {
				t.Fatalf("bit %d of byte %d was changed", bit, i)
			}
			text[i] ^= 1 << bit
		}
		assert.That(t, assert.Err(ParseStatement(text[:i])) != nil, "cut at", i)
	}
	assert.Fails(t, assert.Err(ParseStatement(append(slices.Clone(text), 0))), "complete")
	assert.Fails(t, assert.Err(ParseStatement(make([]byte, MaxStatement+1))), "at most")

	text = assert.Value(account.Sign("m-1", prekey, made, []Succession{oldest.Succeed(account.Key()), older.Succeed(account.Key())}))(t)
	assert.Fails(t, assert.Err(ParseStatement(text)), "former key")
	assert.That(t, assert.Err(account.Sign("", prekey, made, nil)) != nil, "no machine")
	for _, bad := range [][]Succession{slices.Repeat(former, 3), nil} {
		machine := "m-1"
		if bad == nil {
			machine = strings.Repeat("m", maxMachineID+1)
		}
		assert.That(t, assert.Err(account.Sign(machine, prekey, made, bad)) != nil, "too much in a statement")
	}
}

// What another program signs has the same limits.
func TestStatementLimits(t *testing.T) {
	account, prekey := newAccount(), assert.Value(NewPrekey())(t)
	for _, c := range []struct {
		machine string
		former  int
		ok      bool
	}{{"m-1", 0, true}, {"m-1", 4, true}, {"m-1", 5, false}, {"", 0, false}, {strings.Repeat("m", 64), 4, true}, {strings.Repeat("m", 65), 0, false}} {
		key, next := account.Key(), account.Key()
		var chain []byte
		for range c.former { // the newest first
			f := newAccount()
			s := f.Succeed(next)
			chain = slices.Concat(s.Former[:], s.Signature[:], chain)
			next = f.Key()
		}
		b := append([]byte(statementMagic), make([]byte, 8)...)
		b = slices.Concat(b, []byte{0, byte(len(c.machine))}, []byte(c.machine), key[:], prekey.public, []byte{byte(c.former)}, chain)
		signature := account.sign("", b)
		_, err := ParseStatement(append(b, signature[:]...))
		assert.Equal(t, err == nil, c.ok, c, err)
	}
}

func FuzzStatement(f *testing.F) {
	account := newAccount()
	prekey := assert.Value(NewPrekey())(f)
	text := assert.Value(account.Sign("m-1", prekey, time.Now(), nil))(f)
	f.Add(text)
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := ParseStatement(b); err == nil {
			_, _ = NewSender(s)
			assert.That(t, bytes.Equal(b, text) || s.Account != account.Key(), "forged")
		}
	})
}

// Words survive being typed, and mistyped ones are named.
func TestWords(t *testing.T) {
	assert.Require(t, len(wordList) == 1<<wordBits && slices.IsSorted(wordList), len(wordList))
	begins := map[string]bool{}
	for _, word := range wordList {
		begin := word[:min(len(word), 4)]
		assert.That(t, !begins[begin], begin)
		begins[begin] = true
	}
	for range 1000 {
		w := NewWords()
		typed := " " + strings.ToUpper(strings.ReplaceAll(w.String(), " ", ", ")) + "\n"
		assert.Equal(t, assert.Value(ParseWords(typed))(t), w)
		var short []string
		for word := range strings.FieldsSeq(w.String()) {
			short = append(short, word[:min(len(word), 4)])
		}
		assert.Equal(t, assert.Value(ParseWords(strings.Join(short, " ")))(t), w)
	}
	assert.Equal(t, Words{}.String(), strings.TrimSpace(strings.Repeat("abandon ", 8)))
	assert.Fails(t, assert.Err(ParseWords("abandon ability")), "8 words, not 2")
	assert.Fails(t, assert.Err(ParseWords("able able able able able able able aaaa")), `"aaaa"`)
	assert.Fails(t, assert.Err(ParseWords("able able able able able able able zzz")), `"zzz"`)
	for _, n := range []int{0, 7, 9} {
		assert.Fails(t, assert.Err(ParseWords(strings.Repeat("able ", n))), "there must be 8 words")
	}
	for typed, want := range map[string]string{
		"equipp": `word 2, "equipp", is not in the list, did you mean "equip"?`,
		"aba":    `word 2, "aba", is not in the list, did you mean "abandon"?`,
		"abandn": `word 2, "abandn", is not in the list, did you mean "abandon"?`,
		"zoooo":  `word 2, "zoooo", is not in the list, did you mean "zoo"?`,
		"eqiup":  `word 2, "eqiup", is not in the list`,
		"aa":     `word 2, "aa", is not in the list`,
	} {
		err := assert.Err(ParseWords("able " + typed + strings.Repeat(" able", 6)))
		assert.That(t, err.Error() == want, err)
	}
}

// A fingerprint is read back from a link, and its words are its first 88 bits.
func TestFingerprint(t *testing.T) {
	f := newAccount().Key().Fingerprint()
	assert.Equal(t, len(f.String()), 22)
	assert.Equal(t, assert.Value(ParseFingerprint(f.String()))(t), f)
	words := f.Words()
	assert.That(t, bytes.Equal(words[:], f[:11]))
	loose := []byte(f.String())
	loose[21]++ // a bit behind the end
	for _, s := range []string{string(loose), "", f.String()[1:], f.String() + "A", f.String()[:21] + "="} {
		assert.That(t, assert.Err(ParseFingerprint(s)) != nil, s)
	}
}

// A machine gets the account key from one whose owner typed its words, and from no other.
func TestApproval(t *testing.T) {
	account := newAccount()
	ask := assert.Value(NewAsk("m-2"))(t)
	message := ask.Message()
	answer := assert.Value(account.Approve(message, "m-2", ask.Words))(t)
	got := assert.Value(ask.Accept(answer))(t)
	assert.Equal(t, got.Key(), account.Key())
	assert.Equal(t, got.Seed(), account.Seed())

	assert.Fails(t, assert.Err(account.Approve(message, "m-2", NewWords())), "not the words")
	assert.Fails(t, assert.Err(account.Approve(message, "m-3", ask.Words)), "not the words")
	assert.Fails(t, assert.Err(account.Approve(message[1:], "m-2", ask.Words)), "not complete")
	assert.Fails(t, assert.Err(account.Approve(append(message, 0), "m-2", ask.Words)), "not complete")
	for _, i := range []int{0, prekeySize - 1, prekeySize, len(message) - 1} { // the hub's own key in place of the machine's
		message[i] ^= 1
		assert.Fails(t, assert.Err(account.Approve(message, "m-2", ask.Words)), "not the words")
		message[i] ^= 1
	}
	for i := range answer {
		answer[i] ^= 1
		assert.That(t, assert.Err(ask.Accept(answer)) != nil, i)
		answer[i] ^= 1
	}
}

// A hub that does not know the words cannot give a machine a key of its own, not even with
// the code that the machine itself sent, for an id that is the hub's public key.
func TestApprovalIsNotReflected(t *testing.T) {
	hub := newAccount()
	key := hub.Key()
	ask := assert.Value(NewAsk(string(key[:])))(t)
	public, mac := ask.Message()[:prekeySize], ask.Message()[prekeySize:]
	seed := hub.Seed()
	to := assert.Value(kem.NewPublicKey(public))(t)
	answer := assert.Value(hpke.Seal(to, kdf, hpke.AES256GCM(), approvalInfo, append(seed[:], mac...)))(t)
	assert.Fails(t, assert.Err(ask.Accept(answer)), "words")
	for size := range 3 * SeedSize { // what the hub makes of it has any length
		answer := assert.Value(hpke.Seal(to, kdf, hpke.AES256GCM(), approvalInfo, make([]byte, size)))(t)
		assert.That(t, size == SeedSize+macSize || assert.Err(ask.Accept(answer)) == ErrOpen, size)
	}
}
