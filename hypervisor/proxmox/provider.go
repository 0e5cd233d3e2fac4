// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/ids"
)

// Defaults of hypervisor.Options and Config.
const (
	defaultTaskInterval = 250 * time.Millisecond
	defaultListBusy     = 2 * time.Second
	defaultListQuiet    = 10 * time.Second
	defaultIDMin        = 100000
	defaultIDMax        = 199999
	defaultClones       = 2
	defaultCallsPerNode = 4
	nodesAge            = 10 * time.Second
	templateAge         = time.Minute
	storagesAge         = time.Minute
	// Where each node has to be asked by itself, so many nodes are asked a minute: the answers
	// of more nodes are kept longer, so that calls do not grow with the cluster.
	nodesPerMinute       = 10
	isoContent           = "iso"
	lowestVMID           = 100
	highestVMID          = 999_999_999
	hostnameLimit        = 63
	confirmationLifetime = 10 * time.Second
)

// Provider is the connection to one Proxmox VE cluster. It is safe for concurrent use.
type Provider struct {
	config  hypervisor.Config
	options hypervisor.Options
	id      identity
	clock   clock.WithTicker
	client  *client
	listing *cached[snapshot]
	nodes   *cached[[]nodeInfo]
	running *cached[makings]
	isos    *cached[[]isoFound]
	gates   *gates
	watch   *watcher
	ids     *ids.Allocator[promise]
	health  *health

	mu       sync.Mutex
	machines map[string]*machine
	// gone holds when each of the latest removals ended, by the owner's uid.
	gone      map[string]time.Time
	known     map[int]knownVM
	storages  map[string]*cached[[]storageInfo]
	templates map[templateKey]*cached[vmConfig]
	// makings is what the last look at the running tasks found.
	makings makings

	// admission is held while a machine is given memory of its node.
	admission sync.Mutex
}

var _ hypervisor.Connection = (*Provider)(nil)

// New is the hypervisor.Factory of Proxmox VE.
func New(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
	return newProvider(config, options)
}

func newProvider(config hypervisor.Config, options hypervisor.Options) (*Provider, error) {
	if config.Name == "" || options.OperatorUID == "" {
		return nil, fmt.Errorf("connect to cluster %q: its name and the operator's uid are needed to own machines", config.Name)
	}

	setDefaults(&config, &options)

	if config.IDMin < lowestVMID || config.IDMax > highestVMID || config.IDMin > config.IDMax {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "IDRangeInvalid",
			"vmIdRange %d to %d must lie within %d to %d", config.IDMin, config.IDMax, lowestVMID, highestVMID)
	}

	client, err := newClient(config, options, options.Clock)
	if err != nil {
		return nil, err
	}

	p := &Provider{
		config: config, options: options, clock: options.Clock, client: client,
		id:        identity{hypervisor.Identity{OperatorUID: options.OperatorUID, Cluster: config.Name}},
		listing:   newCached(options.Clock, client.snapshot),
		nodes:     newCached(options.Clock, client.nodes),
		ids:       ids.New[promise](config.IDMin, config.IDMax, options.Clock.Now, nil),
		health:    &health{clock: options.Clock},
		machines:  map[string]*machine{},
		gone:      map[string]time.Time{},
		known:     map[int]knownVM{},
		storages:  map[string]*cached[[]storageInfo]{},
		templates: map[templateKey]*cached[vmConfig]{},
	}
	p.running = newCached(options.Clock, p.runningMakings)
	p.isos = newCached(options.Clock, p.allISOs)
	p.gates = newGates(config.ClonesPerStorage, options.Wake, options.Clock.Now)
	p.watch = p.newWatcher()

	return p, nil
}

func setDefaults(config *hypervisor.Config, options *hypervisor.Options) {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}

	if options.Wake == nil {
		options.Wake = func(hypervisor.Owner) {}
	}

	if options.TaskInterval <= 0 {
		options.TaskInterval = defaultTaskInterval
	}

	if config.IDMin == 0 && config.IDMax == 0 {
		config.IDMin, config.IDMax = defaultIDMin, defaultIDMax
	}

	if config.ClonesPerStorage <= 0 {
		config.ClonesPerStorage = defaultClones
	}

	if config.CallsPerNode <= 0 {
		config.CallsPerNode = defaultCallsPerNode
	}
}

func (p *Provider) newWatcher() *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{
		member: p.member, client: p.client, clock: p.clock, listing: p.listing, gates: p.gates, wake: p.options.Wake,
		taskEvery: p.options.TaskInterval, listBusy: defaultListBusy, listQuiet: defaultListQuiet,
		ctx: ctx, cancel: cancel, tasks: map[string]*task{}, looks: map[string]time.Time{}, took: map[string]time.Duration{},
		machines: map[string]*watched{},
	}

	if p.options.ListInterval > 0 {
		w.listBusy, w.listQuiet = p.options.ListInterval, p.options.ListInterval
	}

	return w
}

// Close ends the background work and waits for it. Machines stay.
func (p *Provider) Close() {
	p.watch.close()
	p.client.close()
}

// usable tells whether a node may carry machines.
func (p *Provider) usable(node string) bool {
	return len(p.config.Nodes) == 0 || slices.Contains(p.config.Nodes, node)
}

