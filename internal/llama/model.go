package llama

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/shirou/gopsutil/v4/cpu"

	"github.com/kith/kith/internal/llama/chatform"
)

const (
	batchTokens     = 512 // tokens in one decode step of all slots
	embeddingTokens = 2048
	embeddingInputs = 16 // inputs in one embedding step

	// smallModel is the file size below which starting threads for each step costs more
	// than it saves.
	smallModel = 64 << 20
)

// modelSpec is everything that is known about a model without its weights. It is
// immutable.
type modelSpec struct {
	Model
	lib      *library
	path     string
	vocab    *vocab
	template *chatTemplate
	marks    map[token]bool // markTokens
	// embedContext is the longest input of an embedding in tokens.
	embedContext int
	storedPrefix string // of the names of its stored prompts
	ownPooling   bool   // the file specifies the kind of pooling
	needs        uint64 // bytes of the weights and of all slots' contexts
	blocks       uint64 // layers of the model without the output layer
	threads      int32
	free         func() (bytes uint64, known bool) // memory of this machine
}

// inspect reads a model's vocabulary and metadata, but not its weights. If slots or
// contextLength is 0, it chooses what fits into the free memory.
func inspect(lib *library, renderer *chatform.Renderer, file ModelFile, slots, contextLength int, free func() (bytes uint64, known bool)) (s *modelSpec, err error) {
	info, err := os.Stat(file.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the model file: %w", err)
	}
	params := lib.llama_model_default_params()
	params.vocabOnly = true
	handle := lib.llama_model_load_from_file(file.Path, params)
	if handle == 0 {
		return nil, lib.failure("cannot read the model file; is it GGUF and complete?")
	}
	defer func() {
		if err != nil {
			lib.llama_model_free(handle)
		}
	}()
	s = &modelSpec{
		Model: Model{ID: file.ID},
		lib:   lib,
		path:  file.Path,
		free:  free,

		storedPrefix: storedPrefix(file),
		vocab:        newVocab(lib, lib.llama_model_get_vocab(handle)),
	}
	arch := lib.meta(handle, "general.architecture") + "."
	number := func(key string) uint64 {
		n, _ := strconv.ParseUint(lib.meta(handle, arch+key), 10, 64)
		return n
	}
	trained := int(number("context_length"))
	if trained <= 0 {
		return nil, errors.New("cannot use the model file: its context length is missing")
	}
	pooling := lib.meta(handle, arch+"pooling_type")
	s.ownPooling = pooling != "" && pooling != strconv.Itoa(poolingNone)
	s.Chat = !s.ownPooling && lib.llama_model_has_decoder(handle)
	if s.Chat {
		s.template = newChatTemplate(context.Background(), lib, renderer, templateSource(lib, handle, s.vocab))
		s.template.form().End = s.vocab.beforeEnd(s.template.form().End)
		s.marks = markTokens(s.vocab, s.template.form())
		hello := &chatform.Conversation{Messages: []chatform.Message{{Role: "user", Content: "Hello"}}, Answer: true}
		if _, err := s.template.render(context.Background(), hello); err != nil {
			return nil, err // otherwise every request would fail
		}
	}
	if s.Chat {
		form := s.template.form()
		s.Thinking, s.Tools, s.DefaultTools, s.ToolProblem = form.ThinkEnd != "", form.Tools(), form.Default, form.Problem
	}
	s.Embeddings = pooling != strconv.Itoa(poolingRank)
	if s.Embeddings {
		s.Dimensions = int(number("embedding_length"))
	}
	s.threads = int32(cores())
	if info.Size() < smallModel {
		s.threads = 1
	}
	s.needs, s.blocks = uint64(info.Size()), number("block_count")
	of := Footprint{Weights: s.needs, Trained: trained}
	if s.Chat {
		heads := max(number("attention.head_count"), 1)
		of.Layers = s.blocks
		of.KVHeads = cmp.Or(number("attention.head_count_kv"), heads)
		of.KeyLength = cmp.Or(number("attention.key_length"), number("embedding_length")/heads)
	}
	memory, known := s.memory()
	if !known {
		memory = 0
	}
	s.Slots, contextLength = of.dimension(slots, contextLength, memory)
	s.ContextLength, s.embedContext = contexts(contextLength, trained, s.Chat)
	s.needs += of.token() * uint64(s.ContextLength*s.Slots)
	return s, nil
}

// unknownMemory is how much the contexts of a model may need on a machine that does not
// report its free memory.
const unknownMemory = 2 << 30

// memory returns the free memory of this machine and of its graphics cards, if known.
func (s *modelSpec) memory() (bytes uint64, known bool) {
	bytes, known = s.free()
	if !s.lib.integrated {
		bytes += s.lib.freeOnCards()
	}
	return bytes, known
}

// Footprint is what determines how much memory a model needs.
type Footprint struct {
	Weights uint64 // bytes of its files
	Trained int    // tokens of the context that it was trained on
	// The sizes of its attention; 0 if it has no context.
	Layers, KVHeads, KeyLength uint64
}

// Context returns the number of slots that the engine chooses for a model, and the context
// length of each in tokens, if none is configured. memory is the free memory in bytes; 0
// means unknown.
func (f Footprint) Context(memory uint64) (slots, length int) { return f.dimension(0, 0, memory) }

// token returns the bytes of a token in a context.
func (f Footprint) token() uint64 {
	const keyAndValue, halfFloat = 2, 2
	return f.Layers * f.KVHeads * f.KeyLength * keyAndValue * halfFloat
}

