package api

const keepsOrEnds = "A limit that the body does not name stays as it is, null ends it."

// The members' routes, under /api/. A key for inference only may use those of caller, and no
// key those of owner. The first sentence of each text is its summary in lists of routes.
var (
	ListModels = caller("GET /api/models", "List the models that you reach now.", (*API).listModels)

	ListShares = member("GET /api/shares", "List your shares. They are those of your machines, and those with you.", (*API).listShares)
	PutShare   = member("POST /api/shares", "Share your machines with a member. If that share is there, its limits change: "+keepsOrEnds, (*API).putShare)
	EndShare   = member("DELETE /api/shares/{member}", "End the share with a member. It takes effect within 5 seconds, even for running answers.", (*API).endShare)

	ListInvites  = member("GET /api/invites", "List your invites.", (*API).listInvites)
	CreateInvite = member("POST /api/invites", "Create an invite. The member who accepts it may use your machines. Its code is in this answer only. Without a body: one use, 7 days, no limits.", (*API).createInvite)
	AcceptInvite = member("POST /api/invites/accept",
		"Accept an invite by its code. If its maker shares with you already, that share and its limits stay as they are, and the invite is not used.", (*API).acceptInvite)
	RevokeInvite = member("DELETE /api/invites/{invite}", "Revoke an invite. Shares that it made stay.", (*API).revokeInvite)

	ListGroups  = member("GET /api/groups", "List groups. They are those that you are in or invited to, and all open ones.", (*API).listGroups)
	CreateGroup = member("POST /api/groups", "Create a group. You are its first member and admin.", (*API).createGroup)
	EndGroup    = member("DELETE /api/groups/{group}", "End a group, as its admin.", (*API).endGroup)
	JoinGroup   = member("POST /api/groups/{group}/join", "Join an open group.", (*API).joinGroup)
	LeaveGroup  = member("POST /api/groups/{group}/leave", "Leave a group.", (*API).leaveGroup)
	LimitGroup  = member("POST /api/groups/{group}/limits",
		"Limit what a group may call on your machines. The limits are of all its other members together. "+keepsOrEnds, (*API).limitGroup)
	AcceptGroup = member("POST /api/groups/{group}/accept",
		"Accept the invitation to an org. From then on its members reach your machines, and you theirs.", (*API).acceptGroup)
	DeclineGroup  = member("POST /api/groups/{group}/decline", "Decline the invitation to an org.", (*API).declineGroup)
	InviteToGroup = member("POST /api/groups/{group}/invitations",
		"Invite a member to an org, as its admin. The member is in it only after accepting, within 30 days.", (*API).inviteToGroup)
	RemoveFromGroup = member("DELETE /api/groups/{group}/members/{member}",
		"Remove a member from an org, as its admin. It withdraws an invitation, too.", (*API).removeFromGroup)
	MakeAdmin = member("POST /api/groups/{group}/admins", "Make a member an admin of an org, as its admin.", (*API).makeAdmin)
	DropAdmin = member("DELETE /api/groups/{group}/admins/{member}",
		"Take the role of admin of an org from a member. It is for admins, and the member stays in the org.", (*API).dropAdmin)

	SetGroupMachine = member("POST /api/groups/{group}/machines",
		"Pin or exclude a machine in a group, as its admin. Pinned, it counts as established; none ends either.", (*API).setGroupMachine)

	ListNotices   = member("GET /api/notices", "List your notices and invitations. Notices are those of the last 30 days, the newest first.", (*API).listNotices)
	SeeNotices    = member("POST /api/notices/seen", "Mark the notices up to a time as seen. Invitations stay until they are answered.", (*API).seeNotices)
	GetNotified   = member("GET /api/notices/off", "List the kinds of notices that you switched off. There is a list for the site and one for mail.", (*API).getNotified)
	SwitchNotices = member("POST /api/notices/off", "Switch off kinds of notices. A list that is absent stays; null switches all on.", (*API).switchNotices)

	ListKeys  = member("GET /api/keys", "List your API keys. Revoked ones are listed too, the newest key first. Keys are made on the site, and by kith keys create.", (*API).listKeys)
	LimitKey  = member("POST /api/keys/{key}/limit", "Limit the calls a day of a key. It holds everywhere within 5 seconds, for calls that begin then; null ends the limit.", (*API).limitKey)
	RevokeKey = member("DELETE /api/keys/{key}", "Revoke a key. It is refused everywhere within 5 seconds.", (*API).revokeKey)

	ListMachines   = member("GET /api/machines", "List your machines.", (*API).listMachines)
	MachineUsage   = member("GET /api/machines/{machine}/usage", "Count the calls that ran on your machine. They are by the hour of the last 24, and by member for today and the last 30 days.", (*API).machineUsage)
	RevokeMachine  = member("DELETE /api/machines/{machine}", "Revoke a machine. Its connection and what runs on it end within 5 seconds.", (*API).revokeMachine)
	RenameMachine  = member("POST /api/machines/{machine}/name", "Rename a machine.", (*API).renameMachine)
	ControlMachine = member("POST /api/machines/{machine}/control", "Pause or resume a connected machine, set its hours or slots.", (*API).controlMachine)
	MachineSeal    = member("GET /api/machines/{machine}/seal", "Read the keys of a machine for sealed calls. It has the statement of its key and, while it has no account key, what it asks your other machines.", (*API).machineSeal)
	ListFiles      = owner("GET /api/machines/{machine}/models",
		"List the model files of your connected machine. It lists its pulls, too, and models that fit its memory.", (*API).listFiles)
	ChangeFiles = owner("POST /api/machines/{machine}/models",
		"Pull, remove, load or unload a model on your connected machine. A pull goes on there until it is complete or canceled. You are notified of each act.",
		(*API).changeFiles)
	ShowMachineClass = member("POST /api/machines/{machine}/show",
		"Show or hide the class of a machine. Those who reach the machine see the sizes of its GPUs and memory if it is shown; you and the operators see more in either case.", (*API).showClass)
	KeepMachineOut = member("POST /api/machines/{machine}/keep-out", "Keep a machine out of a group or of all. The same route lets it in again.", (*API).keepMachineOut)

	ListSeals = caller("GET /api/seals", "List the machines that calls for a model can be sealed for. Those that a call would try first come first; what the call would be refused, the list is.", (*API).listSeals)

	ListRequests = member("GET /api/requests", "List your newest calls, and those on your machines. It shows what happened to each, and nothing of its content.", (*API).listRequests)
	ExplainModel = caller("GET /api/why", "Ask whether a call for a model would be served now. The answer names the machine, or why not and what would change that.", (*API).explainModel)
	ExplainCall  = caller("GET /api/why/{call}", "Ask what happened to a call, and why. It is one of yours, or one on your machines.", (*API).explainCall)
	GetUsage     = member("GET /api/usage", "Sum up usage, as caller and as owner.", (*API).getUsage)
)

