package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/spf13/cobra"
)

// maxFrame bounds one frame of a streamed answer, in bytes (decisions 5).
const maxFrame = 256 << 10

// message is one turn of a conversation.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// chunk is one frame of a streamed chat answer, as far as it is shown.
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

// conversation is one `kith run`: a model, what was said, and where calls go.
type conversation struct {
	*app
	surface *client
	model   string
	said    []message
}

func (a *app) run() *cobra.Command {
	return &cobra.Command{
		Use: "run MODEL [PROMPT…]", Short: "Chat with a model in the terminal",
		Long: "Chat with a model. With a prompt, or text on standard input, one answer is printed.\n" +
			"Calls go to the hub of KITH_HUB with KITH_API_KEY if both are set, else to this machine's daemon.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			surface, ok, err := a.byKey()
			if err == nil && !ok {
				surface, err = a.toDaemon()
			}
			if err != nil {
				return err
			}
			c := &conversation{app: a, surface: surface, model: args[0]}
			prompt := strings.Join(args[1:], " ")
			if prompt == "" && terminal(a.in) {
				return c.chat(cmd.Context())
			}
			if prompt == "" {
				text, err := io.ReadAll(io.LimitReader(a.in, maxAnswer))
				if err != nil {
					return fmt.Errorf("cannot read the prompt from standard input: %w", err)
				}
				prompt = strings.TrimSpace(string(text))
			}
			if prompt == "" {
				return wrongUse("cannot ask nothing; give a prompt: kith run %s \"…\"", c.model)
			}
			return c.answer(cmd.Context(), prompt)
		},
	}
}

// chat takes turns until /bye, the end of input, or ctx. An interrupt ends the
// answer that is being written, not the chat.
func (c *conversation) chat(ctx context.Context) error {
	signal.Reset(os.Interrupt) // from here on it is ours alone
	interrupts := make(chan os.Signal, 1)
	signal.Notify(interrupts, os.Interrupt)
	defer signal.Stop(interrupts)

	lines, failed := readLines(c.in)
	c.say("%s\n", faint("Chatting with "+c.model+". Ctrl-C stops an answer; /bye ends."))
	for {
		c.say("%s ", accent(">"))
		select {
		case <-ctx.Done():
			return nil
		case <-interrupts:
			c.say("\n%s\n", faint("/bye or Ctrl-D ends the chat."))
		case line, ok := <-lines:
			if !ok {
				c.say("\n")
				return <-failed
			}
			if line = strings.TrimSpace(line); line == "/bye" {
				return nil
			} else if line != "" {
				if err := c.turn(ctx, interrupts, line); err != nil {
					return err
				}
			}
		}
	}
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
		c.say("\n%s\n", faint("stopped"))
		return nil
	}
	var f failure
	if errors.As(err, &f) && f.exit == exitNotSignedIn {
		return err
	}
	if err != nil {
		fmt.Fprintln(c.err, "kith: "+oneLine(err.Error()))
	}
	return nil
}

// readLines reads lines in the background, so that a signal is heard while the
// program waits for one. The error channel answers once lines is closed.
func readLines(in io.Reader) (<-chan string, <-chan error) {
	lines, failed := make(chan string), make(chan error, 1)
	go func() {
		scanner := bufio.NewScanner(in)
		scanner.Buffer(nil, maxAnswer)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		failed <- scanner.Err()
		close(lines)
	}()
	return lines, failed
}

// answer asks for and prints one answer, and remembers both sides of the turn.
// What was printed before a failure is forgotten: the model never finished it.
func (c *conversation) answer(ctx context.Context, prompt string) error {
	turns := append(c.said[:len(c.said):len(c.said)], message{"user", prompt})
	in := struct {
		Model    string    `json:"model"`
		Stream   bool      `json:"stream"`
		Messages []message `json:"messages"`
	}{c.model, true, turns}
	doing := fmt.Sprintf("run %s", c.model)
	res, err := c.surface.send(ctx, http.MethodPost, "/v1/chat/completions", in)
	if err != nil {
		return told(doing, err)
	}
	defer res.Body.Close()
	text, err := c.print(res.Body)
	if err != nil {
		return told(doing, err)
	}
	c.said = append(turns, message{"assistant", text})
	return nil
}

// print copies a streamed answer to the output as it comes, with --json its
// frames one a line, and returns the text. The stream's own end mark must come.
func (c *conversation) print(stream io.Reader) (string, error) {
	var text strings.Builder
	var thinking bool
	scanner := bufio.NewScanner(stream)
	scanner.Buffer(nil, maxFrame+16)
	for scanner.Scan() {
		data, ok := strings.CutPrefix(scanner.Text(), "data:")
		if !ok {
			continue // comments while it waits, and the blank lines between frames
		}
		data = strings.TrimSpace(data)
		if data == "[DONE]" {
			if !c.json {
				fmt.Fprintln(c.out)
			}
			return text.String(), nil
		}
		var frame chunk
		if err := json.Unmarshal([]byte(data), &frame); err != nil {
			return "", fmt.Errorf("cannot understand a frame of the answer: %w", err)
		}
		if frame.Error != nil {
			return "", &refusal{status: http.StatusOK, code: frame.Error.Code, message: frame.Error.Message}
		}
		if c.json {
			fmt.Fprintln(c.out, data)
			continue
		}
		for _, choice := range frame.Choices {
			// Thoughts are for a person who watches, not for what reads the output.
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
	return "", errors.New("cannot trust the answer: it ended without its end mark; ask again")
}
