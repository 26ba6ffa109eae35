package llamaserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"
)

const (
	propsTime  = 5 * time.Second
	propsBytes = 1 << 20 // it holds the template
)

// props is what a llama-server says of the model it has loaded (GET /props).
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

// learn asks the server that has just loaded the model what it can do: the file
// only promises. One that does not say leaves things as the file has them.
func (s *server) learn(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, propsTime)
	defer cancel()
	var told props
	if err := askProps(ctx, address, &told); err != nil {
		s.pool.config.Log.Warn("llama-server does not say what its model can do", "model", s.file.ID, "cause", err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if told.Settings.Context > 0 {
		s.model.ContextLength = min(s.context, told.Settings.Context)
	}
	if told.Slots > 0 {
		s.model.Slots = min(s.pool.config.Slots, told.Slots)
	}
	if s.model.Embeddings {
		return
	}
	s.model.Vision, s.model.Audio = told.Modalities.Vision, told.Modalities.Audio
	if told.Template != nil {
		s.model.Tools = told.Template.Tools || told.Template.Calls
	}
}

func askProps(ctx context.Context, address string, told *props) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://llama-server/props", nil)
	if err != nil {
		return err
	}
	probe := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dialTo(ctx, address) }}
	resp, err := probe.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("it answered with status %d", resp.StatusCode)
	}
	return json.UnmarshalRead(io.LimitReader(resp.Body, propsBytes), told)
}
