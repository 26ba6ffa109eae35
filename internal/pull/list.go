package pull

import (
	"cmp"
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/pelletier/go-toml/v2"
)

// Listed is a recommended model.
type Listed struct {
	Name    string `toml:"name" json:"name"`
	From    string `toml:"from" json:"from"`       // the reference for Resolve
	Size    int64  `toml:"size" json:"size"`       // of all its files, in bytes
	Licence string `toml:"licence" json:"licence"` // its name
	About   string `toml:"about" json:"about"`     // what it is good for
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

// Memory returns approximately how many bytes of memory the model needs for its weights,
// a context and compute buffers.
func (l *Listed) Memory() uint64 {
	const beside = 512 << 20
	return uint64(l.Size) + uint64(l.Size)/5 + beside
}
