package enginetest

// Service is the kind of a service elsewhere, which also serves the responses and
// messages dialects, with the answers below.
const Service Kind = "service"

// The unary answers of a Service.
const (
	Message = `{"type":"message", "id":"msg_1","role":"assistant","model":"theirs","content":[{"type":"text","text":"Hello"}],` +
		`"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":7,"cache_read_input_tokens":4,"output_tokens":3}}`
	Response = `{"id":"resp_1", "object":"response","status":"completed","error":null,"model":"theirs",` +
		`"output":[{"type":"message","id":"msg_1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"Hello","annotations":[]}]}],` +
		`"usage":{"input_tokens":11,"output_tokens":3,"total_tokens":14}}`
)

// MessageStream is the events of a streamed message.
var MessageStream = []string{
	"event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"theirs\",\"usage\":{\"input_tokens\":7,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\n",
	"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
	"event: ping\ndata: {\"type\": \"ping\"}\n\n",
	"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n",
	"event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
	"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":3}}\n\n",
	"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
}

// ResponseStream is the events of a streamed response.
var ResponseStream = []string{
	"event: response.created\ndata: {\"type\":\"response.created\",\"sequence_number\":0,\"response\":{\"id\":\"resp_1\",\"object\":\"response\",\"status\":\"in_progress\",\"output\":[],\"usage\":null}}\n\n",
	"event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"sequence_number\":1,\"item_id\":\"msg_1\",\"output_index\":0,\"content_index\":0,\"delta\":\"Hello\"}\n\n",
	"event: response.completed\ndata: {\"type\":\"response.completed\",\"sequence_number\":2,\"response\":" + Response + "}\n\n",
}

func (r *run) messages() error { return r.fixed(Message, MessageStream) }

func (r *run) responses() error { return r.fixed(Response, ResponseStream) }

// fixed answers with the given texts.
func (r *run) fixed(answer string, events []string) error {
	if r.call.Stream {
		return r.stream(nil, events, nil)
	}
	return r.unary(answer)
}
