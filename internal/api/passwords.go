package api

import (
	"context"
	"runtime"
	"strings"
	"time"

	"github.com/alexedwards/argon2id"

	"github.com/kith/kith/internal/fault"
)

// The limits for a password's length, in bytes.
const (
	minPassword = 10
	MaxPassword = 1000
)

// Passwords hashes passwords, with a limit on concurrent hashes: each takes 19 MiB and
// about 30 ms of CPU time.
type Passwords struct{ slots chan struct{} }

func newPasswords() Passwords { return Passwords{make(chan struct{}, max(1, runtime.NumCPU()/2))} }

// hashWait is how long a sign-in waits for a slot.
const hashWait = 10 * time.Second

// NoPassword is the hash of an unknown password. It makes a sign-in to an account that
// does not exist take as long as any other.
const NoPassword = "$argon2id$v=19$m=19456,t=2,p=1$iI41OARy0DJpW6f8iPxIaw$PZE77HdW5uPvsmCUiWOYXc1k6+viDGt+AHgqbZhEuv8"

func (p Passwords) turn(ctx context.Context) (done func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, hashWait)
	defer cancel()
	select {
	case p.slots <- struct{}{}:
		return func() { <-p.slots }, nil
	case <-ctx.Done():
		return nil, fault.New(fault.CapacityFull, "too many people are signing in at once; try again shortly")
	}
}

// Hash validates a new password for the member with the given name and returns its hash.
// If the password is rejected, the error is a fault.
func (p Passwords) Hash(ctx context.Context, name, password string) (string, error) {
	if err := checkPassword(name, password); err != nil {
		return "", err
	}
	done, err := p.turn(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	return argon2id.CreateHash(password, &argon2id.Params{Memory: 19 << 10, Iterations: 2, Parallelism: 1, SaltLength: 16, KeyLength: 32})
}

// Fits reports whether the password matches the hash.
func (p Passwords) Fits(ctx context.Context, password, hash string) (bool, error) {
	done, err := p.turn(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	return argon2id.ComparePasswordAndHash(password, hash)
}

// checkPassword rejects passwords that are easy to guess: short ones, one repeated
// character, or the member's name.
func checkPassword(name, password string) error {
	switch {
	case len(password) < minPassword:
		return fault.New(fault.InvalidRequest, "a password has at least %d characters: a few words in a row are good", minPassword).WithParam("password")
	case len(password) > MaxPassword:
		return fault.New(fault.InvalidRequest, "a password has at most %d bytes", MaxPassword).WithParam("password")
	case strings.Trim(password, password[:1]) == "" || name != "" && strings.Contains(strings.ToLower(password), strings.ToLower(name)) && len(password) < len(name)+6:
		return fault.New(fault.InvalidRequest, "this password is easy to guess: choose one without your name and with more than one character").WithParam("password")
	}
	return nil
}
