package chatform

// readRecipients reads an answer whose parts begin with their recipient:
//
//	>>>all
//	text>>>NAME
//	{arguments}
//
// The prompt ends with the first >>>.
func (r *Reader) readRecipients(ReaderOptions) {
	const mark = ">>>"
	for r.peek(1) {
		r.skip(mark)
		start := r.at()
		name, known := "", false
		if len(r.names) > 0 && r.calls < maxCalls {
			r.trigger = start
			name, known = r.name("\n")
		}
		switch {
		case known:
			r.beginCall(name, "")
			r.recipientArguments()
			r.white()
			if r.peek(1) && !r.has(mark) {
				r.inCall = false
				r.until(EventText, []string{mark})
			}
		default:
			r.inCall = false
			if !r.skip("all\n") {
				r.back(start)
			}
			r.until(EventText, []string{mark})
		}
	}
}

// recipientArguments reads arguments: a JSON object, or, as some templates write it, a
// Python one.
func (r *Reader) recipientArguments() {
	r.white()
	start := r.at()
	r.skip("{")
	r.white()
	python := r.at() > start && r.has("'")
	r.back(start)
	if !python {
		r.object()
	} else if text, ok := r.pythonValue(); ok {
		r.arguments(text)
	}
}
