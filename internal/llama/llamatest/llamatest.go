// Package llamatest changes the small model's file for tests.
package llamatest

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"fmt"
	"strings"
)

//go:embed agent.jinja
var agentTemplate string

// Agent returns the small model's file as a model for coding agents. It calls the agent's
// tool for reading files with the path file, which must be plain text for JSON and Jinja,
// and then answers "7 + 5 = 12." if the result has the word heron. The grammar of the
// agent's tools has to complete the call: the model alone never does.
func Agent(model []byte, file string) []byte {
	return WithContext(WithTemplate(model, strings.ReplaceAll(agentTemplate, "FILE", file)), 32_768)
}

// WithTemplate returns a GGUF file with another chat template.
func WithTemplate(model []byte, template string) []byte {
	at := valueAt(model, "tokenizer.chat_template")
	end := at + 8 + int(binary.LittleEndian.Uint64(model[at:]))
	// The tensors that follow must stay aligned.
	const alignment, comment = 32, len("{##}")
	added := len(template) + comment - (end - at - 8)
	template += "{#" + strings.Repeat(" ", (alignment-added%alignment)%alignment) + "#}"
	length := binary.LittleEndian.AppendUint64(nil, uint64(len(template)))
	return bytes.Join([][]byte{model[:at], length, []byte(template), model[end:]}, nil)
}

// WithContext returns a copy of a llama model's GGUF file with another length of its
// context. Answers make no sense beyond the length that the model was trained on.
func WithContext(model []byte, tokens uint32) []byte {
	model = bytes.Clone(model)
	binary.LittleEndian.PutUint32(model[valueAt(model, "llama.context_length"):], tokens)
	return model
}

// valueAt returns the offset of a key's value. It panics if there is no such key.
func valueAt(model []byte, key string) int {
	at := bytes.Index(model, append(binary.LittleEndian.AppendUint64(nil, uint64(len(key))), key...))
	if at < 0 {
		panic(fmt.Sprintf("the model's file has no %s", key))
	}
	return at + 8 + len(key) + 4 // the length of the key, the key, the type of the value
}
