package web

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/kith/kith/internal/fault"
)

// readBody reads the whole body, so that no answer waits for one that nobody
// read. Its error is for the caller; the connection then ends with the answer.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyTime)) // a connection in memory may have none
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err == nil && len(body) <= maxBody {
		_ = control.SetReadDeadline(time.Time{})
		return body, nil
	}
	_ = control.SetReadDeadline(time.Now()) // what is still to come is not waited for
	_ = control.EnableFullDuplex()
	w.Header().Set("Connection", "close")
	if err == nil {
		return nil, fault.New(fault.RequestTooLarge, "the body is larger than %d bytes: send less", maxBody)
	}
	return nil, fault.New(fault.InvalidRequest, "cannot read the body: it did not come whole").Because(err)
}

// read decodes the request's strict JSON body: one object, no member twice,
// none unknown.
func read[T any](r *request) (T, error) {
	var into T
	if len(r.body) == 0 {
		return into, fault.New(fault.InvalidRequest, "this request needs a JSON body")
	}
	if err := json.Unmarshal(r.body, &into, json.RejectUnknownMembers(true)); err != nil {
		f := fault.New(fault.InvalidRequest, "cannot read the JSON body: %v", err)
		if wrong := (*json.SemanticError)(nil); errors.As(err, &wrong) {
			f = f.WithParam(wrong.JSONPointer.LastToken())
		}
		return into, f
	}
	return into, nil
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.MarshalWrite(w, answer) // the client is gone: nothing to add
}

// problem is a refusal in the envelope of the chat dialect (decisions 4).
type problem struct {
	Code          fault.Code `json:"code"`
	Message       string     `json:"message"`
	Type          string     `json:"type"`
	Param         *string    `json:"param"`
	CorrelationID string     `json:"correlation_id"`
}

// retryAfter is the standard back-off in seconds where a fault names none
// (decisions 4).
const retryAfter = 5

func writeFault(w http.ResponseWriter, f *fault.Fault, id string) {
	p := problem{Code: f.Code, Message: f.Message, Type: f.Type(), CorrelationID: id}
	if f.Param != "" {
		p.Param = &f.Param
	}
	if status := f.Status(); status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(cmp.Or(f.RetryAfter, retryAfter)))
	}
	writeJSON(w, f.Status(), map[string]problem{"error": p})
}
