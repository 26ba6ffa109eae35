package main

import (
	"bytes"
	"strings"
	"time"

	"github.com/kith/kith/internal/enginetest"
)

// pacedMark in a request asks the engine for real time: a chunk every 10 ms.
const pacedMark = "at your own pace"

// engine is the double that every rig ends in: 50 chunks a stream, 1 KB an
// unary answer. It is one that keeps its connections: llama.cpp's server closes them after
// each stream, on which plain proxies fail.
func engine(listen string) {
	double := enginetest.New(enginetest.VLLM, enginetest.Options{
		Models: []enginetest.Model{{ID: model, ContextLength: 32768}}, Slots: 512,
	})
	kilobyte := strings.TrimSpace(strings.Repeat("The ship went out on the tide. ", 26))
	double.Script(func(call enginetest.Call) enginetest.Behaviour {
		switch {
		case !call.Stream:
			return enginetest.Behaviour{Text: kilobyte}
		case strings.Contains(call.Input, pacedMark):
			return enginetest.Behaviour{Text: kilobyte, Chunks: 50, Interval: 10 * time.Millisecond}
		default:
			return enginetest.Behaviour{Text: kilobyte, Chunks: 50}
		}
	})
	check(double.Listen(listen))
	select {} // until the bench ends it
}

// paced is the payload of a stream whose chunks come as real tokens do.
func paced() []byte {
	return bytes.Replace(body(true), []byte("Tell me"), []byte("Tell me "+pacedMark), 1)
}
