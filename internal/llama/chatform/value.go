package chatform

import (
	"bytes"
	"encoding/json/jsontext"
	"errors"
	"strconv"

	"github.com/ardanlabs/jinja"
)

// maxDepth limits the nesting of tools and arguments.
const maxDepth = 64

// valueOf returns JSON as a value of the template library, with the members in their
// order. text changes each string, but not the names of members.
func valueOf(v jsontext.Value, text func(string) string) (jinja.Value, error) {
	dec := jsontext.NewDecoder(bytes.NewReader(v), jsontext.AllowDuplicateNames(true))
	value, err := readValue(dec, text)
	if err == nil && len(bytes.TrimSpace(v[dec.InputOffset():])) > 0 {
		err = errors.New("something follows the JSON value")
	}
	return value, err
}

func readValue(dec *jsontext.Decoder, text func(string) string) (v jinja.Value, err error) {
	if dec.StackDepth() > maxDepth {
		return v, errors.New("the JSON value is nested too deeply")
	}
	t, err := dec.ReadToken()
	if err != nil {
		return v, err
	}
	switch t.Kind() {
	case 'n':
		return jinja.None(), nil
	case 't', 'f':
		return jinja.NewBool(t.Bool()), nil
	case '"':
		return jinja.NewString(text(t.String())), nil
	case '0': // an integer stays one, as in Python
		if n, err := strconv.ParseInt(t.String(), 10, 64); err == nil {
			return jinja.NewInt(n), nil
		}
		f, err := strconv.ParseFloat(t.String(), 64)
		return jinja.NewFloat(f), err
	case '[':
		var items []jinja.Value
		for dec.PeekKind() != ']' {
			item, err := readValue(dec, text)
			if err != nil {
				return v, err
			}
			items = append(items, item)
		}
		_, err = dec.ReadToken()
		return jinja.NewList(items), err
	default:
		v = jinja.NewDict()
		for dec.PeekKind() != '}' {
			name, err := dec.ReadToken()
			if err != nil {
				return v, err
			}
			key := name.String() // before the next token
			member, err := readValue(dec, text)
			if err != nil {
				return v, err
			}
			v.AsDict().Set(key, member)
		}
		_, err = dec.ReadToken()
		return v, err
	}
}
