package host

import (
	"context"
	"fmt"
	"os/exec"
	"sync"
	"time"
)

// commandTimeout bounds a program that is run for a reading. Tests set it.
var commandTimeout = 5 * time.Second

// exitTimeout is how long a program may take to end once it has to. Tests set it.
var exitTimeout = 2 * time.Second

// hanging holds the programs that did not end when they had to, until they do.
var hanging sync.Map

// output runs a program and returns what it prints. It returns within commandTimeout and
// exitTimeout, or soon after the end of ctx, whatever the program does: a driver that
// hangs keeps its program from ending even when it is killed, and what that program
// started may hold its output open. Until such a program has ended it is not started again.
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
		case <-ended: // in the meantime
			hanging.Delete(program)
		default:
		}
		return "", fmt.Errorf("%s does not end", program)
	}
}
