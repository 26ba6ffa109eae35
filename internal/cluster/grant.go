package cluster

import (
	"bytes"
	"context"
	"encoding/json/v2"
	"io"
	"net/http"

	"github.com/kith/kith/internal/dispatch"
)

// maxGrant is the longest grant, in bytes.
const maxGrant = 4 << 10

// Offer implements dispatch.Others: it offers a held slot to the node of a waiting call.
func (c *Cluster) Offer(ctx context.Context, node string, g dispatch.Grant) dispatch.GrantOutcome {
	f := c.followedNode(node)
	if f == nil {
		return dispatch.GrantLost
	}
	body, err := json.Marshal(g)
	if err != nil {
		return dispatch.GrantLost
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://peer"+pathGrant, bytes.NewReader(body))
	if err != nil {
		return dispatch.GrantLost
	}
	response, err := f.peer.RoundTrip(request)
	if err != nil {
		return dispatch.GrantLost
	}
	response.Body.Close()
	switch outcome := dispatch.GrantOutcome(response.StatusCode); outcome {
	case dispatch.GrantTaken, dispatch.GrantGone, dispatch.GrantDeclined:
		return outcome
	default:
		return dispatch.GrantLost
	}
}

// serveGrant takes a slot that another node offers to a call that waits here.
func (c *Cluster) serveGrant(w http.ResponseWriter, r *http.Request) {
	var g dispatch.Grant
	if err := json.UnmarshalRead(io.LimitReader(r.Body, maxGrant), &g); err != nil {
		http.Error(w, "cannot read the grant: "+err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(int(c.parts.Dispatch.Accept(g)))
}
