package llamaserver

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// The limits for a header, because the file is untrusted.
const (
	maxHeaderBytes = 256 << 20
	maxHeaderKeys  = 1 << 16
	maxText        = 4 << 20 // bytes of a string
	maxArray       = 1 << 24
	maxDimensions  = 4
	maxDimension   = 1 << 24
	maxValues      = 1 << 38 // in a tensor
	maxOffset      = 1 << 50
)

// The types of a GGUF value.
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

// widths are the sizes of the fixed-size types, in bytes.
var widths = map[uint32]int{
	ggufUint8: 1, ggufInt8: 1, ggufUint16: 2, ggufInt16: 2, ggufUint32: 4, ggufInt32: 4,
	ggufFloat32: 4, ggufBool: 1, ggufUint64: 8, ggufInt64: 8, ggufFloat64: 8,
}

// tensorTypes are the sizes of the tensor types: the values in a block and its bytes. The
// keys are the numbers in llama.cpp's ggml.h.
var tensorTypes = map[uint64]struct{ values, bytes uint64 }{
	0: {1, 4}, 1: {1, 2}, 2: {32, 18}, 3: {32, 20}, 6: {32, 22}, 7: {32, 24}, 8: {32, 34}, 9: {32, 36},
	10: {256, 84}, 11: {256, 110}, 12: {256, 144}, 13: {256, 176}, 14: {256, 210}, 15: {256, 292},
	16: {256, 66}, 17: {256, 74}, 18: {256, 98}, 19: {256, 50}, 20: {32, 18}, 21: {256, 110}, 22: {256, 82}, 23: {256, 136},
	24: {1, 1}, 25: {1, 2}, 26: {1, 4}, 27: {1, 8}, 28: {1, 8}, 29: {256, 56}, 30: {1, 2}, 34: {256, 54}, 35: {256, 66}, 39: {32, 17},
}

// header holds the values of a GGUF header by key: integers (for a list, the largest one)
// and strings.
type header struct {
	numbers map[string]uint64
	texts   map[string]string
	bytes   uint64 // minimum size of the file
	values  uint64 // in all tensors
}

// readHeader reads the header of the file at path, and checks that the file is complete.
func readHeader(path string) (*header, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h, err := parseHeader(io.LimitReader(f, maxHeaderBytes))
	if err != nil {
		return nil, fmt.Errorf("it is not GGUF, or not complete: %w", err)
	}
	info, err := f.Stat()
	if err == nil && uint64(info.Size()) < h.bytes {
		err = fmt.Errorf("it is not complete: it has %d of %d bytes; fetch it again", info.Size(), h.bytes)
	}
	return h, err
}

func parseHeader(src io.Reader) (*header, error) {
	r := &ggufReader{src: bufio.NewReaderSize(src, 64<<10)}
	if magic := r.bytes(4); string(magic) != "GGUF" {
		return nil, errors.New("it does not begin with GGUF")
	}
	if version := r.uint(4); version < 2 || version > 3 {
		return nil, fmt.Errorf("version %d of the format is not known here", version)
	}
	tensors, keys := r.uint(8), r.uint(8)
	if max(tensors, keys) > maxHeaderKeys {
		return nil, errors.New("it has too many keys or tensors")
	}
	h := &header{numbers: map[string]uint64{}, texts: map[string]string{}}
	for range keys {
		key := r.text()
		r.value(h, key, uint32(r.uint(4)), true)
		if r.err != nil {
			return nil, r.err
		}
	}
	end := uint64(0) // end of the last tensor, relative to the data
	for range tensors {
		values, last := r.tensor()
		h.values, end = h.values+values, max(end, last)
		if r.err != nil {
			return nil, r.err
		}
	}
	if alignment := cmp.Or(h.numbers["general.alignment"], 32); end > 0 {
		h.bytes = (r.read+alignment-1)/alignment*alignment + end
	}
	return h, nil
}

