package site

import (
	"encoding/json/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/kith/kith/internal/api"
	"github.com/kith/kith/internal/docsite"
	"github.com/kith/kith/internal/fault"
)

// access is the rule for who may see a page.
type access uint8

const (
	anyone access = iota
	members
	operators // others get "not found"
)

// page is one route of the site: its method and path, who may use it, and its handler. If
// a form is refused, the response is the page with the form.
type page struct {
	method, path string
	may          access
	asks         bool // a confirmation page for the form at its path, which is itself on the page above
	serve        handler
	raw          bool   // serve reads the body, which is not a form
	tab          string // of the page of a machine that has the form; empty: the one that the form names
	on           string // path of the page with the form; if empty, its own path or the nearest above
}

// handler handles a request for a page or a form.
type handler func(*Site, *visit) (reply, error)

func get(path string, serve handler) page {
	return page{method: http.MethodGet, path: path, serve: serve}
}
func post(path string, serve handler) page {
	return page{method: http.MethodPost, path: path, serve: serve}
}

// view returns a page that renders data in a template, or the error from data.
func view[Data any](path, template, title string, data func(*Site, *visit) (Data, error)) page {
	return get(path, func(s *Site, v *visit) (reply, error) {
		shown, err := data(s, v)
		if err != nil {
			return reply{title: title}, err
		}
		return reply{page: template, title: title, data: shown}, nil
	})
}

// form returns a form that calls a route of the API with the input that read takes from
// its fields. The next page then shows done.
func form[In, Out any](path string, route api.Route[In, Out], read func(*visit) (In, error), done string) page {
	return formSaying(path, route, read, func(Out) string { return done })
}

// formSaying is like form, but the confirmation message depends on the output.
func formSaying[In, Out any](path string, route api.Route[In, Out], read func(*visit) (In, error),
	done func(Out) string) page {
	return post(path, func(s *Site, v *visit) (reply, error) {
		in, err := read(v)
		if err != nil {
			return reply{}, err
		}
		out, err := call(s, v, route, in)
		return reply{to: s.placeOf(v), done: done(out)}, err
	})
}

// onMachine returns the form as one on a tab of the page of the machine that it names.
func onMachine(tab string, form page) page {
	form.on, form.tab = machinePath, tab
	return form
}

// script returns a route for a page's script. It responds with JSON.
func script[Answer any](path string, ask func(*Site, *visit) (Answer, error)) page {
	return post(path, func(s *Site, v *visit) (reply, error) {
		answer, err := ask(s, v)
		return reply{write: func(w http.ResponseWriter) {
			if err == nil {
				api.WriteJSON(w, http.StatusOK, answer)
				return
			}
			f := fault.Of(err)
			if f.Code == fault.InternalError {
				s.Log.Error("page failed", "id", v.id, "method", v.Method, "error", err)
			}
			api.WriteFault(w, f, v.id)
		}}, nil
	})
}

// call calls a route of the API for the signed-in member.
func call[In, Out any](s *Site, v *visit, route api.Route[In, Out], in In) (Out, error) {
	if _, err := json.Marshal(in); err != nil { // the API would refuse it, too
		var none Out
		return none, fault.New(fault.InvalidRequest, "the form holds text that is not UTF-8").Because(err)
	}
	return route.Do(v.Context(), s.API, v.caller(), in)
}

// pick returns the element of a list for which is returns true, or a fault with the text.
// err is the error of the list.
func pick[T any](all []T, err error, is func(T) bool, format string, args ...any) (one T, _ error) {
	if i := slices.IndexFunc(all, is); err == nil && i >= 0 {
		return all[i], nil
	}
	if err == nil {
		err = fault.New(fault.NotFound, format, args...)
	}
	return one, err
}

// fields fills a request whose fields are all strings. The form fields have the names of
// the path's segments and of the fields of the JSON body.
func fields[In any](v *visit) (in In, _ error) {
	for field, value := range reflect.ValueOf(&in).Elem().Fields() {
		name, inPath := field.Tag.Lookup("path")
		if !inPath {
			name = field.Tag.Get("json")
		}
		value.SetString(strings.TrimSpace(v.form.Get(name)))
	}
	return in, nil
}

