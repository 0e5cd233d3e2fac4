// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/keymutex"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/ids"
)

// System is the name of the calls' system in metrics.
const System = "libvirt"

const (
	product = "libvirt"

	defaultIDMin = 100000
	defaultIDMax = 199999

	defaultCallsPerNode     = 4
	defaultClonesPerStorage = 2
	defaultPool             = "default"

	// defaultListInterval is how old a cached list of domains may be while libvirtd reports changes as events, and
	// blindListInterval while it does not.
	defaultListInterval = 10 * time.Second
	blindListInterval   = 2 * time.Second
	// eventListFactor is how many of the operator's list intervals a cached list may be old while libvirtd reports
	// changes as events.
	eventListFactor = 5
	// machineLockCount is the number of locks that machines share. With so many, two machines rarely wait
	// for each other.
	machineLockCount = 1024
)

// Provider is the connection to the hosts of one cluster. It is safe for concurrent use.
type Provider struct {
	config   hypervisor.Config
	options  hypervisor.Options
	identity identity
	clock    clock.WithTicker
	hosts    []*host
	byName   map[string]*host
	ids      *ids.Allocator[struct{}]
	locks    keymutex.KeyMutex

	ctx        context.Context //nolint:containedctx // it ends when the provider is closed
	cancel     context.CancelFunc
	goroutines sync.WaitGroup

	placement placement
	progress  progress
	consoles  consoles
}

var _ hypervisor.Connection = (*Provider)(nil)

// New returns a connection to the hosts of the cluster. It is a hypervisor.Factory.
func New(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
	if config.Name == "" || options.OperatorUID == "" {
		return nil, fmt.Errorf("connect to cluster %q: the ownership of machines needs the cluster's name and the operator's UID",
			config.Name)
	}

	setDefaults(&config, &options)

	if config.IDMin < 1 || config.IDMin > config.IDMax || config.IDMax >= 1<<macIDBits {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "IDRangeInvalid",
			"validate vmIdRange: the range %d to %d must be within 1 and %d, and must not be empty",
			config.IDMin, config.IDMax, 1<<macIDBits-1)
	}

	p := &Provider{
		config: config, options: options, clock: options.Clock, byName: map[string]*host{},
		identity: identity{hypervisor.Identity{OperatorUID: options.OperatorUID, Cluster: config.Name}},
		ids:      ids.New[struct{}](config.IDMin, config.IDMax, options.Clock.Now, nil),
		locks:    keymutex.NewHashed(machineLockCount),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())

	for _, hostConfig := range config.Hosts {
		hostConfig.StoragePool = cmp.Or(hostConfig.StoragePool, config.DefaultStorage, defaultPool)

		h, err := newHost(p, hostConfig)
		if err != nil {
			p.cancel()

			return nil, err
		}

		p.hosts, p.byName[hostConfig.Name] = append(p.hosts, h), h
	}

	return p, nil
}

func setDefaults(config *hypervisor.Config, options *hypervisor.Options) {
	if config.IDMin == 0 && config.IDMax == 0 {
		config.IDMin, config.IDMax = defaultIDMin, defaultIDMax
	}

	config.CallsPerNode = cmp.Or(config.CallsPerNode, defaultCallsPerNode)
	config.ClonesPerStorage = cmp.Or(config.ClonesPerStorage, defaultClonesPerStorage)

	if config.TLS == nil {
		config.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}

	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	if options.Wake == nil {
		options.Wake = func(hypervisor.Owner) {}
	}
}

// wrapCall makes a call through Options.WrapCall.
func (p *Provider) wrapCall(ctx context.Context, call hypervisor.Call, do func() error) error {
	if p.options.WrapCall == nil {
		return do()
	}

	return p.options.WrapCall(ctx, call, do)
}

// maxListAge returns how old a cached list of domains may be. libvirtd reports changes as events, so a list may be older
// than the operator's interval: up to eventListFactor intervals, but no more than defaultListInterval, unless one interval
// is longer than that.
func (p *Provider) maxListAge() time.Duration {
	interval := p.options.ListInterval
	if interval == 0 {
		return defaultListInterval
	}

	return min(eventListFactor*interval, max(interval, defaultListInterval))
}

// listInterval returns the interval at which a host's domains are listed.
func (p *Provider) listInterval(s *session) time.Duration {
	if s.hasEvents {
		return p.maxListAge()
	}

	return min(cmp.Or(p.options.ListInterval, blindListInterval), blindListInterval)
}

// Close closes the connections to the hosts and waits until the background work has stopped. It does not
// change machines.
func (p *Provider) Close() {
	p.cancel()
	p.goroutines.Wait()
}

// onHosts calls do for each host at the same time, and returns the errors by host.
func (p *Provider) onHosts(do func(*host) error) map[*host]error {
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs = map[*host]error{}
	)

	for _, h := range p.hosts {
		wg.Go(func() {
			if err := do(h); err != nil {
				mu.Lock()
				defer mu.Unlock()

				errs[h] = err
			}
		})
	}

	wg.Wait()

	return errs
}

// refresh brings the inventories of all hosts up to date, and returns the errors by host.
func (p *Provider) refresh(ctx context.Context, maxAge time.Duration) map[*host]error {
	return p.onHosts(func(h *host) error { return h.refresh(ctx, maxAge) })
}

// newUnavailableError returns the error for a question that only the hosts with errors can answer.
func newUnavailableError(action string, errs map[*host]error) error {
	var (
		names []string
		first error
	)

	for h, err := range errs {
		names = append(names, h.config.Name)
		first = err
	}

	return &hypervisor.Error{
		Kind: hypervisor.Unavailable, Reason: "HostUnreachable",
		Message: fmt.Sprintf("%s: hosts %s do not respond: repair them, or remove them from spec.libvirt.hosts if they are gone",
			action, strings.Join(names, ", ")),
		Err: first,
	}
}