// tensor reads the description of a tensor. It returns the number of its values, and its
// end relative to the data; for unknown types, its beginning.
func (r *ggufReader) tensor() (values, end uint64) {
	r.text()
	dimensions := r.uint(4)
	if values = 1; dimensions > maxDimensions {
		r.fail("a tensor has too many dimensions")
		return 0, 0
	}
	for range dimensions {
		values = min(values*min(r.uint(8), maxDimension), maxValues)
	}
	kind, offset := tensorTypes[r.uint(4)], min(r.uint(8), maxOffset)
	if kind.values > 0 {
		offset += values / kind.values * kind.bytes
	}
	return values, offset
}

// ggufReader reads values and keeps the first error.
type ggufReader struct {
	src  *bufio.Reader
	read uint64 // bytes
	err  error
	buf  [8]byte
}

func (r *ggufReader) bytes(n int) []byte {
	b := r.buf[:min(n, len(r.buf))]
	if r.err == nil {
		_, r.err = io.ReadFull(r.src, b)
		r.read += uint64(len(b))
	}
	if r.err != nil {
		clear(b)
	}
	return b
}

// uint reads a little-endian number of width bytes.
func (r *ggufReader) uint(width int) uint64 {
	clear(r.buf[:])
	r.bytes(width)
	return binary.LittleEndian.Uint64(r.buf[:])
}

func (r *ggufReader) text() string {
	n := r.uint(8)
	if n > maxText {
		r.fail("a text is too long")
	}
	if r.err != nil {
		return ""
	}
	text := make([]byte, n)
	_, r.err = io.ReadFull(r.src, text)
	r.read += n
	return string(text)
}

func (r *ggufReader) skip(n uint64) {
	if r.err == nil {
		_, r.err = io.CopyN(io.Discard, r.src, int64(n))
		r.read += n
	}
}

func (r *ggufReader) fail(why string) {
	if r.err == nil {
		r.err = errors.New(why)
	}
}

// value reads the value for key into h. For a list it keeps the largest number.
func (r *ggufReader) value(h *header, key string, kind uint32, lists bool) {
	switch width, fixed := widths[kind]; {
	case kind == ggufFloat32 || kind == ggufFloat64:
		r.skip(uint64(width))
	case fixed:
		n := r.uint(width)
		if signed := kind == ggufInt8 || kind == ggufInt16 || kind == ggufInt32 || kind == ggufInt64; signed && n>>(8*width-1) != 0 {
			return // no key that inspect uses can be negative
		}
		h.numbers[key] = max(h.numbers[key], n)
	case kind == ggufString:
		h.texts[key] = r.text()
	case kind == ggufArray && lists:
		inner, n := uint32(r.uint(4)), r.uint(8)
		if n > maxArray {
			r.fail("a list is too long")
			return
		}
		width, fixed := widths[inner]
		switch {
		case fixed && n > 4096: // one value per token of the vocabulary
			r.skip(n * uint64(width))
		case inner == ggufString:
			for ; n > 0 && r.err == nil; n-- {
				size := r.uint(8)
				if size > maxText {
					r.fail("a text is too long")
				}
				r.skip(size)
			}
		default:
			for ; n > 0 && r.err == nil; n-- {
				r.value(h, key, inner, false)
			}
		}
	default:
		r.fail("a value is of a type that is not known here")
	}
}

// modelInfo is the information about a model in its file's header.
type modelInfo struct {
	context int    // length that it was trained on, in tokens
	size    uint64 // bytes of all its files
	perSlot uint64 // bytes per token in a slot's context
	embeds  bool   // for embeddings rather than chat
	pooled  bool   // the header specifies the kind of pooling
	tools   bool   // its chat template supports tools
	facts   Facts
}

// Facts describe a model as its files do. Zero values are unknown.
type Facts struct {
	Architecture string
	Parameters   int64  // number of weights
	Quantization string // of most of its weights
	Size         int64  // of its files, in bytes
}

