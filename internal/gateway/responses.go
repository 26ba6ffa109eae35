package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/spool"
)

// Turns stores the turns of the responses dialect. A turn belongs to one member and is
// encrypted with the id of its response, so only that id opens it
// (spec/api.md#responses-state).
type Turns struct {
	// Keep stores a turn; after an error it is not stored.
	Keep func(ctx context.Context, member fleet.MemberID, response string, turn []byte) error
	// Load returns a stored turn, nil if the member has none of that id. It calls room
	// with the turn's size before it reads it. Its errors are those of room, or
	// *fault.Fault.
	Load func(ctx context.Context, member fleet.MemberID, response string, room func(size int64) error) ([]byte, error)
	// Forget deletes a stored turn and reports whether it existed. Its errors are
	// *fault.Fault.
	Forget func(ctx context.Context, member fleet.MemberID, response string) (bool, error)
}

// keepLimit is how long storing a turn may delay the end of an answer.
const keepLimit = 2 * time.Second

// readResponses parses the body of a call in the responses dialect, translates it to chat
// and prepares its answer.
func (r *request) readResponses(call *Call, body []byte) (dialect.Head, []byte, error) {
	q, err := dialect.ReadResponses(body)
	if err != nil {
		return dialect.Head{}, nil, err
	}
	defer r.turns.read()
	if err := q.Resolve(r.loadTurn); err != nil {
		return dialect.Head{}, nil, err
	}
	chat, err := q.Chat()
	if err == nil && int64(len(chat)) > r.tuning.Body+translationRoom {
		err = tooLargeForMachines()
	}
	if err != nil {
		return dialect.Head{}, nil, err
	}
	// Not derived from the correlation id: that is in logs, and a response's id opens its
	// turn.
	call.response = q.Answer(rand.Text(), r.arrived, q.Stores() && r.edge.cfg.Turns != nil)
	return q.Head, chat, nil
}

// maxShortened is how often a call is retried with a shorter conversation.
const maxShortened = 6

// serveCall serves the call with the Backend. If the prompt is too long for the machine,
// a call of the responses dialect that allows it is retried without the oldest turns
// (docs/dialects.md, truncation).
func (r *request) serveCall(ctx context.Context) (*Answer, error) {
	for again := 0; ; again++ {
		answer, err := r.edge.cfg.Backend.Do(ctx, r.call)
		var f *fault.Fault
		if r.call.response == nil || again == maxShortened || ctx.Err() != nil || !errors.As(err, &f) {
			return answer, err
		}
		shorter, ok := r.call.response.Shorten(f)
		if !ok {
			return answer, err
		}
		r.call.chat.Close()
		if r.call.chat, err = r.keep(shorter); err != nil {
			return nil, err
		}
	}
}

// loadTurn returns a turn of the caller, or nil.
func (r *request) loadTurn(response string) ([]byte, error) {
	if r.edge.cfg.Turns == nil {
		return nil, nil
	}
	return r.edge.cfg.Turns.Load(r.Context(), r.caller.Member, response, func(size int64) error {
		return r.turns.reserve(r.edge.cfg.Spool, r.holder(), size)
	})
}

// turnReading is the memory that reading a turn takes in addition to the turn, in
// multiples of its size: one for the sealed text and one for what is parsed from it.
const turnReading = 2

// heldTurns is the memory reserved for the stored turns that a request needs, counted for
// its caller.
type heldTurns struct{ turns, reading []func() }

// reserve reserves memory for one more turn of that size.
func (h *heldTurns) reserve(in *spool.Spool, holder spool.Holder, size int64) error {
	turn, err := in.Reserve(holder, size)
	if err != nil {
		return err
	}
	h.turns = append(h.turns, turn)
	reading, err := in.Reserve(holder, turnReading*size)
	if err == nil {
		h.reading = append(h.reading, reading)
	}
	return err
}

// read releases the memory for reading the turns.
func (h *heldTurns) read() { h.reading = releaseAll(h.reading) }

