package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/kith/kith/internal/outbound"
	"github.com/kith/kith/internal/spool"
)

// shutdownGrace is how long running responses may continue after the end of ctx. The
// program exits within 2 s of an interrupt.
const shutdownGrace = time.Second

// listenTCP listens on an address. flag is the flag for the address, for the error.
func listenTCP(ctx context.Context, address, flag string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if outbound.IsInUse(err) {
		return nil, addressInUse(address, flag)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s: %w; choose another address with %s", address, err, flag)
	}
	return listener, nil
}

func addressInUse(address, flag string) error {
	return fmt.Errorf("cannot listen on %s: another program does already; end it, or choose another address with %s", address, flag)
}

// serveHTTP serves until ctx ends, then waits for running responses and, after
// shutdownGrace, closes their connections. The listener may be closed earlier to refuse
// new connections.
func serveHTTP(ctx context.Context, server *http.Server, listener net.Listener) error {
	ended := make(chan error, 1)
	go func() {
		if server.TLSConfig != nil {
			ended <- server.ServeTLS(listener, "", "")
			return
		}
		ended <- server.Serve(listener)
	}()
	select {
	case err := <-ended:
		if errors.Is(err, net.ErrClosed) {
			ended <- err
			<-ctx.Done()
			break
		}
		return fmt.Errorf("cannot serve %s any longer: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if server.Shutdown(grace) != nil {
		_ = server.Close() // errors only concern connections that are being closed
	}
	<-ended
	return nil
}

// logTo returns a log that writes lines of key=value.
func logTo(w io.Writer, level slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// to returns the log configured in [log].
func (l *logTable) to(w io.Writer, level slog.Leveler) *slog.Logger {
	if l.Format.Text == "json" {
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}))
	}
	return logTo(w, level)
}

// A server collects garbage less often than with Go's default, because most of a call's
// allocations become garbage when it ends (−14 % CPU for the hub, −23 % for the daemon,
// docs/performance.md). Above memoryLimit the collector works as usual. GOGC and
// GOMEMLIMIT take precedence.
const (
	gcPercent   = 400
	memoryLimit = 1 << 30
)

// diskLimit is how many bytes a daemon's spool may have in files, and the default for a
// hub's.
const diskLimit = 2 << 30

// openSpool opens the spool for the bodies of calls and responses. It may use a quarter
// of the process's memory limit.
func openSpool(folder string, disk, member int64) (*spool.Spool, error) {
	return spool.Open(filepath.Join(folder, "spool"), spool.Limits{Memory: debug.SetMemoryLimit(-1) / 4, Disk: disk, Member: member})
}

func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryLimit)
	}
}
