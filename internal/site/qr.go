package site

import (
	"encoding/base64"
	"html/template"

	"rsc.io/qr"
)

// qrCode is the address of a picture of the text for a phone's camera; empty for a
// text that is too long for one.
func qrCode(text string) template.URL {
	code, err := qr.Encode(text, qr.M)
	if err != nil {
		return ""
	}
	return template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(code.PNG()))
}