// FactsOf returns the facts of the model whose first file is at path.
func FactsOf(path string) (Facts, error) {
	f, err := inspect(path)
	if err != nil {
		return Facts{}, err
	}
	return f.facts, nil
}

// fileTypes are the names of the quantizations by the number in general.file_type, from
// enum llama_ftype in llama.cpp's llama.h.
var fileTypes = map[uint64]string{
	0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L",
	14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS",
	24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0",
	38: "MXFP4",
}

// ContextOf returns what the context of the model file at path depends on: the length in
// tokens that the model was trained on, the bytes of its weights, and those of a token.
func ContextOf(path string) (trained int, weights, each uint64, err error) {
	f, err := inspect(path)
	if err != nil {
		return 0, 0, 0, err
	}
	return f.context, f.size, f.perSlot, nil
}

// inspect reads the header of the model file at path.
func inspect(path string) (*modelInfo, error) {
	h, err := readHeader(path)
	if err != nil {
		return nil, err
	}
	arch := h.texts["general.architecture"] + "."
	number := func(key string) uint64 { return h.numbers[arch+key] }
	f := &modelInfo{context: int(min(number("context_length"), math.MaxInt32))}
	if f.context == 0 {
		return nil, errors.New("its context length is missing")
	}
	heads := max(number("attention.head_count"), 1)
	kvHeads := cmp.Or(number("attention.head_count_kv"), heads)
	keys := cmp.Or(number("attention.key_length"), number("embedding_length")/heads)
	values := cmp.Or(number("attention.value_length"), keys)
	const halfFloat, sane = 2, 1 << 32
	f.perSlot = min(number("block_count"), 4096) * min(kvHeads, 4096) * (min(keys, 1<<16) + min(values, 1<<16)) * halfFloat
	if f.perSlot >= sane {
		return nil, errors.New("its number of layers is invalid")
	}
	_, f.pooled = h.numbers[arch+"pooling_type"]
	template, chats := h.texts["tokenizer.chat_template"]
	f.embeds = f.pooled && h.numbers[arch+"pooling_type"] != 0 || !chats && strings.Contains(arch, "bert")
	f.tools = strings.Contains(template, "tools")
	size, values, err := sizeOf(path, h.numbers["split.count"])
	f.size = size
	f.facts = Facts{Architecture: h.texts["general.architecture"], Parameters: int64(h.values + values), Size: int64(f.size)}
	if kind, ok := h.numbers["general.file_type"]; ok {
		f.facts.Quantization = fileTypes[kind]
	}
	return f, err
}

// sizeOf returns the size of all parts of a model in bytes, and the number of values in
// the parts after the first; parts is 0 for a model in a single file.
func sizeOf(path string, parts uint64) (total, values uint64, err error) {
	if parts > 999 {
		return 0, 0, errors.New("it is in too many parts")
	}
	paths := []string{path}
	if head, ok := strings.CutSuffix(path, fmt.Sprintf("-00001-of-%05d.gguf", parts)); ok && parts > 1 {
		for i := uint64(2); i <= parts; i++ {
			paths = append(paths, fmt.Sprintf("%s-%05d-of-%05d.gguf", head, i, parts))
		}
	}
	for i, part := range paths {
		info, err := os.Stat(part)
		if err != nil {
			return 0, 0, fmt.Errorf("its part %s is missing: %w", filepath.Base(part), err)
		}
		if i > 0 {
			h, err := readHeader(part)
			if err != nil {
				return 0, 0, fmt.Errorf("its part %s: %w", filepath.Base(part), err)
			}
			values += h.values
		}
		total += uint64(info.Size())
	}
	return total, values, nil
}

// needs returns how many bytes the loaded model needs for weights, contexts and compute
// buffers.
func (f *modelInfo) needs(slots, context int) uint64 {
	const beside = 128 << 20
	return f.size + f.size/20 + f.perSlot*uint64(slots*context) + beside
}
