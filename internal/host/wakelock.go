package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Wakelock keeps the computer from sleeping while at least one hold is on it. It
// runs a program for that, and ends the program when the last hold was released
// a while ago. A Wakelock without a command does nothing.
type Wakelock struct {
	// Command keeps the computer awake for as long as it runs. It must end at the
	// end of its standard input, so that it ends with this process even if that
	// is killed.
	Command []string
	// OnError is called when the command fails.
	OnError func(error)

	mu      sync.Mutex
	holds   int
	changed chan struct{} // closed when holds leaves or reaches 0; nil: no one waits
}

const (
	// idleTime is how long the program runs after the last hold: the next answer
	// often follows at once.
	idleTime = 5 * time.Second
	// retryAfter is how long a command that failed is not run again.
	retryAfter = 10 * time.Minute
	// maxText bounds what an error quotes of the command, in bytes.
	maxText = 200
)

// Hold keeps the computer awake until release, which is called once.
func (w *Wakelock) Hold() (release func()) {
	w.add(1)
	return func() { w.add(-1) }
}

func (w *Wakelock) add(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.holds
	w.holds += n
	if (before == 0 || w.holds == 0) && w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// state reports whether there is a hold. changed is closed when that changes.
func (w *Wakelock) state() (held bool, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.holds > 0, w.changed
}

// Run runs the command while there are holds, until ctx ends. It returns nil: a
// computer that may sleep goes to OnError and is no reason to stop serving.
func (w *Wakelock) Run(ctx context.Context) error {
	if len(w.Command) == 0 {
		return nil
	}
	for {
		held, changed := w.state()
		var retry <-chan time.Time
		if held {
			if err := w.watch(ctx); err != nil {
				w.OnError(fmt.Errorf("cannot keep this computer awake while an answer runs: %w", err))
				changed, retry = nil, time.After(retryAfter)
			}
		}
		select {
		case <-changed:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
	}
}

// watch runs the command until there was no hold for idleTime or ctx ends; then
// it returns nil. It fails if the command ends by itself.
func (w *Wakelock) watch(ctx context.Context) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	cmd := exec.CommandContext(running, w.Command[0], w.Command[1:]...)
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel = input.Close
	cmd.WaitDelay = exitTimeout // after that it is killed
	ended := make(chan error, 1)
	go func() {
		_, err := cmd.Output() // which puts what it writes to standard error into the error
		ended <- err
	}()
	for {
		held, changed := w.state()
		var idle <-chan time.Time
		if !held {
			idle = time.After(idleTime)
		}
		select {
		case <-changed:
		case <-idle:
			stop()
			<-ended
			return nil
		case <-ctx.Done():
			<-ended
			return nil
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			text := ""
			if failed, ok := errors.AsType[*exec.ExitError](err); ok {
				text = strings.Join(strings.Fields(string(failed.Stderr[:min(len(failed.Stderr), maxText)])), " ")
			}
			return fmt.Errorf("%s: %w %s", w.Command[0], cmp.Or(err, errors.New("it ended")), text)
		}
	}
}

// onPath returns the command line if its program is on PATH, and nil otherwise.
func onPath(command ...string) []string {
	if _, err := exec.LookPath(command[0]); err != nil {
		return nil
	}
	return command
}
