package account

import (
	"slices"

	"go.mau.fi/util/confusable"
	"golang.org/x/text/cases"
)

// Skeletons returns what a name looks like: two names that have a skeleton in common can
// be mistaken for each other. They are the confusable skeletons of UTS 39 of the name and
// of its case folding, both folded: "lan" looks like "Ian", and "ian" is "Ian" again. They
// are for comparing and not for people.
func Skeletons(name string) []string {
	fold := cases.Fold()
	folded, exact := fold.String(confusable.Skeleton(fold.String(name))), fold.String(confusable.Skeleton(name))
	return slices.Compact([]string{folded, exact})
}
