package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/term"
)

const chatHelp = `/clear         forget the conversation
/model [NAME]  continue with another model, or list the models
/help          this
/exit          end; so does Ctrl-D

Ctrl-C stops an answer, or empties the line. The arrows bring back what you typed. Several
lines can be pasted at once, and are sent with Enter.
`

// chat reads lines and answers them until /exit, the end of input or the end of ctx. An
// interrupt ends the current answer, not the chat.
func (c *conversation) chat(ctx context.Context) error {
	signal.Reset(os.Interrupt) // main's handler would end the program
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)

	lines := c.newLineReader()
	c.say("%s\n", faint("Chatting with "+c.model+". Ctrl-C stops an answer; /help lists the commands, /exit ends."))
	for {
		line, err := lines.next(ctx)
		switch {
		case errors.Is(err, io.EOF) || ctx.Err() != nil:
			c.say("\n")
			return nil
		case err != nil:
			return fmt.Errorf("cannot read what you type: %w; give a prompt instead: kith run %s \"…\"", err, c.model)
		}
		line = strings.TrimSpace(line)
		switch command, rest, _ := strings.Cut(line, " "); {
		case line == "":
		case line == "/exit" || line == "/bye" || line == "/quit":
			return nil
		case line[0] == '/' && !strings.Contains(line, "\n"):
			c.command(ctx, command, strings.TrimSpace(rest))
		default:
			err = c.turn(ctx, interrupts, line)
		}
		if err != nil {
			return err
		}
	}
}

// command runs a line that begins with a slash.
func (c *conversation) command(ctx context.Context, name, argument string) {
	switch name {
	case "/help", "/?":
		c.say("%s", chatHelp)
	case "/clear":
		c.said = nil
		c.say("%s\n", faint("The conversation is forgotten."))
	case "/model":
		if argument != "" {
			c.model = argument
			c.say("%s\n", faint("Continuing with "+argument+"; it gets the conversation so far."))
			return
		}
		models, err := c.surface.list(ctx)
		if err != nil {
			c.printError(err)
		}
		for _, m := range models {
			mark := " "
			if m.ID == c.model {
				mark = "*"
			}
			c.say("%s %s\n", mark, m.ID)
		}
	default:
		c.say("%s\n", faint("There is no command "+name+"; /help lists them."))
	}
}

func (c *conversation) printError(err error) {
	c.progress("")
	fmt.Fprintln(c.err, "kith: "+oneLine(err.Error()))
}

// turn sends one question and prints the answer. It prints errors and returns nil, unless
// the member is not signed in.
func (c *conversation) turn(ctx context.Context, interrupts <-chan os.Signal, line string) error {
	answering, stop := context.WithCancel(ctx)
	defer stop()
	select {
	case <-interrupts: // from after the end of the last answer
	default:
	}
	done := make(chan error, 1)
	go func() { done <- c.answer(answering, line) }()
	var err error
	select {
	case err = <-done:
	case <-interrupts:
		stop()
		<-done
		c.progress("")
		c.say("\n%s\n", faint("stopped"))
		return nil
	}
	var f failure
	if errors.As(err, &f) && f.exit == exitNotSignedIn {
		c.progress("")
		return err
	}
	if err != nil {
		c.printError(err)
	}
	return nil
}

// lineReader reads lines, with a line editor if the input is a terminal.
type lineReader struct {
	editor *term.Terminal
	file   *os.File // the terminal; nil if the input is not one
	lines  chan typed
}

type typed struct {
	text string
	err  error
}

func (c *conversation) newLineReader() *lineReader {
	r := &lineReader{lines: make(chan typed, 1)}
	if terminal(c.in) {
		r.file = c.in.(*os.File)
	}
	r.editor = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{clearOnInterrupt{c.in}, c.out.raw}, "> ")
	return r
}

// next returns the next line, or several lines that were pasted together. The terminal is
// in raw mode only during next, so that Ctrl-C is a signal during an answer.
func (r *lineReader) next(ctx context.Context) (string, error) {
	if r.file != nil {
		if width, height, err := term.GetSize(int(r.file.Fd())); err == nil {
			_ = r.editor.SetSize(width, height) // it only fails if the width was never set
		}
		before, err := term.MakeRaw(int(r.file.Fd()))
		if err != nil {
			return "", err
		}
		r.editor.SetBracketedPasteMode(true)
		defer func() {
			r.editor.SetBracketedPasteMode(false)
			_ = term.Restore(int(r.file.Fd()), before) // otherwise the shell does it
		}()
	}
	go func() { // in a goroutine, so that the end of ctx interrupts it
		var text strings.Builder
		for {
			line, err := r.editor.ReadLine()
			text.WriteString(line)
			if !errors.Is(err, term.ErrPasteIndicator) {
				r.lines <- typed{text.String(), err}
				return
			}
			text.WriteString("\n")
		}
	}()
	select {
	case line := <-r.lines:
		return line.text, line.err
	case <-ctx.Done():
		return "", ctx.Err() // the reader still waits for a byte, but the program ends first
	}
}

// clearOnInterrupt replaces Ctrl-C in the input with Ctrl-U, which clears the line. On
// Ctrl-C the editor would end the chat.
type clearOnInterrupt struct{ in io.Reader }

func (r clearOnInterrupt) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	for i, key := range p[:n] {
		if key == 3 { // Ctrl-C
			p[i] = 21 // Ctrl-U
		}
	}
	return n, err
}
