package api

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/credential"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// controlTime is how long a machine may take to apply a change.
const controlTime = 10 * time.Second

// maxSlots is the largest number of slots for a machine.
const maxSlots = 1024

// Machine is a machine as shown to its owner. Its state comes from the last
// advertisement, so a machine that never connected has none.
type Machine struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	Online bool   `json:"online"`
	Paused bool   `json:"paused"`
	// PausedUntil is when the pause ends automatically; absent: it does not, or there is
	// no pause.
	PausedUntil time.Time `json:"paused_until,omitzero"`
	Hours       string    `json:"hours"` // empty: always
	Timezone    string    `json:"timezone"`
	// ZoneUnknown reports that the hub does not know the time zone, so that the machine is
	// outside its hours for other members.
	ZoneUnknown bool           `json:"zone_unknown,omitzero"`
	Open        bool           `json:"open"` // now inside its hours
	Slots       int            `json:"slots"`
	Running     int            `json:"running"` // calls that this hub sent to it
	Queued      int            `json:"queued"`  // waiting calls that it could serve
	Models      []MachineModel `json:"models"`
	KeptOut     bool           `json:"kept_out"` // from every group
	// Groups are the only groups that the machine serves, as configured there; absent: all
	// groups of its owner.
	Groups []string `json:"groups,omitzero"`
	// Facts describe its computer and programs, as of LastSeen; absent: unknown.
	Facts *fleet.MachineFacts `json:"facts,omitzero"`
	// Class is what others see of Facts if ShowsClass is true: the sizes of GPUs and memory.
	Class      string `json:"class,omitzero"`
	ShowsClass bool   `json:"shows_class"`
	// Sealed reports that calls can be sealed for it now (spec/sealed.md).
	Sealed   bool      `json:"sealed"`
	Created  time.Time `json:"created"`
	LastSeen time.Time `json:"last_seen,omitzero"`
}

// MachineModel is a model that a machine offers.
type MachineModel struct {
	ID fleet.ModelID `json:"id"`
	fleet.ModelFacts
	ContextLength int `json:"context_length,omitzero"`
	Slots         int `json:"slots,omitzero"` // 0: limited only by the machine's slots
	// FirstTokenMS is the median of the recent times to the first token, in milliseconds,
	// as measured by the hub; absent: not measured yet.
	FirstTokenMS int64 `json:"first_token_ms,omitzero"`
	// TokensPerSecond is the speed of one answer, as measured by the hub. Until it is
	// measured, it is the speed over the last 7 days, from the end of the wait to the end
	// of the call. Absent: there were no calls.
	TokensPerSecond float64 `json:"tokens_per_second,omitzero"`
}

// speedDays is the number of days for a machine's average speed.
const speedDays = 7

// LiveMachine returns a machine's current state at the hub, without the fields that come
// from the store.
func (a *API) LiveMachine(live *fleet.Machine, now time.Time) Machine {
	v := viewMachine(account.Machine{ID: string(live.ID), Name: live.Name, KeptOut: live.KeptOut, Created: live.Created}, live, now)
	v.Queued = a.Queued(live)
	return v
}

func viewMachine(record account.Machine, live *fleet.Machine, now time.Time) Machine {
	v := Machine{
		ID: record.ID, Name: record.Name, KeptOut: record.KeptOut, ShowsClass: record.ShowsClass, Created: record.Created, LastSeen: record.LastSeen,
		Models: []MachineModel{},
	}
	if live == nil {
		return v
	}
	v.Online, v.Paused, v.Hours, v.Timezone = live.Online, live.Paused, live.Hours.String(), live.Hours.Zone()
	v.ZoneUnknown, v.Sealed = !live.Hours.ZoneKnown(), len(live.Seals) > 0
	v.Groups = live.Groups
	if v.Facts = live.Facts; v.Facts != nil {
		v.Class = classOf(v.Facts)
	}
	if live.Online && live.Paused {
		v.PausedUntil = live.PausedUntil
	}
	v.Open, v.Slots, v.Running = live.Hours.Open(now), live.Slots, live.Load.InFlight()
	if live.Online {
		v.LastSeen = now.UTC()
	} else if live.LastSeen.After(v.LastSeen) { // the store may be half an hour behind
		v.LastSeen = live.LastSeen.UTC()
	}
	for _, o := range live.Offers {
		model := MachineModel{ID: o.ID, ModelFacts: o.Facts, ContextLength: o.ContextLength, Slots: o.Slots}
		model.FirstTokenMS, model.TokensPerSecond = measured(o.Load.LatestSpeed())
		v.Models = append(v.Models, model)
	}
	return v
}

