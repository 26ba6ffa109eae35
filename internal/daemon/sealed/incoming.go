package sealed

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/kith/kith/internal/dialect"
	"github.com/kith/kith/internal/fault"
	"github.com/kith/kith/internal/seal"
)

// incoming is the answer to a sealed call. It reads as what the machine sealed. From the
// hub it takes comments about waiting and the route, and faults of known codes.
type incoming struct {
	*outgoing
	sealed  *seal.Call
	resp    *http.Response // of the hub
	trailer http.Header    // of the opened answer
	cancel  context.CancelCauseFunc

	lines  *bufio.Reader
	opener *seal.AnswerOpener // nil before the first frame
	text   []byte             // opened and not read
	err    error              // after text
}

// maxLine is the maximum length of a line of a sealed stream: a frame of the dialect, padded
// and in base64.
const maxLine = 384 << 10

// begin reads a stream up to the beginning of the machine's answer.
func (in *incoming) begin() error {
	in.lines = bufio.NewReader(in.resp.Body)
	silence := time.AfterFunc(hubSilence, func() {
		in.cancel(fault.New(fault.CascadeExhausted, "the hub at %s sent nothing for %s; try again", in.Hub, hubSilence))
	})
	defer silence.Stop()
	head, err := in.next(func() { silence.Reset(hubSilence) })
	if err != nil {
		return err
	}
	if in.opener, err = in.sealed.Answer(head); err != nil {
		return in.lied(errChanged)
	}
	return nil
}

// Read implements io.Reader. Its errors are faults.
func (in *incoming) Read(p []byte) (int, error) {
	for len(in.text) == 0 {
		if in.err != nil {
			return 0, in.err
		}
		in.text, in.err = in.chunk()
	}
	n := copy(p, in.text)
	in.text = in.text[n:]
	return n, nil
}

// chunk opens the next chunk. After the last one it returns io.EOF: what the hub sends
// after it is not read.
func (in *incoming) chunk() ([]byte, error) {
	if in.opener.Ended() {
		// The end of the response, so that closing it cancels nothing.
		_, _ = io.CopyN(io.Discard, in.lines, maxLine)
		return nil, io.EOF
	}
	frame, err := in.next(func() {})
	if f := fault.Of(err); f != nil && f.Code == fault.StaleSeal { // what began is not sealed again
		return nil, in.lied(errCut)
	}
	if err != nil {
		return nil, err
	}
	text, err := in.opener.Chunk(frame)
	switch {
	case err == io.EOF: // the last chunk has the engine's token counts
		if counts := strings.Fields(string(text)); len(counts) == 3 {
			in.trailer.Set(dialect.UsageTrailer, counts[0]+" "+counts[1])
			in.trailer.Set(dialect.CachedTrailer, counts[2])
		}
		return nil, nil
	case err != nil:
		return nil, in.lied(errChanged)
	}
	return text, nil
}

// Close ends the call at the hub.
func (in *incoming) Close() error {
	in.cancel(nil)
	return in.resp.Body.Close()
}

// next returns the bytes of the next frame. alive is called for each line.
func (in *incoming) next(alive func()) ([]byte, error) {
	for {
		line, err := in.line()
		if err != nil {
			return nil, err
		}
		alive()
		data, isData := bytes.CutPrefix(line, []byte("data:"))
		data = bytes.TrimPrefix(data, []byte(" "))
		switch {
		case len(line) == 0:
		case line[0] == ':':
			in.comment(strings.TrimSpace(string(line[1:])))
		case !isData:
			return nil, in.lied(errNotSealed)
		case string(data) == "[DONE]":
			return nil, in.lied(errCut)
		case bytes.HasPrefix(data, []byte("{")):
			if _, ok := dialect.ParseFault(data); !ok {
				return nil, in.lied(errNotSealed)
			}
			return nil, in.failure(in.refusal(in.resp, data))
		default:
			frame, err := base64.StdEncoding.Strict().DecodeString(string(data))
			if err != nil {
				return nil, in.lied(errNotSealed)
			}
			return frame, nil
		}
	}
}

// line reads one line without its end.
func (in *incoming) line() ([]byte, error) {
	var line []byte
	for {
		part, err := in.lines.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case len(line) > maxLine:
			return nil, in.lied(errNotSealed)
		case err == nil:
			return bytes.TrimRight(line, "\r\n"), nil
		case err == io.EOF:
			return nil, in.lied(errCut)
		case err != bufio.ErrBufferFull:
			return nil, in.broken(err)
		}
	}
}

// broken returns the fault of a connection to the hub that broke.
func (in *incoming) broken(err error) error {
	return fault.New(fault.CascadeExhausted, "the connection to the hub at %s broke during the answer; try again",
		in.Hub).Because(err)
}

// comment takes what the hub reports of the call. Its text is not passed on.
func (in *incoming) comment(text string) {
	var ahead, left int
	switch n, _ := fmt.Sscanf(text, "waiting %d ahead, %d s left", &ahead, &left); {
	case n == 2 && ahead >= 0 && left >= 0:
		in.call.Waiting(ahead, time.Duration(min(left, 86_400))*time.Second)
	case text == "working":
		in.call.Waiting(-1, 0)
	default:
		if route, is := routeOf(text); is {
			in.call.Trace.Route = route
		}
	}
}

// openText opens a sealed error, in base64.
func (in *incoming) openText(text string) ([]byte, error) {
	all, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, err
	}
	return in.openAll(all)
}

// printable returns text of others as one line of at most limit bytes.
func printable(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "…"
	}
	return text
}
