package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kith/kith/internal/daemon/private"
	"github.com/kith/kith/internal/fleet"
)

// Sharing are the settings that the owner can change while the daemon runs. The initial
// values come from the configuration. A change on the site or the command line is saved
// and overrides the configured values of the fields that it sets.
type Sharing struct {
	// Paused refuses all calls of the hub, including the owner's.
	Paused bool `json:"paused"`
	// Until is when the pause ends automatically; zero: the owner ends it.
	Until time.Time `json:"until,omitzero"`
	// Hours are the weekly windows for serving other members, in the format of
	// fleet.ParseHours; empty: always.
	Hours string `json:"hours"`
	// Timezone is the IANA time zone of Hours; empty: unknown, and then Hours are refused.
	Timezone string `json:"timezone"`
	// NoZone is why the configuration has no Timezone.
	NoZone string `json:"-"`
	// Slots is how many calls may run concurrently; 0: the engines' number. A change
	// cannot exceed the configured number; 0 restores it.
	Slots int `json:"slots"`
}

// settings is the Sharing in effect and the file with the saved changes.
type settings struct {
	path string

	mu         sync.Mutex
	configured Sharing       // from the configuration
	saved      fleet.Control // the owner's changes, as in the state file
	inForce    Sharing       // configured, with the saved changes applied
	hours      fleet.Hours   // inForce.Hours, parsed
}

// openSettings reads the state file at path. It fails if the file cannot be read, because
// it may contain the owner's pause.
func openSettings(path string, configured Sharing) (*settings, error) {
	s, err := readSettings(path, configured)
	if err == nil {
		s.inForce, s.hours, err = effective(configured, s.saved)
	}
	return s, err
}

// readSettings is openSettings without validation: nothing is in effect yet.
func readSettings(path string, configured Sharing) (*settings, error) {
	s := &settings{path: path, configured: configured}
	if err := private.Read(path, &s.saved); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil,
			fmt.Errorf("cannot determine whether this machine is paused: %w, and set pause, hours and slots again", err)
	}
	return s, nil
}

// reconfigure replaces the configured values and returns the previous ones. On error
// nothing changes.
func (s *settings) reconfigure(configured Sharing) (before Sharing, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before = s.configured
	now, hours, err := effective(configured, s.saved)
	if err == nil {
		s.configured, s.inForce, s.hours = configured, now, hours
	}
	return before, err
}

// configuredSlots returns the configured number of slots; 0: the engines'.
func (s *settings) configuredSlots() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.configured.Slots
}

// current returns the Sharing in effect at time now, and its hours.
func (s *settings) current(now time.Time) (Sharing, fleet.Hours) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inForce.at(now), s.hours
}

// pause returns the pause that was set, even if it has ended.
func (s *settings) pause() (paused bool, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inForce.Paused, s.inForce.Until
}

// at returns s without a pause that has ended by time now.
func (s Sharing) at(now time.Time) Sharing {
	if s.Paused && !s.Until.IsZero() && !now.Before(s.Until) {
		s.Paused, s.Until = false, time.Time{}
	}
	return s
}

// errPauseUnsaved is the error of a pause that is in effect but could not be saved.
var errPauseUnsaved = errors.New("the running daemon is paused, but will not be after its next start")

// change validates c, saves it and applies it. On any error except errPauseUnsaved
// nothing changes.
func (s *settings) change(c fleet.Control) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.Slots != nil && s.configured.Slots > 0 && *c.Slots > s.configured.Slots {
		return fmt.Errorf("cannot share %d slots: this machine's configuration allows %d ([share] slots); "+
			"raise it there", *c.Slots, s.configured.Slots)
	}
	saved := merge(s.saved, c)
	now, hours, err := effective(s.configured, saved)
	if err != nil {
		return err
	}
	err = private.Write(s.path, saved)
	if err != nil && (c.Paused == nil || !*c.Paused) {
		return err
	}
	s.saved, s.inForce, s.hours = saved, now, hours
	if err != nil { // the owner's pause must take effect even if the disk is full
		return fmt.Errorf("%w: %w; make room and pause again", errPauseUnsaved, err)
	}
	return nil
}

// ChangeSaved applies c to the saved state in home, for a daemon that is not running. It
// returns the Sharing for that daemon's next start. The state before c may be invalid: c
// may correct it.
func ChangeSaved(home string, configured Sharing, c fleet.Control) (Sharing, error) {
	s, err := readSettings(filepath.Join(home, stateFile), configured)
	switch {
	case err != nil:
	case c == (fleet.Control{}):
		s.inForce, s.hours, err = effective(configured, s.saved)
	default:
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

// merge returns base with the fields that c sets.
func merge(base, c fleet.Control) fleet.Control {
	if c.Paused != nil {
		base.Paused, base.Until = c.Paused, c.Until
	}
	base.Hours, base.Timezone, base.Slots = cmp.Or(c.Hours, base.Hours), cmp.Or(c.Timezone, base.Timezone),
		cmp.Or(c.Slots, base.Slots)
	return base
}

// effective returns configured with the fields that saved sets, validated.
func effective(configured Sharing, saved fleet.Control) (Sharing, fleet.Hours, error) {
	c := merge(fleet.Control{Paused: &configured.Paused, Hours: &configured.Hours, Timezone: &configured.Timezone,
		Slots: &configured.Slots}, saved)
	now := Sharing{Paused: *c.Paused, Hours: *c.Hours, Timezone: *c.Timezone, Slots: *c.Slots}
	if c.Until != nil && now.Paused {
		now.Until = *c.Until
	}
	if now.Slots < 0 {
		return Sharing{}, fleet.Hours{},
			fmt.Errorf("cannot share %d slots: give a number of calls, or 0 for the engines' own number", now.Slots)
	}
	if configured.Slots > 0 && (now.Slots == 0 || now.Slots > configured.Slots) {
		now.Slots = configured.Slots
	}
	if now.Hours != "" && now.Timezone == "" {
		return Sharing{}, fleet.Hours{},
			fmt.Errorf("cannot use the hours %q: the time zone of this machine is not known (%s); "+
				"name it, like `kith hours set … --tz Europe/Lisbon`, or as timezone in [share] of config.toml",
				now.Hours, cmp.Or(configured.NoZone, "it is not configured"))
	}
	hours, err := fleet.ParseHours(now.Hours, now.Timezone)
	if err != nil {
		return Sharing{}, fleet.Hours{}, err
	}
	return now, hours, nil
}
