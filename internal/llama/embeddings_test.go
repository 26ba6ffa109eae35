package llama

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json/v2"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/kith/kith/internal/assert"
)

// embed requests embeddings and returns them with the number of tokens.
func (e *engine) embed(q object) ([][]float64, int) {
	e.t.Helper()
	q["model"] = "tiny"
	status, b := e.post("/v1/embeddings", q)
	assert.Require(e.t, status == http.StatusOK, "status", status, b)
	var got struct {
		Object string `json:"object"`
		Data   []struct {
			Object    string `json:"object"`
			Index     int    `json:"index"`
			Embedding any    `json:"embedding"`
		} `json:"data"`
		Usage struct {
			Prompt int `json:"prompt_tokens"`
			Total  int `json:"total_tokens"`
		} `json:"usage"`
	}
	assert.OK(e.t, json.Unmarshal(b, &got))
	var vectors [][]float64
	for i, d := range got.Data {
		if d.Index != i || d.Object != "embedding" || got.Object != "list" || got.Usage.Prompt != got.Usage.Total {
			e.t.Errorf("item %d is %+v, usage %+v", i, d, got.Usage)
		}
		var v []float64
		switch x := d.Embedding.(type) {
		case []any:
			for _, f := range x {
				v = append(v, f.(float64))
			}
		case string:
			raw := assert.Value(base64.StdEncoding.DecodeString(x))(e.t)
			for ; len(raw) >= 4; raw = raw[4:] {
				v = append(v, float64(math.Float32frombits(binary.LittleEndian.Uint32(raw))))
			}
		}
		vectors = append(vectors, v)
	}
	return vectors, got.Usage.Total
}

func cosine(a, b []float64) float64 {
	var ab, aa, bb float64
	for i := range a {
		ab, aa, bb = ab+a[i]*b[i], aa+a[i]*a[i], bb+b[i]*b[i]
	}
	return ab / math.Sqrt(aa*bb)
}

func TestEmbeddings(t *testing.T) {
	e := startEngine(t, Config{})
	texts := []string{"What is the capital of France?", "What is the capital of Spain?", "Once there was a fox who lived in a wood and had a friend."}
	v, total := e.embed(object{"input": texts})
	if len(v) != 3 || len(v[0]) != 128 || total == 0 {
		t.Fatalf("%d vectors of %d, %d tokens", len(v), len(v[0]), total)
	}
	near, far := cosine(v[0], v[1]), cosine(v[0], v[2])
	t.Logf("near %.3f, far %.3f", near, far)
	if near < 0.9 || far > near-0.2 {
		t.Errorf("France and Spain are %.3f alike, France and a fox %.3f", near, far)
	}
	if n := cosine(v[0], v[0]); math.Abs(n-1) > 1e-6 || math.Abs(dot(v[0])-1) > 1e-5 {
		t.Errorf("a vector's length is not 1: %v", dot(v[0]))
	}
	one, _ := e.embed(object{"input": texts[0]})
	coded, _ := e.embed(object{"input": texts[0], "encoding_format": "base64"})
	if c := cosine(one[0], v[0]); c < 0.99999 {
		t.Errorf("alone and in a list: %v", c)
	}
	if c := cosine(one[0], coded[0]); c < 0.9999999 {
		t.Errorf("as floats and as base64: %v", c)
	}
	short, _ := e.embed(object{"input": texts[0], "dimensions": 32})
	if len(short[0]) != 32 || math.Abs(dot(short[0])-1) > 1e-5 || cosine(short[0], one[0][:32]) < 0.99999 {
		t.Errorf("cut to %d dimensions of length %v", len(short[0]), dot(short[0]))
	}
	status, b := e.post("/tokenize", object{"model": "tiny", "content": texts[0]})
	var tokens struct {
		Tokens []int `json:"tokens"`
	}
	if err := json.Unmarshal(b, &tokens); err != nil || status != http.StatusOK {
		t.Fatal(err)
	}
	byToken, _ := e.embed(object{"input": tokens.Tokens})
	byTokens, _ := e.embed(object{"input": [][]int{tokens.Tokens, tokens.Tokens}})
	if cosine(byToken[0], one[0]) < 0.99999 || len(byTokens) != 2 || cosine(byTokens[1], one[0]) < 0.99999 {
		t.Error("tokens give another embedding than their text")
	}
	many := make([]string, 100)
	for i := range many {
		many[i] = texts[i%3] + strings.Repeat(" and", i)
	}
	if all, _ := e.embed(object{"input": many}); len(all) != 100 || cosine(all[0], one[0]) < 0.99999 {
		t.Errorf("%d of 100", len(all))
	}
}