// sitePages returns all pages of the site. No path contains a name that a person chose.
func sitePages() []page {
	return slices.Concat(of(anyone, visitorPages()), of(members, accountPages()), of(members, memberPages()),
		of(members, sharePages()), of(members, groupPages()), of(operators, operatorPages()))
}

// of sets who may see the pages.
func of(may access, pages []page) []page {
	for i := range pages {
		pages[i].may = may
	}
	return pages
}

// visitorPages returns the pages for signing in, and those that everyone may read.
func visitorPages() []page {
	return []page{
		get("/", (*Site).home),
		get("/install.sh", (*Site).installScript),
		post("/theme", (*Site).setTheme),
		view("/api", "api", "API", func(*Site, *visit) (api.Description, error) { return api.Describe(), nil }),
		get(docsite.Root, (*Site).documentation),
		get(docsite.Root+"/{page...}", (*Site).documentation),

		view("/signin", "signin", "Sign in", (*Site).signInData),
		post("/signin", (*Site).signIn),
		script("/signin/passkey/begin", (*Site).signInChallenge),
		post("/signin/passkey", (*Site).signInByPasskey),
		post("/signin/provider", (*Site).seeProvider),
		get(backPath, (*Site).comeBack),
		get("/signup/provider", (*Site).newcomerPage),
		post("/signup/provider", (*Site).signUpByProvider),
		post("/signout", (*Site).signOut),
		get("/signup", (*Site).signUpPage),
		post("/signup", (*Site).signUp),
		view("/recover", "recover", "Recover your account", (*Site).recoverData),
		post("/recover", (*Site).recover),
		post("/recover/mail", (*Site).recoverByMail),
		get("/welcome/{code}", (*Site).welcomePage),
		post("/welcome", (*Site).welcome),
		get("/invite/{code}", (*Site).invitePage),
	}
}

// accountPages returns the pages for a member's sign-in methods.
func accountPages() []page {
	return []page{
		view("/account", "account", "Account", (*Site).accountData),
		post("/account/password", (*Site).changePassword),
		post("/account/codes", (*Site).makeCodes),
		script("/account/passkeys/begin", (*Site).newPasskeyChallenge),
		post("/account/passkeys", (*Site).addPasskey),
		post("/account/passkeys/remove", (*Site).removePasskey),
		post("/account/provider", (*Site).linkProvider),
		post("/account/provider/remove", (*Site).unbind),
		post("/account/email", (*Site).askEmail),
		view("/account/email/{code}", "email", "Your e-mail address", (*Site).emailData),
		post("/account/email/verify", (*Site).verifyEmail),
		post("/account/email/remove", (*Site).removeEmail),
		form("/account/notices", api.SwitchNotices, switchedNotices, "Notice settings saved."),
		view("/sessions", "sessions", "Sessions", (*Site).sessionsData),
		post("/sessions/end", (*Site).endSession),
	}
}

