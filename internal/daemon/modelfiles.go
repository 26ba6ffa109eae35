package daemon

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"unicode"

	"golang.org/x/time/rate"

	"github.com/kith/kith/internal/fleet"
)

// maxBy is the largest length of fleet.FileAct.By, in bytes.
const maxBy = 200

// fileLimits are the rates of the acts on model files that the hub sends: it may be hostile
// (spec/security.md#remote-hands).
type fileLimits struct{ looks, changes *rate.Limiter }

func newFileLimits() fileLimits {
	return fileLimits{looks: rate.NewLimiter(20, 60), changes: rate.NewLimiter(0.5, 20)}
}

// filesForHub returns what carries out the acts that the hub sends, or nil if this machine
// takes none.
func (d *Daemon) filesForHub() func(context.Context, fleet.FileAct) (fleet.ModelFiles, error) {
	if d.config.Files == nil || d.config.FilesHere {
		return nil
	}
	return func(ctx context.Context, act fleet.FileAct) (fleet.ModelFiles, error) {
		limit := d.fileActs.changes
		if act.Act == fleet.ActList {
			limit = d.fileActs.looks
		}
		if !limit.Allow() {
			return fleet.ModelFiles{}, errors.New("too many requests for its model files: try again in a moment")
		}
		files, err := d.actOnFiles(ctx, act)
		if err == nil && act.Act == fleet.ActList && d.config.Computer != nil {
			files.Gauges = d.gauges.read(ctx, *d.config.Computer)
		}
		return files, err
	}
}

// serveFiles serves POST /models on the socket.
func (d *Daemon) serveFiles(w http.ResponseWriter, r *http.Request) {
	var act fleet.FileAct
	if !readChange(w, r, &act) {
		return
	}
	files, err := d.actOnFiles(r.Context(), act)
	if err != nil {
		refuseChange(w, err)
		return
	}
	writeJSON(w, http.StatusOK, files)
}

// actOnFiles checks an act, carries it out and logs it.
func (d *Daemon) actOnFiles(ctx context.Context, act fleet.FileAct) (files fleet.ModelFiles, err error) {
	switch {
	case d.config.Files == nil:
		return files, errors.New("this daemon serves no model files of its own")
	case act.Act != fleet.ActList && act.Model == "":
		return files, errors.New("the act names no model")
	case len(act.Model) > fleet.MaxReference || len(act.By) > maxBy,
		strings.ContainsFunc(act.Model+act.By, func(r rune) bool { return !unicode.IsPrint(r) }):
		return files, errors.New("the name of the model is too long or has characters that cannot be printed")
	}
	files, err = d.config.Files(ctx, act)
	switch model := act.Shown(); {
	case act.Act == fleet.ActList:
	case err != nil:
		d.log.Warn("refused an act on model files", "act", string(act.Act), "model", model, "by", act.By, "cause", err)
	default:
		d.log.Info("act on model files", "act", string(act.Act), "model", model, "by", act.By)
	}
	return files, err
}
