package fault

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Defect returns an error for a recovered panic, with its kind and the stack, for the
// log. It includes the value's text only for runtime errors, because other values could
// hold anything.
func Defect(recovered any) error {
	text := fmt.Sprintf("panic (%T)", recovered)
	if e, ok := recovered.(runtime.Error); ok {
		text = e.Error()
	}
	return fmt.Errorf("%s\n%s", text, debug.Stack())
}
