package account

import "time"

// Turn is a sealed turn of the responses dialect (spec/api.md#responses-state).
type Turn struct {
	Hash     [32]byte // SHA-256 of the response's id
	MemberID string   // its owner
	Created  time.Time
	Expires  time.Time
	Sealed   []byte
}
