package seal

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// machine is a machine in tests: its prekey, and what others make of its statement.
type machine struct {
	prekey *Prekey
	sender *Sender
}

func newAccount() *Account {
	var seed [SeedSize]byte
	rand.Read(seed[:])
	return NewAccount(seed)
}

func newMachine(t testing.TB) machine {
	t.Helper()
	prekey := assert.Value(NewPrekey())(t)
	text := assert.Value(newAccount().Sign("m-1", prekey, time.Now(), nil))(t)
	s := assert.Value(ParseStatement(text))(t)
	return machine{prekey, assert.Value(NewSender(s))(t)}
}

// front is the front of a request, read as the page says.
type front struct{ head, routing, keys, body []byte }

func readFront(t testing.TB, request []byte) front {
	t.Helper()
	assert.Require(t, string(request[:6]) == "KSEAL1")
	h, r, n := int(binary.BigEndian.Uint16(request[6:])), int(binary.BigEndian.Uint16(request[8:])), int(request[10])
	rest := request[11:]
	return front{rest[:h], rest[h : h+r], rest[h+r : h+r+n*1168], rest[h+r+n*1168:]}
}

func (f front) key(i int) []byte { return f.keys[i*1168 : (i+1)*1168] }

// open opens a request as the recipient i.
func (m machine) open(head, key, body []byte) (*Opened, error) {
	sender, wrapped, ok := SplitKey(key)
	if !ok {
		return nil, ErrOpen
	}
	r, err := m.prekey.NewReceiver(sender)
	if err != nil {
		return nil, err
	}
	return r.Open(slices.Clone(head), wrapped, slices.Clone(body))
}

func seal(t testing.TB, body Body, machines ...machine) *Call {
	t.Helper()
	var senders []*Sender
	for _, m := range machines {
		senders = append(senders, m.sender)
	}
	h := Head{Endpoint: "chat", Model: "llama3", Stream: true, Choices: 1}
	rand.Read(h.Call[:])
	return assert.Value(Seal(h, []byte(`{"to":[]}`), senders, body))(t)
}

// Each recipient opens the call, and seals an answer that the caller opens.
func TestCall(t *testing.T) {
	owner := newAccount()
	for _, n := range []int{1, 3, MaxRecipients} {
		machines := make([]machine, n)
		for i := range machines {
			machines[i] = newMachine(t)
		}
		text := []byte(strings.Repeat("What is 7+5? ", 1000))
		call := seal(t, Body{Cache: [16]byte{7}, Owner: owner, Text: text}, machines...)
		assert.That(t, !bytes.Contains(call.Request, []byte("7+5")), "the prompt is in clear")
		f := readFront(t, call.Request)
		assert.Equal(t, string(f.routing), `{"to":[]}`)
		for i, m := range machines {
			o := assert.Value(m.open(f.head, f.key(i), f.body))(t)
			assert.That(t, bytes.Equal(o.Text, text) && o.Cache == [16]byte{7} && o.Head.Model == "llama3" && o.Head.Stream, o.Head)
			assert.That(t, o.From(owner.Key()) && !o.From(newAccount().Key()), "the owner's proof")
			answer := assert.Value(o.Answer())(t)
			opener := assert.Value(call.Answer(answer.Head()))(t)
			for _, chunk := range []string{"12", "", strings.Repeat("x", 100_000)} {
				got := assert.Value(opener.Chunk(answer.Chunk([]byte(chunk), false)))(t)
				assert.Equal(t, string(got), chunk)
			}
			assert.That(t, !opener.Ended())
			got, err := opener.Chunk(answer.Chunk([]byte("."), true))
			assert.That(t, string(got) == "." && err == io.EOF && opener.Ended(), string(got), err)
			for j := range machines {
				if _, err := m.open(f.head, f.key(j), f.body); j != i && !errors.Is(err, ErrOpen) {
					t.Errorf("machine %d opens with the key of %d: %v", i, j, err)
				}
			}
		}
	}
}

// A call without a proof has no owner.
func TestNoProof(t *testing.T) {
	m := newMachine(t)
	f := readFront(t, seal(t, Body{}, m).Request)
	o := assert.Value(m.open(f.head, f.key(0), f.body))(t)
	assert.That(t, !o.From(newAccount().Key()) && !o.From(AccountKey{}) && len(o.Text) == 0)
}

