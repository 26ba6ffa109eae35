package dialect

import (
	"strings"
	"testing"
	"time"

	"github.com/kith/kith/internal/assert"
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
		{"chat", FaultBody(Chat, plain, "id"),
			`{"error":{"code":"invalid_request","message":"no","type":"invalid_request_error","param":"model","correlation_id":"id"}}`},
		{"chat after a wait", FaultBody(Chat, full, "id"),
			`{"error":{"code":"CAPACITY_FULL","message":"all \"busy\"\n","type":"server_error","param":null,"correlation_id":"id","reason":"wait_elapsed"}}`},
		{"chat frame", FaultFrame(Chat, plain, "id"),
			"data: " + `{"error":{"code":"invalid_request","message":"no","type":"invalid_request_error","param":"model","correlation_id":"id","details":{}}}` + "\n\n"},
		{"chat frame after a wait", FaultFrame(Chat, full, "id"),
			"data: " + `{"error":{"code":"CAPACITY_FULL","message":"all \"busy\"\n","type":"server_error","param":null,"correlation_id":"id","details":{"reason":"wait_elapsed"}}}` + "\n\n"},
		{"messages", FaultBody(Messages, plain, "id"),
			`{"type":"error","error":{"type":"invalid_request_error","code":"invalid_request","message":"no","param":"model","correlation_id":"id","details":{"error_code":"invalid_request"}},"request_id":"id"}`},
		{"messages after a wait", FaultBody(Messages, full, "id"),
			`{"type":"error","error":{"type":"overloaded_error","code":"CAPACITY_FULL","message":"all \"busy\"\n","correlation_id":"id","reason":"wait_elapsed","details":{"error_code":"CAPACITY_FULL","reason":"wait_elapsed"}},"request_id":"id"}`},
		{"messages frame", FaultFrame(Messages, full, "id"),
			"event: error\ndata: " + `{"type":"error","error":{"type":"overloaded_error","code":"CAPACITY_FULL","message":"all \"busy\"\n","correlation_id":"id","details":{"error_code":"CAPACITY_FULL","reason":"wait_elapsed"}},"request_id":"id"}` + "\n\n"},
	} {
		assert.Equal(t, string(c.got), c.want, c.name, c.got)
	}
}

// param is the field at fault, else null; in the responses dialect it is always a string
// (spec/api.md#error-param). model_not_found always names the model.
func TestFaultParam(t *testing.T) {
	plain, missing := fault.New(fault.EngineError, "no"), fault.New(fault.ModelNotFound, "no")
	q := assert.Value(ReadResponses([]byte(`{"model":"m","input":"x"}`)))(t)
	for name, c := range map[string]struct{ got, want string }{
		"chat":                       {string(FaultBody(Chat, plain, "id")), `"param":null`},
		"chat, the model":            {string(FaultBody(Chat, missing, "id")), `"param":"model"`},
		"messages, the model":        {string(FaultBody(Messages, missing, "id")), `"param":"model"`},
		"responses":                  {string(FaultBody(Responses, plain, "id")), `"param":""`},
		"responses, the model":       {string(FaultBody(Responses, missing, "id")), `"param":"model"`},
		"responses, frame":           {string(FaultFrame(Responses, plain, "id")), `"param":""`},
		"responses, failed":          {string(q.Answer("own", time.Unix(0, 0), false).Fail(plain, "id")), `"param":""`},
		"responses, failed by model": {string(q.Answer("own", time.Unix(0, 0), false).Fail(missing, "id")), `"param":"model"`},
	} {
		if !strings.Contains(c.got, c.want) || strings.Contains(c.got, `"param":null`) != strings.Contains(c.want, "null") {
			t.Errorf("%s: %s, want %s", name, c.got, c.want)
		}
	}
	if f, ok := ParseFault(FaultBody(Responses, missing, "id")); !ok || f.Param != "model" {
		t.Errorf("read back: %v", f)
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
		assert.Equal(t, messagesType(fault.New(code, "")), want, code)
	}
}

func TestParseFault(t *testing.T) {
	sent := fault.New(fault.MachineOffline, "gone").AfterWait().WithParam("p")
	for _, document := range [][]byte{
		FaultBody(Chat, sent, "id"),
		FaultFrame(Chat, sent, "id")[len("data: "):],
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
