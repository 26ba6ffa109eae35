package fault

import (
	"fmt"
	"slices"
	"strings"
)

// whens says, code by code, what a caller met and what helps: the words of
// docs/errors.md.
var whens = map[Code]string{
	ModelNotFound:            "Nothing anywhere serves this model id right now; for embeddings and audio also: nothing that you can reach. Send an id exactly as `GET /v1/models` lists it.",
	NotInCircle:              "Nobody shares with you and no machine of your own serves this model. Ask someone who runs it to share, or connect a machine that does.",
	CascadeExhausted:         "Nothing that you can reach took the request: nobody who shares runs the model (then `x-should-retry: false`), or those who do are busy, paused or offline, or it could not be confirmed just now who shares with you.",
	CapacityFull:             "All machines that run the model are busy, or the chosen one became unavailable before it started, or there is no room for one more request or answer, yours or in all: `message` says which. `reason` is `wait_elapsed` when a wait ended.",
	MachineOffline:           "A machine that you can use runs this model and is offline. Your access is intact; it returns when the machine does.",
	OutsideSharingHours:      "Machines shared with you run the model, and every one online is outside its sharing hours.",
	InvalidRequest:           "The request cannot be understood: `message` says why and `param` names the member. For audio also: no machine in the region offers any speech model. Sending it again does not help.",
	ContextLengthExceeded:    "The prompt is longer than the model's context: \"prompt is too long: N tokens > M maximum\", where the engine reports the numbers. Send less, or choose a model with a longer context.",
	PreviousResponseNotFound: "The response that is referred to, or named in the path, is unknown, has expired, was deleted, was not stored, or is another member's.",
	InvalidAPIKey:            "The key is missing, wrong or revoked, or two headers carry different ones. Hosted only.",
	ForbiddenOrigin:          "A web page, or a request under a foreign Host, reached the local surface. Local only.",
	RouteNotFound:            "No such path; `message` names the nearest right one. Check whether the base URL should include `/v1`.",
	MethodNotAllowed:         "The path does not take this method; `Allow` says which it takes.",
	RequestTooLarge:          "The body is over the limit (32 MiB by default). Send less.",
	UnsupportedEncoding:      "The body has a Content-Encoding. Send it as it is.",
	RateLimitExceeded:        "Too many requests, too many calls at once that run or wait, or too many different models tried that you cannot reach: `message` says which. Wait as `Retry-After` says.",
	InternalError:            "A defect of ours; the correlation id finds it in the log.",
	NotImplemented:           "The route exists and is not implemented: use `/v1/chat/completions`.",
	EngineError:              "The engine of the machine failed on this very request, or what it sent is not an answer.",
	NoInferenceBackend:       "This daemon was built without an engine and knows nothing else that could serve. Local only.",
	EngineTimeout:            "A machine took the request and its engine did not answer in time.",
	NotFound:                 "Under `/api/` only: nothing that is yours, or that you may see, is named so.",
	NotAllowed:               "Under `/api/` only: you may see it, and changing it is for others; `message` says for whom.",
}

// When says in which circumstances a caller is told the code, and what helps.
func (c Code) When() string { return whens[c] }

// Page is docs/errors.md: every code with its status, its type and When, by
// status.
func Page() string {
	codes := make([]Code, 0, len(statuses))
	for code := range statuses {
		codes = append(codes, code)
	}
	slices.SortFunc(codes, func(a, b Code) int {
		if byStatus := statuses[a] - statuses[b]; byStatus != 0 {
			return byStatus
		}
		return strings.Compare(string(a), string(b))
	})
	var page strings.Builder
	page.WriteString(`# Errors

<!-- Written by the tests of internal/fault: go test ./internal/fault -update -->

Branch on ` + "`error.code`" + `, matched exactly. Every answer carries ` + "`X-Correlation-ID`" + `, every error the same value as
` + "`error.correlation_id`" + `; 429 and 503 carry ` + "`Retry-After`" + `. A stream that fails after it began ends with a frame that holds
` + "`error`" + `, and without an end mark.

| Status | code | type | When, and what helps |
|---|---|---|---|
`)
	for _, code := range codes {
		fmt.Fprintf(&page, "| %d | `%s` | `%s` | %s |\n", statuses[code], code, New(code, "").Type(), code.When())
	}
	return page.String()
}
