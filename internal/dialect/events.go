package dialect

// Events translates the chunks of a chat stream to the events of another dialect as they
// arrive. A Stream drives it. Its events are complete and in order. The last event of a
// successful answer is written only at the end mark.
type Events struct {
	*outbox
	writer eventWriter
	delta  delta
}

// eventWriter writes the events of one dialect to its outbox: those for a chunk and those
// for the end mark.
type eventWriter interface {
	chunk(*delta) error
	end(Usage) error
}

// commit commits the events of a frame when its blank line has been read.
func (e *Events) commit() {
	if e != nil {
		e.outbox.commit()
	}
}

func (e *Events) chunk() error {
	if e == nil {
		return nil
	}
	e.compact()
	return e.writer.chunk(&e.delta)
}

func (e *Events) end(u Usage) error {
	if e == nil {
		return nil
	}
	e.compact()
	return e.writer.end(u)
}

// outbox holds events until they are sent.
type outbox struct {
	out       []byte
	committed int // bytes of out whose frames are complete
	given     int // bytes of out that Next has returned
	// sequence is the number of the next event, in dialects that number them; numbered is
	// the number of the first uncommitted one.
	sequence, numbered int
}

// Next returns the events committed since the last call of Next. They are valid until the
// next Take.
func (o *outbox) Next() []byte {
	events := o.out[o.given:o.committed]
	o.given = o.committed
	return events
}

func (o *outbox) raw(text string) { o.out = append(o.out, text...) }

func (o *outbox) event(name string, data any) {
	o.raw("event: ")
	o.raw(name)
	o.raw("\n")
	o.data(encode(data))
}

// data writes a data line and ends the frame.
func (o *outbox) data(data []byte) {
	o.raw("data: ")
	o.out = append(o.out, data...)
	o.raw("\n\n")
}

func (o *outbox) commit() { o.committed, o.numbered = len(o.out), o.sequence }

// revert discards what is not committed.
func (o *outbox) revert() { o.out, o.sequence = o.out[:o.committed], o.numbered }

// compact discards the events that Next has returned.
func (o *outbox) compact() {
	if o.given > 0 {
		o.out = append(o.out[:0], o.out[o.given:]...)
		o.committed, o.given = o.committed-o.given, 0
	}
}
