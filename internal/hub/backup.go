package hub

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
)

// BackupView is a copy of the database as the operator's API tells it.
type BackupView struct {
	ID    string    `json:"id"`
	At    time.Time `json:"at"`
	File  string    `json:"file"`
	Bytes int64     `json:"bytes"`
}

// backup is POST /backups {"file"}: a copy of the database in a new file on the
// hub's own computer, read whole to see that it is sound. What the journal still
// holds goes into the database first, so the copy misses no call that is over.
func (h *Hub) backup(ctx context.Context, r *http.Request) (any, error) {
	var ask struct {
		File string `json:"file"`
	}
	if f := readJSON(nil, r, &ask); f != nil {
		return nil, f
	}
	about(ctx, ask.File)
	if err := errors.Join(h.ledger.Flush(ctx), h.traces.Flush(ctx)); err != nil {
		return nil, err
	}
	made, err := h.records.Backup(ctx, account.Backup{ID: account.NewID("bak_"), At: time.Now().UTC(), File: ask.File})
	switch {
	case errors.Is(err, account.ErrInvalid), errors.Is(err, account.ErrExists):
		_, told, _ := strings.Cut(err.Error(), ": ") // the kind of error says nothing to a person
		return nil, fault.New(fault.InvalidRequest, "%s", told).WithParam("file").Because(err)
	case err != nil:
		return nil, err
	case made.Fault != "":
		return nil, fault.New(fault.InternalError, "the copy is not sound and was not kept: %s; check the disk, and the database itself", made.Fault)
	}
	return BackupView{made.ID, made.At, made.File, made.Bytes}, nil
}
