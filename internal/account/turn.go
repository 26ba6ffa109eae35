package account

import "time"

// Turn is a kept turn of the responses dialect, sealed: nobody reads it without
// the id of its response, of which the store keeps a hash.
type Turn struct {
	Hash     [32]byte // SHA-256 of the response's id
	MemberID string   // whose it is
	Created  time.Time
	Expires  time.Time
	Sealed   []byte
}
