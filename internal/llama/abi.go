package llama

//lint:file-ignore U1000 the structs are llama.cpp's layouts: every member is there for its place

import (
	"fmt"
	"sync"
	"unsafe"
)

// This file mirrors llama.h of llama.cpp release v0.5.0 on 64-bit machines. The layouts
// change every few weeks. When updating the pinned version, compare the structs with the
// new header; checkLayout and TestLayout check sizes and offsets.

// Opaque C pointers. Zero is NULL.
type (
	cModel   uintptr
	cVocab   uintptr
	cContext uintptr
	cMemory  uintptr
	cSampler uintptr
	cDevice  uintptr
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

// logitBias is struct llama_logit_bias.
type logitBias struct {
	token token
	bias  float32
}

// tokenData is struct llama_token_data.
type tokenData struct {
	id       token
	logit, p float32
}

// tokenDataArray is struct llama_token_data_array. selected is an index in data.
type tokenDataArray struct {
	data     *tokenData
	size     uintptr
	selected int64
	sorted   bool
}

// chatMessage is struct llama_chat_message; both are NUL-terminated.
type chatMessage struct{ role, content *byte }

// library holds the C functions, with the names in llama.h and ggml-backend.h.
type library struct {
	llama_backend_init              func()
	ggml_backend_load_all_from_path func(dir string)
	ggml_backend_load               func(path string) uintptr
	ggml_backend_dev_count          func() uintptr
	ggml_backend_dev_get            func(i uintptr) cDevice
	ggml_backend_dev_type           func(cDevice) int32
	ggml_backend_dev_description    func(cDevice) string
	ggml_backend_dev_memory         func(d cDevice, free, total *uintptr)
	llama_log_set                   func(callback, data uintptr)
	llama_version                   func() string

	llama_model_default_params   func() modelParams
	llama_context_default_params func() contextParams
	llama_model_load_from_file   func(path string, params modelParams) cModel
	llama_model_free             func(cModel)
	llama_init_from_model        func(cModel, contextParams) cContext
	llama_free                   func(cContext)

	llama_model_get_vocab     func(cModel) cVocab
	llama_model_meta_val_str  func(m cModel, key string, buf *byte, size uintptr) int32
	llama_model_chat_template func(m cModel, name *byte) string
	llama_model_has_decoder   func(cModel) bool
	llama_model_is_recurrent  func(cModel) bool
	llama_model_is_hybrid     func(cModel) bool

	llama_vocab_n_tokens    func(cVocab) int32
	llama_vocab_bos         func(cVocab) token
	llama_vocab_eos         func(cVocab) token
	llama_vocab_get_add_bos func(cVocab) bool
	llama_vocab_is_eog      func(cVocab, token) bool
	llama_vocab_is_control  func(cVocab, token) bool
	llama_tokenize          func(v cVocab, text *byte, textLen int32, tokens *token, max int32, addSpecial, parseSpecial bool) int32
	llama_token_to_piece    func(v cVocab, t token, buf *byte, length, lstrip int32, special bool) int32

	llama_chat_apply_template func(tmpl string, chat *chatMessage, n uintptr, addAssistant bool, buf *byte, length int32) int32

	llama_get_memory         func(cContext) cMemory
	llama_memory_seq_rm      func(m cMemory, seq, p0, p1 int32) bool
	llama_memory_seq_cp      func(m cMemory, from, to, p0, p1 int32)
	llama_state_seq_get_size func(c cContext, seq int32) uintptr
	llama_state_seq_get_data func(c cContext, dst *byte, size uintptr, seq int32) uintptr
	llama_state_seq_set_data func(c cContext, src *byte, size uintptr, seq int32) uintptr
	llama_batch_init         func(nTokens, embd, nSeqMax int32) batch
	llama_batch_free         func(batch)
	llama_decode             func(cContext, batch) int32
	llama_get_embeddings_seq func(cContext, int32) *float32
	llama_get_logits_ith     func(cContext, int32) *float32

	llama_sampler_chain_init      func(noPerf bool) cSampler // struct of one bool
	llama_sampler_chain_add       func(chain, s cSampler)
	llama_sampler_init_greedy     func() cSampler
	llama_sampler_init_dist       func(seed uint32) cSampler
	llama_sampler_init_top_k      func(k int32) cSampler
	llama_sampler_init_top_p      func(p float32, minKeep uintptr) cSampler
	llama_sampler_init_min_p      func(p float32, minKeep uintptr) cSampler
	llama_sampler_init_temp       func(t float32) cSampler
	llama_sampler_init_penalties  func(nVocab, lastN int32, repeat, freq, present float32) cSampler
	llama_sampler_init_logit_bias func(nVocab, n int32, biases *logitBias) cSampler
	llama_sampler_init_grammar    func(v cVocab, grammar, root string) cSampler
	llama_sampler_sample          func(s cSampler, c cContext, index int32) token
	llama_sampler_apply           func(cSampler, *tokenDataArray)
	llama_sampler_accept          func(cSampler, token)
	llama_sampler_free            func(cSampler)

	errors errorLog

	// The graphics cards, set by loadGPU.
	graphics   Graphics
	cards      []cDevice
	integrated bool // they use the main memory
}

// checkLayout compares the library's defaults with known ones: with a different layout of
// the structs, all later calls would be undefined.
func (lib *library) checkLayout() error {
	if unsafe.Sizeof(modelParams{}) != 80 || unsafe.Sizeof(contextParams{}) != 160 || unsafe.Sizeof(batch{}) != 56 {
		return fmt.Errorf("cannot use the inference library: this build is not for a 64-bit machine")
	}
	c, m := lib.llama_context_default_params(), lib.llama_model_default_params()
	if c.nCtx != 512 || c.nBatch != 2048 || c.nUbatch != 512 || c.pooling != poolingUnspecified || c.embeddings || !c.offloadKQV || m.vocabOnly {
		return fmt.Errorf("cannot use the inference library: its structs are not those of llama.cpp %s (it reports %s); fetch the pinned one", libraryVersion, lib.llama_version())
	}
	return nil
}

// errorLog keeps the last errors that llama.cpp logged, to report them as the cause of a
// failure. It drops all other log lines.
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
