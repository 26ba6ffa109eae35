package sealed

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/seal"
)

func openKeys(t *testing.T, home, member string) *Keyring {
	t.Helper()
	return assert.Value(OpenKeyring(home, "https://hub.example", member))(t)
}

// The account key is made once, stays after a restart, and belongs to one login.
func TestAccountKey(t *testing.T) {
	home := t.TempDir()
	k := openKeys(t, home, "ada")
	assert.That(t, !k.Approved() && len(k.Keys()) == 0)
	info := assert.Value(os.Stat(filepath.Join(home, "seal.json")))(t)
	assert.That(t, info.Mode().Perm() == 0o600 || runtime.GOOS == "windows", info.Mode())
	again := openKeys(t, home, "ada")
	assert.Equal(t, again.Words(), k.Words())
	assert.Equal(t, again.secret("x", noon), k.secret("x", noon))
	assert.That(t, k.secret("x", noon) != k.secret("y", noon) && k.secret("x", noon) != k.secret("x", noon.Add(24*time.Hour)))

	assert.OK(t, k.Confirm("m_1", "bob", printOf(7)))
	other := openKeys(t, home, "eve")
	assert.That(t, other.Words() != k.Words() && len(other.Keys()) == 0, "the keys of another login")
	assert.OK(t, other.Confirm("m_2", "ben", printOf(8)))
	for range 2 { // what was known of others is not lost by a login as someone else
		back := openKeys(t, home, "ada")
		assert.That(t, back.Words() == k.Words() && len(back.Keys()) == 1 && back.Keys()[0].Name == "bob", back.Keys())
		third := openKeys(t, home, "eve")
		assert.That(t, third.Words() == other.Words() && len(third.Keys()) == 1 && third.Keys()[0].Name == "ben", third.Keys())
	}
	away := t.TempDir()
	one, two, three := openKeys(t, away, "ada"), openKeys(t, away, "eve"), openKeys(t, away, "zoe")
	assert.That(t, three.Words() != one.Words() && three.Words() != two.Words(), "the keys of another login")
	for _, name := range []string{"seal.json", "trust.json"} { // ended between two moves
		assert.OK(t, os.Rename(filepath.Join(home, name), filepath.Join(home, name+".moving")))
	}
	back := openKeys(t, home, "ada")
	assert.That(t, back.Words() == k.Words() && len(back.Keys()) == 1, back.Keys())

	assert.OK(t, CheckFiles(home))
	if runtime.GOOS != "windows" {
		assert.OK(t, os.Chmod(filepath.Join(home, "seal.json"), 0o644))
		assert.Fails(t, CheckFiles(home), "cannot use this machine's account key")
		assert.Fails(t, assert.Err(OpenKeyring(home, "https://hub.example", "ada")), "chmod 600")
		assert.OK(t, os.Chmod(filepath.Join(home, "seal.json"), 0o600))
	}
	whole := assert.Value(os.ReadFile(filepath.Join(home, "seal.json")))(t)
	for text, want := range map[string]string{
		"": "is empty, as a full disk or a power cut leaves it", "{}": "has no key or no secret", `{"seed":`: "unexpected EOF",
		strings.ReplaceAll(string(whole), `"seed"`, `"sead"`): "has no key or no secret",
	} {
		assert.OK(t, os.WriteFile(filepath.Join(home, "seal.json"), []byte(text), 0o600))
		assert.Fails(t, CheckFiles(home), want)
		assert.Fails(t, assert.Err(OpenKeyring(home, "https://hub.example", "ada")), "makes another key, whose words others compare again")
	}
	assert.OK(t, os.WriteFile(filepath.Join(home, "seal.json"), whole, 0o600))
	assert.OK(t, os.WriteFile(filepath.Join(home, "trust.json"), []byte("{"), 0o600))
	assert.Fails(t, CheckFiles(home), "cannot use the keys of others")
	assert.Fails(t, assert.Err(OpenKeyring(home, "https://hub.example", "ada")), "compare their words again")
}

