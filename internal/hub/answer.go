package hub

import (
	"net/http"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/fault"
)

// guarded answers a panic of the handler: it is a defect of this request only.
func (h *Hub) guarded(handler http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if v := recover(); v != nil {
				err := fault.Defect(v)
				id := writeProblem(w, fault.Of(err)) // in vain where an answer has begun
				h.log.Error("request failed", "id", id, "method", r.Method, "error", err)
			}
		}()
		handler(w, r)
	}
}

// writeProblem refuses a request outside the inference routes, under a correlation
// id, which it returns.
func writeProblem(w http.ResponseWriter, f *fault.Fault) (id string) {
	id = account.NewID("req_")
	w.Header().Set("X-Correlation-ID", id)
	w.Header().Set("Cache-Control", "no-store")
	api.WriteFault(w, f, id)
	return id
}
