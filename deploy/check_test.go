package deploy_test

import (
	"fmt"
	"testing"
)

// ok ends the test if err is not nil.
func ok(t testing.TB, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Sprintf("%s", about), err)
	}
}

// value returns the value of a call. The returned function ends the test if it failed.
func value[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}
