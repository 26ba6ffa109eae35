package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/fleet"
)

func (a *app) trust() *cobra.Command {
	show := command("kith trust", func(ctx context.Context, args []string) error {
		switch len(args) {
		case 0:
			return a.showTrust(ctx)
		case 1:
			return wrongUse("cannot compare the key of %s: add its words, which %s reads to you from `kith trust`", args[0], args[0])
		}
		name, words := args[0], strings.Join(args[1:], " ")
		if err := sealed.CheckWords(words); err != nil {
			return wrongUse("cannot confirm the key of %s: %w", name, err)
		}
		return a.changeTrust(ctx, "confirm the key of "+name, daemon.TrustChange{Act: sealed.ActConfirm, Name: name, Words: words},
			func(daemon.Trust) { a.say("the key of %s is confirmed\n", strong(name)) })
	})
	machine := command("kith trust machine", func(ctx context.Context, args []string) error {
		return a.approveMachine(ctx, strings.Join(args, " "))
	})
	remove := command("kith trust remove", func(ctx context.Context, args []string) error {
		return a.changeTrust(ctx, "forget the key of "+args[0], daemon.TrustChange{Act: sealed.ActRemove, Name: args[0]},
			func(daemon.Trust) {
				a.say("the keys of %s are forgotten: the next one is accepted without a check until you compare its words\n", strong(args[0]))
			})
	})
	reset := command("kith trust reset", func(ctx context.Context, _ []string) error {
		return a.changeTrust(ctx, "make another account key", daemon.TrustChange{Act: sealed.ActReset}, func(now daemon.Trust) {
			a.say("this machine has another account key. Its words, to read to those who compared the ones before:\n\n  %s\n\n", strong(now.Words))
			a.note("Revoke a stolen machine on the site. On each other machine of yours run `kith trust reset`, too, and then `kith trust`: run the `kith trust machine` line that it prints here.")
		})
	})
	show.AddCommand(machine, remove, reset) // every other first argument is a name
	return show
}

// keyring returns a client for the daemon that keeps the keys of this machine's login.
func (a *app) keyring(doing string) (*client, error) {
	config, _, err := a.credential()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notSignedIn("cannot %s: this machine is not signed in; run `kith login --hub URL`", doing)
	}
	if err != nil {
		return nil, err
	}
	return control(config.Daemon.Data), nil
}

// trustOf returns what this machine's daemon has of keys.
func (a *app) trustOf(ctx context.Context, doing string) (daemon.Trust, []byte, error) {
	var now daemon.Trust
	keys, err := a.keyring(doing)
	if err != nil {
		return now, nil, err
	}
	text, err := keys.call(ctx, doing, request{http.MethodGet, "/trust", nil}, &now)
	return now, text, err
}

func (a *app) showTrust(ctx context.Context) error {
	now, text, err := a.trustOf(ctx, "show the keys")
	if err != nil {
		return err
	}
	if a.json {
		return a.writeJSON(text)
	}
	a.fact("sealed", "%s: %s", now.Mode, sealedCalls(&now.Calls))
	a.fact("your words", "%s", strong(now.Words))
	if now.Ask != "" {
		a.fact("this machine", "has a key of its own; if another machine of yours has your key, run there:")
		a.fact("", "kith trust machine %s", now.Ask)
	}
	if len(now.Keys) == 0 {
		a.say("\n")
		a.note("No keys of other members yet: they arrive with the first call to their machines, or with an invite.")
		return nil
	}
	a.say("\n")
	a.table("MEMBER KEY SINCE WORDS", convert(now.Keys, func(k sealed.TrustedKey) []string {
		return []string{k.Name, string(k.How), moment(k.Since), k.Words}
	}))
	if slices.ContainsFunc(now.Keys, func(k sealed.TrustedKey) bool { return k.How != sealed.Confirmed }) {
		a.note("Let each member read you the words of `kith trust`, and run `kith trust NAME WORDS`.")
	}
	return nil
}

// changeTrust has this machine's daemon carry out an act on keys.
func (a *app) changeTrust(ctx context.Context, doing string, change daemon.TrustChange, show func(daemon.Trust)) error {
	now, text, err := a.actOnTrust(ctx, doing, change)
	switch {
	case err != nil:
	case a.json:
		err = a.writeJSON(text)
	default:
		show(now)
	}
	return err
}

