package pull

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
)

var (
	// quantName matches the quantization at the end of a file's name.
	quantName = regexp.MustCompile(`(?i)[-._]((?:UD-)?(?:I?Q[0-9](?:_[0-9A-Z]+)*|TQ[0-9]_[0-9]|BF16|F16|F32|MXFP4(?:_MOE)?))$`)
	// partName matches the end of the name of a part of a model.
	partName = regexp.MustCompile(`-([0-9]{5})-of-([0-9]{5})$`)
)

// IsProjector reports whether the file converts images to tokens for the models in the
// same folder.
func IsProjector(name string) bool { return strings.HasPrefix(strings.ToLower(name), "mmproj") }

// variant is a quantization of a repository's model: one file, or its parts in order.
type variant struct {
	name  string // file name without number and extension
	quant string // in upper case; empty: the name contains none
	parts []entry
}

// variantsOf returns the models among a repository's files.
func variantsOf(all []entry) []variant {
	var found []variant
	for _, e := range all {
		name, ok := strings.CutSuffix(path.Base(e.Path), ".gguf")
		if !ok || e.Type == "directory" || IsProjector(name) {
			continue
		}
		name = partName.ReplaceAllString(name, "")
		full := path.Join(path.Dir(e.Path), name)
		at := slices.IndexFunc(found, func(v variant) bool { return v.name == full })
		if at < 0 {
			v := variant{name: full}
			if match := quantName.FindStringSubmatch(name); match != nil {
				v.quant = strings.ToUpper(match[1])
			}
			found, at = append(found, v), len(found)
		}
		found[at].parts = append(found[at].parts, e)
	}
	for _, v := range found {
		slices.SortFunc(v.parts, func(a, b entry) int { return cmp.Compare(a.Path, b.Path) })
	}
	return found
}

// choose returns the files of the model with the given quantization or file name. Without
// a choice, it returns the only model or the one with DefaultQuant.
func choose(all []entry, choice string) ([]entry, error) {
	found := variantsOf(all)
	if len(found) == 0 {
		return nil, errors.New("it has no GGUF file: look for a repository with GGUF in its name")
	}
	fits := func(v variant) bool {
		return strings.EqualFold(v.quant, choice) || strings.EqualFold(path.Base(v.name), ModelID(choice))
	}
	if choice == "" {
		if len(found) == 1 {
			return found[0].parts, nil
		}
		choice = DefaultQuant
	}
	matching := slices.DeleteFunc(slices.Clone(found), func(v variant) bool { return !fits(v) })
	if len(matching) == 1 {
		return matching[0].parts, nil
	}
	var names []string
	for _, v := range found {
		name := v.quant
		if name == "" || len(matching) > 1 {
			name = path.Base(v.name)
		}
		names = append(names, name)
	}
	slices.Sort(names)
	problem := fmt.Sprintf("none is %s", choice)
	if len(matching) > 1 {
		problem = fmt.Sprintf("several are %s", choice)
	}
	return nil, fmt.Errorf("it has several models, and %s: add one after a colon: %s", problem, strings.Join(slices.Compact(names), ", "))
}

// projectorOf returns the repository's projector in the most suitable format, or nil if
// there is none.
func projectorOf(all []entry) *entry {
	var best *entry
	rank := func(e *entry) int {
		name := strings.ToUpper(path.Base(e.Path))
		for i, kind := range []string{"BF16", "F16", "Q8_0"} { // F16 works everywhere
			if strings.Contains(name, kind) {
				return []int{1, 0, 2}[i]
			}
		}
		return 3
	}
	for i := range all {
		e := &all[i]
		if name := path.Base(e.Path); e.Type != "directory" && IsProjector(name) && strings.HasSuffix(name, ".gguf") && (best == nil || rank(e) < rank(best)) {
			best = e
		}
	}
	return best
}

// ModelID returns the id that a model file is offered as: its name without the extension
// and the number of a part.
func ModelID(file string) string {
	return partName.ReplaceAllString(strings.TrimSuffix(path.Base(file), ".gguf"), "")
}

// IsFirstPart reports whether the file is a complete model or the first of its parts.
func IsFirstPart(name string) bool {
	part := partName.FindStringSubmatch(strings.TrimSuffix(name, ".gguf"))
	return part == nil || part[1] == "00001"
}

// checkName rejects anything but the plain name of a GGUF file.
func checkName(name string) error {
	switch {
	case !strings.HasSuffix(name, ".gguf"):
		return fmt.Errorf("%q is not a GGUF file: give the address of a file that ends in .gguf", name)
	case !filepath.IsLocal(name), strings.HasPrefix(name, "."), strings.ContainsAny(name, `/\:`), strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%q is not a valid file name", name)
	}
	return nil
}

// Listed is a recommended model.
type Listed struct {
	Name    string `toml:"name" json:"name"`
	From    string `toml:"from" json:"from"`       // the reference for Resolve
	Size    int64  `toml:"size" json:"size"`       // of all its files, in bytes
	Licence string `toml:"licence" json:"licence"` // its name
	About   string `toml:"about" json:"about"`     // what it is good for

	// Tools is how a chat model calls tools: "yes", in the form of its chat template, or
	// "default", as kith describes it. Thinking reports that it reasons before it answers.
	Tools    string `toml:"tools" json:"tools,omitzero"`
	Thinking bool   `toml:"thinking" json:"thinking"`
	// Trained is the context length in tokens that it was trained on, and Attention what
	// determines the memory of a token; both are 0 for a model that is not for chat.
	Trained   int       `toml:"context" json:"trained_context,omitzero"`
	Attention Attention `toml:"attention" json:"-"`
}

// Attention are the sizes of a model's attention.
type Attention struct {
	Layers    uint64 `toml:"layers"`
	KVHeads   uint64 `toml:"kv_heads"`
	KeyLength uint64 `toml:"key_length"`
}

//go:embed models.toml
var listText string

// List returns the recommended models, smallest first.
var List = sync.OnceValue(func() []Listed {
	var list struct {
		Model []Listed `toml:"model"`
	}
	if err := toml.NewDecoder(strings.NewReader(listText)).DisallowUnknownFields().Decode(&list); err != nil {
		panic(fmt.Sprintf("models.toml: %v", err)) // cannot fail: a test reads it
	}
	slices.SortStableFunc(list.Model, func(a, b Listed) int { return cmp.Compare(a.Size, b.Size) })
	return list.Model
})

// Find returns the model with the given name, ignoring case, or nil if there is none.
func Find(name string) *Listed {
	for _, l := range List() {
		if strings.EqualFold(l.Name, name) {
			return &l
		}
	}
	return nil
}

// Memory returns approximately how many bytes of memory a model with files of that size
// needs for its weights, a context and compute buffers.
func Memory(size int64) uint64 {
	const beside = 512 << 20
	return uint64(size) + uint64(size)/5 + beside
}