// dimension returns the number of slots and the context length for what is configured; 0
// means as much as fits. An agent's first prompt has 10,000 tokens and more, so there are
// fewer slots before the context becomes shorter. A fifth of the memory beside the weights
// remains for other programs.
func (f Footprint) dimension(slots, length int, memory uint64) (int, int) {
	free := memory - min(f.Weights, memory)
	if memory == 0 {
		free = unknownMemory
	}
	fixedSlots, fixedLength := slots > 0, length > 0
	if !fixedSlots {
		slots = defaultSlots
	}
	if !fixedLength {
		length = maxDefaultContext
	}
	length = min(length, f.Trained)
	fits := func() bool { return f.token()*uint64(slots*length) <= free/5*4 }
	for !fixedSlots && slots > 1 && !fits() {
		slots--
	}
	for !fixedLength && length > minDefaultContext && !fits() {
		length = max(length/2, minDefaultContext)
	}
	return slots, length
}

// contexts returns the context length for a model with the given training length, and the
// longest input that it can embed. For a model that does not support chat, both are the
// same.
func contexts(configured, trained int, chats bool) (context, embed int) {
	context = min(configured, trained)
	embed = min(context, embeddingTokens)
	if !chats {
		context = embed
	}
	return context, embed
}

// meta returns a scalar of the model's metadata as text, or "".
func (lib *library) meta(m cModel, key string) string {
	var buf [128]byte
	n := lib.llama_model_meta_val_str(m, key, &buf[0], uintptr(len(buf)))
	if n < 0 {
		return ""
	}
	return string(buf[:min(int(n), len(buf)-1)])
}

// failure returns an error with the last errors logged by llama.cpp.
func (lib *library) failure(message string) error {
	cause := strings.TrimSpace(strings.ReplaceAll(strings.Join(lib.errors.take(), "; "), "\n", ""))
	if cause == "" {
		return errors.New(message)
	}
	return fmt.Errorf("%s (%s)", message, cause)
}

// cores returns the number of threads to use: one for each physical core that this
// process may use. It is read before Worker limits Go to one processor.
var cores = sync.OnceValue(func() int {
	n := runtime.GOMAXPROCS(0)
	if physical, err := cpu.Counts(false); err == nil && physical > 0 {
		n = min(n, physical)
	}
	return n
})

// weights are a model's loaded weights and their contexts. They belong to the runner's
// goroutine.
type weights struct {
	lib        *library
	model      cModel
	chat       cContext // one sequence per slot; 0 for a model that only embeds
	embed      cContext // created at the first embedding
	chatBatch  batch
	embedBatch batch
	restores   bool // a part of a sequence's state can be used
}

// load loads the weights if they fit into memory. It uses the memory of the graphics
// cards first.
func (s *modelSpec) load() (*weights, error) {
	layers, needs := s.placement()
	if free, known := s.free(); known && needs > free {
		return nil, fmt.Errorf("cannot load %s: it needs about %d MiB and %d MiB are free; use fewer slots, a shorter context or a smaller model", s.ID, needs>>20, free>>20)
	}
	params := s.lib.llama_model_default_params()
	params.gpuLayers = layers
	w := &weights{lib: s.lib, model: s.lib.llama_model_load_from_file(s.path, params)}
	if w.model == 0 {
		return nil, s.lib.failure("cannot load " + s.ID)
	}
	if !s.Chat {
		return w, nil
	}
	context := s.contextParams()
	context.nCtx = uint32(s.ContextLength * s.Slots)
	context.nBatch, context.nUbatch = batchTokens, batchTokens
	context.nSeqMax = uint32(s.Slots)
	if w.chat = s.lib.llama_init_from_model(w.model, context); w.chat == 0 {
		w.free()
		return nil, s.lib.failure("cannot make a context for " + s.ID)
	}
	w.restores = !s.lib.llama_model_is_recurrent(w.model) && !s.lib.llama_model_is_hybrid(w.model)
	w.chatBatch = s.lib.llama_batch_init(batchTokens, 0, 1)
	return w, nil
}

// loadEmbed creates the context for embeddings. With pooling an input must fit into one
// batch, so the batch is as long as the longest input.
func (w *weights) loadEmbed(s *modelSpec) error {
	if w.embed != 0 {
		return nil
	}
	params := s.contextParams()
	size := uint32(s.embedContext)
	params.nCtx, params.nBatch, params.nUbatch = size, size, size
	params.nSeqMax = embeddingInputs
	params.kvUnified = true
	params.embeddings = true
	if !s.ownPooling {
		params.pooling = poolingMean
	}
	if w.embed = s.lib.llama_init_from_model(w.model, params); w.embed == 0 {
		return s.lib.failure("cannot make a context for the embeddings of " + s.ID)
	}
	w.embedBatch = s.lib.llama_batch_init(int32(size), 0, 1)
	return nil
}

func (s *modelSpec) contextParams() contextParams {
	params := s.lib.llama_context_default_params()
	params.threads, params.threadsBatch = s.threads, s.threads
	params.noPerf = true
	return params
}

// free frees the weights and contexts.
func (w *weights) free() {
	if w.embed != 0 {
		w.lib.llama_batch_free(w.embedBatch)
		w.lib.llama_free(w.embed)
	}
	if w.chat != 0 {
		w.lib.llama_batch_free(w.chatBatch)
		w.lib.llama_free(w.chat)
	}
	w.lib.llama_model_free(w.model)
}
