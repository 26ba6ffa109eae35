package dialect

import (
	"testing"

	"github.com/kith/kith/internal/fault"
)

func TestFaultForms(t *testing.T) {
	full := fault.New(fault.CapacityFull, "all \"busy\"\n").AfterWait()
	plain := fault.New(fault.InvalidRequest, "no").WithParam("model")
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"chat", AppendFault(nil, Chat, plain, "id"),
			`{"error":{"code":"invalid_request","message":"no","type":"invalid_request_error","param":"model","correlation_id":"id"}}`},
		{"chat after a wait", AppendFault(nil, Chat, full, "id"),
			`{"error":{"code":"CAPACITY_FULL","message":"all \"busy\"\n","type":"server_error","param":null,"correlation_id":"id","reason":"wait_elapsed"}}`},
		{"chat frame", AppendFaultFrame(nil, Chat, plain, "id"),
			"data: " + `{"error":{"code":"invalid_request","message":"no","type":"invalid_request_error","param":"model","correlation_id":"id","details":{}}}` + "\n\n"},
		{"chat frame after a wait", AppendFaultFrame(nil, Chat, full, "id"),
			"data: " + `{"error":{"code":"CAPACITY_FULL","message":"all \"busy\"\n","type":"server_error","param":null,"correlation_id":"id","details":{"reason":"wait_elapsed"}}}` + "\n\n"},
		{"messages", AppendFault(nil, Messages, plain, "id"),
			`{"type":"error","error":{"type":"invalid_request_error","code":"invalid_request","message":"no","param":"model","correlation_id":"id","details":{"error_code":"invalid_request"}},"request_id":"id"}`},
		{"messages after a wait", AppendFault(nil, Messages, full, "id"),
			`{"type":"error","error":{"type":"overloaded_error","code":"CAPACITY_FULL","message":"all \"busy\"\n","correlation_id":"id","reason":"wait_elapsed","details":{"error_code":"CAPACITY_FULL","reason":"wait_elapsed"}},"request_id":"id"}`},
		{"messages frame", AppendFaultFrame(nil, Messages, full, "id"),
			"event: error\ndata: " + `{"type":"error","error":{"type":"overloaded_error","code":"CAPACITY_FULL","message":"all \"busy\"\n","correlation_id":"id","details":{"error_code":"CAPACITY_FULL","reason":"wait_elapsed"}},"request_id":"id"}` + "\n\n"},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, c.got, c.want)
		}
	}
}

func TestMessagesTypes(t *testing.T) {
	for code, want := range map[fault.Code]string{
		fault.InvalidRequest: "invalid_request_error", fault.InvalidAPIKey: "authentication_error",
		fault.NotInCircle: "permission_error", fault.ModelNotFound: "not_found_error",
		fault.MethodNotAllowed: "invalid_request_error", fault.RequestTooLarge: "request_too_large",
		fault.UnsupportedEncoding: "invalid_request_error", fault.RateLimitExceeded: "rate_limit_error",
		fault.InternalError: "api_error", fault.NotImplemented: "api_error", fault.EngineError: "api_error",
		fault.CapacityFull: "overloaded_error", fault.MachineOffline: "api_error", fault.EngineTimeout: "timeout_error",
	} {
		if got := messagesType(fault.New(code, "")); got != want {
			t.Errorf("%s: %s, want %s", code, got, want)
		}
	}
}

func TestParseFault(t *testing.T) {
	sent := fault.New(fault.MachineOffline, "gone").AfterWait().WithParam("p")
	for _, document := range [][]byte{
		AppendFault(nil, Chat, sent, "id"),
		AppendFaultFrame(nil, Chat, sent, "id")[len("data: "):],
	} {
		got, ok := ParseFault(document)
		if !ok || got.Code != sent.Code || got.Message != sent.Message || got.Reason != sent.Reason || got.Param != sent.Param {
			t.Errorf("ParseFault(%s) = %+v, %v", document, got, ok)
		}
	}
	for _, document := range []string{``, `{}`, `{"error":"x"}`, `{"error":{"code":"stranger","message":"m"}}`, `{"error":{"code":7}}`} {
		if f, ok := ParseFault([]byte(document)); ok {
			t.Errorf("ParseFault(%s) = %v", document, f)
		}
	}
}
