package seal

import (
	"bytes"
	"crypto/cipher"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json/v2"
	"errors"
	"fmt"
)

// Head is what the hub and the machine need to know of a call before it is opened. It is in
// clear; a call whose head was changed does not open.
type Head struct {
	Version  int      `json:"v"` // 1
	Call     [16]byte `json:"call"`
	Endpoint string   `json:"endpoint"`
	Model    string   `json:"model"`
	Stream   bool     `json:"stream"`
	Choices  int      `json:"n"`
}

const (
	version     = 1
	maxHead     = 1 << 10
	maxRouting  = 8 << 10
	callMagic   = "KSEAL1"
	labelCall   = "kith call 1\x00"
	labelBody   = "kith body 1"
	labelAnswer = "kith answer 1"
	kindOwner   = "kith owner 1\x00"
	bodyFront   = cacheSize + proofSize
	cacheSize   = 16
	proofSize   = 64
)

// ParseHead parses the head of a call, as it was sealed.
func ParseHead(text []byte) (h Head, err error) {
	if len(text) > maxHead {
		return h, fmt.Errorf("the head of a sealed call has at most %d bytes", maxHead)
	}
	if err := json.Unmarshal(text, &h, json.RejectUnknownMembers(true)); err != nil {
		return h, fmt.Errorf("cannot read the head of a sealed call: %w", err)
	}
	if h.Version != version {
		return h, fmt.Errorf("a sealed call of version %d, which this kith does not know", h.Version)
	}
	return h, nil
}

// Sender seals calls for one prekey. Making one costs ten times what sealing a call does, so
// it is kept. It is safe for concurrent use.
type Sender struct {
	id      KeyID
	prekey  []byte
	enc     []byte
	context *hpke.Sender
}

// NewSender returns a sender for the prekey of a statement.
func NewSender(s *Statement) (*Sender, error) {
	public, err := kem.NewPublicKey(s.prekey)
	if err != nil {
		return nil, err
	}
	enc, context, err := hpke.NewSender(public, kdf, hpke.ExportOnly(), info)
	return &Sender{s.KeyID, s.prekey, enc, context}, err
}

// IsFor reports whether the sender is for the prekey of a statement. Someone may have looked
// for a prekey with the id of another one, which has 64 bits.
func (s *Sender) IsFor(t *Statement) bool { return bytes.Equal(s.prekey, t.prekey) }

// Call is a sealed call.
type Call struct {
	// Request is what the hub gets (spec/sealed.md#request).
	Request []byte
	answers map[KeyID][]byte // the secrets of the answers, by the key of the recipient
}

// Body is what only the recipients can read.
type Body struct {
	Cache [cacheSize]byte // names the prompt cache of the call
	Owner *Account        // proves that the call is its owner's; nil: no proof
	Text  []byte          // the request as a daemon would send it in clear
}

// Seal seals a call for 1 to MaxRecipients recipients. routing is the
// JSON that advises the hub; it names the recipients in the same order.
func Seal(h Head, routing []byte, recipients []*Sender, body Body) (*Call, error) {
	h.Version = version
	head, err := json.Marshal(h)
	switch {
	case err != nil:
		return nil, err
	case len(head) > maxHead || len(routing) > maxRouting:
		return nil, errors.New("the head of the call is too large to be sealed")
	case len(recipients) == 0 || len(recipients) > MaxRecipients:
		return nil, fmt.Errorf("a call is sealed for 1 to %d machines, not %d", MaxRecipients, len(recipients))
	}
	hash := sha256.Sum256(head)
	size := bodyFront + len(body.Text)
	front := len(callMagic) + 5 + len(head) + len(routing) + len(recipients)*RecipientKeySize
	request := make([]byte, 0, front+PaddedSize(size)+tagSize)
	request = append(request, callMagic...)
	request = binary.BigEndian.AppendUint16(request, uint16(len(head)))
	request = binary.BigEndian.AppendUint16(request, uint16(len(routing)))
	request = append(append(append(request, byte(len(recipients))), head...), routing...)
	keys := len(request)
	request = request[:front]

	fileKey := make([]byte, keySize)
	rand.Read(fileKey)
	aead, nonce, err := derive(fileKey, hash[:], labelBody)
	if err != nil {
		return nil, err
	}
	var proof [proofSize]byte
	if body.Owner != nil {
		proof = body.Owner.sign(kindOwner, owned(hash, body.Cache, body.Text))
	}
	request = append(append(append(request, body.Cache[:]...), proof[:]...), body.Text...)
	request = pad(request, size)
	request = aead.Seal(request[:front], nonce, request[front:], nil)

	c := &Call{Request: request, answers: map[KeyID][]byte{}}
	sum := sha256.Sum256(request[front:])
	for i, r := range recipients {
		x, err := export(r.context.Export, hash)
		if err != nil {
			return nil, err
		}
		if _, twice := c.answers[r.id]; twice {
			return nil, errors.New("a call is sealed for a key once")
		}
		c.answers[r.id] = x.answer
		key := append(request[:keys+i*RecipientKeySize], r.enc...)
		x.aead.Seal(key, x.nonce, fileKey, sum[:])
	}
	return c, nil
}