// SignInMachine is for a machine with a login token, on the hub's public address.
var SignInMachine = machine("POST /login", "Redeem a login token for a machine. The credential of the machine, which is its member's, is in this answer only.", (*API).signInMachine)

// parameterTexts describe the parameters of paths and queries.
var parameterTexts = map[string]string{
	"member": "a member's name", "invite": "an invite's id", "group": "a group's name", "key": "a key's id", "machine": "a machine's id; of requests, its name",
	"call":   "a request's correlation id, as in every answer's header",
	"before": "next from the previous page, or a time: the list starts after it",
	"model":  "a model's id", "family": "chat (when absent), embeddings or audio",
	"outcome": "served or refused", "code": "the code that it ended with", "q": "a part of its id, model, caller, code or machine",
	"from": "a time, UTC: what began then or later", "to": "a time, UTC: what began before",
	"days":  "1 to 366, today included; 30 when absent. By the hour 1 to 14, and 1 when absent; by the week 84 when absent",
	"by":    "hour, day (when absent) or week: what the sums in days are of",
	"zone":  "the time zone of days and weeks, such as Europe/Lisbon; UTC when absent, and for spans of more than 13 weeks",
	"split": "model or member: divide each sum in days by these, in parts",
}

// The operator's routes, on the socket in the hub's data folder. The operator's pages use
// some of them, too.
var (
	OperatorCreateMember    = operator("POST /members", "create a member", (*API).operatorCreateMember)
	OperatorListMembers     = operator("GET /members", "", (*API).operatorListMembers)
	OperatorDisableMember   = operator("POST /members/{name}/disable", "disable a member", (*API).operatorDisableMember)
	OperatorEnableMember    = operator("POST /members/{name}/enable", "enable a member", (*API).operatorEnableMember)
	OperatorSetRole         = operator("POST /members/{name}/role", "change a member's role", (*API).operatorSetRole)
	OperatorCreateLink      = operator("POST /members/{name}/link", "make a sign-in link", (*API).operatorCreateLink)
	OperatorListDevices     = operator("GET /devices", "", (*API).operatorListDevices)
	OperatorApproveDevice   = operator("POST /devices/{code}/approve", "approve a device", (*API).operatorApproveDevice)
	OperatorCreateKey       = operator("POST /keys", "create a key", (*API).operatorCreateKey)
	OperatorListKeys        = operator("GET /keys", "", (*API).operatorListKeys)
	OperatorRevokeKey       = operator("POST /keys/{id}/revoke", "revoke a key", (*API).operatorRevokeKey)
	OperatorCreateToken     = operator("POST /machines/token", "make a login token", (*API).operatorCreateToken)
	OperatorListMachines    = operator("GET /machines", "", (*API).operatorListMachines)
	OperatorRevokeMachine   = operator("POST /machines/{id}/revoke", "revoke a machine", (*API).operatorRevokeMachine)
	OperatorAddShare        = operator("POST /shares", "add a share", (*API).operatorAddShare)
	OperatorEndShare        = operator("DELETE /shares", "end a share", (*API).operatorEndShare)
	OperatorCreateGroup     = operator("POST /groups", "create a group", (*API).operatorCreateGroup)
	OperatorInviteToGroup   = operator("POST /groups/{name}/invitations", "invite to a group", (*API).operatorInviteToGroup)
	OperatorRemoveFromGroup = operator("DELETE /groups/{name}/members/{member}", "remove from a group", (*API).operatorRemoveFromGroup)
	OperatorNameAdmin       = operator("POST /groups/{name}/admins", "name an admin", (*API).operatorNameAdmin)
	OperatorGetHealth       = operator("GET /health", "", (*API).operatorGetHealth)
	OperatorListNodes       = operator("GET /nodes", "", (*API).operatorListNodes)
	OperatorDrainNode       = operator("POST /nodes/{name}/drain", "drain a node", (*API).operatorDrainNode)
	OperatorTop             = operator("GET /top", "", (*API).operatorTop)
	OperatorGetUsage        = operator("GET /usage", "", (*API).operatorGetUsage)
	OperatorReload          = operator("POST /reload", "reload the configuration", (*API).operatorReload)
	OperatorBackUp          = operator("POST /backups", "back up the database", (*API).operatorBackUp)
)
