package e2e_test

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kith/kith/internal/enginetest"
)

// llamaServer is the llama-server on every script's PATH: a double that starts
// as the real one does.
func llamaServer() {
	for _, name := range []string{"m", "np", "c", "b", "ub", "pooling"} {
		flag.String(name, "", "")
	}
	for _, name := range []string{"version", "list-devices", "metrics", "offline", "embeddings"} {
		flag.Bool(name, false, "")
	}
	alias, host := flag.String("alias", "", ""), flag.String("host", "", "")
	flag.Parse()
	if flag.Lookup("version").Value.String() == "true" {
		return
	}
	if flag.Lookup("list-devices").Value.String() == "true" {
		fmt.Print("Available devices:\n  ROCm0: AMD Radeon RX 7800 XT (16368 MiB, 16342 MiB free)\n")
		return
	}
	l, err := net.Listen("unix", *host)
	if err != nil {
		os.Exit(1)
	}
	e := enginetest.New(enginetest.LlamaCpp, enginetest.Options{Models: []enginetest.Model{{ID: *alias, Tools: true}}})
	_ = (&http.Server{Handler: e, ReadHeaderTimeout: 10 * time.Second}).Serve(l)
}

// gguf FILE BLOCKS writes the header of a chat model with that many layers: each
// takes 2 MiB for a slot of 1024 tokens.
func gguf(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, len(args) == 2, "gguf FILE BLOCKS")
	blocks := uint32(0)
	for _, digit := range args[1] {
		blocks = 10*blocks + uint32(digit-'0')
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), ggufOf(blocks), 0o600))
}

// ggufOf returns a model file without tensors.
func ggufOf(blocks uint32) []byte {
	var b bytes.Buffer
	put := func(values ...any) {
		for _, v := range values {
			if text, ok := v.(string); ok {
				_ = binary.Write(&b, binary.LittleEndian, uint64(len(text)))
				b.WriteString(text)
				continue
			}
			_ = binary.Write(&b, binary.LittleEndian, v)
		}
	}
	const number, text = uint32(4), uint32(8)
	b.WriteString("GGUF")
	put(uint32(3), uint64(0), uint64(6))
	put("general.architecture", text, "llama", "llama.context_length", number, uint32(1024), "llama.block_count", number, blocks)
	put("llama.embedding_length", number, uint32(512), "llama.attention.head_count", number, uint32(1))
	put("tokenizer.chat_template", text, "{{ messages }}")
	return b.Bytes()
}
