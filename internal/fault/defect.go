package fault

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Defect returns the error of a recovered panic: its kind and the stack, for the log.
// The value's text is kept only if the runtime wrote it, since it could hold anything.
func Defect(recovered any) error {
	text := fmt.Sprintf("panic (%T)", recovered)
	if e, ok := recovered.(runtime.Error); ok {
		text = e.Error()
	}
	return fmt.Errorf("%s\n%s", text, debug.Stack())
}