func dot(v []float64) (sum float64) {
	for _, x := range v {
		sum += x * x
	}
	return sum
}

func TestEmbeddingRefusals(t *testing.T) {
	e := startEngine(t, Config{Context: 256})
	for _, c := range []struct {
		q    object
		code string
		says string
	}{
		{object{"input": ""}, "invalid_request_error", "none empty"},
		{object{"input": []string{}}, "invalid_request_error", "none empty"},
		{object{"input": []any{"x", 1}}, "invalid_request_error", "none empty"},
		{object{"input": 1}, "invalid_request_error", "none empty"},
		{object{"input": []int{99999}}, "invalid_request_error", "does not have"},
		{object{"input": []int{-1}}, "invalid_request_error", "does not have"},
		{object{"input": "x", "dimensions": 129}, "invalid_request_error", "1 to 128"},
		{object{"input": "x", "encoding_format": "hex"}, "invalid_request_error", "float or base64"},
		{object{"input": strings.Repeat("All that glitters is not gold. ", 200)}, "exceed_context_size_error", "context holds 256"},
	} {
		c.q["model"] = "tiny"
		code, message := e.refused("/v1/embeddings", c.q, http.StatusBadRequest)
		if code != c.code || !strings.Contains(message, c.says) {
			t.Errorf("%v: %s: %s", c.q["input"], code, message)
		}
	}
}

// A model that only embeds advertises what it takes.
func TestContexts(t *testing.T) {
	for _, c := range []struct {
		configured, trained int
		chats               bool
		context, embed      int
	}{
		{8192, 8192, true, 8192, embeddingTokens}, {8192, 8192, false, embeddingTokens, embeddingTokens}, {8192, 512, false, 512, 512}, {1024, 8192, true, 1024, 1024},
	} {
		if context, embed := contexts(c.configured, c.trained, c.chats); context != c.context || embed != c.embed {
			t.Errorf("%+v: %d and %d", c, context, embed)
		}
	}
}

// TestDimension: with little memory there are fewer slots first, then a shorter context;
// what is configured stays.
func TestDimension(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		slots, length, trained int
		free                   uint64
		wantSlots, wantLength  int
	}{
		{0, 0, 40_960, 64 * gib, 4, 32_768},
		{0, 0, 8192, 64 * gib, 4, 8192},
		{0, 0, 40_960, 12 * gib, 2, 32_768},
		{0, 0, 40_960, 5 * gib, 1, 32_768},
		{0, 0, 40_960, 4 * gib, 1, 16_384},
		{0, 0, 40_960, gib / 4, 1, 4096},
		{0, 0, 2048, 1, 1, 2048},
		{2, 0, 40_960, 5 * gib, 2, 16_384},
		{0, 65_536, 131_072, 12 * gib, 1, 65_536},
		{3, 65_536, 40_960, 1, 3, 40_960},
	} {
		f := Footprint{Weights: 5 * gib, Trained: c.trained, Layers: 32, KVHeads: 8, KeyLength: 128} // 128 KiB a token
		if slots, length := f.dimension(c.slots, c.length, f.Weights+c.free); slots != c.wantSlots || length != c.wantLength {
			t.Errorf("%+v: %d slots of %d", c, slots, length)
		}
	}
	unknown := Footprint{Trained: 40_960, Layers: 32, KVHeads: 8, KeyLength: 128}
	if slots, length := unknown.Context(0); slots != 1 || length != 8192 {
		t.Errorf("with unknown memory: %d slots of %d", slots, length)
	}
}