// memberPages returns the pages for keys, machines, shares, models and calls.
func memberPages() []page {
	return []page{
		view("/applications", "applications", "Keys", (*Site).applicationsData),
		post("/applications", (*Site).createKey),
		get(newKeyPath, (*Site).newKey),
		asks("/applications/roll", (*Site).rollKeyQuestion),
		post("/applications/roll", (*Site).rollKey),
		asks("/applications/revoke", (*Site).revokeKeyQuestion),
		post("/applications/test", (*Site).testKey),
		formSaying("/applications/limit", api.LimitKey, keyLimit, func(k api.Key) string {
			if k.PerDay == 0 {
				return "The key has no daily limit."
			}
			return "The key's daily limit is " + api.Number(k.PerDay) + ", of which " + api.Number(k.Today) + " are used."
		}),
		form("/applications/revoke", api.RevokeKey, fields,
			"The key is revoked: it is refused everywhere within 5 seconds."),

		view("/device", "device", "Approve a device",
			func(*Site, *visit) (deviceData, error) { return deviceData{}, nil }),
		post("/device", (*Site).showDevice),
		post("/device/decide", (*Site).decideDevice),

		view("/machines", "machines", "Machines", (*Site).machinesData),
		get(machinePath, (*Site).machinePage),
		get(livePath+"machines", liveStream("/machines", machinesContent)),
		get(livePath+"machines/{machine}", (*Site).machineStream),
		asks(filesPath, (*Site).filesQuestion),
		onMachine(modelsTab, post(filesPath, (*Site).changeFiles)),
		onMachine("", form("/machines/pause", api.ControlMachine, pause, "Machine paused. Running calls finish.")),
		onMachine("", form("/machines/resume", api.ControlMachine, resume, "Machine resumed.")),
		onMachine(sharingTab, form("/machines/hours", api.ControlMachine, hours, "Hours set. They appear here once "+
			"the machine reports them. Running calls finish.")),
		onMachine(settingsTab, form("/machines/slots", api.ControlMachine, slots, "Limit set.")),
		onMachine(settingsTab, form("/machines/rename", api.RenameMachine, fields, "Machine renamed.")),
		asks("/machines/revoke", (*Site).revokeMachineQuestion),
		formSaying("/machines/revoke", api.RevokeMachine, fields, revokedMachine),
		onMachine(sharingTab, formSaying("/machines/keep-out", api.KeepMachineOut, keepOut, keptOut)),
		onMachine("", formSaying("/machines/show", api.ShowMachineClass, showClass, shownClass)),

		get(mapPath, (*Site).mapPage),
		get(livePath+"home", liveStream("/", homeContent)),
		get(livePath+"map", liveStream(mapPath, mapContent)),

		get("/try", (*Site).tryPage),
		get("/try/{chat}", (*Site).tryPage),
		post("/try", (*Site).tryOnce),
		{method: http.MethodPost, path: "/try/stream", serve: (*Site).tryLive, raw: true},

		get("/models", (*Site).modelsPage),
		get(livePath+"models", liveStream("/models", modelsContent)),
		view("/usage", "usage", "Usage", (*Site).usageData),
		get("/usage.csv", (*Site).usageCSV),
		get("/requests", (*Site).requestsPage),
		get("/requests/{call}", (*Site).requestPage),
		view(noticesPath, "notices", "Notices", (*Site).noticesData),
		form(noticesPath+"/seen", api.SeeNotices, seenUntil, "All notices are marked as read."),
	}
}

// The tabs of Access, and the page of one group, whose address names the group.
const (
	accessPath  = "/access" // who can use my machines
	forYouPath  = accessPath + "/for-you"
	groupsPath  = accessPath + "/groups"
	groupPath   = accessPath + "/group"
	invitesPath = accessPath + "/invites"
)

// sharePages returns the pages about access, and their forms for shares and invites.
func sharePages() []page {
	return slices.Concat([]page{
		get(accessPath, (*Site).peoplePage),
		view(forYouPath, "access-for-you", "What you can use", (*Site).forYouData),
		view(groupsPath, "access-groups", "Groups", (*Site).groupsData),
		get(groupPath, (*Site).groupPage),
		view(invitesPath, "access-invites", "Invites", (*Site).invitesData),
		get(livePath+"access", liveStream(accessPath, accessContent)),
		asks("/sharing/end", (*Site).endShareQuestion),
		asks("/groups/end", (*Site).endGroupQuestion),
	}, formsOn(accessPath,
		formSaying("/sharing/share", api.PutShare, newShare(false),
			func(made api.Share) string { return "Shared with " + made.With + afterLimits(made.Cut, made.Warnings) }),
		formSaying("/sharing/limits", api.PutShare, newShare(true), func(made api.Share) string {
			return made.With + " may use your machines: " + limitWords(made.Limits) + afterLimits(made.Cut, made.Warnings)
		}),
		formSaying("/sharing/end", api.EndShare, shareToEnd, func(act api.EndedShare) string {
			return "You no longer share with " + act.With + ". " + cutWords(act.Cut)
		}),
	), formsOn(invitesPath,
		post("/sharing/invite", (*Site).makeInvite),
		form("/sharing/revoke", api.RevokeInvite, fields, "Invite revoked: it can no longer be accepted. "+
			"Shares made with it stay until you end them."),
		post("/sharing/accept", (*Site).acceptInvite),
	))
}

