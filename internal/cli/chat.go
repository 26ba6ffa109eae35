package cli

import (
	"bufio"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/gateway"
	"github.com/kith/kith/internal/llama"
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
	c.note("Chatting with " + c.model + ". Ctrl-C stops an answer; /help lists the commands, /exit ends.")
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
		c.note("The conversation is forgotten.")
	case "/model":
		if argument != "" {
			c.model = argument
			c.note("Continuing with " + argument + "; it gets the conversation so far.")
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
		c.note("There is no command " + name + "; /help lists them.")
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
		c.say("\n")
		c.note("stopped")
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

// maxFrame limits a frame of a streamed response, in bytes.
const maxFrame = 256 << 10

// message is one turn of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chatRequest is a request of the chat dialect.
type chatRequest struct {
	Model     string    `json:"model"`
	Stream    bool      `json:"stream,omitzero"`
	MaxTokens int       `json:"max_tokens,omitzero"`
	Messages  []message `json:"messages"`
}

// chunk is the displayed part of a frame of a streamed chat response.
type chunk struct {
	Choices []struct {
		Delta struct {
			Content   string `json:"content"`
			Reasoning string `json:"reasoning_content"`
		} `json:"delta"`
	} `json:"choices"`
	Error *struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// conversation is one `kith run`: its model, its messages and the surface to call.
type conversation struct {
	*app
	surface *client
	local   bool // surface is this machine's daemon
	model   string
	said    []message
}

// atWork is the progress shown until the response begins.
const atWork = "waiting for the model"

// waitingFor returns the progress in a comment of the stream, or "".
func waitingFor(comment string) string {
	var ahead, left int
	switch _, err := fmt.Sscanf(comment, ": waiting %d ahead, %d s left", &ahead, &left); {
	case comment == ": working":
		return atWork
	case err != nil:
		return ""
	case ahead == 0:
		return fmt.Sprintf("waiting for a machine: next in line, %d s left", left)
	default:
		return fmt.Sprintf("waiting for a machine: %d ahead, %d s left", ahead, left)
	}
}

func (a *app) run() *cobra.Command {
	return a.completing(a.anyModel(), command("kith run", func(ctx context.Context, args []string) error {
		surface, local, err := a.toModels()
		if err != nil {
			return err
		}
		if local {
			surface.bearer = gateway.LocalKey(fleet.ProgramRun)
		}
		c := &conversation{app: a, surface: surface, local: local, model: args[0]}
		prompt := strings.Join(args[1:], " ")
		if prompt == "" && terminal(a.in) {
			return c.chat(ctx)
		}
		if !terminal(a.in) {
			text, err := io.ReadAll(io.LimitReader(a.in, maxAnswer))
			if err != nil {
				return fmt.Errorf("cannot read the prompt from standard input: %w", err)
			}
			prompt = strings.TrimSpace(prompt + "\n\n" + string(text))
		}
		if prompt == "" {
			return wrongUse("cannot ask nothing; give a prompt: kith run %s \"…\"", c.model)
		}
		return c.answer(ctx, prompt)
	}))
}

// answer sends prompt, prints the answer while it arrives or, with --json, at once, and
// appends both to the conversation. On error the conversation is unchanged.
func (c *conversation) answer(ctx context.Context, prompt string) error {
	turns := append(c.said[:len(c.said):len(c.said)], message{"user", prompt})
	in := chatRequest{Model: c.model, Stream: !c.json, Messages: turns}
	doing := fmt.Sprintf("run %s", c.model)
	c.progress(atWork)
	res, err := c.send(ctx, in)
	if err != nil {
		return callFailure(doing, err)
	}
	defer res.Body.Close()
	show := c.print
	if c.json {
		show = c.printWhole
	}
	text, err := show(res.Body)
	if err != nil {
		return callFailure(doing, err)
	}
	c.said = append(turns, message{"assistant", text})
	return nil
}

// send sends the request. If this machine's daemon refuses it because its built-in engine
// is starting, send waits for that and sends it again.
func (c *conversation) send(ctx context.Context, in chatRequest) (*http.Response, error) {
	for {
		res, err := c.surface.send(ctx, http.MethodPost, "/v1/chat/completions", in)
		refused, ok := errors.AsType[*refusal](err)
		if !ok || refused.code != "CAPACITY_FULL" || !c.local || !c.engineStarts(ctx) {
			return res, err
		}
		c.progress("waiting for the built-in engine to start")
		for c.engineStarts(ctx) {
			if err := wait(ctx, 200*time.Millisecond); err != nil {
				return nil, err
			}
		}
		c.progress(atWork)
	}
}

// engineStarts reports whether the built-in engine of this machine's daemon is starting.
func (c *conversation) engineStarts(ctx context.Context) bool {
	_, now, running, err := c.daemonStatus(ctx, "ask for the engine")
	return running && err == nil && slices.ContainsFunc(now.Engines, func(e daemon.EngineStatus) bool {
		return isStarting(e) && e.Why == llama.ErrStarting.Error()
	})
}

// printWhole prints a unary response on one line and returns its text.
func (c *conversation) printWhole(body io.Reader) (string, error) {
	var whole jsontext.Value
	var answer struct {
		Choices []struct {
			Message message `json:"message"`
		} `json:"choices"`
	}
	err := json.UnmarshalRead(io.LimitReader(body, maxAnswer), &whole)
	if err == nil {
		err = json.Unmarshal(whole, &answer)
	}
	if err == nil && len(answer.Choices) == 0 {
		err = errors.New("it holds no choices")
	}
	if err != nil {
		return "", fmt.Errorf("cannot understand the answer: %w", err)
	}
	c.progress("")
	return answer.Choices[0].Message.Content, c.printJSON(whole)
}

// print copies a streamed response to the output and returns its text. It fails if the
// stream has no end marker.
func (c *conversation) print(stream io.Reader) (string, error) {
	var text strings.Builder
	var begun, thinking bool
	scanner := bufio.NewScanner(stream)
	scanner.Buffer(nil, maxFrame+16)
	for scanner.Scan() {
		data, ok := strings.CutPrefix(scanner.Text(), "data:")
		if !ok {
			if what := waitingFor(scanner.Text()); what != "" && !begun {
				c.progress(what)
			}
			continue // comments, and the blank lines between frames
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			c.progress("")
			fmt.Fprintln(c.out)
			return text.String(), nil
		}
		var frame chunk
		if err := json.Unmarshal([]byte(data), &frame); err != nil {
			return "", fmt.Errorf("cannot understand a frame of the answer: %w", err)
		}
		if frame.Error != nil {
			return "", &refusal{status: http.StatusOK, code: frame.Error.Code, message: frame.Error.Message}
		}
		for _, choice := range frame.Choices {
			if d := choice.Delta; !begun && d.Content+d.Reasoning != "" {
				begun = true
				c.progress("")
			}
			// Thoughts are shown on a terminal only.
			if thought := choice.Delta.Reasoning; thought != "" && terminal(c.out) {
				thinking = true
				c.say("%s", faint(thought))
			}
			if part := choice.Delta.Content; part != "" {
				if thinking {
					thinking = false
					c.say("\n\n")
				}
				text.WriteString(part)
				fmt.Fprint(c.out, part)
			}
		}
	}
	if err := scanner.Err(); err != nil {
		return "", fmt.Errorf("cannot read the answer to its end: %w; ask again", err)
	}
	return "", errors.New("cannot trust the answer: it ended without its end marker; ask again")
}