// A machine gets the account key of another one; its former key signs the new one, so that
// others follow.
func TestApprove(t *testing.T) {
	home := t.TempDir()
	first, second := openKeys(t, t.TempDir(), "ada"), openKeys(t, home, "ada")
	former := second.Words()
	words, message, err := second.Ask("m_2")
	assert.That(t, err == nil && message != nil, err)
	same, _, _ := second.Ask("m_2")
	assert.Equal(t, same, words)

	assert.Fails(t, assert.Err(first.Approve(message, "m_2", seal.NewWords())), "not the words")
	assert.That(t, !first.Approved())
	answer := assert.Value(first.Approve(message, "m_2", words))(t)
	assert.That(t, first.Approved())
	assert.Fails(t, openKeys(t, t.TempDir(), "ada").Accept(answer), "did not ask")
	answer[0] ^= 1
	assert.Fails(t, second.Accept(answer), "cannot take the account key")
	answer[0] ^= 1
	assert.OK(t, second.Accept(answer))
	assert.That(t, second.Approved() && second.Words() == first.Words() && second.Words() != former)
	_, message, err = second.Ask("m_2")
	assert.That(t, err == nil && message == nil, "an approved machine asks")
	assert.Fails(t, second.Accept(answer), "did not ask")

	second = openKeys(t, home, "ada") // after a restart
	prekey := assert.Value(seal.NewPrekey())(t)
	s := assert.Value(seal.ParseStatement(assert.Value(second.statement("m_2", prekey, noon))(t)))(t)
	assert.That(t, s.Machine == "m_2" && s.Account.Fingerprint() == first.Fingerprint() && len(s.Former) == 1 &&
		s.Former[0].Former.Fingerprint().Words() == former, s)

	own := shows("m_1", "ada", "own", 0)
	own.statement = &seal.Statement{Made: noon, Machine: "m_1", Account: first.account.Key()}
	assert.OK(t, second.Reset())
	second = openKeys(t, home, "ada")
	assert.Equal(t, second.book().judge(&own, noon).verdict, changed, "a machine with the key before")
	assert.That(t, !second.Approved() && second.Words() != first.Words())
	s = assert.Value(seal.ParseStatement(assert.Value(second.statement("m_2", prekey, noon))(t)))(t)
	assert.That(t, len(s.Former) == 0, "a stolen key leads to the new one")
}

// A key that known keys lead to is learned from the list, also for the member's machines
// that come before in it.
func TestSuccession(t *testing.T) {
	k := openKeys(t, t.TempDir(), "cy")
	assert.OK(t, k.Confirm("id of ada", "ada", printOf(3)))
	machines := []listed{shows("a", "ada", "shared", 2), shows("b", "ada", "shared", 2, 3)}
	p := assert.Value(k.plan(question{Require, "m", fleet.Chat, noon, noon}, machines))(t)
	assert.That(t, len(p.to) == 2 && p.refusal == nil, p.refusal)
	assert.That(t, len(k.Keys()) == 2 && k.Keys()[1].How == Confirmed, k.Keys())
}

// A key that was first seen has one owner, also within a list.
func TestOneOwner(t *testing.T) {
	k := openKeys(t, t.TempDir(), "cy")
	p := assert.Value(k.plan(question{Prefer, "m", fleet.Chat, noon, noon}, []listed{
		shows("a", "ada", "shared", 2), shows("b", "bob", "shared", 2), shows("c", "ada", "shared", 2),
	}))(t)
	assert.That(t, len(p.to) == 2 && p.to[1].ID == "c" && slices.Equal(p.declined, []fleet.MachineID{"b"}), p)
}

// Words confirm the key that was seen with them, and no other.
func TestConfirm(t *testing.T) {
	home := t.TempDir()
	k := openKeys(t, home, "cy")
	ada := []listed{shows("a", "ada", "shared", 2)}
	q := question{Prefer, "m", fleet.Chat, noon, noon}
	assert.Fails(t, k.ConfirmWords("ada", printOf(2).Words()), "no key of ada was seen yet")
	assert.OK(t, assert.Err(k.plan(q, ada)))
	assert.Fails(t, k.ConfirmWords("ada", printOf(3).Words()), "not the words of ada's key")
	assert.Fails(t, k.ConfirmWords("ada", printOf(3).Words()), "if the key has just changed, make a call to a model of ada first")
	assert.Fails(t, k.ConfirmWords("bob", printOf(2).Words()), "no key of bob")
	assert.Fails(t, k.ConfirmWords("Ada", printOf(2).Words()), `no key of Ada was seen yet, did you mean "ada"?`)
	assert.Fails(t, k.ConfirmWords("ada", k.Words()), "the words of this machine's own key: type those that kith trust shows ada")
	assert.OK(t, k.ConfirmWords("ada", printOf(2).Words()))
	keys := openKeys(t, home, "cy").Keys()
	assert.That(t, len(keys) == 1 && keys[0].How == Confirmed && keys[0].Owner == "id of ada" && keys[0].Fingerprint == printOf(2), keys)

	// Another key is refused until its words were compared; then the one before is not taken.
	next := []listed{shows("a", "ada", "shared", 4)}
	assert.That(t, assert.Value(k.plan(q, next))(t).refusal != nil)
	assert.OK(t, k.ConfirmWords("ada", printOf(4).Words()))
	assert.That(t, len(assert.Value(k.plan(q, next))(t).to) == 1)
	assert.That(t, assert.Value(k.plan(q, ada))(t).refusal != nil, "the key before")

	assert.OK(t, k.Remove("ada"))
	assert.Fails(t, k.Remove("ada"), "no key of ada is known")
	assert.That(t, len(assert.Value(k.plan(q, ada))(t).to) == 1, "first seen again")
}

