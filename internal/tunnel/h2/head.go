package h2

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// names keeps the forms of field names that were met: "kith-caller" for
// "Kith-Caller" or the other way round.
type names map[string]string

// mostNames and longestName bound what a peer can make us keep.
const (
	mostNames   = 100
	longestName = 64
)

func (n *names) form(name string, make func(string) string) string {
	if known, ok := (*n)[name]; ok {
		return known
	}
	form := make(name)
	if *n == nil {
		*n = names{}
	}
	if len(*n) < mostNames && len(name) <= longestName {
		(*n)[name] = form
	}
	return form
}

// ofConnection are the fields that HTTP/2 does not have (RFC 9113, 8.2.2).
func ofConnection(canonical string) bool {
	switch canonical {
	case "Connection", "Keep-Alive", "Proxy-Connection", "Transfer-Encoding", "Upgrade":
		return true
	}
	return false
}

// field adds one to the block. What differs from call to call would only push
// out of the peer's table what does not.
func (c *conn) field(name, value string, once bool) {
	// Into a bytes.Buffer: no error.
	_ = c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: once})
}

// header adds those of h that skip does not name; a field that cannot stand on
// the wire is left out, as net/http's server does.
func (c *conn) header(h http.Header, skip ...string) {
fields:
	for key, values := range h {
		if ofConnection(key) || !httpguts.ValidHeaderFieldName(key) {
			continue
		}
		for _, s := range skip {
			if key == s {
				continue fields
			}
		}
		name := c.lower.form(key, strings.ToLower)
		for _, value := range values {
			if httpguts.ValidHeaderFieldValue(value) {
				c.field(name, value, !repeats(key))
			}
		}
	}
}

// repeats reports whether calls have a field with the same value again and
// again, so that it is worth a place in the peer's table.
func repeats(key string) bool {
	switch key {
	case "Content-Type", "Cache-Control", "Trailer", "Accept", "Kith-Caller", "Kith-Refused":
		return true
	}
	return false
}

// fields are what a block holds besides its pseudo fields, and the length of
// the body that it announces, -1 if none.
func (c *conn) fields(f *http2.MetaHeadersFrame) (http.Header, int64, error) {
	regular, length := f.RegularFields(), int64(-1)
	h, values := make(http.Header, len(regular)), make([]string, 0, len(regular))
	for _, field := range regular {
		key := c.names.form(field.Name, http.CanonicalHeaderKey)
		switch {
		case ofConnection(key):
			return nil, 0, fmt.Errorf("a field that HTTP/2 does not have: %s", key)
		case key == "Content-Length":
			n, err := strconv.ParseUint(field.Value, 10, 63)
			if err != nil || length >= 0 && length != int64(n) {
				return nil, 0, errors.New("no usable content-length")
			}
			length = int64(n)
		}
		if h[key] == nil { // one array for all
			values = append(values, field.Value)
			h[key] = values[len(values)-1 : len(values) : len(values)]
		} else {
			h[key] = append(h[key], field.Value)
		}
	}
	return h, length, nil
}

// newRequest is the request that a block begins.
func (c *conn) newRequest(f *http2.MetaHeadersFrame) (*http.Request, error) {
	method, path := f.PseudoValue("method"), f.PseudoValue("path")
	if method == "" || method == http.MethodConnect || f.PseudoValue("scheme") == "" || !strings.HasPrefix(path, "/") {
		return nil, errors.New("no usable request line")
	}
	u, err := url.ParseRequestURI(path)
	if err != nil {
		return nil, err
	}
	h, length, err := c.fields(f)
	if err != nil {
		return nil, err
	}
	host := f.PseudoValue("authority")
	if host == "" {
		host = h.Get("Host")
	}
	delete(h, "Host")
	return &http.Request{
		Method: method, URL: u, RequestURI: path, Host: host, Header: h, ContentLength: length,
		Proto: "HTTP/2.0", ProtoMajor: 2, RemoteAddr: c.below.RemoteAddr().String(),
	}, nil
}

// newResponse is the answer that a block begins; nil if it is only informational.
func (c *conn) newResponse(f *http2.MetaHeadersFrame) (*http.Response, error) {
	word := f.PseudoValue("status")
	status, err := strconv.Atoi(word)
	if err != nil || len(word) != 3 || status < 100 {
		return nil, errors.New("no usable status")
	}
	if status < 200 {
		return nil, nil
	}
	h, length, err := c.fields(f)
	if err != nil {
		return nil, err
	}
	response := &http.Response{
		Status: word + " " + http.StatusText(status), StatusCode: status,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: h, ContentLength: length,
	}
	if announced := h["Trailer"]; announced != nil {
		response.Trailer = http.Header{}
		for _, name := range listed(announced) {
			response.Trailer[name] = nil
		}
		delete(h, "Trailer")
	}
	return response, nil
}

// listed are the canonical names in a list of header values.
func listed(values []string) (keys []string) {
	for _, value := range values {
		for name := range strings.SplitSeq(value, ",") {
			if name = strings.TrimSpace(name); name != "" {
				keys = append(keys, http.CanonicalHeaderKey(name))
			}
		}
	}
	return keys
}