func (a *app) actOnTrust(ctx context.Context, doing string, change daemon.TrustChange) (now daemon.Trust, text []byte, err error) {
	keys, err := a.keyring(doing)
	if err == nil {
		text, err = keys.call(ctx, doing, request{http.MethodPost, "/trust", change}, &now)
	}
	return now, text, err
}

// approveMachine gives the account key of this machine to the member's machine that shows
// the words.
func (a *app) approveMachine(ctx context.Context, words string) error {
	_, saved, err := a.credential()
	if errors.Is(err, fs.ErrNotExist) {
		return notSignedIn("cannot approve a machine: this machine is not signed in; run `kith login --hub URL`")
	}
	if err != nil {
		return err
	}
	const doing = "approve a machine"
	if err := sealed.CheckWords(words); err != nil {
		return wrongUse("cannot %s: %w", doing, err)
	}
	hub := asMachine(saved)
	machines, _, err := fetch(ctx, hub, doing, api.ListMachines.With(api.None{}))
	if err != nil {
		return err
	}
	var asking []string
	var last error
	for _, m := range machines.Data {
		if m.ID == saved.Machine || !m.Online {
			continue
		}
		seal, _, err := fetch(ctx, hub, doing, api.MachineSeal.With(api.MachineID{Machine: m.ID}))
		if err != nil || len(seal.Ask) == 0 {
			continue
		}
		asking = append(asking, m.Name)
		change := daemon.TrustChange{Act: sealed.ActApprove, Machine: fleet.MachineID(m.ID), Ask: seal.Ask, Words: words}
		var now daemon.Trust
		if now, _, last = a.actOnTrust(ctx, doing, change); last != nil {
			continue // the words are of another machine
		}
		answer := api.MachineControl{Machine: m.ID, Control: fleet.Control{Account: base64.StdEncoding.EncodeToString(now.Answer)}}
		return ask(ctx, requester{a, func() (*client, error) { return hub, nil }, doing}, api.ControlMachine.With(answer), func(api.MachineAct) {
			a.say("%s has your account key now\n", strong(m.Name))
		})
	}
	switch {
	case len(asking) == 0:
		return fmt.Errorf("cannot approve a machine: none of your other machines that are connected asks for the account key; run `kith trust` on the new one")
	case len(asking) == 1:
		return fmt.Errorf("%w; %s asks for the key", last, asking[0])
	}
	return fmt.Errorf("cannot approve a machine: these are the words of none of %s: run `kith trust` on the new one, and type what it prints behind `kith trust machine`", strings.Join(asking, ", "))
}

// sealedText describes how calls to other machines are sealed.
func sealedText(now *daemon.SealedStatus) string {
	switch {
	case now.Error != "":
		return "no call: " + now.Error
	case !now.Mode.IsOn():
		return string(now.Mode) + ": the hub can read calls to other machines"
	}
	return string(now.Mode) + ": " + sealedCalls(&now.SealedCalls)
}

// sealedCalls describes how many calls were sealed since the daemon started.
func sealedCalls(n *daemon.SealedCalls) string {
	if n.Sealed == 0 && n.Clear == 0 {
		return "no call to other machines yet"
	}
	text := fmt.Sprintf("%s sealed", count(int(n.Sealed), "call"))
	if last := n.LastClear; last != nil {
		text += fmt.Sprintf(", %d sent in clear, the last at %s for %s: %s", n.Clear, moment(last.Started), last.Model, sealedReason(last.Sealed))
	}
	return text
}

// sealedReason says why a call was not sealed, of an X-Kith-Sealed (spec/sealed.md#x-kith-sealed).
func sealedReason(value string) string {
	switch value {
	case sealed.NoKey:
		return "no machine that it could run on has a key"
	case sealed.NoList:
		return "the hub has no sealed calls"
	case sealed.Audio:
		return "audio is not sealed"
	case sealed.Upstream:
		return "a service elsewhere served it"
	case sealed.NotSent:
		return "nothing of it left this machine"
	}
	return value
}
