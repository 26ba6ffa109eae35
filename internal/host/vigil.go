package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Vigil keeps the computer from falling asleep while it is held. It runs a
// program for that and ends it when nothing has been held for a while. The zero
// Vigil, without a command, lets it sleep.
type Vigil struct {
	// Command keeps the computer awake for as long as it runs, and ends when its
	// standard input does: so it ends with this process, whatever becomes of it.
	Command []string
	// Trouble is told that the computer cannot be kept awake, and why.
	Trouble func(error)

	mu      sync.Mutex
	held    int
	changed chan struct{} // closed when the first begins to hold or the last has let go; nil: nobody waits
}

const (
	// lingering is how long after the last answer the computer is kept awake:
	// the next one often follows, and a program is not started for each.
	lingering = 5 * time.Second
	// troubled is how long a command that failed is not tried again.
	troubled = 10 * time.Minute
	// parting is how long the command may take to end.
	parting = 2 * time.Second
)

// Hold keeps the computer awake until release, which is called once.
func (v *Vigil) Hold() (release func()) {
	v.count(1)
	return func() { v.count(-1) }
}

func (v *Vigil) count(n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.held
	v.held += n
	if (before == 0 || v.held == 0) && v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

// state is whether anything is held, and a channel that is closed once that
// changes.
func (v *Vigil) state() (held bool, changed <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.held > 0, v.changed
}

// Run keeps the vigil until ctx ends. It returns nil: a computer that falls
// asleep is told to Trouble and is no reason to stop serving.
func (v *Vigil) Run(ctx context.Context) error {
	if len(v.Command) == 0 {
		return nil
	}
	for {
		held, changed := v.state()
		if held {
			if err := v.watch(ctx); err != nil {
				v.Trouble(fmt.Errorf("cannot keep this computer awake while an answer runs: %w", err))
				changed = nil
			}
		}
		var again <-chan time.Time
		if changed == nil {
			again = time.After(troubled)
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// watch runs the command until nothing has been held for lingering, or ctx ends
// (nil), or the command ends by itself.
func (v *Vigil) watch(ctx context.Context) error {
	words := new(tail)
	cmd := exec.Command(v.Command[0], v.Command[1:]...)
	cmd.Stderr = words
	cmd.WaitDelay = parting
	input, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		held, changed := v.state()
		var idle <-chan time.Time
		if !held {
			idle = time.After(lingering)
		}
		select {
		case <-changed:
		case <-idle:
			return dismiss(cmd, input, ended)
		case <-ctx.Done():
			return dismiss(cmd, input, ended)
		case err := <-ended:
			if err == nil {
				err = errors.New("it ended")
			}
			return fmt.Errorf("%s: %w %s", v.Command[0], err, words)
		}
	}
}

// dismiss ends the command by the end of its input, and one that stays by force.
func dismiss(cmd *exec.Cmd, input io.Closer, ended <-chan error) error {
	_ = input.Close() // it may have ended by itself
	late := time.AfterFunc(parting, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	<-ended // how it ends is no matter any more
	return nil
}

// tail keeps the beginning of what a program says, on one line.
type tail struct{ text strings.Builder }

// maxWords bounds what is kept of a program's words, in bytes.
const maxWords = 200

func (t *tail) Write(p []byte) (int, error) {
	t.text.Write(p[:min(len(p), maxWords-t.text.Len())])
	return len(p), nil
}

func (t *tail) String() string { return strings.Join(strings.Fields(t.text.String()), " ") }
