package chatform

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// The limits of a child process. A template that exceeds them costs the child.
const (
	timeLimit = 5 * time.Second // of a request
	maxHeap   = 512 << 20
	maxStack  = 256 << 20
	// heapInterval is how often a child checks its heap while it works.
	heapInterval = 20 * time.Millisecond
	// maxPrompt limits a rendered prompt, in bytes.
	maxPrompt = 64 << 20
)

// Renderer runs templates in a child process. It serves one request at a time. Create it
// with NewRenderer.
type Renderer struct {
	command func() *exec.Cmd
	limit   time.Duration // timeLimit; tests have less time
	turn    chan struct{} // has one element while no request is served
	child   *child        // guarded by turn; nil if none is running
}

// NewRenderer returns a Renderer whose child is started by command: a program that calls
// Serve with its standard input and output.
func NewRenderer(command func() *exec.Cmd) *Renderer {
	r := &Renderer{command: command, limit: timeLimit, turn: make(chan struct{}, 1)}
	r.turn <- struct{}{}
	return r
}

// Close ends the child process.
func (r *Renderer) Close() {
	<-r.turn
	defer func() { r.turn <- struct{}{} }()
	r.child.kill()
	r.child = nil
}

// Template is a template that was opened in a Renderer. It is safe for concurrent use.
type Template struct {
	Form     *Form
	renderer *Renderer
	key      [sha256.Size]byte
	source   *Source
	failed   error // why the template is not rendered any longer; guarded by renderer.turn
}

// Open compiles and inspects a template.
func (r *Renderer) Open(ctx context.Context, s Source) (*Template, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	t := &Template{renderer: r, key: sha256.Sum256(text), source: &s}
	reply, err := t.ask(ctx, request{Inspect: true})
	t.Form = reply.Form
	return t, err
}

// Prompt is a rendered conversation.
type Prompt struct {
	Pieces []Piece `json:"pieces"`
	// Tail is what the template wrote after the last message (ReaderOptions.Prompt).
	Tail string `json:"tail"`
}

// Render returns the prompt for a conversation. If the template exceeds a limit once, it
// is not rendered again.
func (t *Template) Render(ctx context.Context, c *Conversation) (Prompt, error) {
	reply, err := t.ask(ctx, request{Conversation: c})
	return reply.Prompt, err
}

// request is a line on a child's standard input, and reply the line that answers it.
type request struct {
	Key [sha256.Size]byte `json:"key"`
	// Source is set in the first request with a key.
	Source       *Source       `json:"source,omitempty"`
	Inspect      bool          `json:"inspect,omitempty"`
	Conversation *Conversation `json:"conversation,omitempty"`
}

type reply struct {
	Form   *Form  `json:"form,omitempty"`
	Prompt Prompt `json:"prompt,omitzero"`
	Error  string `json:"error,omitempty"`
}

// ask sends a request to the child. A child that ends may have been ended from outside, for
// instance because the machine had no memory left, so the request is sent to a new one
// before the template is blamed.
func (t *Template) ask(ctx context.Context, q request) (reply, error) {
	r := t.renderer
	select {
	case <-r.turn:
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
	defer func() { r.turn <- struct{}{} }()
	if t.failed != nil {
		return reply{}, t.failed
	}
	answer, err := r.ask(t, q)
	if err == errEnded {
		answer, err = r.ask(t, q)
	}
	switch {
	case err == errEnded, err == errLate:
		t.failed = err
		return reply{}, err
	case err == nil && answer.Error != "":
		err = errors.New(answer.Error)
	}
	return answer, err
}

// ask sends a request to the child, which it starts if necessary. After errEnded and
// errLate the next request gets a new one. The caller must have the turn.
func (r *Renderer) ask(t *Template, q request) (answer reply, err error) {
	if r.child == nil {
		if r.child, err = start(r.command()); err != nil {
			return reply{}, fmt.Errorf("cannot start the process for chat templates: %w", err)
		}
	}
	if q.Key = t.key; !r.child.has[t.key] {
		q.Source = t.source
	}
	if answer, err = r.child.ask(q, r.limit); err != nil {
		r.child.kill()
		r.child = nil
		return reply{}, err
	}
	r.child.has[t.key] = true
	return answer, nil
}

var (
	errLate  = errors.New("the chat template takes too long")
	errEnded = errors.New("the chat template needs more memory than it may use")
)

// child is a child process.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *jsontext.Decoder
	has map[[sha256.Size]byte]bool // templates that it has
}

