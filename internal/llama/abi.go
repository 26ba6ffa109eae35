package llama

//lint:file-ignore U1000 the structs are llama.cpp's layouts: every member is there for its place

import (
	"fmt"
	"path/filepath"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// This file mirrors llama.h of llama.cpp release v0.5.0 on 64-bit machines. The
// layouts change every few weeks. When the pinned version is raised, compare the
// structs with the new header; checkLayout and TestLayout check sizes and offsets.

// Opaque C pointers. Zero is NULL.
type (
	cModel   uintptr
	cVocab   uintptr
	cContext uintptr
	cMemory  uintptr
	cSampler uintptr
)

// token is an entry of a model's vocabulary.
type token = int32

const (
	poolingUnspecified = -1
	poolingNone        = 0
	poolingMean        = 1
	poolingRank        = 4

	logLevelError = 4
)

// modelParams is struct llama_model_params, 80 bytes.
type modelParams struct {
	devices, bufts                            uintptr
	gpuLayers, splitMode                      int32
	loadMode, lazyMode, mainGPU, _            int32
	split, progress, progressData, kvOverride uintptr
	vocabOnly, checkTensors, extraBufts       bool
	noHost, noAlloc, loadMTP                  bool
	_                                         [2]uint8
}

// contextParams is struct llama_context_params, 160 bytes.
type contextParams struct {
	nCtx, nBatch, nUbatch, nSeqMax                  uint32
	rsSeq, outputsMax, outputsMaxPerSeq             uint32
	threads, threadsBatch                           int32
	ctxType, ropeScaling, pooling, attention, flash int32
	ropeBase, ropeScale                             float32
	yarnExt, yarnAttn, yarnFast, yarnSlow           float32
	yarnOrig                                        uint32
	defrag                                          float32
	evalCallback, evalData                          uintptr
	typeK, typeV                                    int32
	abortCallback, abortData                        uintptr
	embeddings, offloadKQV, noPerf, opOffload       bool
	swaFull, kvUnified                              bool
	_                                               [2]uint8
	samplers, nSamplers, other                      uintptr
}

// batch is struct llama_batch; llama_batch_init owns the arrays.
type batch struct {
	nTokens int32
	_       int32
	token   *int32
	embd    *float32
	pos     *int32
	nSeqID  *int32
	seqID   **int32
	logits  *int8
}

// chatMessage is struct llama_chat_message; both are NUL-terminated.
type chatMessage struct{ role, content *byte }

// library holds the C functions, named as in llama.h.
type library struct {
	llama_backend_init              func()
	ggml_backend_load_all_from_path func(dir string)
	llama_log_set                   func(callback, data uintptr)
	llama_version                   func() string
	llama_print_system_info         func() string

	llama_model_default_params   func() modelParams
	llama_context_default_params func() contextParams
	llama_model_load_from_file   func(path string, params modelParams) cModel
	llama_model_free             func(cModel)
	llama_init_from_model        func(cModel, contextParams) cContext
	llama_free                   func(cContext)

	llama_model_get_vocab     func(cModel) cVocab
	llama_model_meta_val_str  func(m cModel, key string, buf *byte, size uintptr) int32
	llama_model_chat_template func(m cModel, name uintptr) string
	llama_model_n_embd_out    func(cModel) int32
	llama_model_has_decoder   func(cModel) bool
	llama_pooling_type        func(cContext) int32

	llama_vocab_n_tokens    func(cVocab) int32
	llama_vocab_bos         func(cVocab) token
	llama_vocab_eos         func(cVocab) token
	llama_vocab_get_add_bos func(cVocab) bool
	llama_vocab_is_eog      func(cVocab, token) bool
	llama_tokenize          func(v cVocab, text *byte, textLen int32, tokens *token, max int32, addSpecial, parseSpecial bool) int32
	llama_token_to_piece    func(v cVocab, t token, buf *byte, length, lstrip int32, special bool) int32

	llama_chat_apply_template func(tmpl string, chat *chatMessage, n uintptr, addAssistant bool, buf *byte, length int32) int32

	llama_get_memory         func(cContext) cMemory
	llama_memory_seq_rm      func(m cMemory, seq, p0, p1 int32) bool
	llama_batch_init         func(nTokens, embd, nSeqMax int32) batch
	llama_batch_free         func(batch)
	llama_decode             func(cContext, batch) int32
	llama_get_embeddings_seq func(cContext, int32) *float32
	llama_get_logits_ith     func(cContext, int32) *float32

	llama_sampler_chain_init     func(noPerf bool) cSampler // struct of one bool
	llama_sampler_chain_add      func(chain, s cSampler)
	llama_sampler_init_greedy    func() cSampler
	llama_sampler_init_dist      func(seed uint32) cSampler
	llama_sampler_init_top_k     func(k int32) cSampler
	llama_sampler_init_top_p     func(p float32, minKeep uintptr) cSampler
	llama_sampler_init_min_p     func(p float32, minKeep uintptr) cSampler
	llama_sampler_init_temp      func(t float32) cSampler
	llama_sampler_init_penalties func(nVocab, lastN int32, repeat, freq, present float32) cSampler
	llama_sampler_init_grammar   func(v cVocab, grammar, root string) cSampler
	llama_sampler_sample         func(s cSampler, c cContext, index int32) token
	llama_sampler_free           func(cSampler)

	errors errorLog
}

// open loads the three libraries in dir, binds the functions and refuses a
// llama.cpp whose structs have another layout.
func open(dir string) (*library, error) {
	lib := new(library)
	var handles [len(libraryNames)]uintptr
	for i, name := range libraryNames {
		h, err := dlopen(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("cannot load the inference library %s: %w", name, err)
		}
		handles[i] = h
	}
	if err := lib.bind(handles[1], handles[2]); err != nil {
		return nil, err
	}
	lib.llama_log_set(purego.NewCallback(lib.errors.record), 0)
	if err := lib.checkLayout(); err != nil {
		return nil, err
	}
	lib.llama_backend_init()
	lib.ggml_backend_load_all_from_path(dir)
	return lib, nil
}

// bind binds the functions. It recovers from the panic of a missing symbol.
func (lib *library) bind(ggml, llama uintptr) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cannot use the inference library: %v; it is not llama.cpp %s", p, libraryVersion)
		}
	}()
	purego.RegisterLibFunc(&lib.ggml_backend_load_all_from_path, ggml, "ggml_backend_load_all_from_path")
	for name, fn := range map[string]any{
		"llama_backend_init":           &lib.llama_backend_init,
		"llama_log_set":                &lib.llama_log_set,
		"llama_version":                &lib.llama_version,
		"llama_print_system_info":      &lib.llama_print_system_info,
		"llama_model_default_params":   &lib.llama_model_default_params,
		"llama_context_default_params": &lib.llama_context_default_params,
		"llama_model_load_from_file":   &lib.llama_model_load_from_file,
		"llama_model_free":             &lib.llama_model_free,
		"llama_init_from_model":        &lib.llama_init_from_model,
		"llama_free":                   &lib.llama_free,
		"llama_model_get_vocab":        &lib.llama_model_get_vocab,
		"llama_model_meta_val_str":     &lib.llama_model_meta_val_str,
		"llama_model_chat_template":    &lib.llama_model_chat_template,
		"llama_model_n_embd_out":       &lib.llama_model_n_embd_out,
		"llama_model_has_decoder":      &lib.llama_model_has_decoder,
		"llama_pooling_type":           &lib.llama_pooling_type,
		"llama_vocab_n_tokens":         &lib.llama_vocab_n_tokens,
		"llama_vocab_bos":              &lib.llama_vocab_bos,
		"llama_vocab_eos":              &lib.llama_vocab_eos,
		"llama_vocab_get_add_bos":      &lib.llama_vocab_get_add_bos,
		"llama_vocab_is_eog":           &lib.llama_vocab_is_eog,
		"llama_tokenize":               &lib.llama_tokenize,
		"llama_token_to_piece":         &lib.llama_token_to_piece,
		"llama_chat_apply_template":    &lib.llama_chat_apply_template,
		"llama_get_memory":             &lib.llama_get_memory,
		"llama_memory_seq_rm":          &lib.llama_memory_seq_rm,
		"llama_batch_init":             &lib.llama_batch_init,
		"llama_batch_free":             &lib.llama_batch_free,
		"llama_decode":                 &lib.llama_decode,
		"llama_get_embeddings_seq":     &lib.llama_get_embeddings_seq,
		"llama_get_logits_ith":         &lib.llama_get_logits_ith,
		"llama_sampler_chain_init":     &lib.llama_sampler_chain_init,
		"llama_sampler_chain_add":      &lib.llama_sampler_chain_add,
		"llama_sampler_init_greedy":    &lib.llama_sampler_init_greedy,
		"llama_sampler_init_dist":      &lib.llama_sampler_init_dist,
		"llama_sampler_init_top_k":     &lib.llama_sampler_init_top_k,
		"llama_sampler_init_top_p":     &lib.llama_sampler_init_top_p,
		"llama_sampler_init_min_p":     &lib.llama_sampler_init_min_p,
		"llama_sampler_init_temp":      &lib.llama_sampler_init_temp,
		"llama_sampler_init_penalties": &lib.llama_sampler_init_penalties,
		"llama_sampler_init_grammar":   &lib.llama_sampler_init_grammar,
		"llama_sampler_sample":         &lib.llama_sampler_sample,
		"llama_sampler_free":           &lib.llama_sampler_free,
	} {
		purego.RegisterLibFunc(fn, llama, name)
	}
	return nil
}

