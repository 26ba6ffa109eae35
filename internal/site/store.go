package site

import (
	"context"
	"time"

	"github.com/kith/kith/internal/account"
)

// Store is what the pages read and write in the database for themselves: how members sign
// in, what is mailed to them, and the lists of the operator. Everything else goes through
// the routes of package api. *store.DB implements it.
type Store interface {
	Now() time.Time

	Session(ctx context.Context, id string, now time.Time) (account.Session, error)
	SessionsOf(ctx context.Context, memberID string, now time.Time) ([]account.Session, error)
	CreateSession(ctx context.Context, s account.Session) error
	TouchSession(ctx context.Context, s account.Session) error
	EndSession(ctx context.Context, id string) error
	EndSessionOf(ctx context.Context, memberID, id string) error
	EndSessionsOf(ctx context.Context, memberID, keep string) error

	Member(ctx context.Context, id string) (account.Member, error)
	MemberWhoTypes(ctx context.Context, name string) (account.Member, error)
	SignUp(ctx context.Context, s account.SignUp, now time.Time) error
	OperatorCanSignIn(ctx context.Context) (bool, error)

	Password(ctx context.Context, memberID string) (string, error)
	SetPassword(ctx context.Context, memberID, hash, keep string, now time.Time) error
	RecoveryCodes(ctx context.Context, memberID string) (int, error)
	PutRecoveryCodes(ctx context.Context, memberID string, hashes [][32]byte) error
	Recover(ctx context.Context, memberID string, code [32]byte, hash string, now time.Time) error
	Link(ctx context.Context, hash [32]byte, now time.Time) (account.Link, error)
	CreateLink(ctx context.Context, l account.Link) error
	UseLink(ctx context.Context, hash [32]byte, now time.Time) (account.Member, error)

	BeginCeremony(ctx context.Context, c account.Ceremony, now time.Time) error
	TakeCeremony(ctx context.Context, hash [32]byte, kind account.CeremonyKind, now time.Time) (account.Ceremony, error)
	Passkeys(ctx context.Context, memberID string) ([]account.Passkey, error)
	AddPasskey(ctx context.Context, p account.Passkey) error
	UsePasskey(ctx context.Context, id string, signs int64, now time.Time) error
	RemovePasskey(ctx context.Context, memberID, id, keep string) error
	Identity(ctx context.Context, issuer, subject string) (account.Identity, error)
	Identities(ctx context.Context, memberID string) ([]account.Identity, error)
	AddIdentity(ctx context.Context, i account.Identity) error
	RemoveIdentity(ctx context.Context, memberID, id, keep string) error

	Grant(ctx context.Context, hash [32]byte) (account.Grant, error)
	WaitingGrant(ctx context.Context, userCode string, now time.Time) (account.Grant, error)
	CreateGrant(ctx context.Context, g account.Grant) error
	DecideGrant(ctx context.Context, userCode string, state account.GrantState, memberID string,
		now time.Time) (account.Grant, error)
	RedeemGrant(ctx context.Context, hash [32]byte, m account.Machine, k account.Key,
		now time.Time) (account.Member, error)

	Email(ctx context.Context, memberID string) (account.Email, error)
	EmailsOf(ctx context.Context, address string, most int) ([]account.Email, error)
	AskEmail(ctx context.Context, e account.Email) error
	VerifyEmail(ctx context.Context, memberID string, hash [32]byte, now time.Time) (before account.Email, err error)
	RemoveEmail(ctx context.Context, memberID string) (before account.Email, err error)

	CountNotices(ctx context.Context, memberID string, now time.Time) (int, error)
	ClaimNoticePass(ctx context.Context, now time.Time, every time.Duration) (first time.Time, claimed bool, err error)
	MembersToMail(ctx context.Context, now, since, until time.Time, most int) ([]account.NewsFor, error)
	ClaimMail(ctx context.Context, memberID string, now, next time.Time) (claimed bool, err error)
	SetMailed(ctx context.Context, memberID string, until, next time.Time) error

	CountMembers(ctx context.Context, words ...string) (all, disabled int, err error)
	ListMembers(ctx context.Context, q account.MemberQuery) ([]account.MemberActivity, error)
	CountMachines(ctx context.Context) (int, error)
	ListMachines(ctx context.Context, part string) ([]account.Machine, error)
	Acts(ctx context.Context, from account.Place, f account.ActFilter, most int) ([]account.Act, error)
	ActFields(ctx context.Context) (who, what []string, err error)
}
