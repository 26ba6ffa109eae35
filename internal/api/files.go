package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/fleet"
)

// MachineFiles are the model files of a machine, as the machine reports them.
type MachineFiles struct {
	Machine string `json:"machine"` // its name
	fleet.ModelFiles
}

// listFiles lists the model files of one of the caller's machines, and its pulls.
func (a *API) listFiles(ctx context.Context, c fleet.Caller, in MachineID) (MachineFiles, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	if err != nil {
		return MachineFiles{}, err
	}
	return a.actOnFiles(ctx, m, fleet.FileAct{Act: fleet.ActList})
}

// FileChange is an act on the model files of a machine.
type FileChange struct {
	Machine string         `json:"-" path:"machine"`
	Act     fleet.FileVerb `json:"act"`
	Model   string         `json:"model"` // to pull: as for kith pull; otherwise an id
}

// changeFiles has one of the caller's machines carry out an act on its model files, and
// notifies the owner of it. The machine does the work: a pull or a load may go on after the
// answer.
func (a *API) changeFiles(ctx context.Context, c fleet.Caller, in FileChange) (MachineFiles, error) {
	m, err := a.ownMachine(ctx, c, in.Machine)
	switch {
	case err != nil:
		return MachineFiles{}, err
	case !slices.Contains(fleet.FileActs, in.Act):
		return MachineFiles{}, fault.New(fault.InvalidRequest, "act is one of %s", strings.Join(views(fleet.FileActs, func(v fleet.FileVerb) string { return string(v) }), ", ")).WithParam("act")
	case in.Model == "" || len(in.Model) > fleet.MaxReference:
		return MachineFiles{}, fault.New(fault.InvalidRequest, "name a model, by at most %d bytes", fleet.MaxReference).WithParam("model")
	}
	if err := a.roomForNotice(ctx, c); err != nil {
		return MachineFiles{}, err
	}
	by, err := a.placeOf(ctx, c)
	if err != nil {
		return MachineFiles{}, err
	}
	act := fleet.FileAct{Act: in.Act, Model: in.Model, By: by}
	files, err := a.actOnFiles(ctx, m, act)
	if err != nil {
		return files, err
	}
	now, text := a.DB.Now().UTC(), actText(act, m.Name)
	notice := account.Notice{
		MemberID: string(c.Member), Kind: account.NoticeFiles, Subject: m.ID + " " + text, // different acts of one moment are different subjects
		Occasion: now, Text: text,
	}
	// The caller may have left, and the act has been carried out.
	if err := a.DB.AddNotices(context.WithoutCancel(ctx), []account.Notice{notice}, now); err != nil {
		a.Log.Error("cannot notify of an act on model files", "member", string(c.Member), "machine", m.ID, "act", string(in.Act), "error", err)
	}
	return files, nil
}

// roomForNotice refuses an act that its owner would not be notified of, since the notices of
// the day are used up.
func (a *API) roomForNotice(ctx context.Context, c fleet.Caller) error {
	now := a.DB.Now()
	today, err := a.DB.Notices(ctx, string(c.Member), now.AddDate(0, 0, -1), now.Add(time.Second), account.NoticesADay)
	if err == nil && len(today) >= account.NoticesADay {
		err = fault.New(fault.RateLimitExceeded, "you have had %d notices in 24 hours, and would not be notified of this: do it on the machine itself",
			account.NoticesADay)
	}
	return err
}

// placeOf returns where the caller asks from: the site, or the name of a machine.
func (a *API) placeOf(ctx context.Context, c fleet.Caller) (string, error) {
	if c.Machine == "" {
		return "the site", nil
	}
	m, err := a.DB.OwnMachine(ctx, string(c.Member), string(c.Machine))
	return m.Name, err
}

// actText is the notice of an act.
func actText(act fleet.FileAct, machine string) string {
	verb := map[fleet.FileVerb]string{
		fleet.ActPull: "pulls %s", fleet.ActCancel: "ended its pull of %s", fleet.ActRemove: "removed %s",
		fleet.ActLoad: "loads %s into memory", fleet.ActUnload: "freed the memory of %s",
	}[act.Act]
	return fmt.Sprintf("As requested from %s, %s "+verb+".", act.By, machine, act.Shown())
}

func (a *API) actOnFiles(ctx context.Context, m account.Machine, act fleet.FileAct) (MachineFiles, error) {
	ctx, cancel := context.WithTimeout(ctx, controlTime)
	defer cancel()
	files, err := a.Files(ctx, fleet.MachineID(m.ID), act)
	refused, isRefused := errors.AsType[fleet.FileRefusal](err)
	switch {
	case err == nil:
		if files.Gauges != nil {
			gauges := files.Gauges.Checked()
			files.Gauges = &gauges
		}
		return MachineFiles{m.Name, files}, nil
	case errors.Is(err, fleet.ErrNotConnected):
		err = fault.New(fault.MachineOffline, "machine %q is not connected: manage its models on the machine itself, or wait until it is connected", m.Name)
	case errors.Is(err, fleet.ErrFilesOff):
		err = fault.New(fault.NotAllowed, "machine %q lets its models be managed only there: its config.toml has [hub] remote = false", m.Name)
	case errors.Is(err, fleet.ErrFilesUnknown):
		err = fault.New(fault.NotAllowed, "machine %q has an older kith, which cannot do that from elsewhere: update kith there", m.Name)
	case isRefused:
		err = fault.New(fault.NotAllowed, "machine %q refuses: %s", m.Name, string(refused))
	default:
		err = fault.New(fault.MachineOffline, "machine %q did not answer; try again", m.Name).Because(err)
	}
	return MachineFiles{}, err
}
