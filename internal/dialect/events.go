package dialect

// Events turns the chunks of a chat stream into the events of another dialect, in one pass and as they come. A Stream
// drives it. Its events are complete and in order; the last one of a good answer comes only after the end mark.
type Events struct {
	*outbox
	writer eventWriter
	delta  delta
}

// eventWriter writes the events of one dialect to its outbox: those that a chunk
// comes to, and those of the end mark.
type eventWriter interface {
	chunk(*delta) error
	end(Usage) error
}

// commit makes the events of a frame good: its blank line was seen.
func (e *Events) commit() {
	if e != nil {
		e.outbox.commit()
	}
}

// chunk turns the chunk that was just read into events.
func (e *Events) chunk() error {
	if e == nil {
		return nil
	}
	e.compact()
	return e.writer.chunk(&e.delta)
}

// end turns the end mark into events.
func (e *Events) end(u Usage) error {
	if e == nil {
		return nil
	}
	e.compact()
	return e.writer.end(u)
}

// outbox is events on their way out.
type outbox struct {
	out       []byte
	committed int // of out: events whose frame was taken
	given     int // of out: events that Next gave
	// sequence numbers the event that comes next, where a dialect does that;
	// numbered is what it was for the first that is not good yet.
	sequence, numbered int
}

// Next is the events of what was taken since the last Next; they are good until
// the next Take.
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

// data writes the data of a frame, and ends the frame.
func (o *outbox) data(data []byte) {
	o.raw("data: ")
	o.out = append(o.out, data...)
	o.raw("\n\n")
}

// commit makes what was written good.
func (o *outbox) commit() { o.committed, o.numbered = len(o.out), o.sequence }

// revert forgets what is not good.
func (o *outbox) revert() { o.out, o.sequence = o.out[:o.committed], o.numbered }

// compact forgets the events that were given.
func (o *outbox) compact() {
	if o.given > 0 {
		o.out = append(o.out[:0], o.out[o.given:]...)
		o.committed, o.given = o.committed-o.given, 0
	}
}
