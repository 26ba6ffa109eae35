package host

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"time"
)

// commandTimeout bounds a program that is run for a reading. Tests change it.
var commandTimeout = 5 * time.Second

// exitTimeout is how long a program may take to exit after it was killed. Tests change
// it.
var exitTimeout = 2 * time.Second

// hanging holds the programs that did not exit when they were killed, until they do.
var hanging sync.Map

// output runs a program and returns its output. It returns within commandTimeout plus
// exitTimeout, or soon after the end of ctx, whatever the program does: a hanging driver
// can keep its program from exiting even when it is killed, and child processes may keep
// the output open. A program is not started again until its previous process has exited.
func output(ctx context.Context, program string, args ...string) (string, error) {
	if _, hangs := hanging.Load(program); hangs {
		return "", fmt.Errorf("%s hangs", program)
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.WaitDelay = exitTimeout / 2
	type result struct {
		text []byte
		err  error
	}
	ended := make(chan result, 1)
	go func() {
		text, err := cmd.Output()
		ended <- result{text, err}
		hanging.Delete(program)
	}()
	select {
	case r := <-ended:
		return string(r.text), r.err
	case <-ctx.Done():
	}
	select {
	case r := <-ended:
		return string(r.text), r.err
	case <-time.After(exitTimeout):
		hanging.Store(program, nil)
		select {
		case <-ended: // while waiting
			hanging.Delete(program)
		default:
		}
		return "", fmt.Errorf("%s does not end", program)
	}
}
