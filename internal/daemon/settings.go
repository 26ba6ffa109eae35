package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kith/kith/internal/fleet"
	"github.com/kith/kith/internal/tunnel"
)

// Sharing is what the owner may change while the daemon runs. The
// configuration gives the first values; what the site and the CLI changed since
// is saved and stands over them, member by member (decisions 8).
type Sharing struct {
	// Paused refuses every call that comes down the tunnel, the owner's own too.
	Paused bool `json:"paused"`
	// Until is when the pause ends by itself; zero: when it is told to.
	Until time.Time `json:"until,omitzero"`
	// Hours are the weekly windows in which this machine serves others, as
	// fleet.ParseHours reads them; empty: always.
	Hours string `json:"hours"`
	// Timezone is the IANA zone Hours are in; empty: UTC.
	Timezone string `json:"timezone"`
	// Slots is how many calls may run here at once; 0: as many as the engines say.
	// A change sets fewer than the configuration does, never more; 0 is the
	// configuration's again.
	Slots int `json:"slots"`
}

// Change is a change of the owner's to Sharing: what is nil stays as it is. A
// change of Paused takes Until with it.
type Change = tunnel.Control

// settings is the Sharing in force and the file that outlives the process.
type settings struct {
	path  string
	first Sharing // of the configuration

	mu    sync.Mutex
	saved Change      // what was changed since; the state file's content
	now   Sharing     // first with saved over it
	hours fleet.Hours // now.Hours, read
}

// openSettings reads the state file at path over the first values. A state that
// cannot be read is an error, not a fresh start: it may hold the owner's pause.
func openSettings(path string, first Sharing) (*settings, error) {
	s := &settings{path: path, first: first}
	if err := readPrivate(path, &s.saved); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var err error
	if s.now, s.hours, err = settle(first, s.saved); err != nil {
		return nil, err
	}
	return s, nil
}

// begin puts other first values under what was changed since. On an error
// nothing has changed.
func (s *settings) begin(first Sharing) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, hours, err := settle(first, s.saved)
	if err == nil {
		s.first, s.now, s.hours = first, now, hours
	}
	return err
}

// owners is how many slots the configuration says; 0: as many as the engines do.
func (s *settings) owners() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.first.Slots
}

// current is the Sharing in force at that time and its hours.
func (s *settings) current(now time.Time) (Sharing, fleet.Hours) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.at(now), s.hours
}

// pause is the pause as it was asked for, over or not.
func (s *settings) pause() (paused bool, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now.Paused, s.now.Until
}

// at is the Sharing without a pause that is over by then.
func (s Sharing) at(now time.Time) Sharing {
	if s.Paused && !s.Until.IsZero() && !now.Before(s.Until) {
		s.Paused, s.Until = false, time.Time{}
	}
	return s
}

// change lays c over what is in force: checked, then saved, then in force. On
// an error nothing has changed.
func (s *settings) change(c Change) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Slots != nil && s.first.Slots > 0 && *c.Slots > s.first.Slots {
		return fmt.Errorf("cannot share %d slots: the configuration of this machine says %d ([share] slots), and only there can it be more", *c.Slots, s.first.Slots)
	}
	saved := overlay(s.saved, c)
	now, hours, err := settle(s.first, saved)
	if err != nil {
		return err
	}
	if err := writePrivate(s.path, saved); err != nil {
		return err
	}
	s.saved, s.now, s.hours = saved, now, hours
	return nil
}

// ChangeSaved is change for a daemon that does not run: it lays c over the state
// saved in home, which the daemon takes up when it starts. first is what its
// configuration says.
func ChangeSaved(home string, first Sharing, c Change) (Sharing, error) {
	s, err := openSettings(filepath.Join(home, stateFile), first)
	if err == nil && c != (Change{}) {
		if err = os.MkdirAll(home, 0o700); err == nil {
			err = s.change(c)
		}
	}
	if err != nil {
		return Sharing{}, err
	}
	now, _ := s.current(time.Now())
	return now, nil
}

// overlay is under with every member that over sets.
func overlay(under, over Change) Change {
	if over.Paused != nil {
		under.Paused, under.Until = over.Paused, over.Until
	}
	if over.Hours != nil {
		under.Hours = over.Hours
	}
	if over.Timezone != nil {
		under.Timezone = over.Timezone
	}
	if over.Slots != nil {
		under.Slots = over.Slots
	}
	return under
}

// settle is first with every member that saved sets, checked.
func settle(first Sharing, saved Change) (Sharing, fleet.Hours, error) {
	c := overlay(Change{Paused: &first.Paused, Hours: &first.Hours, Timezone: &first.Timezone, Slots: &first.Slots}, saved)
	now := Sharing{Paused: *c.Paused, Hours: *c.Hours, Timezone: *c.Timezone, Slots: *c.Slots}
	if c.Until != nil && now.Paused {
		now.Until = *c.Until
	}
	if now.Slots < 0 {
		return Sharing{}, fleet.Hours{}, fmt.Errorf("cannot share %d slots: give a number of calls, or 0 for what the engines say", now.Slots)
	}
	if first.Slots > 0 && (now.Slots == 0 || now.Slots > first.Slots) {
		now.Slots = first.Slots
	}
	hours, err := fleet.ParseHours(now.Hours, now.Timezone)
	if err != nil {
		return Sharing{}, fleet.Hours{}, err
	}
	return now, hours, nil
}