// measured returns the median of the recent times to the first token, in milliseconds,
// and the tokens per second of one answer; 0: not measured.
func measured(s *fleet.Speed) (firstTokenMS int64, tokensPerSecond float64) {
	if s == nil {
		return 0, 0
	}
	if perToken := s.Decode[0]; perToken > 0 {
		tokensPerSecond = 1 / perToken
	}
	return int64(math.Round(s.FirstToken * 1000)), tokensPerSecond
}

// listMachines lists the caller's machines with valid credentials.
func (a *API) listMachines(ctx context.Context, c fleet.Caller, _ None) (List[Machine], error) {
	records, err := a.DB.Machines(ctx, string(c.Member))
	if err != nil {
		return List[Machine]{}, err
	}
	var views []Machine
	snapshot, now := a.Snapshot(), a.DB.Now()
	speeds, err := a.speeds(ctx, c, now.UTC().Truncate(24*time.Hour).AddDate(0, 0, 1-speedDays))
	for _, record := range records {
		if !record.Revoked.IsZero() {
			continue
		}
		live := snapshot.Machine(fleet.MachineID(record.ID))
		v := viewMachine(record, live, now)
		if live != nil {
			v.Queued = a.Queued(live)
		}
		for i := range v.Models {
			if m := &v.Models[i]; m.TokensPerSecond == 0 {
				m.TokensPerSecond = speeds[offered{record.ID, string(m.ID)}]
			}
		}
		views = append(views, v)
	}
	slices.SortStableFunc(views, func(a, b Machine) int { return OnlineFirst(a.Online, b.Online) })
	return listOf(views), err
}

// OnlineFirst compares two entries of a list that begins with those that are online.
func OnlineFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// offered identifies a model on a machine.
type offered struct{ machine, model string }

// speeds returns the tokens per second for each model on each of the caller's machines
// since the given time, over all calls that were completely served.
func (a *API) speeds(ctx context.Context, c fleet.Caller, since time.Time) (map[offered]float64, error) {
	tokens, took := map[offered]int64{}, map[offered]time.Duration{}
	err := a.DB.DaysOfOwner(ctx, string(c.Member), since, func(d account.UsageDay) {
		if of := (offered{d.MachineID, d.Model}); d.Code == "" {
			tokens[of] += d.TokensOut
			took[of] += d.Duration - d.Waited
		}
	})
	speeds := map[offered]float64{}
	for of, n := range tokens {
		if n > 0 && took[of] > 0 {
			speeds[of] = float64(n) / took[of].Seconds()
		}
	}
	return speeds, err
}

// MachineID identifies a machine.
type MachineID struct {
	Machine string `json:"-" path:"machine"`
}

// ownMachine returns the caller's machine with the given id.
func (a *API) ownMachine(ctx context.Context, c fleet.Caller, id string) (account.Machine, error) {
	m, err := a.DB.OwnMachine(ctx, string(c.Member), id)
	return m, NotFound(err, "you have no machine with the id %.80q", id)
}

// OneMachineUsage is the usage of one machine.
type OneMachineUsage struct {
	// Hours are the last 24 hours; the current one is last.
	Hours []UsageOfDay `json:"hours"`
	// Members are those who used it in the last 30 days, most calls first, at most 100.
	Members []MachineUser `json:"members"`
}

