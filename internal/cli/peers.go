package cli

import (
	"cmp"
	"context"
	"errors"
	"net"
	"os"

	"github.com/kith/kith/internal/cluster"
)

// defaultPeers is the default address for connections from the other hubs of the region.
const defaultPeers = ":8703"

// openPeers opens the address for the region's other hubs, if [peer] is configured. A hub
// with the embedded database has no other hubs.
func (p *hubProcess) openPeers(ctx context.Context) (err error) {
	config := p.config.Peer
	if config.Listen.Text == "" && config.Address.Text == "" {
		return nil
	}
	if p.config.Database.URL.text == "" {
		return errors.New("cannot connect to other hubs: they share a PostgreSQL database; set [database] url, or remove [peer]")
	}
	if p.cluster, err = cluster.New(cluster.Config{Log: p.log}); err != nil {
		return err
	}
	if p.peers, err = listenTCP(ctx, cmp.Or(config.Listen.Text, defaultPeers), "[peer] listen"); err != nil {
		return err
	}
	if p.peerAddress = config.Address.Text; p.peerAddress != "" {
		return nil
	}
	host, port, err := net.SplitHostPort(p.peers.Addr().String())
	if err != nil {
		return err
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return errors.New("cannot find this computer's name; set [peer] address to where other hubs reach this one")
		}
	}
	p.peerAddress = net.JoinHostPort(host, port)
	return nil
}