// owned returns what the owner of a call signs: its head and its body. A recipient, which
// knows the proof, cannot put it on another call.
func owned(head [sha256.Size]byte, cache [cacheSize]byte, text []byte) []byte {
	sum := sha256.New()
	sum.Write(cache[:])
	sum.Write(text)
	return sum.Sum(head[:])
}

// exported are the secrets of a call that the sender's and the machine's context give.
type exported struct {
	aead   cipher.AEAD // wraps the file key
	nonce  []byte
	answer []byte // the secret of the answer
}

func export(from func(context string, length int) ([]byte, error), hash [sha256.Size]byte) (x exported, err error) {
	b, err := from(labelCall+string(hash[:]), keySize+nonceSize+keySize)
	if err != nil {
		return x, err
	}
	x.nonce, x.answer = b[keySize:keySize+nonceSize], b[keySize+nonceSize:]
	x.aead, err = newAEAD(b[:keySize])
	return x, err
}

// Receiver opens the calls of one Sender. Making one costs ten times what opening a call
// does, so it is kept. It is safe for concurrent use.
type Receiver struct {
	id      KeyID
	context *hpke.Recipient
}

// SplitKey splits the key of a recipient (of RecipientKeySize) in what identifies its Sender,
// and what belongs to the call. It reports false if it has another size.
func SplitKey(key []byte) (sender, wrapped []byte, ok bool) {
	if len(key) != RecipientKeySize {
		return nil, nil, false
	}
	return key[:encSize], key[encSize:], true
}

// NewReceiver returns the receiver for the calls of a sender, of SplitKey.
func (p *Prekey) NewReceiver(sender []byte) (*Receiver, error) {
	context, err := hpke.NewRecipient(sender, p.private, kdf, hpke.ExportOnly(), info)
	if err != nil {
		return nil, ErrOpen
	}
	return &Receiver{p.ID(), context}, nil
}

// Opened is a call that was opened.
type Opened struct {
	Head  Head
	Cache [cacheSize]byte
	Text  []byte

	hash  [sha256.Size]byte
	proof []byte
	key   KeyID
	// answer is the secret of the answer.
	answer []byte
}

// Open opens a call: its head, the wrapped key of SplitKey, and the body, which it
// overwrites. It fails with ErrOpen, or if the head is none.
func (r *Receiver) Open(head, wrapped, body []byte) (*Opened, error) {
	h, err := ParseHead(head)
	if err != nil {
		return nil, err
	}
	o := &Opened{Head: h, hash: sha256.Sum256(head), key: r.id}
	x, err := export(r.context.Export, o.hash)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	fileKey, err := x.aead.Open(nil, x.nonce, wrapped, sum[:])
	if err != nil {
		return nil, ErrOpen
	}
	aead, nonce, err := derive(fileKey, o.hash[:], labelBody)
	if err != nil {
		return nil, err
	}
	if body, err = aead.Open(body[:0], nonce, body, nil); err != nil {
		return nil, ErrOpen
	}
	if body, err = unpad(body); err != nil || len(body) < bodyFront {
		return nil, ErrOpen
	}
	copy(o.Cache[:], body)
	o.proof, o.Text, o.answer = body[cacheSize:bodyFront], body[bodyFront:], x.answer
	return o, nil
}

// From reports whether the call proves that it comes from the owner of an account key.
func (o *Opened) From(k AccountKey) bool {
	return [proofSize]byte(o.proof) != [proofSize]byte{} && k.verify(kindOwner, owned(o.hash, o.Cache, o.Text), o.proof)
}
