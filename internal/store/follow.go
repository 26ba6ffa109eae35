package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// changesChannel is the PostgreSQL channel for notifications of commits that move the
// epoch.
const changesChannel = "kith_changes"

const (
	listenAgain = time.Second // pause before a lost connection is replaced
	// listenCheck is how often the listening connection is checked to be to the primary.
	listenCheck = 30 * time.Second
)

// followers are the functions that Follow calls.
type followers struct {
	mu  sync.Mutex
	all map[*func()]struct{}
}

func (f *followers) notify() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for changed := range f.all {
		(*changed)()
	}
}

func (f *followers) add(changed *func()) (remove func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = make(map[*func()]struct{})
	}
	f.all[changed] = struct{}{}
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.all, changed)
	}
}

// Follow calls changed when it begins to listen, and after each commit that moves the
// epoch, until ctx ends. The commit may be by this process or, on PostgreSQL, by another
// one. Notifications are lost while the connection to the server is down, so the caller
// must poll, too. changed must not block.
func (f *Facts) Follow(ctx context.Context, changed func()) {
	defer f.db.followers.add(&changed)()
	p := f.db.flavor.primary
	if p == nil {
		changed()
		<-ctx.Done()
		return
	}
	for ctx.Err() == nil {
		p.listen(ctx, changed)
		select {
		case <-time.After(listenAgain):
		case <-ctx.Done():
		}
	}
}

// listen calls changed for each notification of the server, until the connection is lost
// or its server is no longer the primary.
func (p *primary) listen(ctx context.Context, changed func()) {
	within, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	conn, err := pgx.ConnectConfig(within, p.config.Copy())
	if err != nil {
		return // the poll reports that the database is unreachable
	}
	defer func() { _ = conn.Close(context.Background()) }()
	if _, err := conn.Exec(within, "LISTEN "+changesChannel); err != nil {
		return
	}
	changed() // for commits before it listened
	for p.reset(ctx, conn) == nil {
		wait, cancel := context.WithTimeout(ctx, listenCheck)
		_, err := conn.WaitForNotification(wait)
		late := wait.Err() != nil
		cancel()
		switch {
		case err == nil:
			changed()
		case ctx.Err() != nil || !late || conn.IsClosed():
			return
		}
	}
}
