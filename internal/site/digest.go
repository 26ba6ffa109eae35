package site

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kith/kith/internal/account"
	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/mail"
)

// How members are notified (docs/decisions/0017-notices.md, spec/api.md#notices).
const (
	notesEvery = time.Minute
	// settleFor is the time after the hub's start or a database failure in which no
	// machine is reported as offline.
	settleFor = 10 * time.Minute
	// newsHold is how long a notice waits for others before it is mailed with them.
	newsHold = time.Minute
	// newsEvery is the shortest time between two mails with news to one member.
	newsEvery = time.Hour
	// newsLife is the age after which a notice is not mailed.
	newsLife = 3 * 24 * time.Hour
	// mostNews limits the mails of one pass. mostAway failures end the pass.
	mostNews, mostAway = 60, 3
	// mostLines limits the notices that one mail lists.
	mostLines = 20
)

// runNotices makes notices for members at regular intervals until ctx ends. In each
// interval only one node that uses the database does so.
func (s *Site) runNotices(ctx context.Context) error {
	tick := time.NewTicker(notesEvery)
	defer tick.Stop()
	settled := s.DB.Now().Add(settleFor)
	for {
		now := s.DB.Now()
		if err := s.notify(ctx, now, now.After(settled)); err != nil && ctx.Err() == nil {
			s.Log.Error("cannot notify members", "error", err)
			settled = now.Add(settleFor)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// notify records notices for members and mails them, unless another node did so within
// the last minute.
func (s *Site) notify(ctx context.Context, now time.Time, settled bool) error {
	first, claimed, err := s.DB.ClaimNoticePass(ctx, now, notesEvery-notesEvery/10)
	if err != nil || !claimed {
		return err
	}
	if err := s.NoteWhatIsDue(ctx, now, settled); err != nil || s.mail == nil {
		return err
	}
	return s.mailNews(ctx, now, first)
}

// mailNews mails each member the notices since their last mail, but none from before
// first. If a mail cannot be delivered, the next one is sent after newsEvery, as usual,
// and has all of them.
func (s *Site) mailNews(ctx context.Context, now, first time.Time) error {
	until := now.Add(-newsHold)
	if oldest := now.Add(-newsLife); first.Before(oldest) {
		first = oldest
	}
	members, err := s.DB.MembersToMail(ctx, now, first, until, mostListed)
	mailed, failed := 0, 0
	for _, to := range members {
		if ctx.Err() != nil || mailed == mostNews || failed == mostAway {
			break
		}
		claimed, err := s.DB.ClaimMail(ctx, to.Member.ID, now, now.Add(newsEvery))
		if err != nil {
			return err
		}
		if !claimed {
			continue
		}
		news, err := s.NoticesToMail(ctx, to, until)
		if err != nil {
			return err
		}
		next := now
		if len(news) > 0 {
			next = now.Add(newsEvery)
			mailed++
			if sent, again := s.mail.Deliver(ctx, s.newsMail(to, news)); !sent && again {
				failed++
				continue
			}
		}
		if err := s.DB.SetMailed(ctx, to.Member.ID, until, next); err != nil {
			return err
		}
	}
	return err
}

// newsMail returns the message that lists a member's new notices.
func (s *Site) newsMail(to account.NewsFor, news []api.Notice) mail.Message {
	var lines strings.Builder
	for _, n := range news[:min(len(news), mostLines)] {
		fmt.Fprintf(&lines, "- %s (%s)\n", line(n.Text), complete(n.At))
	}
	if more := len(news) - mostLines; more > 0 {
		fmt.Fprintf(&lines, "- and %d more\n", more)
	}
	subject := "kith: 1 notice"
	if len(news) > 1 {
		subject = fmt.Sprintf("kith: %d notices", len(news))
	}
	return mail.Message{MemberID: to.Member.ID, To: to.Address, Subject: subject, Text: fmt.Sprintf(
		"Hello %s,\n\nyou have new notices at %s:\n\n%s\nAll notices: "+
			"%s\nChoose which notices are mailed to you: %s\n",
		line(to.Member.Name), s.Base, lines.String(), s.Base+noticesPath, s.Base+"/account#notices")}
}
