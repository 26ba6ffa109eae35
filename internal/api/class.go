package api

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kith/kith/internal/fleet"
)

// memorySizes are the sizes that memories are sold in, in GiB.
var memorySizes = []float64{
	1, 2, 3, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 141, 160, 192, 256, 384, 512, 768,
	1024, 1536, 2048, 3072, 4096,
}

// classOf describes the sizes of a machine's GPUs' memory and of its main memory, and nothing
// else: "2 × 24 GB GPU, 64 GB memory". It is "" if neither is known. This is what an owner
// may show to others.
func classOf(f *fleet.MachineFacts) string {
	var parts []string
	byClass := map[float64]int{}
	for _, g := range f.GPUs {
		if g.Memory > 0 {
			byClass[sizeClass(g.Memory)]++
		}
	}
	for _, of := range slices.Backward(memorySizes) {
		switch n := byClass[of]; {
		case n == 1:
			parts = append(parts, gigabytes(of)+" GPU")
		case n > 1:
			parts = append(parts, strconv.Itoa(n)+" × "+gigabytes(of)+" GPU")
		}
	}
	if f.Memory > 0 {
		parts = append(parts, gigabytes(sizeClass(f.Memory))+" memory")
	}
	return strings.Join(parts, ", ")
}

// sizeClass returns the size in GiB that is nearest to a memory: a system reports less than
// what is installed.
func sizeClass(bytes int64) float64 {
	distance := func(of float64) float64 { return math.Abs(math.Log(of * (1 << 30) / float64(bytes))) }
	return slices.MinFunc(memorySizes, func(a, b float64) int { return cmp.Compare(distance(a), distance(b)) })
}

func gigabytes(n float64) string { return strconv.FormatFloat(n, 'f', -1, 64) + " GB" }
