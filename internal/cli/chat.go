package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/term"
)

const chatHelp = `/clear         forget the conversation
/model [NAME]  go on with another model, or list those there are
/help          this
/exit          end; so does Ctrl-D

Ctrl-C stops an answer, or empties the line. The arrows bring back what you typed. Text of
several lines is pasted as it is, and sent with Enter.
`

// chat takes turns until /exit, the end of input, or ctx. An interrupt ends the
// answer that is being written, not the chat.
func (c *conversation) chat(ctx context.Context) error {
	signal.Reset(os.Interrupt) // from here on it is ours alone
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)

	ask := c.newAsker()
	c.say("%s\n", faint("Chatting with "+c.model+". Ctrl-C stops an answer; /help lists the commands, /exit ends."))
	for {
		line, err := ask.next(ctx)
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

// command does what a line that begins with a slash asks for.
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
			c.say("%s\n", faint("Going on with "+argument+"; it is told what was said so far."))
			return
		}
		var list listing
		if _, err := c.surface.call(ctx, "list the models", request{http.MethodGet, "/v1/models", nil}, &list); err != nil {
			c.complain(err)
			return
		}
		for _, m := range list.Data {
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

// complain tells a failure that does not end the chat.
func (c *conversation) complain(err error) {
	c.progress("")
	fmt.Fprintln(c.err, "kith: "+oneLine(err.Error()))
}

// turn is one question and its answer. A failure is told and the chat goes on,
// except where the member is not signed in.
func (c *conversation) turn(ctx context.Context, interrupts <-chan os.Signal, line string) error {
	answering, stop := context.WithCancel(ctx)
	defer stop()
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
		c.complain(err)
	}
	return nil
}

// asker reads what is typed, with a line editor where that is a terminal.
type asker struct {
	editor *term.Terminal
	file   *os.File // the terminal; nil: none
	lines  chan typed
}

type typed struct {
	text string
	err  error
}

func (c *conversation) newAsker() *asker {
	k := &asker{lines: make(chan typed, 1)}
	if terminal(c.in) {
		k.file = c.in.(*os.File)
	}
	k.editor = term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{clears{c.in}, c.out}, "> ")
	return k
}

// next is the next line, or several that were pasted as one. The terminal is
// the editor's for as long; an answer is written with its own settings back, so
// that Ctrl-C is a signal then.
func (k *asker) next(ctx context.Context) (string, error) {
	if k.file != nil {
		if width, height, err := term.GetSize(int(k.file.Fd())); err == nil {
			_ = k.editor.SetSize(width, height) // it never fails where there was a width before
		}
		before, err := term.MakeRaw(int(k.file.Fd()))
		if err != nil {
			return "", err
		}
		k.editor.SetBracketedPasteMode(true)
		defer func() {
			k.editor.SetBracketedPasteMode(false)
			_ = term.Restore(int(k.file.Fd()), before) // the shell does it otherwise
		}()
	}
	go func() { // read apart, so that ctx is heard meanwhile
		var text strings.Builder
		for {
			line, err := k.editor.ReadLine()
			text.WriteString(line)
			if !errors.Is(err, term.ErrPasteIndicator) {
				k.lines <- typed{text.String(), err}
				return
			}
			text.WriteString("\n")
		}
	}()
	select {
	case line := <-k.lines:
		return line.text, line.err
	case <-ctx.Done():
		return "", ctx.Err() // the reader waits for its next byte; the program ends first
	}
}

// clears hands on what is typed, with Ctrl-C as the key that empties the line:
// the editor would end the chat.
type clears struct{ in io.Reader }

func (r clears) Read(p []byte) (int, error) {
	n, err := r.in.Read(p)
	for i, key := range p[:n] {
		if key == 3 { // Ctrl-C
			p[i] = 21 // Ctrl-U
		}
	}
	return n, err
}
