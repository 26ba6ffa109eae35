package dialect

import (
	"encoding/json/jsontext"
	"encoding/json/v2"
	"strings"
	"testing"

	"github.com/kith/kith/internal/fault"
)

func TestPeekEmbeddings(t *testing.T) {
	texts := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(`"a",`, n), ",") + "]" }
	for body, param := range map[string]string{
		`{"model":"m","input":"a"}`: "", `{"input":["a","b"],"model":"m"}`: "", `{"model":"m","input":[1,2]}`: "", `{"model":"m","input":[[1],[2,3]]}`: "",
		`{"model":"m","input":` + texts(2048) + `}`: "", `{"model":"m","input":` + texts(2049) + `}`: "input",
		`{"model":"m","input":[` + strings.Repeat("[1],", 2048) + `[1]]}`: "input", `{"model":"m","input":[` + strings.Repeat("1,", 5000) + `1]}`: "",
		`{"model":"m"}`: "input", `{"model":"m","input":null}`: "input", `{"model":"m","input":""}`: "input", `{"model":"m","input":[]}`: "input",
		`{"model":"m","input":["a",""]}`: "input", `{"model":"m","input":[[]]}`: "input", `{"model":"m","input":["a",1]}`: "input", `{"model":"m","input":[1,"a"]}`: "input",
		`{"model":"m","input":[["a"]]}`: "input", `{"model":"m","input":[-1]}`: "input", `{"model":"m","input":[1.5]}`: "input", `{"model":"m","input":[1e9]}`: "input",
		`{"model":"m","input":[99999999999]}`: "input", `{"model":"m","input":[{}]}`: "input", `{"model":"m","input":[null]}`: "input", `{"model":"m","input":7}`: "input",
		`{"model":"m","input":"a","encoding_format":"base64"}`: "", `{"model":"m","input":"a","encoding_format":null,"dimensions":null}`: "",
		`{"model":"m","input":"a","encoding_format":"hex"}`: "encoding_format", `{"model":"m","input":"a","encoding_format":1}`: "encoding_format",
		`{"model":"m","input":"a","dimensions":1}`: "", `{"model":"m","input":"a","dimensions":0}`: "dimensions", `{"model":"m","input":"a","dimensions":"8"}`: "dimensions",
		`{"model":"m","input":"a","reasoning_effort":"odd","user":"u","x":[1]}`: "", `{"input":"a"}`: "model", `{"Model":"m","input":"a"}`: "Model",
	} {
		head, err := ReadEmbeddingsHead([]byte(body))
		f := fault.Of(err)
		if param == "" && (err != nil || head.Model != "m") || param != "" && (f == nil || f.Code != fault.InvalidRequest || f.Param != param) {
			t.Errorf("%.80s: %+v %v", body, head, err)
		}
	}
	for _, body := range []string{``, `[]`, `{`, `{"model":"m","input":["a"`, `{"model":"m","input":"a"}x`, `{"model":"m","input":"a","input":"b"}`, "{\"model\":\"m\",\"input\":\"\xff\"}", `{"model":"m","input":[[1],[2`} {
		if _, err := ReadEmbeddingsHead([]byte(body)); err == nil || fault.Of(err).Code != fault.InvalidRequest {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// Every body is refused with a fault, or ReadEmbeddingsHead accepts it and ReadHead reads
// the same head.
func FuzzPeekEmbeddings(f *testing.F) {
	for _, body := range []string{`{"model":"m","input":"a"}`, `{"model":"m","input":["a","b"],"dimensions":8}`, `{"model":"m","input":[[1],[2,3]],"encoding_format":"base64"}`, `{"model":"m","input":[1,""]}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		head, err := ReadEmbeddingsHead(body)
		if err != nil {
			if f := fault.Of(err); f.Code != fault.InvalidRequest {
				t.Fatal(err)
			}
			return
		}
		var told struct {
			Input jsontext.Value `json:"input"`
		}
		if err := json.Unmarshal(body, &told); err != nil || told.Input == nil || head.Model == "" {
			t.Fatalf("%q: %+v, input %s, %v", body, head, told.Input, err)
		}
	})
}
