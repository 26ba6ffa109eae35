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
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"sync"
	"time"
)

// The limits of a child process. A request that exceeds them fails, and costs the child.
const (
	timeLimit = 5 * time.Second // of a request
	maxHeap   = 512 << 20
	maxStack  = 256 << 20
	// heapInterval is how often a child checks its heap while it works.
	heapInterval = 20 * time.Millisecond
	// maxPrompt limits a rendered prompt, in bytes.
	maxPrompt = 64 << 20
	// idleTimeout is how long a child that is not used is kept.
	idleTimeout = time.Minute
)

// Renderer runs templates in child processes: one for each template that is used, so that
// none waits for another, and one for a template that is opened. Create it with NewRenderer.
type Renderer struct {
	command func() *exec.Cmd
	limit   time.Duration // timeLimit; tests have less time
	opens   *lane

	mu    sync.Mutex
	lanes map[templateKey]*lane // of templates that were used
}

// templateKey is the SHA-256 of a Source.
type templateKey [sha256.Size]byte

// NewRenderer returns a Renderer whose children are started by command: a program that
// calls Serve with its standard input and output.
func NewRenderer(command func() *exec.Cmd) *Renderer {
	return &Renderer{command: command, limit: timeLimit, opens: newLane(), lanes: map[templateKey]*lane{}}
}

// lane returns the lane of a template.
func (r *Renderer) lane(key templateKey) *lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lanes[key] == nil {
		r.lanes[key] = newLane()
	}
	return r.lanes[key]
}

// Close ends the child processes.
func (r *Renderer) Close() {
	r.mu.Lock()
	lanes := append(slices.Collect(maps.Values(r.lanes)), r.opens)
	r.mu.Unlock()
	for _, l := range lanes {
		<-l.turn
		l.end()
		l.turn <- struct{}{}
	}
}

// lane is a child process that serves one request at a time, and ends if it is not used.
type lane struct {
	turn  chan struct{} // has one element while no request is served
	child *child        // guarded by turn; nil if none is running
	idle  *time.Timer   // ends the child
}

func newLane() *lane {
	l := &lane{turn: make(chan struct{}, 1)}
	l.turn <- struct{}{}
	l.idle = time.AfterFunc(idleTimeout, func() {
		select {
		case <-l.turn:
			l.end()
			l.turn <- struct{}{}
		default: // it is used
		}
	})
	return l
}

// await waits for the turn.
func (l *lane) await(ctx context.Context) error {
	select {
	case <-l.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// yield ends the turn.
func (l *lane) yield() {
	l.idle.Reset(idleTimeout)
	l.turn <- struct{}{}
}

// end ends the child. The caller must have the turn.
func (l *lane) end() {
	l.child.kill()
	l.child = nil
}

// Template is a template that was opened in a Renderer. It is safe for concurrent use.
type Template struct {
	Form     *Form
	renderer *Renderer
	key      templateKey
	source   *Source
}

// Open compiles and inspects a template, in a child process of its own.
func (r *Renderer) Open(ctx context.Context, s Source) (*Template, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	t := &Template{renderer: r, key: sha256.Sum256(text), source: &s}
	if err := r.opens.await(ctx); err != nil {
		return nil, err
	}
	defer r.opens.yield()
	defer r.opens.end()
	reply, err := t.ask(r.opens, request{Inspect: true})
	t.Form = reply.Form
	return t, err
}

// Prompt is a rendered conversation.
type Prompt struct {
	Pieces []Piece `json:"pieces"`
	// Tail is what the template wrote after the last message (ReaderOptions.Prompt).
	Tail string `json:"tail"`
}

// Render returns the prompt for a conversation.
func (t *Template) Render(ctx context.Context, c *Conversation) (Prompt, error) {
	l := t.renderer.lane(t.key)
	if err := l.await(ctx); err != nil {
		return Prompt{}, err
	}
	defer l.yield()
	reply, err := t.ask(l, request{Conversation: c, Form: t.Form})
	return reply.Prompt, err
}

// request is a line on a child's standard input, and reply the line that answers it.
type request struct {
	Source       *Source       `json:"source,omitempty"` // in the first request
	Inspect      bool          `json:"inspect,omitempty"`
	Form         *Form         `json:"form,omitempty"` // unless Inspect
	Conversation *Conversation `json:"conversation,omitempty"`
}

type reply struct {
	Form   *Form  `json:"form,omitempty"`
	Prompt Prompt `json:"prompt,omitzero"`
	Error  string `json:"error,omitempty"`
}

// ask sends a request to the lane's child. A child that ends may have been ended from
// outside, for instance because the machine had no memory left, so the request is sent to a
// new one before the template is blamed. The caller must have the turn.
func (t *Template) ask(l *lane, q request) (answer reply, err error) {
	for range 2 {
		if answer, err = t.askOnce(l, q); err != errEnded {
			break
		}
	}
	if err == nil && answer.Error != "" {
		err = errors.New(answer.Error)
	}
	return answer, err
}

// askOnce sends a request to the lane's child, which it starts if necessary.
func (t *Template) askOnce(l *lane, q request) (answer reply, err error) {
	if l.child == nil {
		if l.child, err = start(t.renderer.command()); err != nil {
			return reply{}, fmt.Errorf("cannot start the process for chat templates: %w", err)
		}
		q.Source = t.source
	}
	if answer, err = l.child.ask(q, t.renderer.limit); err != nil {
		l.end()
	}
	return answer, err
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
	return &child{cmd: cmd, in: in, out: jsontext.NewDecoder(bufio.NewReaderSize(out, 64<<10))}, nil
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
	var of *template
	for q := range requests {
		busy <- true
		answer := serve(&of, q)
		busy <- false
		if err := json.MarshalWrite(out, answer); err != nil {
			return 1
		}
	}
	return 0
}

// serve returns the reply for a request. It compiles the template of the first one.
func serve(of **template, q request) (answer reply) {
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
		*of = t
	}
	t := *of
	switch {
	case t == nil:
		return reply{Error: "the chat template cannot be read"}
	case q.Inspect:
		if err := t.inspect(); err != nil {
			return reply{Error: shorten(err)}
		}
		return reply{Form: t.form}
	}
	t.form = q.Form
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
