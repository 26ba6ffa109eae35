// Package assert has the checks that most tests repeat. Only tests import it.
package assert

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// OK ends the test if err is not nil. Like in the other functions, about goes before the
// message.
func OK(t testing.TB, err error, about ...any) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s%v", text(about), err)
	}
}

// Value returns the value of a call. The returned function ends the test if the call failed:
//
//	text := assert.Value(os.ReadFile(name))(t)
func Value[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return value
	}
}

// That fails the test, which continues, if ok is false. The message is about.
func That(t testing.TB, ok bool, about ...any) {
	t.Helper()
	if !ok {
		t.Error(strings.TrimSuffix(text(about), ": "))
	}
}

// Require ends the test if ok is false. The message is about.
func Require(t testing.TB, ok bool, about ...any) {
	t.Helper()
	if !ok {
		t.Fatal(strings.TrimSuffix(text(about), ": "))
	}
}

// Equal fails the test, which continues, if got is not want.
func Equal[T comparable](t testing.TB, got, want T, about ...any) {
	t.Helper()
	if got == want {
		return
	}
	verb := "%+v"
	if reflect.TypeFor[T]().Kind() == reflect.String {
		verb = "%q"
	}
	t.Errorf("%sgot "+verb+", want "+verb, text(about), got, want)
}

// Same fails the test, which continues, if cmp finds a difference between got and want.
func Same(t testing.TB, got, want any, about ...any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s(-want +got)\n%s", text(about), diff)
	}
}

// Err returns the error that a call returned after its values.
func Err(results ...any) error {
	err, _ := results[len(results)-1].(error)
	return err
}

// Is fails the test, which continues, if errors.Is(err, target) is false.
func Is(t testing.TB, err, target error, about ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%sthe error is %v, want %v", text(about), err, target)
	}
}

// Fails fails the test, which continues, if err is nil or its text lacks part.
func Fails(t testing.TB, err error, part string, about ...any) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), part) {
		t.Errorf("%sthe error is %v, want one with %q", text(about), err, part)
	}
}

// Contains fails the test, which continues, if s lacks part.
func Contains(t testing.TB, s, part string, about ...any) {
	t.Helper()
	if !strings.Contains(s, part) {
		t.Errorf("%s%q is not in\n%s", text(about), part, s)
	}
}

// Lacks fails the test, which continues, if part is in s.
func Lacks(t testing.TB, s, part string, about ...any) {
	t.Helper()
	if strings.Contains(s, part) {
		t.Errorf("%s%q is in\n%s", text(about), part, s)
	}
}

func text(about []any) string {
	var words []string
	for _, word := range about {
		if bytes, ok := word.([]byte); ok {
			word = string(bytes)
		}
		words = append(words, fmt.Sprintf("%+v", word))
	}
	if words == nil {
		return ""
	}
	return strings.Join(words, " ") + ": "
}
