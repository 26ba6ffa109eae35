package sim

import (
	"bufio"
	"context"
	"encoding/json/v2"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing/synctest"
	"time"

	"github.com/kith/kith/internal/account"
)

// ask is a call as a client makes it.
type ask struct {
	by     *member
	model  string
	stream bool
	words  int    // of the prompt, which the engine says back; 0: 3
	n      int    // answers; 0: 1
	prefer string // Prefer
	leave  time.Duration
	via    *seat    // nil: the world's node
	at     *machine // not nil: at the surface of this machine, which is by's, and seals it
}

// answer is what a client got.
type answer struct {
	ask
	tag          string
	key          account.Key // it was made with
	said         string      // what was asked to be said back
	began, ended time.Time
	first, last  time.Time // the first and the last byte of a stream's content
	status       int
	header       http.Header
	code, reason string
	message      string // of the error
	text         string // what was said
	done         bool   // [DONE], or a complete unary answer
	framed       bool   // the code came in a frame
	beats        []time.Duration
	comments     []string
	err          error // a broken connection

	over chan struct{}
	quit context.CancelFunc
}

// String is the answer in one line.
func (a *answer) String() string {
	return fmt.Sprintf("call %s of %s for %q (stream %v): %d %s %s done=%v framed=%v %q %s err=%v after %s", a.tag, a.by.Name, a.model, a.stream,
		a.status, a.code, a.reason, a.done, a.framed, a.text, a.message, a.err, a.ended.Sub(a.began))
}

func (a *answer) served() bool { return a.done && a.code == "" }

// sealed is how the call was sent, for one made at a machine.
func (a *answer) sealed() string {
	for _, c := range a.comments {
		if how, ok := strings.CutPrefix(c, "sealed="); ok {
			return how
		}
	}
	return a.header.Get("X-Kith-Sealed")
}

// patience is how long the call may wait for a machine.
func (a *answer) patience() time.Duration {
	limit := 60 * time.Second
	if a.stream {
		limit = 180 * time.Second
	}
	var own int
	if n, _ := fmt.Sscanf(a.prefer, "wait=%d", &own); n == 1 {
		limit = min(limit, time.Duration(own)*time.Second)
	}
	return limit
}

// begin makes the call; over is closed at its end.
func (w *world) begin(q ask) *answer {
	if q.words == 0 {
		q.words = 3
	}
	a := &answer{ask: q, key: q.by.key, began: time.Now(), over: make(chan struct{})}
	a.tag = w.tag(a)
	a.said = "tag-" + a.tag + " " + strings.TrimSpace(strings.Repeat("word ", q.words))
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"n":%d,"messages":[{"role":"user","content":%q}]}`, q.model, q.stream, max(q.n, 1), a.said)
	path := "/v1/chat/completions"
	if strings.HasPrefix(q.model, "emb") {
		path, body = "/v1/embeddings", fmt.Sprintf(`{"model":%q,"input":%q}`, q.model, a.said)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a.quit = cancel
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, hubURL+path, strings.NewReader(body))
	w.must(err)
	r.Header.Set("Authorization", "Bearer "+q.by.secret)
	r.Header.Set("Content-Type", "application/json")
	if q.prefer != "" {
		r.Header.Set("Prefer", q.prefer)
	}
	client := w.client
	if q.at != nil {
		a.key = account.Key{Reach: account.ReachAll}
		r.Header.Del("Authorization")
		client = clientOf(func() *network { return q.at.surface })
	} else if q.via != nil {
		client = clientOf(func() *network { return q.via.Load().net })
	}
	go func() {
		defer close(a.over)
		defer cancel()
		a.err = a.read(client, r)
		a.ended = time.Now()
	}()
	if q.leave > 0 {
		time.AfterFunc(q.leave, cancel)
	}
	return a
}

// do makes the call and waits for its end.
func (w *world) do(q ask) *answer {
	a := w.begin(q)
	<-a.over
	synctest.Wait()
	return a
}

// begun waits until the call runs on an engine.
func (w *world) begun(a *answer) {
	w.t.Helper()
	for range 100 {
		synctest.Wait()
		if len(w.runs.of(a.tag)) > 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	w.t.Fatalf("call %s never ran", a.tag)
}

func (a *answer) read(client *http.Client, r *http.Request) error {
	response, err := client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	a.status, a.header = response.StatusCode, response.Header
	if response.Header.Get("Content-Type") == "text/event-stream" {
		return a.readStream(response.Body)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Error   *errorBody `json:"error"`
		Choices []struct {
			Message struct {
				Content string `json:"content"`
			} `json:"message"`
		} `json:"choices"`
		Data []struct{} `json:"data"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return fmt.Errorf("cannot read the answer %q: %w", text, err)
	}
	switch {
	case answer.Error != nil:
		a.code, a.reason, a.message = answer.Error.Code, answer.Error.Reason, answer.Error.Message
		if answer.Error.ID == "" || answer.Error.ID != response.Header.Get("X-Correlation-ID") {
			return fmt.Errorf("the correlation id is %q, in the header %q", answer.Error.ID, response.Header.Get("X-Correlation-ID"))
		}
	case len(answer.Choices) == 1:
		a.text, a.done = answer.Choices[0].Message.Content, true
	default:
		a.text, a.done = a.said, len(answer.Data) == 1
	}
	return nil
}

// errorBody is an error as a client reads it.
type errorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Reason  string `json:"reason"`
	ID      string `json:"correlation_id"`
	Details struct {
		Reason string `json:"reason"`
	} `json:"details"`
}

var errAfterEnd = errors.New("something came after the end")

func (a *answer) readStream(body io.Reader) error {
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		line := lines.Text()
		if line == "" {
			continue
		}
		if a.done || a.framed {
			return errAfterEnd
		}
		if comment, ok := strings.CutPrefix(line, ": "); ok {
			a.beats = append(a.beats, time.Since(a.began))
			a.comments = append(a.comments, comment)
			continue
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			return fmt.Errorf("a strange line: %q", line)
		}
		if a.first.IsZero() {
			a.first = time.Now()
		}
		if data == "[DONE]" {
			a.done = true
			continue
		}
		var chunk struct {
			Error   *errorBody `json:"error"`
			Choices []struct {
				Delta struct {
					Content string `json:"content"`
				} `json:"delta"`
			} `json:"choices"`
		}
		if err := json.Unmarshal([]byte(data), &chunk); err != nil {
			return fmt.Errorf("a strange frame %q: %w", data, err)
		}
		if chunk.Error != nil {
			a.code, a.reason, a.message = chunk.Error.Code, chunk.Error.Details.Reason, chunk.Error.Message
			a.framed = true
			continue
		}
		a.last = time.Now()
		for _, c := range chunk.Choices {
			a.text += c.Delta.Content
		}
	}
	if a.framed { // after an error frame the connection breaks, by design
		return nil
	}
	return lines.Err()
}
