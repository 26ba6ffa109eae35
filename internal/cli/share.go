package cli

import (
	"cmp"
	"context"
	"encoding/json/jsontext"
	"encoding/json/v2"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/daemon"
	"github.com/kith/kith/internal/daemon/sealed"
	"github.com/kith/kith/internal/fleet"
)

// limitsText formats limits for people.
func limitsText(l *api.Limits) string {
	var words []string
	if l == nil {
		return "no limits"
	}
	if len(l.Models) > 0 {
		words = append(words, "models "+strings.Join(l.Models, ", "))
	}
	if l.Hours != "" {
		words = append(words, "hours "+l.Hours)
	}
	if l.Concurrent != nil && *l.Concurrent > 0 {
		words = append(words, fmt.Sprintf("%d at once", *l.Concurrent))
	}
	if l.PerDay != nil && *l.PerDay > 0 {
		words = append(words, fmt.Sprintf("%d a day", *l.PerDay))
	}
	return cmp.Or(strings.Join(words, "; "), "no limits")
}

// limitFlags are the flags for limits.
type limitFlags struct {
	models                    []string
	hours, concurrent, perDay string
	changed                   func(flag string) bool
}

// The words that remove a limit.
const (
	allModels   = "all"
	alwaysHours = "always"
	noLimit     = "none"
)

func (l *limitFlags) add(a *app, cmd *cobra.Command) {
	l.changed = cmd.Flags().Changed
	cmd.Flags().StringSliceVar(&l.models, "models", nil, `only these models, by their exact ids, separated by commas; "all" removes the limit`)
	cmd.Flags().StringVar(&l.hours, "hours", "", `only in these hours of each machine's zone, like "Mon-Fri 18:00-23:00"; "always" removes the limit`)
	cmd.Flags().StringVar(&l.concurrent, "concurrent", "", `maximum concurrent calls; "none" removes the limit`)
	cmd.Flags().StringVar(&l.perDay, "per-day", "", `maximum calls per day (UTC); "none" removes the limit`)
	_ = cmd.RegisterFlagCompletionFunc("models", a.completeModelFlag)
}

// change returns the limits in the command's flags. It rejects values that the hub would
// reject.
func (l *limitFlags) change() (c api.LimitChange, err error) {
	if l.changed("models") {
		c.Models = orEnd(l.models, len(l.models) == 0 || len(l.models) == 1 && l.models[0] == allModels)
	}
	always := l.hours == "" || l.hours == alwaysHours
	if _, err := fleet.ParseHours(l.hours, ""); err != nil && !always {
		return c, failure{exitWrongUse, err}
	}
	if l.changed("hours") {
		c.Hours = orEnd(l.hours, always)
	}
	for _, number := range []struct {
		flag, text string
		into       *api.Given[int]
	}{{"concurrent", l.concurrent, &c.Concurrent}, {"per-day", l.perDay, &c.PerDay}} {
		if !l.changed(number.flag) {
			continue
		}
		n, err := strconv.Atoi(number.text)
		ends := number.text == noLimit
		if !ends && (err != nil || n < 1) {
			return c, wrongUse("cannot limit to --%s %.20q; give a number from 1, or none for no limit; "+
				"to let no call in, use `kith share remove`, `kith group keep-out` or `kith pause`", number.flag, number.text)
		}
		*number.into = orEnd(n, ends)
	}
	return c, nil
}

// orEnd returns a limit, or its removal.
func orEnd[T any](value T, ends bool) api.Given[T] {
	if ends {
		return api.End[T]()
	}
	return api.Give(value)
}

// warn prints warnings about the new limits to standard error.
func (a *app) warn(warnings []string) {
	for _, text := range warnings {
		fmt.Fprintf(a.err, "warning: %s\n", text)
	}
}