// usableNodes gives the nodes that may carry machines. One that does not answer is given
// as such, whatever the cluster says of it.
func (p *Provider) usableNodes(ctx context.Context) ([]nodeInfo, error) {
	all, _, err := p.nodes.get(ctx, nodesAge)
	if err != nil {
		return nil, err
	}

	out := slices.DeleteFunc(slices.Clone(all), func(n nodeInfo) bool { return !p.usable(n.Node) })
	for i, n := range out {
		if n.online() && p.client.transport.silent(n.Node) {
			out[i].Status = statusSilent
		}
	}

	return out, nil
}

// member tells whether a node is part of the cluster, well or not. Where that can't be asked it
// is taken for one.
func (p *Provider) member(ctx context.Context, node string) bool {
	return p.memberSince(ctx, node, nodesAge)
}

// memberSince is member by a list of the nodes that is no older than so.
func (p *Provider) memberSince(ctx context.Context, node string, age time.Duration) bool {
	all, _, err := p.nodes.get(ctx, age)

	return err != nil || len(all) == 0 || slices.ContainsFunc(all, func(n nodeInfo) bool { return n.Node == node })
}

// lost tells whether a machine is gone with its node: an administrator has removed the node from
// the cluster, and the machine's configuration with it. Of a node that is only silent nothing is
// known.
func (p *Provider) lost(ctx context.Context, m *machine) bool {
	if p.memberSince(ctx, m.node, p.watch.listBusy) {
		return false
	}

	snap, _, err := p.listing.get(ctx, 0)
	if err != nil {
		return false
	}

	_, listed := snap[m.id]

	return !listed
}

// unreachable says why no machine can be made on a node now; nothing where one may be. A node
// that reports no status may work.
func (p *Provider) unreachable(ctx context.Context, node string) (string, error) {
	nodes, err := p.usableNodes(ctx)
	if err != nil {
		return "", err
	}

	at := slices.IndexFunc(nodes, func(n nodeInfo) bool { return n.Node == node })

	switch {
	case at < 0:
		return "it is not part of the cluster, or may not be used", nil
	case nodes[at].offline(), nodes[at].Status == statusSilent:
		return "it " + nodes[at].trouble(), nil
	default:
		return "", nil
	}
}

// storagesOf gives the storages of a node.
func (p *Provider) storagesOf(ctx context.Context, node string) ([]storageInfo, error) {
	p.mu.Lock()

	cache, ok := p.storages[node]
	if !ok {
		cache = newCached(p.clock, func(ctx context.Context) ([]storageInfo, error) { return p.client.storages(ctx, node) })
		p.storages[node] = cache
	}
	p.mu.Unlock()

	out, _, err := cache.get(ctx, max(storagesAge, p.nodeAge()))

	return out, err
}

// nodeAge is how long answers are kept for which each node is asked by itself.
func (p *Provider) nodeAge() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()

	return time.Duration(len(p.storages)) * time.Minute / nodesPerMinute
}

// isosAge is how old the listing of ISOs may be: on few nodes it is made each time.
func (p *Provider) isosAge() time.Duration {
	if age := p.nodeAge(); age > time.Minute {
		return age
	}

	return 0
}

// storageOf gives one storage of a node.
func (p *Provider) storageOf(ctx context.Context, node, name string) (storageInfo, error) {
	all, err := p.storagesOf(ctx, node)
	if err != nil {
		return storageInfo{}, err
	}

	for _, s := range all {
		if s.Storage == name {
			return s, nil
		}
	}

	var names []string
	for _, s := range all {
		names = append(names, s.Storage)
	}

	slices.Sort(names)

	return storageInfo{}, hypervisor.Errorf(hypervisor.Rejected, "StorageNotFound",
		"node %s has no storage %q (it has %v): name one of them, or grant %s Datastore.Audit on /storage/%s",
		node, name, names, p.client.who(), name)
}

// isoStorage gives the storage of a node that takes the cloud-init ISOs.
func (p *Provider) isoStorage(ctx context.Context, node string) (storageInfo, error) {
	if name := p.config.ISOStorage; name != "" {
		s, err := p.storageOf(ctx, node, name)
		if err != nil {
			return s, err
		}

		if !s.holds(isoContent) {
			return s, hypervisor.Errorf(hypervisor.Rejected, "StorageWithoutISO",
				"storage %s on node %s does not take ISOs (it takes %s): choose another isoStorage, "+
					"or allow it with: pvesm set %s --content %s,iso", name, node, s.Content, name, s.Content)
		}

		return s, nil
	}

	all, err := p.storagesOf(ctx, node)
	if err != nil {
		return storageInfo{}, err
	}

	for _, s := range all {
		if s.holds(isoContent) && s.usable() {
			return s, nil
		}
	}

	return storageInfo{}, hypervisor.Errorf(hypervisor.Rejected, "StorageWithoutISO",
		"no active storage of node %s takes ISOs: allow it on one with: pvesm set STORAGE --content ...,iso, "+
			"and grant %s Datastore.Audit, Datastore.AllocateSpace and Datastore.AllocateTemplate on it", node, p.client.who())
}
