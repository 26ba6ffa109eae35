package account

import (
	"slices"

	"go.mau.fi/util/confusable"
	"golang.org/x/text/cases"
)

// Skeletons returns strings that represent how a name looks: names with a common skeleton
// can be mistaken for each other. They are the confusable skeletons (UTS 39) of the name
// and of its case-folded form, both folded: "lan" looks like "Ian", and "ian" equals
// "Ian". They are only for comparison, never for display.
func Skeletons(name string) []string {
	fold := cases.Fold()
	folded, exact := fold.String(confusable.Skeleton(fold.String(name))), fold.String(confusable.Skeleton(name))
	return slices.Compact([]string{folded, exact})
}
