package fault

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// codes is the table of all codes: the status, a short title for people, and the text in
// docs/errors.md.
var codes = map[Code]struct {
	status int
	title  string
	when   string
}{
	ModelNotFound:            {404, "Unknown model", "Nothing anywhere serves this model id now; for embeddings and audio also: nothing that you can reach. Send an id exactly as `GET /v1/models` lists it."},
	NotInCircle:              {403, "Not shared with you", "No one shares with you and no machine of your own serves this model. Ask someone who runs it to share, or connect a machine that does."},
	CascadeExhausted:         {503, "No machine available", "Nothing that you can reach took the request: no machine shared with you runs the model (then `x-should-retry: false`), or those that do are busy, paused or offline, or it could not be confirmed just now who shares with you."},
	CapacityFull:             {503, "No free capacity", "All machines that run the model are busy, or the chosen one became unavailable before it started, or there is no room for one more request or answer, yours or in all; locally also: the engine that has it starts or cannot be reached. `message` says which. `reason` is `wait_elapsed` when a wait ended."},
	MachineOffline:           {503, "Machine offline", "A machine that you can use runs this model and is offline. Your access is intact; it returns when the machine does."},
	OutsideSharingHours:      {503, "Outside sharing hours", "Machines shared with you run the model, and every one online is outside its sharing hours."},
	InvalidRequest:           {400, "Invalid request", "The request cannot be understood: `message` says why and `param` names the member at fault. For audio also: no machine in the region offers any speech model. Sending it again does not help."},
	ContextLengthExceeded:    {400, "Prompt too long", "The prompt is longer than the model's context: \"prompt is too long: N tokens > M maximum\", if the engine reports the numbers. Send less, or choose a model with a longer context."},
	PreviousResponseNotFound: {400, "Previous response not found", "The response that is referred to, or named in the path, is unknown, has expired, was deleted, was not stored, or is another member's."},
	InvalidAPIKey:            {401, "Invalid key", "The key is missing, wrong or revoked, or two headers carry different ones; or it expired, or is of a region that this hub does not know (`message` says so). Hosted only."},
	ForbiddenOrigin:          {403, "Origin not allowed", "A web page, or a request under a foreign Host, reached the local surface. Local only."},
	RouteNotFound:            {404, "Nothing at this address", "No such path; `message` names the nearest right one. Check whether the base URL should include `/v1`."},
	MethodNotAllowed:         {405, "Method not allowed", "The path does not take this method; `Allow` says which it takes."},
	RequestTooLarge:          {413, "Request too large", "The body is over the limit (32 MiB by default). Send less."},
	UnsupportedEncoding:      {415, "Unsupported encoding", "The body has a Content-Encoding. Send it as it is."},
	RateLimitExceeded:        {429, "Too many requests", "Too many requests, too many calls at once that run or wait, too many different models tried that you cannot reach, or no call left of those that the key has in a day: `message` says which. Wait as `Retry-After` says, or until 00:00 UTC."},
	InternalError:            {500, "Internal error", "A defect of ours; the correlation id finds it in the log."},
	NotImplemented:           {501, "Not implemented", "The route exists and is not implemented: use `/v1/chat/completions`."},
	EngineError:              {502, "Engine failed", "The machine's engine failed on this request, or its response was not a valid answer."},
	NoInferenceBackend:       {503, "No engine", "This daemon was built without an engine and knows nothing else that could serve. Local only."},
	EngineTimeout:            {504, "Engine timed out", "A machine took the request and its engine did not answer in time."},
	NotFound:                 {404, "Not found", "Of the management API only: nothing that is yours, or that you may see, has this name."},
	StaleSeal:                {412, "Sealed for others", "For daemons only: the machines that the call is sealed for cannot take it, and others could. The daemon seals it again."},
	WrongRegion:              {421, "Wrong region", "For machines that connect only: the credential belongs to another region. If its hub's address is known, it is in `message` and in the header `Kith-Hub`. Sign in there with `kith login --hub`."},
	NotAllowed:               {403, "Not allowed", "Of the management API only: you may see it but not change it; `message` says who may."},
}

// Title returns the code in a few plain words. An unknown code is its own title.
func (c Code) Title() string { return cmp.Or(codes[c].title, string(c)) }

// When explains when a caller gets the code and what to do about it.
func (c Code) When() string { return codes[c].when }

// Page returns the text of docs/errors.md.
func Page() string {
	sorted := slices.SortedFunc(maps.Keys(codes), func(a, b Code) int {
		return cmp.Or(cmp.Compare(codes[a].status, codes[b].status), cmp.Compare(a, b))
	})
	var page strings.Builder
	page.WriteString(`# Errors

<!-- Written by the tests of internal/fault: go test ./internal/fault -update -->

Branch on ` + "`error.code`" + `, compared exactly. Every answer carries ` + "`X-Correlation-ID`" + `, every error the same value as
` + "`error.correlation_id`" + `; 429 and 503 carry ` + "`Retry-After`" + `. A stream that fails after it began ends with a frame that holds
` + "`error`" + `, and without an end mark.

| Status | code | type | When, and what helps |
|---|---|---|---|
`)
	for _, code := range sorted {
		fmt.Fprintf(&page, "| %d | <a id=\"%s\"></a>`%s` | `%s` | **%s.** %s |\n", codes[code].status, code, code, New(code, "").Type(), code.Title(), code.When())
	}
	return page.String()
}
