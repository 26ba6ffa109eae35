// Package sealed is the daemon's part of sealed calls: it keeps keys, decides which machines
// a call may be sealed for, seals and sends it, and opens the calls that others sealed for
// this machine. The formats are those of package seal, the contract is docs/spec/sealed.md.
package sealed

import (
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kith/kith/internal/daemon/private"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/seal"
)

// The files of a Keyring in the daemon's home, both 0600. A file of another login is moved
// to its name with .old, and comes back with that login.
const (
	accountFile = "seal.json"
	trustFile   = "trust.json"
	oldSuffix   = ".old"
)

const (
	keepPins   = 90 * 24 * time.Hour // after the last call
	keepFormer = 90 * 24 * time.Hour // after the succession
	maxKeys    = 4096                // of others
	maxPins    = 4096                // machines
	maxSeen    = 1024                // keys that are not known
	maxRevoked = 256
)

// login is whose file it is.
type login struct {
	Hub    string `json:"hub"`
	Member string `json:"member"`
}

// accountKeys is the content of seal.json.
type accountKeys struct {
	login
	Seed   [seal.SeedSize]byte `json:"seed"`   // of the account key
	Former []former            `json:"former"` // account keys of this machine before, the oldest first
	Secret [32]byte            `json:"secret"` // of this daemon: of cache names and fingerprints of prompts
	// Approved is set if the account key is on several machines.
	Approved bool `json:"approved"`
	// Revoked are keys of this member's machines before a Reset, which a thief may have, the
	// oldest first.
	Revoked []seal.Fingerprint `json:"revoked,omitzero"`
}

type former struct {
	Key       seal.AccountKey `json:"key"`
	Signature [64]byte        `json:"signature"`
	At        time.Time       `json:"at"`
}

// trusted is the content of trust.json.
type trusted struct {
	login
	Keys     []Known                 `json:"keys"`
	Machines map[fleet.MachineID]pin `json:"machines"`
}

// Keyring is what one login of a daemon has of keys: the account key, and the keys of
// others. It is the only writer of its files, and is safe for concurrent use.
type Keyring struct {
	home string

	mu      sync.Mutex
	own     accountKeys
	account *seal.Account
	trust   trusted
	ask     *seal.Ask // nil: not made yet
	// seen are keys that were listed and are not known, by owner and name.
	seen map[seal.Fingerprint]Known
}

// CheckFiles returns an error if a Keyring cannot use the files in home as they are.
func CheckFiles(home string) error {
	for name, into := range map[string]any{accountFile: new(accountKeys), trustFile: new(trusted)} {
		if err := readFile(home, name, into); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// readFile reads one of the files in home. The error is fs.ErrNotExist if there is none.
func readFile(home, name string, into any) error {
	path := filepath.Join(home, name)
	err := private.Read(path, into)
	if own, is := into.(*accountKeys); is && err == nil && (own.Seed == [seal.SeedSize]byte{} || own.Secret == [32]byte{}) {
		err = fmt.Errorf("%s has no key or no secret", path)
	}
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return err
	case name == trustFile:
		return fmt.Errorf("cannot use the keys of others: %w; without that file you compare their words again", err)
	}
	return fmt.Errorf("cannot use this machine's account key: %w; without that file kith makes another key, "+
		"whose words others compare again", err)
}

// OpenKeyring opens the keyring of a member of a hub in home. Without a file it makes an
// account key.
func OpenKeyring(home, hub, member string) (*Keyring, error) {
	who, now := login{hub, member}, time.Now()
	k := &Keyring{home: home, seen: map[seal.Fingerprint]Known{}}
	var err error
	k.own, err = readOf(home, accountFile, who, func(a *accountKeys) login { return a.login })
	if errors.Is(err, fs.ErrNotExist) {
		k.own = accountKeys{login: who}
		rand.Read(k.own.Seed[:])
		rand.Read(k.own.Secret[:])
		err = k.write(accountFile, &k.own)
	}
	if err != nil {
		return nil, err
	}
	k.account = seal.NewAccount(k.own.Seed)
	k.trust, err = readOf(home, trustFile, who, func(t *trusted) login { return t.login })
	if errors.Is(err, fs.ErrNotExist) {
		k.trust, err = trusted{login: who}, nil
	}
	if k.trust.Machines == nil {
		k.trust.Machines = map[fleet.MachineID]pin{}
	}
	k.forget(now)
	return k, err
}

// readOf reads the file of a login. One of another login is moved away, as if there were
// none; one of this login that was moved away before comes back.
func readOf[T any](home, name string, who login, of func(*T) login) (T, error) {
	var now, before, none T
	err := readFile(home, name, &now)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing || err == nil && of(&now) == who {
		return now, err
	}
	path := filepath.Join(home, name)
	old, aside := path+oldSuffix, path+".moving"
	back := readFile(home, name+oldSuffix, &before) == nil && of(&before) == who
	var moves [][2]string
	switch {
	case back && missing: // it was ended between two moves
		moves = [][2]string{{old, path}}
	case back:
		moves = [][2]string{{path, aside}, {old, path}, {aside, old}}
	case !missing:
		moves = [][2]string{{path, old}}
	}
	for _, m := range moves {
		if err := os.Rename(m[0], m[1]); err != nil {
			return none, fmt.Errorf("cannot keep the keys of %s on %s: %w", of(&now).Member, of(&now).Hub, err)
		}
	}
	if back {
		return before, nil
	}
	return none, fs.ErrNotExist
}

func (k *Keyring) write(name string, v any) error {
	return private.Write(filepath.Join(k.home, name), v)
}

// forget drops what is older than it is kept.
func (k *Keyring) forget(now time.Time) {
	k.own.Former = slices.DeleteFunc(k.own.Former, func(f former) bool { return now.Sub(f.At) > keepFormer })
	for id, p := range k.trust.Machines {
		if now.Sub(p.Last) > keepPins {
			delete(k.trust.Machines, id)
		}
	}
}

// Words returns the words of the account key, which others compare.
func (k *Keyring) Words() seal.Words { return k.Fingerprint().Words() }

// Fingerprint returns the fingerprint of the account key.
func (k *Keyring) Fingerprint() seal.Fingerprint {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.account.Key().Fingerprint()
}

// Approved reports whether the account key is on several machines of its owner.
func (k *Keyring) Approved() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.own.Approved
}

