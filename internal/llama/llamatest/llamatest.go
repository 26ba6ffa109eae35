// Package llamatest changes the small model's file for tests.
package llamatest

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"fmt"
	"strconv"
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

// WithTemplate returns the model's file with another chat template.
func WithTemplate(model []byte, template string) []byte {
	keys, tensors, data := split(model)
	at := valueAt(keys, "tokenizer.chat_template")
	_, after := text(keys[at:])
	return join(bytes.Join([][]byte{keys[:at], appendText(nil, template), after}, nil), tensors, data)
}

// WithContext returns the model's file with another length of its context. Answers make no
// sense beyond the length that the model was trained on.
func WithContext(model []byte, tokens uint32) []byte {
	model = bytes.Clone(model)
	order.PutUint32(model[valueAt(model, "llama.context_length"):], tokens)
	return model
}

// WithTokens returns the model's file with a larger vocabulary of so many tokens. The
// answers stay the same: the model never writes the new tokens, which are words.
func WithTokens(model []byte, tokens int) []byte {
	keys, tensors, data := split(model)
	keys = bytes.Clone(keys)
	vocabulary := keys[valueAt(keys, "llama.vocab_size"):]
	added := tokens - int(order.Uint32(vocabulary))
	order.PutUint32(vocabulary, uint32(tokens))
	var words, types []byte
	for i := range added {
		words = appendText(words, "Ġ"+strconv.FormatInt(int64(i), 36)+"~") // like no old one
		types = order.AppendUint32(types, 1)                               // a token of text
	}
	keys = appendToArray(keys, "tokenizer.ggml.tokens", added, words)
	keys = appendToArray(keys, "tokenizer.ggml.token_type", added, types)

	// The embeddings are the first tensor. New tokens have that of a control token.
	const never, float16 = 1, 2
	name, after := text(tensors)
	if string(name) != embeddings {
		panic(embeddings + " is not the first tensor")
	}
	tensors = bytes.Clone(tensors)
	sizes := tensors[len(tensors)-len(after)+4:]
	row, old := int(order.Uint64(sizes))*float16, int(order.Uint64(sizes[8:]))
	order.PutUint64(sizes[8:], uint64(tokens))
	for rest := tensors[tensorLength(tensors):]; len(rest) > 0; rest = rest[tensorLength(rest):] {
		offset := rest[tensorLength(rest)-8:]
		order.PutUint64(offset, order.Uint64(offset)+uint64(added*row))
	}
	return join(keys, tensors, bytes.Join([][]byte{
		data[:old*row], bytes.Repeat(data[never*row:(never+1)*row], added), data[old*row:],
	}, nil))
}

var order = binary.LittleEndian

const (
	embeddings = "token_embd.weight"
	alignment  = 32 // of the data of tensors
)

// split returns the parts of a model's file: the keys and values, the descriptions of the
// tensors, and their data.
func split(model []byte) (keys, tensors, data []byte) {
	begin := bytes.Index(model, appendText(nil, embeddings))
	end := begin
	for range order.Uint64(model[8:]) {
		end += tensorLength(model[end:])
	}
	return model[:begin], model[begin:end], model[end+padding(end):]
}

func join(keys, tensors, data []byte) []byte {
	return bytes.Join([][]byte{keys, tensors, make([]byte, padding(len(keys)+len(tensors))), data}, nil)
}

// padding returns the number of bytes from an offset to the next aligned one.
func padding(offset int) int { return (alignment - offset%alignment) % alignment }

// tensorLength returns the length of the description of a tensor: its name, its dimensions,
// its type and its offset.
func tensorLength(description []byte) int {
	_, after := text(description)
	return len(description) - len(after) + 4 + 8*int(order.Uint32(after)) + 4 + 8
}

// valueAt returns the offset of a key's value. It panics if there is no such key.
func valueAt(keys []byte, key string) int {
	at := bytes.Index(keys, appendText(nil, key))
	if at < 0 {
		panic(fmt.Sprintf("the model's file has no %s", key))
	}
	return at + 8 + len(key) + 4 // the key, and the type of the value
}

// appendToArray adds elements to an array of texts or of 32-bit numbers.
func appendToArray(keys []byte, key string, count int, elements []byte) []byte {
	const texts = 8
	at := valueAt(keys, key)
	kind, length, rest := order.Uint32(keys[at:]), order.Uint64(keys[at+4:]), keys[at+12:]
	for range length {
		if kind == texts {
			_, rest = text(rest)
		} else {
			rest = rest[4:]
		}
	}
	head := order.AppendUint64(bytes.Clone(keys[:at+4]), length+uint64(count))
	return bytes.Join([][]byte{head, keys[at+12 : len(keys)-len(rest)], elements, rest}, nil)
}

// text returns the text at the start of b, and what follows.
func text(b []byte) (s, after []byte) {
	end := 8 + int(order.Uint64(b))
	return b[8:end], b[end:]
}

func appendText(b []byte, s string) []byte {
	return append(order.AppendUint64(b, uint64(len(s))), s...)
}