// checkLayout compares the library's defaults with known ones: another layout of
// the structs would make each later call undefined.
func (lib *library) checkLayout() error {
	if unsafe.Sizeof(modelParams{}) != 80 || unsafe.Sizeof(contextParams{}) != 160 || unsafe.Sizeof(batch{}) != 56 {
		return fmt.Errorf("cannot use the inference library: this build is not for a 64-bit machine")
	}
	c, m := lib.llama_context_default_params(), lib.llama_model_default_params()
	if c.nCtx != 512 || c.nBatch != 2048 || c.nUbatch != 512 || c.pooling != poolingUnspecified || c.embeddings || !c.offloadKQV || m.vocabOnly {
		return fmt.Errorf("cannot use the inference library: its structs are not those of llama.cpp %s (it says it is %s); fetch the pinned one", libraryVersion, lib.llama_version())
	}
	return nil
}

// errorLog keeps the last errors that llama.cpp logged, as causes of a failure. It
// drops other log lines.
type errorLog struct {
	mu   sync.Mutex
	last []string
}

const maxErrors = 4

// record is the log callback: void (level, text, user data).
func (c *errorLog) record(level int32, text *byte, _ uintptr) {
	if level != logLevelError || text == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = append(c.last, cString(text))
	if n := len(c.last); n > maxErrors {
		c.last = c.last[n-maxErrors:]
	}
}

// take returns the errors, oldest first, and clears the log.
func (c *errorLog) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.last
	c.last = nil
	return last
}

// cString copies a NUL-terminated C string, at most 1 KiB of it.
func cString(p *byte) string {
	n := 0
	for n < 1024 && *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}
