package sealed

import (
	"context"
	"encoding/json/v2"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/seal"
)

const (
	listFresh   = time.Minute
	listRefresh = listFresh / 2 // a list in use is fetched again after that
	// keepStatement is how long calls are sealed with a statement after it was fetched.
	keepStatement = 2 * time.Hour
	fetchTimeout  = 10 * time.Second // of a list that is fetched again
	maxLists      = 256
	maxListed     = 16
	maxListText   = 256 << 10 // bytes
	maxNameText   = 64        // bytes of a name in an error
	maxIDText     = 64        // bytes of an id, as in a statement
)

// listKey is what a list is of.
type listKey struct {
	model  fleet.ModelID
	family fleet.Family
	reach  fleet.KeyReach
}

// list is the hub's list of machines for a model.
type list struct {
	machines []listed
	missing  bool          // the hub has no such route
	skew     time.Duration // of the hub's clock
	fetched  time.Time

	refreshing bool // guarded by lists.mu
}

// lists keeps the lists that are fresh, and the statements that were in any.
type lists struct {
	mu         sync.Mutex
	of         map[listKey]*list
	statements map[fleet.MachineID]kept
}

type kept struct {
	*seal.Statement
	fetched time.Time
}

// get returns the list of a key. One that is not fresh is fetched first, and one that soon
// will not be is fetched in the background.
func (ls *lists) get(ctx context.Context, key listKey,
	fetch func(context.Context, listKey) (*list, error)) (*list, error) {
	l, refresh := ls.fresh(key)
	switch {
	case l == nil:
		l, err := fetch(ctx, key)
		if err == nil {
			ls.put(key, l)
		}
		return l, err
	case refresh:
		go func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchTimeout)
			defer cancel()
			if next, err := fetch(ctx, key); err == nil {
				ls.put(key, next)
			} // else the next call fetches it, and has the error
		}()
	}
	return l, nil
}

// fresh returns the list of a key if it is fresh, and whether to fetch it again.
func (ls *lists) fresh(key listKey) (l *list, refresh bool) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l = ls.of[key]
	if l == nil || time.Since(l.fetched) >= listFresh {
		return nil, false
	}
	refresh = !l.refreshing && time.Since(l.fetched) >= listRefresh
	l.refreshing = l.refreshing || refresh
	return l, refresh
}

func (ls *lists) put(key listKey, l *list) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.of == nil || len(ls.of) >= maxLists {
		ls.of = map[listKey]*list{}
	}
	ls.of[key] = l
}

// drop makes the next get fetch the list.
func (ls *lists) drop(key listKey) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.of, key)
}

// dropAll makes the next get of each list fetch it.
func (ls *lists) dropAll() {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	clear(ls.of)
}

// Refresh makes the next calls fetch their lists of machines.
func (c *Caller) Refresh() { c.lists.dropAll() }

// fetch fetches a list from the hub. It gives up a hub that is silent for as long as a call
// does.
func (c *Caller) fetch(ctx context.Context, key listKey) (*list, error) {
	ctx, cancel := context.WithTimeout(ctx, hubSilence)
	defer cancel()
	query := url.Values{"model": {string(key.model)}, "family": {key.family.String()}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Hub+"/api/seals?"+query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	setReach(req, key.reach)
	resp, err := c.Send(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	now := time.Now()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxListText))
	if resp.StatusCode == http.StatusNotFound && !isFault(text) {
		return &list{missing: true, fetched: now}, nil
	}
	if resp.StatusCode != http.StatusOK {
		return nil, c.refusal(resp, text)
	}
	var of fleet.SealList
	if err == nil {
		err = json.Unmarshal(text, &of)
	}
	if err != nil {
		return nil, refuse("the list of keys of the hub at %s cannot be read; try again", c.Hub).Because(err)
	}
	l := &list{fetched: now, skew: of.Now.Sub(now)}
	if of.Now.IsZero() {
		l.skew = 0
	}
	l.machines = c.lists.statementsIn(&of, now)
	return l, nil
}

// isFault reports whether a 404 of the hub is about the model, and not about the route.
func isFault(document []byte) bool {
	var body struct {
		Error struct {
			Code fault.Code `json:"code"`
		} `json:"error"`
	}
	return json.Unmarshal(document, &body) == nil && body.Error.Code.Known() && body.Error.Code != fault.RouteNotFound
}

// statementsIn returns the machines of a list, each once, with their statements. A
// statement that the list lacks is the one before, if the machine may still have its key.
func (ls *lists) statementsIn(of *fleet.SealList, now time.Time) (machines []listed) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.statements == nil || len(ls.statements) >= maxContexts {
		ls.statements = map[fleet.MachineID]kept{}
	}
	for _, m := range of.Machines {
		if len(machines) == maxListed || slices.ContainsFunc(machines, func(l listed) bool { return l.ID == m.ID }) ||
			len(m.ID) > maxIDText || len(m.Owner) > maxIDText {
			continue
		}
		m.Name, m.OwnerName = printable(m.Name, maxNameText), printable(m.OwnerName, maxNameText)
		l := listed{SealMachine: m}
		if len(m.Statement) > 0 {
			s, err := seal.ParseStatement(m.Statement)
			if l.statement, l.invalid = s, err != nil; err == nil && s.Machine == string(m.ID) {
				ls.statements[m.ID] = kept{s, now}
			}
		} else if k, ok := ls.statements[m.ID]; ok && now.Sub(k.fetched).Abs() < keepStatement &&
			(len(m.Keys) == 0 || slices.Contains(m.Keys, fleet.SealKey(k.KeyID))) {
			l.statement = k.Statement
		}
		machines = append(machines, l)
	}
	return machines
}