// After a reset no key that this machine had, or that another machine of the member had, is
// sealed to: a thief may have it, and may have it from an approval or a succession.
func TestReset(t *testing.T) {
	home := t.TempDir()
	k := openKeys(t, home, "cy")
	own := func(account *seal.Account, former ...seal.Succession) listed {
		l := shows("m", "cy", "own", 0)
		l.statement = &seal.Statement{Made: noon, Machine: "m", Account: account.Key(), Former: former}
		return l
	}
	first, second, unapproved := k.account, accountOf(2), accountOf(3)
	plan := func(l listed) plan {
		return assert.Value(k.plan(question{Prefer, "m", fleet.Chat, noon, noon}, []listed{l}))(t)
	}
	assert.OK(t, k.sealed(plan(own(unapproved)).to, noon)) // first seen
	words, message, err := k.Ask("m_1")
	assert.OK(t, err)
	assert.OK(t, k.Accept(assert.Value(second.Approve(message, "m_1", words))(t)))
	thirdFollows := own(accountOf(4), second.Succeed(accountOf(4).Key()))
	assert.Equal(t, len(plan(thirdFollows).to), 1)
	fourthFollows := named(own(accountOf(5), accountOf(4).Succeed(accountOf(5).Key())), "cyril") // by another name of the member
	assert.Equal(t, len(plan(fourthFollows).to), 1)
	ada := []listed{shows("a", "ada", "shared", 9)}
	assert.OK(t, k.sealed(assert.Value(k.plan(question{Prefer, "m", fleet.Chat, noon, noon}, ada))(t).to, noon))

	assert.OK(t, k.Reset())
	k = openKeys(t, home, "cy")
	for name, l := range map[string]listed{
		"the key": own(second), "the one before": own(first), "of a machine that was not approved": own(unapproved),
		"what followed": thirdFollows, "what followed that": fourthFollows,
	} {
		j := k.book().judge(&l, noon)
		assert.That(t, j.verdict == changed && j.revoked, name, j.verdict)
	}
	assert.That(t, len(k.Keys()) == 1 && k.Keys()[0].Name == "ada", k.Keys())
}

// What the owner does with keys while a call is sealed holds for that call.
func TestChangedMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*Keyring) error{
		"confirmed another": func(k *Keyring) error { return k.Confirm("id of ada", "ada", printOf(3)) },
		"removed":           func(k *Keyring) error { return k.Remove("ada") },
	} {
		k := openKeys(t, t.TempDir(), "cy")
		how := FirstSeen
		if k.trust.Keys = []Known{known(2, "ada", FirstSeen)}; name == "removed" {
			k.trust.Keys[0].How, how = Confirmed, Confirmed
		}
		p := assert.Value(k.plan(question{Prefer, "m", fleet.Chat, noon, noon}, []listed{shows("a", "ada", "shared", 2)}))(t)
		assert.Require(t, len(p.to) == 1 && p.to[0].how == how, p)
		assert.OK(t, change(k))
		before := k.Keys()
		assert.Fails(t, k.sealed(p.to, noon), "have just changed")
		assert.That(t, slices.Equal(k.Keys(), before) && len(k.trust.Machines) == 0, name, k.Keys())
	}
}

// The link of an invite replaces a key that was only seen, and none that was compared: the
// link may be from before kith trust reset, or damaged.
func TestOldLink(t *testing.T) {
	k := openKeys(t, t.TempDir(), "cy")
	k.trust.Keys = []Known{known(2, "ada", FirstSeen)}
	assert.OK(t, k.Confirm("id of ada", "ada", printOf(3)))
	assert.OK(t, k.Confirm("id of ada", "ada", printOf(3)))
	assert.Fails(t, k.Confirm("id of ada", "ada", printOf(2)), "another key of ada is confirmed")
	assert.That(t, len(k.Keys()) == 1 && k.Keys()[0].Fingerprint == printOf(3), k.Keys())
	k.trust.Keys = append(k.trust.Keys, known(4, "ada", FirstSeen), known(5, "eve", Confirmed))
	for _, seed := range []byte{4, 5} {
		assert.Fails(t, k.Confirm("id of ada", "ada", printOf(seed)), "run kith trust ada WORDS")
	}
	assert.Fails(t, k.Confirm("id of mallory", "ada", printOf(6)), "another key of ada is confirmed") // so the hub names its owner
	assert.OK(t, k.Remove("ada"))
	assert.OK(t, k.Confirm("id of ada", "ada", printOf(2)))
}