// A recipient of a call knows its owner's proof, and cannot put it on a call of its own with
// the same head: the owner's prompt cache would answer the recipient's questions.
func TestProofIsOfOneBody(t *testing.T) {
	m, owner := newMachine(t), newAccount()
	h := Head{Call: [16]byte{1}, Endpoint: "chat", Model: "llama3"}
	opened := func(body Body) *Opened {
		call := assert.Value(Seal(h, []byte("{}"), []*Sender{m.sender}, body))(t)
		f := readFront(t, call.Request)
		return assert.Value(m.open(f.head, f.key(0), f.body))(t)
	}
	own := opened(Body{Owner: owner, Text: []byte("mine")})
	assert.That(t, own.From(owner.Key()))
	for _, body := range []Body{{Text: []byte("another")}, {Text: []byte("mine"), Cache: [16]byte{1}}} {
		other := opened(body)
		other.proof = own.proof
		assert.That(t, !other.From(owner.Key()), string(body.Text))
	}
	same := opened(Body{Text: []byte("mine")})
	same.proof = own.proof
	assert.That(t, same.From(owner.Key()))
}

// A call of which anything was changed does not open, nor one for another prekey.
func TestChangedCall(t *testing.T) {
	m := newMachine(t)
	f := readFront(t, seal(t, Body{Text: []byte("Hello")}, m, newMachine(t)).Request)
	for name, part := range map[string][]byte{"head": f.head, "key": f.key(0), "body": f.body} {
		for i := range part {
			part[i] ^= 1
			if o, err := m.open(f.head, f.key(0), f.body); err == nil {
				t.Fatalf("byte %d of the %s was changed: %q", i, name, o.Text)
			}
			part[i] ^= 1
		}
	}
	assert.Value(m.open(f.head, f.key(0), f.body))(t)
	for _, body := range [][]byte{nil, f.body[:len(f.body)-1], append(slices.Clone(f.body), 0)} {
		assert.That(t, errors.Is(assert.Err(m.open(f.head, f.key(0), body)), ErrOpen), len(body))
	}
	assert.That(t, errors.Is(assert.Err(newMachine(t).open(f.head, f.key(0), f.body)), ErrOpen))
}

// A recipient, who knows the file key, cannot change the call for another one.
func TestRecipientsCannotForge(t *testing.T) {
	mallory, bob := newMachine(t), newMachine(t)
	f := readFront(t, seal(t, Body{Text: []byte("Hello")}, mallory, bob).Request)
	sender, wrapped, _ := SplitKey(f.key(0))
	r := assert.Value(mallory.prekey.NewReceiver(sender))(t)
	hash := sha256.Sum256(f.head)
	x := assert.Value(export(r.context.Export, hash))(t)
	sum := sha256.Sum256(f.body)
	fileKey := assert.Value(x.aead.Open(nil, x.nonce, wrapped, sum[:]))(t)
	aead, nonce, err := derive(fileKey, hash[:], labelBody)
	assert.OK(t, err)
	other := append(make([]byte, bodyFront), "Obey"...)
	forged := aead.Seal(nil, nonce, pad(other, len(other)), nil)
	assert.That(t, errors.Is(assert.Err(bob.open(f.head, f.key(1), forged)), ErrOpen), "bob opens what mallory wrote")
}

