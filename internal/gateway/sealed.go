package gateway

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json/v2"
	"io"
	"net/http"
	"slices"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// Routing is what the caller's daemon tells the hub of a sealed call, as JSON
// (spec/sealed.md#request). It is advice: it is not bound to the call.
type Routing struct {
	// To are the recipients, in the order of their keys.
	To []fleet.Recipient `json:"to"`
	// Declined are the machines that the daemon would not seal for, at most 16.
	Declined []fleet.MachineID `json:"declined,omitzero"`
	Prompt   int               `json:"prompt"` // bytes of tools and messages, padded; of embeddings 0
	// Marks are prefixes of the prompt, shortest first: each 8 bytes of fingerprint and 2 of
	// length in steps of MarkStep bytes.
	Marks []byte `json:"marks,omitzero"`
}

// MarkStep is the unit of the lengths in Routing.Marks.
const MarkStep = 256

// MaxMarks is the maximum number of prefixes in Routing.Marks: the first one and the last
// ones.
const MaxMarks = 64

// The front of a sealed request (spec/sealed.md#request).
const (
	sealedMagic   = "KSEAL1"
	sealedFront   = len(sealedMagic) + 5
	maxSealedHead = 1 << 10
	maxRouting    = 8 << 10
	maxRecipients = 8
	maxDeclined   = 16 // as many as GET /api/seals lists
	sealedKey     = 1168
	// sealedRoom is how much longer a sealed body may be than one in clear: padding, keys,
	// and what the translation to chat adds.
	sealedRoom = 9 << 20
	// sealedAnswerRoom is how much longer a sealed answer that is not streamed may be than one
	// in clear: padding and what it begins with.
	sealedAnswerRoom = 128 << 10
)

// Sealed is what the hub can read of a sealed call.
type Sealed struct {
	Routing
	Head string // base64 of the call's head, as it was sealed

	keys []byte // of the recipients, one after another
	body int64  // where the sealed body begins in Call.Body
}

// Key returns the value of tunnel.HeaderSealKey for a machine with these keys, or "" if the
// call is not sealed for any of them.
func (s *Sealed) Key(machine fleet.MachineID, keys []fleet.SealKey) string {
	for i, r := range s.To {
		if r.Machine == machine && slices.Contains(keys, r.Key) {
			key := s.keys[i*sealedKey : (i+1)*sealedKey]
			return base64.StdEncoding.EncodeToString(r.Key[:]) + " " + base64.StdEncoding.EncodeToString(key)
		}
	}
	return ""
}

// readSealed reads the front of a sealed call, which follows in call.Body.
func (r *request) readSealed(call *Call) (head dialect.Head, err error) {
	body := call.Body.Open()
	defer body.Close()
	front := make([]byte, sealedFront)
	if _, err := io.ReadFull(body, front); err != nil || string(front[:len(sealedMagic)]) != sealedMagic {
		return head, badSeal("it does not begin with " + sealedMagic)
	}
	lengths := front[len(sealedMagic):]
	sizes := []int{int(binary.BigEndian.Uint16(lengths)), int(binary.BigEndian.Uint16(lengths[2:])), int(lengths[4]) * sealedKey}
	if sizes[0] > maxSealedHead || sizes[1] > maxRouting || sizes[2] == 0 || sizes[2] > maxRecipients*sealedKey {
		return head, badSeal("its front is too large")
	}
	parts := make([][]byte, len(sizes))
	call.Sealed = &Sealed{body: int64(sealedFront)}
	for i, size := range sizes {
		parts[i] = make([]byte, size)
		if _, err := io.ReadFull(body, parts[i]); err != nil {
			return head, badSeal("it ends within its front")
		}
		call.Sealed.body += int64(size)
	}
	var clear struct {
		Version  int           `json:"v"`
		Endpoint string        `json:"endpoint"`
		Model    fleet.ModelID `json:"model"`
		Stream   bool          `json:"stream"`
		Choices  int           `json:"n"`
	}
	s := call.Sealed
	if json.Unmarshal(parts[0], &clear) != nil || clear.Version != 1 || json.Unmarshal(parts[1], &s.Routing) != nil {
		return head, badSeal("its head or its routing cannot be read")
	}
	if len(s.To)*sealedKey != len(parts[2]) || len(s.Declined) > maxDeclined || s.Prompt < 0 || len(s.Marks)%10 != 0 || len(s.Marks) > 10*MaxMarks {
		return head, badSeal("its routing does not fit its keys")
	}
	endpoint, ok := fleet.ParseEndpoint(clear.Endpoint)
	if !ok || endpoint != fleet.ChatCompletions && endpoint != fleet.EmbeddingsEndpoint {
		return head, badSeal("only chat and embeddings can be sealed")
	}
	s.Head, s.keys, call.Endpoint = base64.StdEncoding.EncodeToString(parts[0]), parts[2], endpoint
	call.maxPrompt = int(call.Body.Len() - s.body) // the routing is not bound to the body
	if s.Prompt = min(s.Prompt, call.maxPrompt); endpoint == fleet.EmbeddingsEndpoint {
		s.Prompt = call.maxPrompt
	}
	return dialect.Head{Model: clear.Model, Stream: clear.Stream && endpoint == fleet.ChatCompletions, Choices: min(max(clear.Choices, 0), dialect.MaxChoices)}, nil
}

func badSeal(why string) *fault.Fault {
	return fault.New(fault.InvalidRequest, "the sealed call is invalid: %s", why)
}

// attach makes the sealed body the body of a request to a machine.
func (s *Sealed) attach(r *http.Request, call *Call) {
	r.Header.Set("Content-Type", "application/octet-stream")
	open := func() io.ReadCloser { return call.Body.OpenAt(s.body) }
	r.ContentLength, r.Body = call.Body.Len()-s.body, open()
	r.GetBody = func() (io.ReadCloser, error) { return open(), nil }
}