// What was sealed to is kept for 90 days, in the file, and Remove forgets it.
func TestPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home := t.TempDir()
		k := openKeys(t, home, "cy")
		assert.That(t, !k.knowsKeys())
		own := listed{SealMachine: fleet.SealMachine{ID: "b", Owner: "me", OwnerName: "cy"}, statement: &seal.Statement{Account: k.account.Key(), Machine: "b"}}
		p := plan{to: []judgement{
			{listed: ref(shows("a", "ada", "shared", 2)), verdict: ok, how: FirstSeen}, {listed: &own, verdict: ok, how: Confirmed},
		}}
		for _, j := range p.to {
			j.statement.Made = time.Now()
		}
		assert.OK(t, k.sealed(p.to, time.Now()))
		written := assert.Value(os.Stat(filepath.Join(home, "trust.json")))(t)
		assert.OK(t, k.sealed(p.to, time.Now()))
		same := assert.Value(os.Stat(filepath.Join(home, "trust.json")))(t)
		assert.That(t, os.SameFile(written, same), "written for every call")
		k = openKeys(t, home, "cy")
		old := func(id, owner string, own fleet.MemberID) *fleet.SealMachine {
			return &fleet.SealMachine{ID: fleet.MachineID(id), Owner: own, OwnerName: owner}
		}
		assert.That(t, k.knowsKeys() && len(k.Keys()) == 1 && k.Keys()[0].How == FirstSeen, k.Keys())
		assert.That(t, k.book().pinned(old("a", "x", "x")) && k.book().pinned(old("x", "x", "id of ada")) && k.book().pinned(old("x", "cy", "me")))
		assert.That(t, !k.book().pinned(old("x", "bob", "id of bob")))
		words, message, err := k.Ask("m_1")
		assert.OK(t, err)
		assert.OK(t, k.Accept(assert.Value(accountOf(7).Approve(message, "m_1", words))(t)))
		assert.That(t, k.book().pinned(old("x", "cy", "y")), "sealed to under the former key")
		assert.OK(t, k.Reset())
		assert.That(t, k.book().pinned(old("x", "cy", "y")), "sealed to before the reset")
		assert.OK(t, k.Remove("cy"))
		assert.That(t, !k.book().pinned(old("b", "cy", "me")) && k.book().pinned(old("a", "x", "x")))

		time.Sleep(91 * 24 * time.Hour)
		k = openKeys(t, home, "cy")
		assert.That(t, !k.book().pinned(old("a", "x", "x")), "after 90 days")
		assert.That(t, k.knowsKeys() && k.book().pinned(old("x", "ada", "y")), "the key is known for longer")
	})
}

func ref[T any](v T) *T { return &v }

// A hub that invents members cannot fill the disk.
func TestTooManyKeys(t *testing.T) {
	k := openKeys(t, t.TempDir(), "cy")
	for i := range maxKeys {
		k.trust.Keys = append(k.trust.Keys, Known{Fingerprint: seal.Fingerprint{byte(i), byte(i >> 8), 1}, Owner: fleet.MemberID(fmt.Sprint(i))})
	}
	p := assert.Value(k.plan(question{Prefer, "m", fleet.Chat, noon, noon}, []listed{shows("a", "ada", "shared", 2)}))(t)
	assert.That(t, p.refusal != nil)

	k = openKeys(t, t.TempDir(), "cy") // nor one that invents machines of a member
	for i := range maxPins {
		k.trust.Machines[fleet.MachineID(fmt.Sprint(i))] = pin{printOf(2), "id of ada", noon}
	}
	k.trust.Keys = []Known{known(2, "ada", FirstSeen)}
	p = assert.Value(k.plan(question{Prefer, "m", fleet.Chat, noon, noon}, []listed{shows("a", "ada", "shared", 2), shows("7", "ada", "shared", 2)}))(t)
	assert.That(t, len(p.to) == 1 && p.to[0].ID == "7", p)
}

// Without a disk nothing that matters is lost silently.
func TestUnwritable(t *testing.T) {
	home := filepath.Join(t.TempDir(), "home")
	assert.OK(t, os.Mkdir(home, 0o700))
	k := openKeys(t, home, "cy")
	assert.OK(t, os.RemoveAll(home))
	assert.OK(t, os.WriteFile(home, nil, 0o600)) // root cannot write below a file, either
	before := k.Words()
	assert.That(t, k.Reset() != nil && k.Words() == before, "a reset that is not kept")
	assert.That(t, k.Confirm("x", "ada", printOf(2)) != nil && len(k.Keys()) == 0, "a key that is not kept")
	attic := shows("attic", "ada", "shared", 2)
	err := k.sealed([]judgement{{listed: &attic, verdict: ok, how: FirstSeen}}, noon)
	assert.That(t, err != nil && !errors.Is(err, errTrust), err)
	assert.That(t, k.knowsKeys(), "it holds until the daemon ends")
}
