package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/kith/kith/internal/postgres"
)

const (
	maxDevNodes = 9
	anyLoopback = "127.0.0.1:0"
)

// devNodes are the hub nodes that `kith dev` runs in this process. A single node uses
// SQLite.
type devNodes struct {
	nodes    []*hubProcess
	database *postgres.Server // nil: a single node
}

// openNodes opens n hub nodes. The first has the given configuration. The others use any
// free port, and folders inside the first one's. The caller must close the devNodes, even
// after an error.
func openNodes(ctx context.Context, first *hubFile, n int, log *slog.Logger) (*devNodes, error) {
	opened := new(devNodes)
	if n > 1 {
		if err := opened.startDatabase(filepath.Join(first.Hub.Data, "postgres")); err != nil {
			return opened, err
		}
		first.Database.URL.text = opened.database.URL("postgres") // every PostgreSQL server has this database
	}
	for i := range n {
		config := *first
		if n > 1 {
			config.Hub.Node.Text = fmt.Sprintf("node%d", i+1)
			config.Peer.Listen.Text = anyLoopback
		}
		if i > 0 {
			config.Hub.Data = filepath.Join(first.Hub.Data, config.Hub.Node.Text)
			config.Hub.Listen.Text = anyLoopback
		}
		p, err := openHub(ctx, &config, log)
		if err != nil {
			return opened, err
		}
		opened.nodes = append(opened.nodes, p)
	}
	return opened, nil
}

// startDatabase starts PostgreSQL with its data in the given folder.
func (d *devNodes) startDatabase(data string) (err error) {
	d.database, err = postgres.Start(postgres.Config{Data: data})
	if errors.Is(err, postgres.ErrMissing) {
		return fmt.Errorf("cannot start several nodes: %w", err)
	}
	if err != nil {
		// The error contains the server's long log.
		first, _, _ := strings.Cut(err.Error(), "\n")
		return fmt.Errorf("%s; see that no other kith dev uses %s, or choose another folder with --data", first, data)
	}
	return nil
}

// bases returns the addresses of the nodes.
func (d *devNodes) bases() []string {
	return convert(d.nodes, func(p *hubProcess) string { return p.base })
}

// run serves all nodes until ctx ends (nil) or one of them fails.
func (d *devNodes) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range d.nodes {
		group.Go(func() error { return p.run(ctx) })
	}
	return group.Wait()
}

// close closes the nodes, then their database.
func (d *devNodes) close() {
	for _, p := range d.nodes {
		p.close()
	}
	if d.database != nil {
		_ = d.database.Close()
	}
}