// An answer whose chunks were dropped, repeated, moved, mixed, changed or cut is noticed.
func TestChangedAnswer(t *testing.T) {
	m := newMachine(t)
	call := seal(t, Body{Text: []byte("Hello")}, m)
	f := readFront(t, call.Request)
	o := assert.Value(m.open(f.head, f.key(0), f.body))(t)
	answer, another := assert.Value(o.Answer())(t), assert.Value(o.Answer())(t)
	a, b, end := answer.Chunk([]byte("a"), false), answer.Chunk([]byte("b"), false), answer.Chunk(nil, true)
	foreign := another.Chunk([]byte("a"), false)
	for name, c := range map[string]struct {
		chunks [][]byte
		opened int
	}{
		"dropped":         {[][]byte{a, end}, 1},
		"first dropped":   {[][]byte{b}, 0},
		"repeated":        {[][]byte{a, a}, 1},
		"moved":           {[][]byte{b, a}, 0},
		"of another one":  {[][]byte{foreign}, 0},
		"after the end":   {[][]byte{a, b, end, end}, 3},
		"cut":             {[][]byte{a[:len(a)-1]}, 0},
		"empty":           {[][]byte{nil}, 0},
		"goes on after":   {[][]byte{a, b, end, a}, 3},
		"one bit changed": {[][]byte{append([]byte{a[0] ^ 1}, a[1:]...)}, 0},
	} {
		opener := assert.Value(call.Answer(answer.Head()))(t)
		for i, chunk := range c.chunks {
			_, err := opener.Chunk(slices.Clone(chunk))
			if opened := err == nil || err == io.EOF; opened != (i < c.opened) {
				t.Errorf("%s: chunk %d: %v", name, i, err)
			}
		}
	}
	head := slices.Clone(answer.Head())
	for i := range head { // of another machine, or with another nonce
		head[i] ^= 1
		opener, err := call.Answer(head)
		if err == nil {
			_, err = opener.Chunk(slices.Clone(a))
		}
		assert.That(t, errors.Is(err, ErrOpen), i, err)
		head[i] ^= 1
	}
	assert.That(t, errors.Is(assert.Err(call.Answer(head[1:])), ErrOpen))
	assert.That(t, errors.Is(assert.Err(seal(t, Body{}, newMachine(t)).Answer(head)), ErrOpen), "another call")
}

// The padding hides lengths in steps, and costs at most 6 % above 4 KB.
func TestPadding(t *testing.T) {
	for n := range 70_000 {
		size := PaddedSize(n)
		if size <= n || size%256 != 0 || n > 4096 && float64(size) > 1.07*float64(n) {
			t.Fatalf("%d bytes become %d", n, size)
		}
	}
	assert.Equal(t, PaddedSize(32<<20)-32<<20, 64<<10)
	for _, text := range []string{"", "\x00", "\x80", "a\x80\x00\x00", strings.Repeat("\x00", 300)} {
		got := assert.Value(unpad(pad([]byte(text), len(text))))(t)
		assert.Equal(t, string(got), text)
	}
	for _, padded := range [][]byte{nil, make([]byte, 256), append(pad([]byte("a"), 1), make([]byte, 256)...), pad([]byte("a"), 1)[:255]} {
		assert.That(t, errors.Is(assert.Err(unpad(padded)), ErrOpen), padded)
	}
}

// One sender and one receiver serve many calls at once.
func TestConcurrentUse(t *testing.T) {
	m := newMachine(t)
	receiver := assert.Value(m.prekey.NewReceiver(m.sender.enc))(t)
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 20 {
				f := readFront(t, seal(t, Body{Text: []byte{byte(i)}}, m).Request)
				_, wrapped, _ := SplitKey(f.key(0))
				o, err := receiver.Open(f.head, wrapped, f.body)
				assert.That(t, err == nil && o.Text[0] == byte(i), err)
			}
		})
	}
	all.Wait()
}

func TestLimits(t *testing.T) {
	m := newMachine(t)
	const head = `{"v":1,"call":"AAAAAAAAAAAAAAAAAAAAAA==","endpoint":"chat","model":"m","stream":false,"n":1}`
	assert.OK(t, assert.Err(ParseHead([]byte(head+strings.Repeat(" ", maxHead-len(head))))))
	nine := slices.Repeat([]*Sender{m.sender}, MaxRecipients+1)
	for name, err := range map[string]error{
		"no recipient":    assert.Err(Seal(Head{}, nil, nil, Body{})),
		"nine recipients": assert.Err(Seal(Head{}, nil, nine, Body{})),
		"a key twice":     assert.Err(Seal(Head{}, nil, nine[:2], Body{})),
		"a long head":     assert.Err(Seal(Head{Model: strings.Repeat("m", maxHead)}, nil, nine[:1], Body{})),
		"long routing":    assert.Err(Seal(Head{}, make([]byte, maxRouting+1), nine[:1], Body{})),
		"no version":      assert.Err(ParseHead([]byte(strings.Replace(head, `"v":1`, `"v":0`, 1)))),
		"another version": assert.Err(ParseHead([]byte(strings.Replace(head, `"v":1`, `"v":2`, 1)))),
		"another member":  assert.Err(ParseHead([]byte(`{"v":1,"x":2}`))),
		"a large head":    assert.Err(ParseHead([]byte(head + strings.Repeat(" ", maxHead+1-len(head))))),
	} {
		assert.That(t, err != nil, name)
	}
}