// formsOn sets the page that the forms are on.
func formsOn(path string, forms ...page) []page {
	for i := range forms {
		forms[i].on = path
	}
	return forms
}

// groupPages returns the forms for groups: those that a member is in no longer once they
// are done, and those on the page of a group.
func groupPages() []page {
	return slices.Concat(formsOn(groupsPath,
		post("/groups/create", (*Site).createGroup),
		formSaying("/groups/leave", api.LeaveGroup, fields, func(act api.GroupAct) string {
			return "You left " + act.Group + ". You and its members can no longer use each other's machines through it. " +
				cutWords(act.Cut)
		}),
		formSaying("/groups/end", api.EndGroup, fields, func(act api.GroupAct) string {
			return "The group " + act.Group + " is deleted: its members can no longer use machines through it. " + cutWords(act.Cut)
		}),
		form("/groups/accept", api.AcceptGroup, fields,
			"You are in the group: its members can use your machines, and you can use theirs."),
		form("/groups/decline", api.DeclineGroup, fields, "Declined: nothing is shared."),
	), formsOn(groupPath,
		form("/groups/join", api.JoinGroup, fields, "You are in the group."),
		formSaying("/groups/limit", api.LimitGroup, groupLimits, func(made api.GroupLimits) string {
			return "Limits saved for " + made.Group + afterLimits(made.Cut, made.Warnings)
		}),
		formSaying("/groups/invite", api.InviteToGroup, fields, func(act api.GroupAct) string {
			if act.State == "joined" {
				return act.Member + " is in the group already."
			}
			return act.Member + " is invited and joins by accepting."
		}),
		formSaying("/groups/withdraw", api.RemoveFromGroup, fields,
			func(act api.GroupAct) string { return "The invitation of " + act.Member + " is withdrawn." }),
		formSaying("/groups/remove", api.RemoveFromGroup, fields,
			func(act api.GroupAct) string { return "Removed. " + cutWords(act.Cut) }),
		formSaying("/groups/admin", api.MakeAdmin, fields,
			func(act api.GroupAct) string { return act.Member + " is an admin of " + act.Group + " now." }),
		formSaying("/groups/machine", api.SetGroupMachine, fields, decidedOn),
		form("/groups/demote", api.DropAdmin, fields, "That member is no longer an admin, but stays in the group."),
	))
}

func operatorPages() []page {
	return []page{
		view(operatorPath, "operator", "Operator", (*Site).operatorData),
		asks(operatorPath+"/drain", (*Site).drainQuestion),
		form(operatorPath+"/drain", api.OperatorDrainNode, fields,
			"The node is draining: it takes no new calls and stops once its calls have ended."),
		view(operatorPath+"/members", "operator-members", "Members", (*Site).membersData),
		post(operatorPath+"/members", (*Site).addMember),
		asks(operatorPath+"/members/role", (*Site).roleQuestion),
		post(operatorPath+"/members/role", (*Site).setRole),
		asks(operatorPath+"/members/disable", (*Site).disableMemberQuestion),
		post(operatorPath+"/members/disable", (*Site).disableMember),
		post(operatorPath+"/members/enable", (*Site).enableMember),
		asks(operatorPath+"/members/link", (*Site).linkMemberQuestion),
		post(operatorPath+"/members/link", (*Site).linkMember),
		view(operatorPath+"/machines", "operator-machines", "All machines", (*Site).allMachines),
		get(hubUsagePath, (*Site).hubUsagePage),
		get(hubUsagePath+".csv", (*Site).hubUsageCSV),
		view(operatorPath+"/audit", "operator-audit", "Audit log", (*Site).auditData),
	}
}
