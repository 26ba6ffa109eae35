package dialect

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
)

// encoding is how this package writes JSON. What it writes was checked when it was read: names that come twice are
// not looked for again, strings stay as they were written, and invalid UTF-8 in a Go string becomes U+FFFD.
var encoding = json.JoinOptions(json.Deterministic(true), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true), jsontext.PreserveRawStrings(true))

// encode is v, which is of a type of this package, as JSON.
func encode(v any) []byte {
	text, err := json.Marshal(v, encoding)
	if err != nil {
		panic(err) // its values were read as JSON
	}
	return text
}

// quote is text as a JSON string.
func quote(text string) jsontext.Value {
	quoted, _ := jsontext.AppendQuote(nil, text) // the error only reports invalid UTF-8, which becomes U+FFFD
	return quoted
}

// text is what a JSON string says; empty for nil.
func text(quoted jsontext.Value) string { return string(unquote(quoted)) }

// or is the value, or the default where there is none.
func or(value jsontext.Value, standard string) jsontext.Value {
	if value == nil {
		return jsontext.Value(standard)
	}
	return value
}
