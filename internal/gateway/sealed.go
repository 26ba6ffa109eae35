package gateway

import "github.com/kith/kith/internal/fleet"

// Routing is what the caller's daemon tells the hub of a sealed call, as JSON
// (spec/sealed.md#request). It is advice: it is not bound to the call.
type Routing struct {
	// To are the recipients, in the order of their keys.
	To []fleet.Recipient `json:"to"`
	// Declined are the machines that the daemon would not seal for.
	Declined []fleet.MachineID `json:"declined,omitzero"`
	Prompt   int               `json:"prompt"` // bytes of tools and messages, padded
	// Marks are prefixes of the prompt, shortest first: each 8 bytes of fingerprint and 2 of
	// length in steps of MarkStep bytes.
	Marks []byte `json:"marks,omitzero"`
}

// MarkStep is the unit of the lengths in Routing.Marks.
const MarkStep = 256

// MaxMarks is the maximum number of prefixes in Routing.Marks: the first one and the last
// ones.
const MaxMarks = 64