// MachineUser is the usage of a machine by one member.
type MachineUser struct {
	Member string   `json:"member"` // name; empty: no longer a member
	Me     bool     `json:"me"`
	Today  int64    `json:"calls_today"` // UTC
	Month  UsageSum `json:"last_30_days"`
}

// machineUsage sums the calls on one of the caller's machines.
func (a *API) machineUsage(ctx context.Context, c fleet.Caller, in MachineID) (OneMachineUsage, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	if err != nil {
		return OneMachineUsage{}, err
	}
	hourly, err := Span{By: Hour}.read(a.DB.Now())
	if err != nil {
		return OneMachineUsage{}, err
	}
	usage := OneMachineUsage{}
	for i := range 24 {
		usage.Hours = append(usage.Hours, UsageOfDay{Day: hourly.Name(hourly.since.Add(time.Duration(i) * time.Hour))})
	}
	today, month, days := a.DB.Now().UTC().Truncate(24*time.Hour), sums{}, sums{}
	err = a.DB.HoursOfOwner(ctx, string(c.Member), hourly.since, func(h account.UsageHour) {
		i := int(h.Hour.Sub(hourly.since) / time.Hour)
		if h.MachineID == m.ID && i < len(usage.Hours) {
			usage.Hours[i].add(sumOf(account.UsageDay{
				MemberID: h.MemberID, OwnerID: h.OwnerID, Code: h.Code, Calls: h.Calls, Waited: h.Waited, TokensIn: h.TokensIn, TokensOut: h.TokensOut,
			}))
		}
	})
	if err != nil {
		return OneMachineUsage{}, err
	}
	err = a.DB.DaysOfOwner(ctx, string(c.Member), today.AddDate(0, 0, 1-keyDays), func(d account.UsageDay) {
		if d.MachineID != m.ID {
			return
		}
		month.of(d.MemberID).add(sumOf(d))
		if d.Day.Equal(today) {
			days.of(d.MemberID).Calls += d.Calls
		}
	})
	if err != nil {
		return OneMachineUsage{}, err
	}
	usage.Members = sorted(month, func(id string, s UsageSum) MachineUser {
		return MachineUser{id, id == string(c.Member), days.of(id).Calls, s}
	})
	usage.Members = usage.Members[:min(len(usage.Members), maxOthers)]
	for i := range usage.Members {
		who, err := a.DB.Member(ctx, usage.Members[i].Member)
		if err != nil && !errors.Is(err, account.ErrNotFound) {
			return usage, err
		}
		usage.Members[i].Member = who.Name
	}
	return usage, nil
}

