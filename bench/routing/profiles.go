package main

import "math"

// profile is the speed of one kind of machine with a model of 8 billion parameters
// in 4-bit weights.
type profile struct {
	name    string
	slots   int
	start   float64 // seconds from the request to the first work on its prompt
	prefill float64 // prompt tokens a second, all calls together
	decode  float64 // tokens a second of one call alone
	// scale is how many times the tokens of one call 2, 4, 8 and 16 calls at once
	// get together; a shorter list ends with the number of slots.
	scale []float64
	// pool is how many tokens the engine keeps, in slots or beside them; 0: each slot
	// keeps what it computed last, and nothing else does.
	pool int
	// silent engines do not report how much of a prompt came from the cache.
	silent bool
}

// profiles are the machines of the simulated fleet. Speeds are published figures of
// llama.cpp at 4,096 tokens if the source has them.
//
//   - H100 PCIe, RTX 4090: github.com/XiongjieDai/GPU-Benchmarks-on-LLM-Inference, Llama 3
//     8B Q4_K_M, pp 4096 and tg 4096.
//   - M4 Max (40 GPU cores): llama.cpp, discussion 4167, 7B Q4_0.
//   - M2 Air (10 GPU cores): prefill from the same discussion; decoding of Llama 3.1 8B
//     from modelpiper.com/blog/local-llm-benchmarks-apple-silicon.
//   - Mini-PC (Radeon 780M, Vulkan): github.com/brand-o/normiebench, issue 10, Llama 3.1
//     8B Q4_K_M.
//   - Old laptop (Core i7-8550U of 2017, CPU only): the same, issue 43.
//
// How decoding scales with calls at once: for the H100, vLLM on an A100
// (johnmusgrave.com/p/vllm-throughput-latency-sweep-on: 6.6 times at 8); for the RTX
// 4090, vLLM on one (github.com/noonghunna/club-3090, issue 697: 3.8 times at 4); for
// Apple's, llama-batched-bench on an M2 Ultra (llama.cpp, pull request 16894: 1.66 and
// 2.61 times). What an engine keeps: vLLM on the H100 40 GB of blocks at 128 KB a token;
// llama-server its slots and 8 GiB of host memory, its default, where there is room.
//
// The start of a call has no published figure. It is what a short prompt takes beside its
// tokens: network, chat template, first batch.
var profiles = []profile{
	{name: "H100", slots: 16, start: 0.05, prefill: 6423, decode: 136, scale: []float64{1.9, 3.6, 6.6, 10}, pool: 300_000},
	{name: "RTX 4090", slots: 4, start: 0.06, prefill: 5266, decode: 119, scale: []float64{1.95, 3.8}, pool: 130_000},
	{name: "M4 Max", slots: 4, start: 0.08, prefill: 886, decode: 83, scale: []float64{1.66, 2.61}, pool: 130_000},
	{name: "M2 Air", slots: 2, start: 0.12, prefill: 180, decode: 18, scale: []float64{1.66}, pool: 32_000},
	{name: "mini-PC", slots: 1, start: 0.15, prefill: 254, decode: 16.3, silent: true},
	{name: "old laptop", slots: 1, start: 0.4, prefill: 14.4, decode: 4.7},
}

// throughput returns the tokens a second that n calls get together.
func (p *profile) throughput(n int) float64 {
	at := math.Log2(float64(n))
	points := append([]float64{1}, p.scale...)
	low := min(int(at), len(points)-1)
	high := min(low+1, len(points)-1)
	return p.decode * (points[low] + (points[high]-points[low])*(at-float64(low)))
}