// Ask returns how this machine asks the owner's other machines for the account key: the
// words that the owner types there, and the message. With an approved key the message is
// nil. machine is this machine's id.
func (k *Keyring) Ask(machine string) (words seal.Words, message []byte, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.own.Approved {
		return words, nil, nil
	}
	if k.ask == nil || k.ask.Machine != machine {
		if k.ask, err = seal.NewAsk(machine); err != nil {
			k.ask = nil
			return words, nil, err
		}
	}
	return k.ask.Words, k.ask.Message(), nil
}

// Approve answers the ask of another machine of the owner, who typed its words.
func (k *Keyring) Approve(ask []byte, machine string, words seal.Words) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	answer, err := k.account.Approve(ask, machine, words)
	if err != nil {
		return nil, fmt.Errorf("%w: run kith trust there, and type what it prints behind kith trust machine", err)
	}
	next := k.own
	next.Approved = true
	return answer, k.replace(next)
}

// Accept takes the account key in an answer to this machine's ask. The key before signs it,
// so that others follow.
func (k *Keyring) Accept(answer []byte) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ask == nil {
		return errors.New("cannot take an account key: this machine did not ask for one, or asked before it was " +
			"started again; run kith trust here for new words")
	}
	account, err := k.ask.Accept(answer)
	if err != nil {
		return fmt.Errorf("cannot take the account key: %w", err)
	}
	next := k.own
	next.Seed, next.Approved = account.Seed(), true
	if account.Key() != k.account.Key() {
		s := k.account.Succeed(account.Key())
		next.Former = append(slices.Clone(next.Former), former{s.Former, s.Signature, time.Now()})
		next.Former = next.Former[max(0, len(next.Former)-seal.MaxSuccession):]
	}
	return k.replace(next)
}

// Reset makes another account key, which no former key signs: after a theft, a succession
// would help the thief. Others have to compare its words, and machines that still have a
// key before, of this machine or of another one of the member, are not sealed to.
func (k *Keyring) Reset() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	next := k.own
	rand.Read(next.Seed[:])
	next.Former, next.Approved = nil, false
	next.Revoked = slices.Clone(next.Revoked)
	keys := slices.DeleteFunc(slices.Clone(k.trust.Keys), func(key Known) bool {
		if key.Name == k.own.Member {
			next.Revoked = append(next.Revoked, key.Fingerprint)
		}
		return key.Name == k.own.Member
	})
	b := k.book()
	next.Revoked = append(append(next.Revoked, b.former...), b.account)
	next.Revoked = next.Revoked[max(0, len(next.Revoked)-maxRevoked):]
	if len(keys) < len(k.trust.Keys) { // first: without them alone, nothing is sealed for more machines
		if err := k.keep(keys, k.trust.Machines); err != nil {
			return err
		}
	}
	return k.replace(next)
}