// MachineAct is the result of an action on a machine.
type MachineAct struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"state"`
	Cut   int    `json:"cut,omitzero"` // running calls that end because of it
}

// revokeMachine revokes a machine's credential, which ends its tunnel. The ledger keeps
// the machine's records.
func (a *API) revokeMachine(ctx context.Context, c fleet.Caller, in MachineID) (MachineAct, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	if err != nil {
		return MachineAct{}, err
	}
	cut := a.cut(func(_ *fleet.Snapshot, u fleet.ActiveCall) bool { return string(u.Machine.ID) == m.ID })
	err = a.DB.RevokeMachine(ctx, m.ID, a.DB.Now().UTC())
	return MachineAct{m.ID, m.Name, "revoked", cut}, NotFound(err, "machine %q is already revoked", m.Name)
}

// MachineName is a new name for a machine.
type MachineName struct {
	Machine string `json:"-" path:"machine"`
	Name    string `json:"name"`
}

func (a *API) renameMachine(ctx context.Context, c fleet.Caller, in MachineName) (MachineAct, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	if err != nil {
		return MachineAct{}, err
	}
	if f := CheckName(in.Name); f != nil {
		return MachineAct{}, f
	}
	if err := a.DB.RenameMachine(ctx, string(c.Member), m.ID, in.Name); err != nil {
		return MachineAct{}, Taken(NotFound(err, "machine %q was revoked", m.Name), "you have a machine named %q already", in.Name)
	}
	return MachineAct{ID: m.ID, Name: in.Name, State: "renamed"}, nil
}

// checkControl rejects what a machine would reject, and names the member of the body.
func checkControl(c fleet.Control, now time.Time) error {
	switch {
	case c == fleet.Control{}:
		return fault.New(fault.InvalidRequest, "there is nothing to change: give paused, hours, timezone or slots")
	case c.Until != nil && (c.Paused == nil || !*c.Paused):
		return fault.New(fault.InvalidRequest, "until ends a pause: it goes with paused = true").WithParam("until")
	case c.Until != nil && !c.Until.After(now):
		return fault.New(fault.InvalidRequest, "the end of the pause is past already").WithParam("until")
	case c.Slots != nil && (*c.Slots < 0 || *c.Slots > maxSlots):
		return fault.New(fault.InvalidRequest, "slots is the number of concurrent calls, up to %d; 0 is what the engines report", maxSlots).WithParam("slots")
	}
	if c.Timezone != nil {
		if _, err := fleet.ParseHours("", *c.Timezone); err != nil {
			return fault.New(fault.InvalidRequest, "%v", err).WithParam("timezone")
		}
	}
	if c.Hours != nil {
		if _, err := fleet.ParseHours(*c.Hours, ""); err != nil {
			return fault.New(fault.InvalidRequest, "%v", err).WithParam("hours")
		}
	}
	return nil
}

// MachineControl is a change to a machine.
type MachineControl struct {
	Machine string `json:"-" path:"machine"`
	fleet.Control
}

// controlMachine sends a change to a machine, which saves it.
func (a *API) controlMachine(ctx context.Context, c fleet.Caller, in MachineControl) (MachineAct, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	if err != nil {
		return MachineAct{}, err
	}
	if err := checkControl(in.Control, a.DB.Now()); err != nil {
		return MachineAct{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	err = a.Control(ctx, fleet.MachineID(m.ID), in.Control)
	switch {
	case errors.Is(err, fleet.ErrNotConnected):
		return MachineAct{}, fault.New(fault.MachineOffline, "machine %q is not connected: change it on the machine itself, or wait until it is connected", m.Name)
	case err != nil:
		return MachineAct{}, fault.New(fault.MachineOffline, "machine %q did not take the change; try again", m.Name).Because(err)
	}
	return MachineAct{ID: m.ID, Name: m.Name, State: "changed"}, nil
}

// KeepOut excludes a machine from one group or from all, or includes it again.
type KeepOut struct {
	Machine string `json:"-" path:"machine"`
	Group   string `json:"group,omitzero"`
	All     bool   `json:"all,omitzero"`
	Undo    bool   `json:"undo,omitzero"`
}

// KeptOut is the group that a machine is excluded from, or no longer.
type KeptOut struct {
	Machine string `json:"machine"` // its name
	KeptOut bool   `json:"kept_out"`
	Group   string `json:"group,omitzero"`
	All     bool   `json:"all,omitzero"`
	Cut     int    `json:"cut,omitzero"` // running calls that end because of it
}

func (a *API) keepMachineOut(ctx context.Context, c fleet.Caller, in KeepOut) (KeptOut, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	switch {
	case err != nil:
		return KeptOut{}, err
	case (in.Group == "") != in.All:
		return KeptOut{}, fault.New(fault.InvalidRequest, "name the group that the machine is kept out of, or give all = true").WithParam("group")
	}
	answer := KeptOut{Machine: m.Name, KeptOut: !in.Undo, All: in.All}
	if in.All {
		if !in.Undo {
			answer.Cut = a.cut(func(s *fleet.Snapshot, u fleet.ActiveCall) bool {
				shares, _ := s.AccessPaths(u.Caller, u.Machine, u.Model)
				return string(u.Machine.ID) == m.ID && len(shares) == 0
			})
		}
		return answer, a.DB.KeepOutOfAll(ctx, string(c.Member), m.ID, !in.Undo)
	}
	group, err := a.groupSeen(ctx, c, in.Group)
	if err != nil {
		return KeptOut{}, err
	}
	if answer.Group = group.Name; !in.Undo {
		ends := endsWithGroup(group.ID)
		answer.Cut = a.cut(func(s *fleet.Snapshot, u fleet.ActiveCall) bool { return string(u.Machine.ID) == m.ID && ends(s, u) })
	}
	return answer, a.DB.KeepOutOwn(ctx, string(c.Member), group.ID, m.ID, !in.Undo)
}

// ShowClass is whether others see the class of a machine.
type ShowClass struct {
	Machine string `json:"-" path:"machine"`
	Shown   bool   `json:"shown,omitzero"` // false: it is hidden
}

// showClass sets whether those who reach one of the caller's machines see the sizes of its
// GPUs and memory.
func (a *API) showClass(ctx context.Context, c fleet.Caller, in ShowClass) (MachineAct, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	if err != nil {
		return MachineAct{}, err
	}
	state := "hidden"
	if in.Shown {
		state = "shown"
	}
	err = a.DB.ShowClass(ctx, string(c.Member), m.ID, in.Shown)
	return MachineAct{ID: m.ID, Name: m.Name, State: state}, NotFound(err, "machine %q was revoked", m.Name)
}

// MintMachine creates a machine without an owner, and its credential.
func (a *API) MintMachine(name string) (account.Machine, credential.Secret) {
	secret := credential.Mint(credential.MachineKey, a.Region)
	return account.Machine{
		ID: account.NewID("mch_"), Name: name, Region: a.Region, Hash: secret.Hash(), LastFour: secret.LastFour(), Created: a.DB.Now().UTC(),
	}, secret
}

// MachineLogin is a machine's sign-in with a login token.
type MachineLogin struct {
	Token string `json:"token"`
	Name  string `json:"name,omitzero"` // used if the token has none
}

// SignedInMachine is the machine that signed in and its credential. No other answer
// contains the credential.
type SignedInMachine struct {
	Secret  string `json:"secret"`
	Machine string `json:"machine"` // its id
	Name    string `json:"name"`
	Member  string `json:"member"`
	Region  string `json:"region"`
}

// signInMachine redeems a login token and creates a machine. If the member already has a
// machine of the name that the machine chose, it appends a random word.
func (a *API) signInMachine(ctx context.Context, _ fleet.Caller, in MachineLogin) (SignedInMachine, error) {
	dead := fault.New(fault.InvalidAPIKey, "the login token is wrong, used or expired; ask the operator for a new one (kith admin machine token)")
	hash, ok := a.CodeHash(in.Token, credential.LoginToken)
	if !ok {
		return SignedInMachine{}, dead
	}
	if CheckName(in.Name) != nil {
		in.Name = "machine"
	}
	known := func() {}
	if a.Guess != nil {
		var err error
		if known, err = a.Guess(ctx); err != nil {
			return SignedInMachine{}, err
		}
	}
	asked, secret := a.MintMachine(in.Name)
	made, member, err := a.DB.RedeemLoginToken(ctx, hash, asked, asked.Created)
	if errors.Is(err, account.ErrExists) {
		asked.Name += "-" + strings.ToLower(rand.Text()[:6])
		made, member, err = a.DB.RedeemLoginToken(ctx, hash, asked, asked.Created)
	}
	if errors.Is(err, account.ErrNotFound) {
		return SignedInMachine{}, dead
	}
	known()
	return SignedInMachine{secret.Reveal(), made.ID, made.Name, member.Name, made.Region},
		Taken(err, "the member already has a machine of this token's name; revoke that one, or ask for a token with another name")
}
