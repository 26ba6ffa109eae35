package dialect

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
)

// encoding are the options for writing JSON. All values were checked when they were read:
// duplicate names are not checked again, strings are written as they were read, and
// invalid UTF-8 in a Go string becomes U+FFFD.
var encoding = json.JoinOptions(json.Deterministic(true), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))

// encode returns v as JSON. Its type must be one of this package.
func encode(v any) []byte {
	text, err := json.Marshal(v, encoding)
	if err != nil {
		panic(err) // its values were read as JSON
	}
	return text
}

func quote(text string) jsontext.Value {
	quoted, _ := jsontext.AppendQuote(nil, text) // the error only reports invalid UTF-8, which becomes U+FFFD
	return quoted
}

// text returns the text of a JSON string, "" for nil.
func text(quoted jsontext.Value) string { return string(unquote(quoted)) }

// or returns value, or the default if value is nil.
func or(value jsontext.Value, standard string) jsontext.Value {
	if value == nil {
		return jsontext.Value(standard)
	}
	return value
}