// replace saves the account key and uses it. mu is held.
func (k *Keyring) replace(next accountKeys) error {
	if err := k.write(accountFile, &next); err != nil {
		return err
	}
	if next.Seed != k.own.Seed {
		k.ask = nil
	}
	k.own, k.account = next, seal.NewAccount(next.Seed)
	return nil
}

// statement returns the statement of a prekey of this machine.
func (k *Keyring) statement(machine string, prekey *seal.Prekey, made time.Time) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	chain := make([]seal.Succession, len(k.own.Former))
	for i, f := range k.own.Former {
		chain[i] = seal.Succession{Former: f.Key, Signature: f.Signature}
	}
	return k.account.Sign(machine, prekey, made, chain)
}

// owner returns the account key, which proves that a call is its owner's.
func (k *Keyring) owner() *seal.Account {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.account
}

// secret returns a secret of this daemon for a purpose and a day.
func (k *Keyring) secret(purpose string, now time.Time) (out [32]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	mac := hmac.New(sha256.New, k.own.Secret[:])
	mac.Write([]byte(purpose + " " + now.UTC().Format(time.DateOnly)))
	return [32]byte(mac.Sum(nil))
}

// plan decides the way of a call. It learns the keys that known keys lead to.
func (k *Keyring) plan(q question, machines []listed) (plan, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all, learned := k.judge(machines, q.now)
	if !learned {
		return makePlan(q, all), nil
	}
	err := k.write(trustFile, &k.trust)
	all, _ = k.judge(machines, q.now) // with the keys of this list
	return makePlan(q, all), err
}

// judge judges each machine, and reports whether it learned a key. mu is held.
func (k *Keyring) judge(machines []listed, now time.Time) (all []judgement, learned bool) {
	b, owners := k.book(), map[seal.Fingerprint]fleet.MemberID{} // of keys first seen in this list
	for i := range machines {
		m := &machines[i]
		j := b.judge(m, now)
		all = append(all, j)
		if j.verdict != ok && j.verdict != changed {
			continue
		}
		name := cmp.Or(j.follows, m.OwnerName)
		key := Known{m.statement.Account.Fingerprint(), m.Owner, name, j.how, now.UTC().Truncate(time.Second)}
		_, pinned := k.trust.Machines[m.ID]
		switch known := b.known(key.Fingerprint) != nil || key.Fingerprint == b.account; {
		case j.verdict == ok && !pinned && len(k.trust.Machines) >= maxPins:
			all[i].verdict = changed // it cannot be kept
		case known:
		case j.follows != "" && len(k.trust.Keys) < maxKeys:
			k.trust.Keys = append(k.trust.Keys, key)
			b.keys, learned = k.trust.Keys, true
		case j.verdict == ok && len(k.trust.Keys) >= maxKeys:
			all[i].verdict = changed // it cannot be kept, and so neither followed
		default:
			if j.verdict == ok && cmp.Or(owners[key.Fingerprint], m.Owner) != m.Owner {
				all[i].verdict, all[i].how = bad, ""
				continue
			}
			if j.verdict == ok {
				owners[key.Fingerprint] = m.Owner
			}
			if len(k.seen) >= maxSeen {
				clear(k.seen)
			}
			k.seen[key.Fingerprint] = key
		}
	}
	return all, learned
}

func (k *Keyring) book() *book {
	b := &book{
		account: k.account.Key().Fingerprint(), approved: k.own.Approved, member: k.own.Member, revoked: k.own.Revoked,
		keys: k.trust.Keys, pins: k.trust.Machines,
	}
	for _, f := range k.own.Former {
		b.former = append(b.former, f.Key.Fingerprint())
	}
	return b
}

// errTrust reports that the owner has changed what is known of keys while a call was sealed.
var errTrust = fault.New(fault.StaleSeal, "the keys that calls may be sealed for have just changed; try again")

// sealed records that a call is sealed for these machines. It fails with errTrust, and
// records nothing, if the key of one of them is not judged as it was.
func (k *Keyring) sealed(to []judgement, now time.Time) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now = now.UTC()
	day, news := now.Truncate(24*time.Hour), false
	b := k.book()
	for _, j := range to {
		if b.judge(j.listed, now).how != j.how { // it is empty unless the key is ok
			return errTrust
		}
	}
	for _, j := range to {
		f := j.statement.Account.Fingerprint()
		if f != b.account && b.known(f) == nil {
			k.trust.Keys = append(k.trust.Keys, Known{f, j.Owner, j.OwnerName, j.how, now.Truncate(time.Second)})
			b.keys, news = k.trust.Keys, true
		}
		if p := (pin{f, j.Owner, day}); k.trust.Machines[j.ID] != p {
			k.trust.Machines[j.ID], news = p, true
		}
	}
	if !news {
		return nil
	}
	k.forget(now)
	return k.write(trustFile, &k.trust)
}