// close releases the memory of the turns as well.
func (h *heldTurns) close() {
	h.read()
	h.turns = releaseAll(h.turns)
}

func releaseAll(all []func()) (none []func()) {
	for _, free := range all {
		free()
	}
	return nil
}

// writeTurn answers with a document made from stored turns. It holds the document as it
// does any answer and releases the turns before it writes, because the caller may read
// slowly.
func (r *request) writeTurn(document []byte) error {
	holder := r.holder()
	holder.Answer = true
	held, err := r.edge.cfg.Spool.Keep(holder, document)
	r.turns.close()
	if err != nil {
		return err
	}
	defer held.Close()
	return r.reply.writeHeld("application/json", held)
}

// finishResponse stores the turn and returns the end of the answer, which reports whether
// it was stored. A failure to store the turn never fails the answer.
func (r *request) finishResponse() []byte {
	now := time.Now()
	turn := r.call.response.Turn(now)
	if turn == nil {
		return r.call.response.Finish(now, false)
	}
	ctx, cancel := context.WithTimeout(r.Context(), keepLimit)
	defer cancel()
	err := r.edge.cfg.Turns.Keep(ctx, r.caller.Member, r.call.response.ID(), turn)
	if err != nil && !errors.Is(err, context.Canceled) {
		r.edge.cfg.Log.Warn("cannot store a turn; the answer reports that", "id", r.id, "error", err)
	}
	return r.call.response.Finish(now, err == nil)
}

// turnNamed returns the stored turn that the path names, and the id of its response.
func (r *request) turnNamed() (id string, turn []byte, err error) {
	id = r.route.argument(r.URL.EscapedPath())
	if turn, err = r.loadTurn(id); err == nil && turn == nil {
		err = noSuchResponse()
	}
	return id, turn, err
}

func noSuchResponse() error {
	return fault.New(fault.PreviousResponseNotFound, "no such response is stored for you: "+
		"it is unknown, has expired, was not stored or was deleted").WithParam("response_id")
}

// oneResponse serves GET and DELETE of /v1/responses/{id}.
func (r *request) oneResponse() error {
	if r.Method == http.MethodDelete {
		return r.deleteResponse()
	}
	if r.URL.Query().Get("stream") == "true" {
		return fault.New(fault.InvalidRequest, "a stored response cannot be streamed: omit stream").WithParam("stream")
	}
	defer r.turns.close()
	_, turn, err := r.turnNamed()
	if err != nil {
		return err
	}
	object, err := dialect.KeptResponse(turn)
	if err != nil {
		return err
	}
	return r.writeTurn(object)
}

func (r *request) deleteResponse() error {
	id, there := r.route.argument(r.URL.EscapedPath()), false
	if r.edge.cfg.Turns != nil {
		var err error
		if there, err = r.edge.cfg.Turns.Forget(r.Context(), r.caller.Member, id); err != nil {
			return err
		}
	}
	if !there {
		return noSuchResponse()
	}
	return r.writeJSON(struct {
		ID      string `json:"id"`
		Object  string `json:"object"`
		Deleted bool   `json:"deleted"`
	}{id, "response", true})
}

// inputItems serves GET /v1/responses/{id}/input_items.
func (r *request) inputItems() error {
	query := r.URL.Query()
	page := dialect.InputPage{After: query.Get("after"), Limit: 20}
	if text := query.Get("limit"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 100 {
			return fault.New(fault.InvalidRequest, "limit must be a whole number from 1 to 100").WithParam("limit")
		}
		page.Limit = n
	}
	switch order := query.Get("order"); order {
	case "", "desc":
	case "asc":
		page.Ascending = true
	default:
		return fault.New(fault.InvalidRequest, "order must be asc or desc").WithParam("order")
	}
	defer r.turns.close()
	_, turn, err := r.turnNamed()
	if err != nil {
		return err
	}
	list, err := dialect.InputItems(turn, page)
	if err != nil {
		return err
	}
	return r.writeTurn(list)
}
