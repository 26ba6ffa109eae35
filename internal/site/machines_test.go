package site

import (
	"strings"
	"testing"

	"github.com/kith/kith/internal/account"
)

// The page of a machine offers what the machine can do now: one that is offline is not
// paused, and one that is online was not last seen.
func TestMachinePage(t *testing.T) {
	tn := newTown(t, nil)
	ada := tn.as("ada")
	online := ada.get("/machines/"+tn.machine.ID).want(t, 200, `action="/machines/pause"`, `action="/machines/hours"`, "In use by")
	if strings.Contains(online.body, "Last seen") {
		t.Error("an online machine was last seen")
	}
	away := tn.machine
	away.ID, away.Name, away.Hash = account.NewID("mch_"), "cellar", [32]byte{2}
	check(t, tn.db.CreateMachine(t.Context(), away))
	offline := ada.get("/machines/"+away.ID).want(t, 200, "cellar", "Last seen", "offline")
	for _, form := range []string{`action="/machines/pause"`, `action="/machines/resume"`, `action="/machines/hours"`, `action="/machines/slots"`} {
		if strings.Contains(offline.body, form) {
			t.Errorf("%s is offered for an offline machine", form)
		}
	}
	ada.get("/").want(t, 200, "cellar has never connected.")
	ada.get("/machines/revoke?machine="+away.ID).want(t, 200, "Revoke cellar?", "No call runs on it now.")
	tn.as("bob").get("/machines/"+away.ID).want(t, 404, "no machine with the id")
}
