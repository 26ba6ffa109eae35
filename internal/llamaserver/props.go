package llamaserver

import (
	"context"
	"encoding/json/v2"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	propsTimeout  = 5 * time.Second
	maxPropsBytes = 1 << 20 // the answer holds the chat template
)

// props is the used part of llama-server's answer to GET /props.
type props struct {
	Settings struct {
		Context int `json:"n_ctx"` // tokens of each slot
	} `json:"default_generation_settings"`
	Slots      int `json:"total_slots"`
	Modalities struct {
		Vision bool `json:"vision"`
		Audio  bool `json:"audio"`
	} `json:"modalities"`
	Template *struct {
		Tools bool `json:"supports_tools"`
		Calls bool `json:"supports_tool_calls"`
	} `json:"chat_template_caps"`
}

// readProps updates s.model from the server's properties of the loaded model. Without an
// answer, the values from the file remain.
func (s *Server) readProps(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, propsTimeout)
	defer cancel()
	var got props
	if err := getProps(ctx, address, &got); err != nil {
		s.pool.config.Log.Warn("cannot read llama-server's properties of its model", "model", s.file.ID, "cause", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got.Settings.Context > 0 {
		s.model.ContextLength = min(s.context, got.Settings.Context)
	}
	if got.Slots > 0 {
		s.model.Slots = min(s.pool.config.Slots, got.Slots)
	}
	if s.model.Embeddings {
		return
	}
	s.model.Vision, s.model.Audio = got.Modalities.Vision, got.Modalities.Audio
	if got.Template != nil {
		s.model.Tools = got.Template.Tools || got.Template.Calls
	}
}

func getProps(ctx context.Context, address string, into *props) error {
	resp, err := get(ctx, address, "/props")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered with status %d", resp.StatusCode)
	}
	return json.UnmarshalRead(io.LimitReader(resp.Body, maxPropsBytes), into)
}

// get requests a page of a server over a separate connection.
func get(ctx context.Context, address, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://llama-server"+path, nil)
	if err != nil {
		return nil, err
	}
	t := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialTo(ctx, address) }}
	return t.RoundTrip(req)
}
