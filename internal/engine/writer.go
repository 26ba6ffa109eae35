package engine

import "encoding/json/jsontext"

// writer is JSON that is written from valid parts in their order. A jsontext.Encoder would
// validate each part again, which for a long prompt costs as much as reading it.
type writer []byte

// next adds the comma before a further element or member.
func (w *writer) next() {
	if n := len(*w); n > 0 {
		switch (*w)[n-1] {
		case '{', '[', ':':
		default:
			*w = append(*w, ',')
		}
	}
}

// open begins an object or a list, and close ends it.
func (w *writer) open(bracket byte) {
	w.next()
	*w = append(*w, bracket)
}

func (w *writer) close(bracket byte) { *w = append(*w, bracket) }

// name writes the name of a member, and value a value.
func (w *writer) name(s string) {
	w.next()
	*w = append(append(*w, quoted(s)...), ':')
}

func (w *writer) value(v jsontext.Value) {
	w.next()
	*w = append(*w, v...)
}