// knowsKeys reports whether this login knows a key of others, or sealed a call for another
// machine of its owner.
func (k *Keyring) knowsKeys() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.trust.Keys) > 0 || len(k.trust.Machines) > 0
}

// Keys returns the keys of others, sorted by the names of their owners.
func (k *Keyring) Keys() []Known {
	k.mu.Lock()
	defer k.mu.Unlock()
	keys := slices.Clone(k.trust.Keys)
	slices.SortStableFunc(keys, func(a, b Known) int { return cmp.Compare(a.Name, b.Name) })
	return keys
}

// ConfirmWords confirms the key of a member with these words, which its owner read out. The
// key must be known or have been listed. The member's other keys are forgotten.
func (k *Keyring) ConfirmWords(name string, words seal.Words) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	named, like := false, ""
	check := func(key Known) bool {
		named = named || key.Name == name
		if strings.EqualFold(key.Name, name) {
			like = key.Name
		}
		return key.Name == name && key.Fingerprint.Words() == words
	}
	for _, key := range k.trust.Keys {
		if check(key) {
			return k.confirm(key)
		}
	}
	for _, key := range k.seen {
		if check(key) {
			return k.confirm(key)
		}
	}
	switch {
	case words == k.account.Key().Fingerprint().Words():
		return fmt.Errorf("these are the words of this machine's own key: type those that kith trust shows %s", name)
	case !named && like != "":
		return fmt.Errorf("no key of %s was seen yet, did you mean %q?", name, like)
	case !named:
		return fmt.Errorf("no key of %s was seen yet: run kith trust for the names, or make a call to a model of %s first", name, name)
	}
	return fmt.Errorf("these are not the words of %s's key: if the key has just changed, make a call to a model of %s first; "+
		"then compare the words again, and if they stay different, someone else shows that key", name, name)
}

// Confirm confirms the key of a member, of an invite's link. The member's other keys are
// forgotten. It fails if another key of the member is confirmed: the link may be older, or
// damaged.
func (k *Keyring) Confirm(owner fleet.MemberID, name string, f seal.Fingerprint) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.book()
	other := slices.ContainsFunc(b.keys, func(key Known) bool {
		return (key.Owner == owner || key.Name == name) && key.How == Confirmed
	})
	if known := b.known(f); other && (known == nil || known.Owner != owner || known.How != Confirmed) {
		return fmt.Errorf("another key of %s is confirmed, and the link may be an old one: ask %s for the words of "+
			"kith trust, then run kith trust %s WORDS", name, name, argument(name))
	}
	return k.confirm(Known{Fingerprint: f, Owner: owner, Name: name, Since: time.Now().UTC().Truncate(time.Second)})
}

func (k *Keyring) confirm(key Known) error {
	key.How = Confirmed
	keys := slices.DeleteFunc(slices.Clone(k.trust.Keys), func(other Known) bool {
		return other.Fingerprint == key.Fingerprint || other.Owner == key.Owner || other.Name == key.Name
	})
	return k.keep(append(keys, key), k.trust.Machines)
}

// Remove forgets the keys of a member and of its machines. The next ones are first seen.
func (k *Keyring) Remove(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := map[fleet.MemberID]bool{}
	keys := slices.Clone(k.trust.Keys)
	keys = slices.DeleteFunc(keys, func(key Known) bool {
		of[key.Owner] = of[key.Owner] || key.Name == name
		return key.Name == name
	})
	b, pins := k.book(), map[fleet.MachineID]pin{}
	for id, p := range k.trust.Machines {
		if !of[p.Owner] && (name != b.member || !b.isOwn(p.Fingerprint)) {
			pins[id] = p
		}
	}
	if len(keys) == len(k.trust.Keys) && len(pins) == len(k.trust.Machines) {
		return fmt.Errorf("no key of %s is known: run kith trust for the names", name)
	}
	return k.keep(keys, pins)
}

// keep saves and uses what is known of others. mu is held.
func (k *Keyring) keep(keys []Known, pins map[fleet.MachineID]pin) error {
	next := trusted{k.trust.login, keys, pins}
	if err := k.write(trustFile, &next); err != nil {
		return err
	}
	k.trust = next
	return nil
}
