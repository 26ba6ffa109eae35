package chatform

// Form is how a template writes messages and tool calls.
type Form struct {
	// ThinkingName: reasoning has the name thinking, and a message with reasoning and
	// calls has no content.
	ThinkingName bool `json:"thinking_name,omitempty"`
	// ContentParts: content is a list of parts.
	ContentParts bool `json:"content_parts,omitempty"`
	// TextArguments: the arguments of calls are text.
	TextArguments bool `json:"text_arguments,omitempty"`
}

// inspect derives the form of the template.
func (t *template) inspect() error {
	t.form = &Form{}
	return nil
}
