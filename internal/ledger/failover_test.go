package ledger_test

import (
	"context"
	"fmt"
	"log/slog"
	neturl "net/url"
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/assert"
	"github.com/kith/kith/internal/ledger"
	"github.com/kith/kith/internal/store"
	"github.com/kith/kith/internal/storetest"
)

// If a standby that lagged behind is promoted, it gets the records that it missed
// (docs/decisions/0008-confirmation.md).
func TestFailoverLosesNoRecord(t *testing.T) {
	old := storetest.Start(t)
	url := old.Database(t)
	db := open(t, url)
	assert.OK(t, db.CreateMember(t.Context(), account.Member{ID: "mem_ada", Name: "ada", Created: time.Now().UTC()}))
	assert.OK(t, db.Close())
	old.Stop(t)
	next := old.Promoted(t)
	old.Start(t)

	db = open(t, strings.Replace(url, neturl.QueryEscape(old.Host()), neturl.QueryEscape(old.Host()+","+next.Host()), 1))
	t.Cleanup(func() { assert.OK(t, db.Close()) })
	node := account.Node{Name: "a", Incarnation: "first", Region: "eu", Started: time.Now()}
	assert.OK(t, db.StartNode(t.Context(), node))
	update, _, err := db.Facts("eu").Poll(t.Context(), account.Position{})
	assert.OK(t, err)
	assert.That(t, !update.FailedOver, "the first poll is a fail-over")
	l := ledger.New(db, nil, slog.New(slog.DiscardHandler))
	for i := range 10 {
		l.End(account.Usage{CallID: fmt.Sprint("req_", i), MemberID: "mem_ada", Started: time.Now().UTC(), Model: "m"})
	}
	assert.OK(t, l.Flush(t.Context()))
	recorded(t, db, 10)

	old.Stop(t)
	for db.StartNode(t.Context(), node) != nil && t.Context().Err() == nil { // a closed connection is noticed when it is used
	}
	recorded(t, db, 0)
	at := update.Position
	for update, _, err = db.Facts("eu").Poll(t.Context(), at); err != nil && t.Context().Err() == nil; {
		update, _, err = db.Facts("eu").Poll(t.Context(), at)
	}
	assert.That(t, update.FailedOver, "the poll after the fail-over does not say so")
	l.Requeue()
	for l.Flush(t.Context()) != nil && t.Context().Err() == nil { // the day's partition is gone, too
	}
	recorded(t, db, 10)
	l.Requeue()
	assert.OK(t, l.Flush(t.Context()))
	recorded(t, db, 10)
	if update, _, err = db.Facts("eu").Poll(t.Context(), update.Position); err != nil || update.FailedOver {
		t.Errorf("the next poll: %+v, %v", update, err)
	}
}

func open(t *testing.T, url string) *store.DB {
	t.Helper()
	db, err := store.Open(context.WithoutCancel(t.Context()), store.Config{URL: url})
	assert.OK(t, err)
	return db
}

func recorded(t *testing.T, db *store.DB, want int) {
	t.Helper()
	records, err := db.Usage(t.Context())
	assert.OK(t, err)
	assert.Equal(t, len(records), want, "the database")
}