func start(cmd *exec.Cmd) (*child, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &child{cmd: cmd, in: in, out: jsontext.NewDecoder(bufio.NewReaderSize(out, 64<<10)), has: map[[sha256.Size]byte]bool{}}, nil
}

// ask sends a request and waits for its reply. After an error the child must be killed.
func (c *child) ask(q request, timeout time.Duration) (answer reply, err error) {
	late := time.AfterFunc(timeout, func() { _ = c.cmd.Process.Kill() })
	if err = json.MarshalWrite(c.in, q); err == nil {
		err = json.UnmarshalDecode(c.out, &answer)
	}
	switch {
	case err == nil:
		late.Stop()
		return answer, nil
	case !late.Stop():
		return reply{}, errLate
	default:
		return reply{}, errEnded
	}
}

// kill ends the child, if there is one.
func (c *child) kill() {
	if c != nil {
		_ = c.cmd.Process.Kill()
		_ = c.in.Close()
		_ = c.cmd.Wait()
	}
}

// Serve is the child process: it answers requests until in ends, and returns its exit
// status. It ends the process if a template uses too much memory, or if in ends while one
// runs.
func Serve(in io.Reader, out io.Writer) int {
	debug.SetMaxStack(maxStack)
	debug.SetMemoryLimit(maxHeap / 2)
	requests, busy := make(chan request), make(chan bool)
	go watchHeap(busy)
	go func() {
		dec := jsontext.NewDecoder(bufio.NewReaderSize(in, 64<<10))
		for {
			var q request
			if err := json.UnmarshalDecode(dec, &q); err != nil {
				os.Exit(0) // the parent has ended, or ended this process
			}
			requests <- q
		}
	}()
	templates := map[[sha256.Size]byte]*template{}
	for q := range requests {
		busy <- true
		answer := serve(templates, q)
		busy <- false
		if err := json.MarshalWrite(out, answer); err != nil {
			return 1
		}
	}
	return 0
}

// serve returns the reply for a request.
func serve(templates map[[sha256.Size]byte]*template, q request) (answer reply) {
	defer func() {
		if p := recover(); p != nil {
			answer = reply{Error: fmt.Sprintf("the chat template failed: %v", p)}
		}
	}()
	if q.Source != nil {
		t, err := compile(*q.Source)
		if err != nil {
			return reply{Error: shorten(err)}
		}
		if err := t.inspect(); err != nil {
			return reply{Error: shorten(err)}
		}
		templates[q.Key] = t
	}
	t := templates[q.Key]
	switch {
	case t == nil:
		return reply{Error: "the chat template cannot be read"}
	case q.Inspect:
		return reply{Form: t.form}
	}
	for name, value := range q.Conversation.Variables { // JSON has one kind of number
		if f, ok := value.(float64); ok && f == math.Trunc(f) {
			q.Conversation.Variables[name] = int64(f)
		}
	}
	text, hidden, err := t.render(q.Conversation)
	switch {
	case err != nil:
		return reply{Error: shorten(err)}
	case len(text) > maxPrompt:
		return reply{Error: "the chat template writes without end"}
	}
	return reply{Prompt: Prompt{hidden.pieces(text), t.tail(q.Conversation, text, hidden)}}
}

// shorten returns the end of an error of the template library, which contains the cause;
// before it may be the text of the template.
func shorten(err error) string {
	const enough = 300
	text := []rune(err.Error())
	if len(text) > enough {
		return "… " + string(text[len(text)-enough:])
	}
	return string(text)
}

// watchHeap ends the process if the heap is too large while it is busy.
func watchHeap(busy <-chan bool) {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	working := <-busy
	for {
		if !working {
			working = <-busy
			continue
		}
		select {
		case working = <-busy:
		case <-time.After(heapInterval):
			if metrics.Read(sample); sample[0].Value.Uint64() > maxHeap {
				os.Exit(3)
			}
		}
	}
}