// inviteID matches an invite's id. No command mistakes it for a member's name.
var inviteID = regexp.MustCompile(`^inv_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (a *app) share() *cobra.Command {
	list := command("kith share list", func(ctx context.Context, _ []string) error { return a.listShares(ctx) })
	remove := a.completing(a.givenShares(), command("kith share remove", func(ctx context.Context, args []string) error {
		if inviteID.MatchString(args[0]) {
			return confirm(ctx, a.account("end the invite"), api.RevokeInvite.With(api.InviteID{Invite: args[0]}),
				"invite %s can no longer be accepted", strong(args[0]))
		}
		return confirm(ctx, a.account("end the share"), api.EndShare.With(api.MemberName{Member: args[0]}),
			"%s can no longer use your machines", strong(args[0]))
	}))
	return group("kith share", list, a.addShare(), remove, a.invite())
}

// listShares prints the shares and the invites that can still be accepted; with --json
// all invites.
func (a *app) listShares(ctx context.Context) error {
	hub, err := a.toAccount()
	if err != nil {
		return err
	}
	shares, given, err := fetch(ctx, hub, "list the shares", api.ListShares.With(api.None{}))
	if err != nil {
		return err
	}
	invites, made, err := fetch(ctx, hub, "list the invites", api.ListInvites.With(api.None{}))
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			Object  string         `json:"object"`
			Data    jsontext.Value `json:"data"`
			Invites jsontext.Value `json:"invites"`
		}{"list", dataOf(given), dataOf(made)})
	}
	var rows, open [][]string
	for _, s := range shares.Data {
		way, who := "you share with", s.With
		if s.Direction == "received" {
			way, who = "shares with you", s.Owner
		}
		rows = append(rows, []string{who, way, limitsText(&s.Limits), moment(s.Created)})
	}
	for _, i := range invites.Data {
		if i.State == "open" {
			open = append(open, []string{i.ID, "…" + i.LastFour, fmt.Sprintf("%d of %d", i.Used, i.Uses), limitsText(&i.Limits), moment(i.Expires)})
		}
	}
	a.table("MEMBER SHARE LIMITS SINCE", rows)
	if len(open) > 0 {
		a.say("\n")
		a.table("[INVITE] CODE USED LIMITS UNTIL", open)
	}
	return nil
}

// dataOf returns the original data of a list.
func dataOf(listing []byte) jsontext.Value {
	var l struct {
		Data jsontext.Value `json:"data"`
	}
	_ = json.Unmarshal(listing, &l) // it was parsed before
	return l.Data
}

func (a *app) addShare() *cobra.Command {
	var flags limitFlags
	cmd := a.completing(a.anyMember(), command("kith share add", func(ctx context.Context, args []string) error {
		change, err := flags.change()
		if err != nil {
			return err
		}
		made, err := answer(ctx, a.account("share"), api.PutShare.With(api.NewShare{With: args[0], LimitChange: change}), func(made api.Share) {
			a.say("%s may use your machines: %s\n", strong(made.With), limitsText(&made.Limits))
		})
		a.warn(made.Warnings)
		return err
	}))
	flags.add(a, cmd)
	return cmd
}

func (a *app) invite() *cobra.Command {
	var in api.NewInvite
	var flags limitFlags
	cmd := command("kith share invite", func(ctx context.Context, _ []string) (err error) {
		if in.LimitChange, err = flags.change(); err != nil {
			return err
		}
		if in.Uses < 1 {
			return wrongUse("cannot create an invite for %d; give --uses 1 or more", in.Uses)
		}
		made, err := answer(ctx, a.account("create the invite"), api.CreateInvite.With(in), func(made api.Invite) {
			link := a.inviteLink(ctx, made.Code)
			a.say("%s\n", strong(link))
			times := "once"
			if made.Uses > 1 {
				times = fmt.Sprintf("%d times", made.Uses)
			}
			a.note(fmt.Sprintf("A member who runs `kith accept` with it may use your machines: %s. It works %s, until %s, and is shown only once; `kith share remove` revokes it.", limitsText(&made.Limits), times, moment(made.Expires)))
		})
		a.warn(made.Warnings)
		return err
	})
	cmd.Flags().IntVar(&in.Uses, "uses", 1, "how many may accept it")
	cmd.Flags().StringVar(&in.Expires, "expires", "7d", "how long it works, like 7d or 12h")
	flags.add(a, cmd)
	return cmd
}

func (a *app) accept() *cobra.Command {
	return command("kith accept", func(ctx context.Context, args []string) error {
		link, fingerprint, marked := strings.Cut(args[0], "#") // the fingerprint is not for the hub
		if marked {
			if err := a.canKeepKey(ctx, fingerprint); err != nil {
				return err
			}
		}
		made, err := answer(ctx, a.account("accept the invite"), api.AcceptInvite.With(api.InviteCode{Code: api.InviteIn(link)}), func(made api.Accepted) {
			if made.State != "accepted" { // the existing share and its limits stay unchanged
				a.say("%s already shares with you: nothing changed, and the invite was not used; see `kith share list`\n", strong(made.Owner))
				return
			}
			a.say("%s shares with you: %s; `kith models --account` lists what you can use\n", strong(made.Owner), limitsText(made.Limits))
		})
		if err != nil {
			return a.ofOtherHub(err, link)
		}
		if marked {
			a.keepKey(ctx, made, fingerprint)
		}
		return nil
	})
}

// canKeepKey returns an error if the key of an invite's link could not be kept now and could
// be later: an invite is accepted only once.
func (a *app) canKeepKey(ctx context.Context, fingerprint string) error {
	const doing = "accept the invite"
	if err := sealed.CheckFingerprint(fingerprint); err != nil {
		return wrongUse("cannot %s: its link ends in a damaged key, which is %w; copy the complete link again", doing, err)
	}
	if _, _, err := a.credential(); err != nil {
		return nil // without a sign-in no daemon keeps keys
	}
	if _, _, err := a.trustOf(ctx, doing); errors.As(err, new(unreachable)) {
		return fmt.Errorf("cannot %s: its link has a key, which the daemon keeps: %w", doing, err)
	}
	return nil
}

// ofOtherHub adds to the error of an invite that its link is of another hub.
func (a *app) ofOtherHub(err error, link string) error {
	of, broken := url.Parse(link)
	hub, signedOut := a.toAccount()
	if broken != nil || signedOut != nil || of.Host == "" || strings.HasPrefix(hub.base+"/", of.Scheme+"://"+of.Host+"/") {
		return err
	}
	return fmt.Errorf("%w; the link is for %s://%s, but this machine uses %s: if those are different hubs, sign in there with `kith login --hub`",
		err, of.Scheme, of.Host, hub.base)
}

// inviteLink returns the link of an invite with the fingerprint of this machine's account
// key behind it, which no browser sends to a hub. Without a key it is the code alone.
func (a *app) inviteLink(ctx context.Context, code string) string {
	config, saved, err := a.credential()
	if err != nil || config == nil {
		return code
	}
	now, _, err := a.trustOf(ctx, "read this machine's key")
	if err != nil {
		return code
	}
	return saved.Hub + "/invite/" + code + "#" + now.Fingerprint
}

// keepKey confirms the key of an accepted invite's link.
func (a *app) keepKey(ctx context.Context, made api.Accepted, fingerprint string) {
	change := daemon.TrustChange{Act: sealed.ActLink, Name: made.Owner, Owner: fleet.MemberID(made.OwnerID), Fingerprint: fingerprint}
	if _, _, err := a.actOnTrust(ctx, "keep the key of "+made.Owner, change); err != nil {
		a.warn([]string{err.Error()})
		return
	}
	if a.json {
		return
	}
	a.say("the key of %s came with the invite and is confirmed\n", strong(made.Owner))
}
