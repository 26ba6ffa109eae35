package seal

import (
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"io"
)

// AnswerHeadSize is the size of what an answer begins with: the id of the machine's key and
// a nonce.
const AnswerHeadSize = 8 + 32

// final is the associated data of an answer's last chunk.
var final = []byte("final")

// chunks encrypts or decrypts the chunks of an answer, in their order.
type chunks struct {
	aead  cipher.AEAD
	base  []byte
	count uint64
	ended bool
}

func newChunks(secret, nonce []byte) (chunks, error) {
	aead, base, err := derive(secret, nonce, labelAnswer)
	return chunks{aead: aead, base: base}, err
}

// nonce returns the nonce of the next chunk.
func (c *chunks) nonce() []byte {
	nonce := append([]byte(nil), c.base...)
	counter := nonce[nonceSize-8:]
	binary.BigEndian.PutUint64(counter, binary.BigEndian.Uint64(counter)^c.count)
	return nonce
}

// AnswerSealer seals the answer to a call.
type AnswerSealer struct {
	head []byte
	chunks
}

// Answer returns the sealer of the answer to the call. There is one answer to a call.
func (o *Opened) Answer() (*AnswerSealer, error) {
	head := append(make([]byte, 0, AnswerHeadSize), o.key[:]...)
	head = head[:AnswerHeadSize]
	rand.Read(head[len(o.key):])
	c, err := newChunks(o.answer, head[len(o.key):])
	return &AnswerSealer{head, c}, err
}

// Head returns what the answer begins with.
func (a *AnswerSealer) Head() []byte { return a.head }

// Chunk returns the next chunk of the answer, sealed. There is none after the last one.
func (a *AnswerSealer) Chunk(text []byte, last bool) []byte {
	if a.ended {
		panic("seal: a chunk after the last one")
	}
	size := PaddedSize(len(text))
	b := pad(append(make([]byte, 0, size+tagSize), text...), len(text))
	var data []byte
	if last {
		data, a.ended = final, true
	}
	b = a.aead.Seal(b[:0], a.nonce(), b, data)
	a.count++
	return b
}

// AnswerOpener opens the answer to a call.
type AnswerOpener struct {
	chunks
	failed bool
}

// Answer returns the opener for an answer that begins with head. It fails with ErrOpen if no
// recipient of the call sealed it.
func (c *Call) Answer(head []byte) (*AnswerOpener, error) {
	if len(head) != AnswerHeadSize {
		return nil, ErrOpen
	}
	secret, ok := c.answers[KeyID(head[:8])]
	if !ok {
		return nil, ErrOpen
	}
	opened, err := newChunks(secret, head[8:])
	return &AnswerOpener{chunks: opened}, err
}

// Chunk opens the next chunk. With the last one it returns io.EOF. It fails with ErrOpen,
// also after the last chunk and after an error.
func (a *AnswerOpener) Chunk(b []byte) ([]byte, error) {
	if a.failed || a.ended {
		return nil, ErrOpen
	}
	text, err := a.aead.Open(nil, a.nonce(), b, nil)
	if err != nil {
		text, err = a.aead.Open(nil, a.nonce(), b, final)
		a.ended = err == nil
	}
	if err == nil {
		text, err = unpad(text)
	}
	if err != nil {
		a.failed, a.ended = true, false
		return nil, ErrOpen
	}
	a.count++
	if a.ended {
		return text, io.EOF
	}
	return text, nil
}

// Ended reports whether the last chunk was opened. An answer that ends before was cut.
func (a *AnswerOpener) Ended() bool { return a.ended }