// What a machine's own answer can do wrong is an error, and its end is none.
func TestWrongAnswer(t *testing.T) {
	m := newMachine(t)
	call := seal(t, Body{}, m)
	r := readFront(t, call.Request)
	answers := func() (*AnswerSealer, *AnswerOpener) {
		a := assert.Value(assert.Value(m.open(r.head, r.key(0), r.body))(t).Answer())(t)
		return a, assert.Value(call.Answer(a.Head()))(t)
	}
	for _, mark := range []byte{0, 0x81} {
		padded := make([]byte, 256)
		padded[9] = mark
		a, opener := answers()
		bad := a.aead.Seal(nil, a.nonce(), padded, final)
		assert.That(t, assert.Err(opener.Chunk(bad)) == ErrOpen && !opener.Ended(), "padding", mark)
		assert.That(t, assert.Err(opener.Chunk(a.Chunk(nil, true))) == ErrOpen && !opener.Ended(), "after an error")
	}

	a, opener := answers()
	assert.Equal(t, assert.Err(call.Answer(append(a.Head(), 0))), ErrOpen)
	assert.Equal(t, assert.Err(opener.Chunk(a.Chunk(nil, true))), io.EOF)
	func() {
		defer func() { assert.That(t, recover() != nil, "sealed after the last chunk") }()
		a.Chunk(nil, false)
	}()
	a.ended = false
	assert.That(t, assert.Err(opener.Chunk(a.Chunk(nil, true))) == ErrOpen && opener.Ended(), "after the end")

	nonces := map[string]bool{}
	for shift := range 64 {
		a.count = 1 << shift
		nonces[string(a.nonce())] = true
	}
	assert.Equal(t, len(nonces), 64)
}

// A caller that seals less than a cache name and a proof is refused.
func TestShortBody(t *testing.T) {
	m := newMachine(t)
	head := readFront(t, seal(t, Body{}, m).Request).head
	hash, fileKey := sha256.Sum256(head), make([]byte, keySize)
	for size, want := range map[int]error{0: ErrOpen, bodyFront - 1: ErrOpen, bodyFront: nil} {
		aead, nonce, err := derive(fileKey, hash[:], labelBody)
		assert.OK(t, err)
		body := aead.Seal(nil, nonce, pad(make([]byte, size, PaddedSize(size)), size), nil)
		x, err := export(m.sender.context.Export, hash)
		assert.OK(t, err)
		sum := sha256.Sum256(body)
		_, err = m.open(head, append(slices.Clone(m.sender.enc), x.aead.Seal(nil, x.nonce, fileKey, sum[:])...), body)
		assert.Equal(t, err, want, size)
	}
}

func FuzzOpen(f *testing.F) {
	m := newMachine(f)
	r := readFront(f, seal(f, Body{Text: []byte("Hello")}, m).Request)
	f.Add(r.head, r.key(0), r.body)
	f.Fuzz(func(t *testing.T, head, key, body []byte) {
		same := bytes.Equal(head, r.head) && bytes.Equal(key, r.key(0)) && bytes.Equal(body, r.body)
		if _, err := m.open(head, key, body); (err == nil) != same {
			t.Fatal(err)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	m := newMachine(f)
	call := seal(f, Body{}, m)
	r := readFront(f, call.Request)
	o := assert.Value(m.open(r.head, r.key(0), r.body))(f)
	answer := assert.Value(o.Answer())(f)
	chunk := answer.Chunk([]byte("Hello"), true)
	f.Add(answer.Head(), chunk)
	f.Fuzz(func(t *testing.T, head, text []byte) {
		same := bytes.Equal(head, answer.Head()) && bytes.Equal(text, chunk)
		opener, err := call.Answer(head)
		if err == nil {
			_, err = opener.Chunk(slices.Clone(text))
		}
		assert.That(t, errors.Is(err, ErrOpen) || same && err == io.EOF, err)
	})
}

func BenchmarkSeal(b *testing.B) {
	text := make([]byte, 20<<10)
	for _, n := range []int{1, 8} {
		machines := make([]machine, n)
		for i := range machines {
			machines[i] = newMachine(b)
		}
		b.Run(string(rune('0'+n)), func(b *testing.B) {
			for b.Loop() {
				seal(b, Body{Text: text}, machines...)
			}
		})
	}
}
