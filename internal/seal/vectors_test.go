package seal

import (
	"crypto/hpke"
	"encoding/base64"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"flag"
	"io"
	"os"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
)

// vectorsFile has what other programs check their reading of docs/spec/sealed.md with. It is
// written by go test ./internal/seal -run TestVectors -update.
const vectorsFile = "../../docs/spec/testdata/sealed-vectors.json"

var update = flag.Bool("update", false, "write the vectors")

// vectors are one recorded call, statement and approval. Bytes are in base64.
type vectors struct {
	Account     []byte `json:"account"` // seed of the account key
	Former      []byte `json:"former"`  // seed of the one before
	Fingerprint string `json:"fingerprint"`
	Words       string `json:"words"`
	Statement   struct {
		Bytes   []byte    `json:"bytes"`
		Machine string    `json:"machine"`
		Made    time.Time `json:"made"`
		Private []byte    `json:"private"` // of the prekey
		KeyID   []byte    `json:"key_id"`
	} `json:"statement"`
	Call struct {
		Request []byte `json:"request"`
		Index   int    `json:"index"` // of the recipient with the private key
		Head    string `json:"head"`
		Routing string `json:"routing"`
		Cache   []byte `json:"cache"`
		Body    string `json:"body"`
		Owner   bool   `json:"owner"` // it has the account's proof
	} `json:"call"`
	Answer struct {
		Head   []byte   `json:"head"`
		Chunks [][]byte `json:"chunks"`
		Texts  []string `json:"texts"`
	} `json:"answer"`
	Approval struct {
		Private []byte `json:"private"` // of the machine that asks
		Machine string `json:"machine"`
		Words   string `json:"words"`
		Ask     []byte `json:"ask"`
		Answer  []byte `json:"answer"`
	} `json:"approval"`
}

// The recorded call opens, and says what was recorded.
func TestVectors(t *testing.T) {
	if *update {
		made := assert.Value(json.Marshal(record(t), jsontext.WithIndent("  ")))(t)
		assert.OK(t, os.WriteFile(vectorsFile, append(made, '\n'), 0o644))
	}
	var v vectors
	assert.OK(t, json.Unmarshal(assert.Value(os.ReadFile(vectorsFile))(t), &v))
	account := NewAccount([SeedSize]byte(v.Account))
	f := account.Key().Fingerprint()
	assert.That(t, f.String() == v.Fingerprint && f.Words().String() == v.Words, f, v.Fingerprint)
	s := assert.Value(ParseStatement(v.Statement.Bytes))(t)
	id := s.KeyID
	assert.That(t, s.Machine == v.Statement.Machine && s.Made.Equal(v.Statement.Made) && s.Account == account.Key() && string(id[:]) == string(v.Statement.KeyID), s)
	assert.That(t, len(s.Former) == 1 && s.Former[0].Former == NewAccount([SeedSize]byte(v.Former)).Key(), s.Former)

	private := assert.Value(kem.NewPrivateKey(v.Statement.Private))(t)
	m := machine{prekey: &Prekey{private, private.PublicKey().Bytes()}}
	assert.Equal(t, m.prekey.ID(), id)
	front := readFront(t, v.Call.Request)
	assert.That(t, string(front.head) == v.Call.Head && string(front.routing) == v.Call.Routing)
	o := assert.Value(m.open(front.head, front.key(v.Call.Index), front.body))(t)
	assert.That(t, string(o.Cache[:]) == string(v.Call.Cache) && string(o.Text) == v.Call.Body && o.From(account.Key()) == v.Call.Owner)

	call := &Call{answers: map[KeyID][]byte{id: o.answer}}
	answer := assert.Value(call.Answer(v.Answer.Head))(t)
	for i, chunk := range v.Answer.Chunks {
		got, err := answer.Chunk(chunk)
		assert.That(t, string(got) == v.Answer.Texts[i] && (err == io.EOF) == (i == len(v.Answer.Chunks)-1), i, err)
	}

	w := assert.Value(ParseWords(v.Approval.Words))(t)
	ask := &Ask{w, v.Approval.Machine, assert.Value(kem.NewPrivateKey(v.Approval.Private))(t)}
	assert.Equal(t, string(ask.Message()), string(v.Approval.Ask))
	assert.Equal(t, assert.Value(ask.Accept(v.Approval.Answer))(t).Key(), account.Key())
}

// record makes vectors.
func record(t *testing.T) (v vectors) {
	account, former := newAccount(), newAccount()
	seed, formerSeed := account.Seed(), former.Seed()
	v.Account, v.Former = seed[:], formerSeed[:]
	v.Fingerprint, v.Words = account.Key().Fingerprint().String(), account.Key().Fingerprint().Words().String()

	prekey := assert.Value(NewPrekey())(t)
	v.Statement.Machine, v.Statement.Made = "mch_attic", time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	v.Statement.Bytes = assert.Value(account.Sign(v.Statement.Machine, prekey, v.Statement.Made, []Succession{former.Succeed(account.Key())}))(t)
	v.Statement.Private = privateBytes(t, prekey.private)
	id := prekey.ID()
	v.Statement.KeyID = id[:]

	sender := assert.Value(NewSender(assert.Value(ParseStatement(v.Statement.Bytes))(t)))(t)
	v.Call.Index, v.Call.Owner, v.Call.Cache = 1, true, []byte("0123456789abcdef")
	other := newMachine(t)
	recipient := func(machine string, id KeyID) string {
		return `{"machine":"` + machine + `","key":"` + base64.StdEncoding.EncodeToString(id[:]) + `"}`
	}
	v.Call.Routing = `{"to":[` + recipient("mch_den", other.prekey.ID()) + "," + recipient("mch_attic", id) + `],"prompt":256}`
	v.Call.Body = `{"model":"llama3","stream":true,"messages":[{"role":"user","content":"What is 7+5? ½ € 😀"}]}`
	call := assert.Value(Seal(Head{Call: [16]byte([]byte("recorded call #1")), Endpoint: "/v1/chat/completions", Model: "llama3", Stream: true, Choices: 1},
		[]byte(v.Call.Routing), []*Sender{other.sender, sender}, Body{Cache: [16]byte(v.Call.Cache), Owner: account, Text: []byte(v.Call.Body)}))(t)
	v.Call.Request = call.Request
	front := readFront(t, call.Request)
	v.Call.Head = string(front.head)
	o := assert.Value(machine{prekey: prekey}.open(front.head, front.key(1), front.body))(t)
	answer := assert.Value(o.Answer())(t)
	v.Answer.Head, v.Answer.Texts = answer.Head(), []string{"data: {\"n\":1}\n\n", "", "data: [DONE]\n\n"}
	for i, text := range v.Answer.Texts {
		v.Answer.Chunks = append(v.Answer.Chunks, answer.Chunk([]byte(text), i == len(v.Answer.Texts)-1))
	}

	ask := assert.Value(NewAsk("mch_new"))(t)
	v.Approval.Private, v.Approval.Machine, v.Approval.Words = privateBytes(t, ask.private), ask.Machine, ask.Words.String()
	v.Approval.Ask = ask.Message()
	v.Approval.Answer = assert.Value(account.Approve(v.Approval.Ask, ask.Machine, ask.Words))(t)
	return v
}

func privateBytes(t *testing.T, k hpke.PrivateKey) []byte { return assert.Value(k.Bytes())(t) }
