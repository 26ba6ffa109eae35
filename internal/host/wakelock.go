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

// Wakelock keeps the computer from sleeping while there is at least one hold on it. It
// does so by running a program, and ends the program some time after the last hold was
// released. A Wakelock without a command does nothing.
type Wakelock struct {
	// Command keeps the computer awake while it runs. It must exit at the end of its
	// standard input, so that it does not outlive this process even if that is killed.
	Command []string
	// OnError is called if the command fails.
	OnError func(error)

	mu      sync.Mutex
	holds   int
	changed chan struct{} // closed when holds changes between 0 and 1; nil: no one waits
}

const (
	// idleTime is how long the program keeps running after the last hold, because the next
	// answer often follows at once.
	idleTime = 5 * time.Second
	// retryAfter is how long to wait before running a failed command again.
	retryAfter = 10 * time.Minute
	// maxText bounds how much of the command's output an error quotes, in bytes.
	maxText = 200
)

// Hold keeps the computer awake until release is called, which must happen once.
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

// Run runs the command while there are holds, until ctx ends. It always returns nil:
// failures are reported to OnError, because a computer that may sleep is no reason to
// stop serving.
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

// watch runs the command until there was no hold for idleTime or ctx ends; then it
// returns nil. It returns an error if the command exits by itself.
func (w *Wakelock) watch(ctx context.Context) error {
	running, stop := context.WithCancel(ctx)
	defer stop()
	cmd := exec.CommandContext(running, w.Command[0], w.Command[1:]...)
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	cmd.Cancel = input.Close
	cmd.WaitDelay = exitTimeout // then it is killed
	ended := make(chan error, 1)
	go func() {
		_, err := cmd.Output() // Output adds the standard error to the error
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
