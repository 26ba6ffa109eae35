package fault

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Defect is the error of a panic, for whoever recovered its value: its kind and
// the stack, for the log. The value's own text is kept only when the runtime
// wrote it, since it could hold anything else.
func Defect(recovered any) error {
	text := fmt.Sprintf("panic (%T)", recovered)
	if e, ok := recovered.(runtime.Error); ok {
		text = e.Error()
	}
	return fmt.Errorf("%s\n%s", text, debug.Stack())
}
