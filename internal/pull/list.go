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

// Listed is a model of the list.
type Listed struct {
	Name    string `toml:"name" json:"name"`
	From    string `toml:"from" json:"from"`       // the reference that Resolve takes
	Size    int64  `toml:"size" json:"size"`       // of its files, in bytes
	Licence string `toml:"licence" json:"licence"` // its name
	About   string `toml:"about" json:"about"`     // what it is good at
}

//go:embed models.toml
var listText string

// List returns the models to begin with, the smallest first.
var List = sync.OnceValue(func() []Listed {
	var list struct {
		Model []Listed `toml:"model"`
	}
	if err := toml.NewDecoder(strings.NewReader(listText)).DisallowUnknownFields().Decode(&list); err != nil {
		panic(fmt.Sprintf("models.toml: %v", err)) // a test reads it
	}
	slices.SortStableFunc(list.Model, func(a, b Listed) int { return cmp.Compare(a.Size, b.Size) })
	return list.Model
})

// Find returns the model of the list with that name, in any case; nil if there is none.
func Find(name string) *Listed {
	for _, l := range List() {
		if strings.EqualFold(l.Name, name) {
			return &l
		}
	}
	return nil
}

// Memory returns about how many bytes of memory the model needs: its weights, a context
// and the buffers of a computation.
func (l *Listed) Memory() uint64 {
	const beside = 512 << 20
	return uint64(l.Size) + uint64(l.Size)/5 + beside
}
