// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/ids"
)

// Defaults of hypervisor.Options and Config, and limits of Proxmox VE.
const (
	defaultTaskInterval     = 250 * time.Millisecond
	defaultBusyListAge      = 2 * time.Second
	defaultIdleListAge      = 10 * time.Second
	defaultIDMin            = 100000
	defaultIDMax            = 199999
	defaultClonesPerStorage = 2
	defaultCallsPerNode     = 4
	nodesMaxAge             = 10 * time.Second
	templateMaxAge          = time.Minute
	storagesMaxAge          = time.Minute
	// nodeRequestsPerMinute limits the requests that the provider sends to each node separately. In a
	// larger cluster the results are cached for longer, so that the number of calls does not grow with the
	// cluster.
	nodeRequestsPerMinute = 10
	isoContent            = "iso"
	lowestVMID            = 100
	highestVMID           = 999_999_999
	maxHostnameLength     = 63
	confirmationLifetime  = 10 * time.Second
)

// Provider is the connection to one Proxmox VE cluster. It is safe for concurrent use.
type Provider struct {
	config  hypervisor.Config
	options hypervisor.Options
	id      identity
	clock   clock.WithTicker
	client  *client
	vmCache *cached[vmsByID]
	// mappingCache holds the resource mappings of PCI devices.
	mappingCache *cached[mappingsByID]
	nodeCache    *cached[[]nodeInfo]
	vmTaskCache  *cached[vmTasks]
	isoCache     *cached[[]foundISO]
	cloneQueues  *cloneQueues
	watcher      *watcher
	ids          *ids.Allocator[reservation]
	breaker      *breaker

	mu       sync.Mutex
	machines map[string]*machine
	// deletedAt holds the end time of each recent deletion by the owner's UID (see recordDeletion).
	deletedAt      map[string]time.Time
	knownVMs       map[int]knownVM
	storageCaches  map[string]*cached[[]storageInfo]
	templateCaches map[templateKey]*cached[vmConfig]
	// lastVMTasks is the result of the latest call of listVMTasks.
	lastVMTasks vmTasks

	// placementMu is held while the provider places a machine and reserves memory of a node for that
	// machine.
	placementMu sync.Mutex
}

var _ hypervisor.Connection = (*Provider)(nil)

// New connects to the Proxmox VE cluster of the config. New is the hypervisor.Factory of Proxmox VE and
// makes no call.
func New(config hypervisor.Config, options hypervisor.Options) (hypervisor.Connection, error) {
	return newProvider(config, options)
}

func newProvider(config hypervisor.Config, options hypervisor.Options) (*Provider, error) {
	if config.Name == "" || options.OperatorUID == "" {
		return nil, fmt.Errorf("connect to cluster %q: the name of the cluster and the UID of the operator must be set", config.Name)
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
		id:             identity{hypervisor.Identity{OperatorUID: options.OperatorUID, Cluster: config.Name}},
		vmCache:        newCached(options.Clock, client.listVMs),
		mappingCache:   newCached(options.Clock, client.listMappings),
		nodeCache:      newCached(options.Clock, client.listNodes),
		ids:            ids.New[reservation](config.IDMin, config.IDMax, options.Clock.Now, nil),
		breaker:        &breaker{clock: options.Clock},
		machines:       map[string]*machine{},
		deletedAt:      map[string]time.Time{},
		knownVMs:       map[int]knownVM{},
		storageCaches:  map[string]*cached[[]storageInfo]{},
		templateCaches: map[templateKey]*cached[vmConfig]{},
	}
	p.vmTaskCache = newCached(options.Clock, p.listVMTasks)
	p.isoCache = newCached(options.Clock, p.listAllISOs)
	p.cloneQueues = newCloneQueues(config.ClonesPerStorage, options.Wake, options.Clock.Now)
	p.watcher = p.newWatcher()

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
		config.ClonesPerStorage = defaultClonesPerStorage
	}

	if config.MemoryPercent <= 0 {
		config.MemoryPercent = wholePercent
	}

	if config.CallsPerNode <= 0 {
		config.CallsPerNode = defaultCallsPerNode
	}
}

func (p *Provider) newWatcher() *watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watcher{
		isClusterMember: p.isClusterMember, client: p.client, clock: p.clock, vmCache: p.vmCache,
		cloneQueues: p.cloneQueues, wake: p.options.Wake,
		taskInterval: p.options.TaskInterval, busyListAge: defaultBusyListAge, idleListAge: defaultIdleListAge,
		ctx: ctx, cancel: cancel, tasks: map[string]*task{}, nextPolls: map[string]time.Time{},
		taskDurations: map[string]time.Duration{},
		machines:      map[string]*watchedMachine{},
	}

	if p.options.ListInterval > 0 {
		w.busyListAge, w.idleListAge = p.options.ListInterval, p.options.ListInterval
	}

	return w
}

// Close stops the background work and waits for its end. Close deletes no machines.
func (p *Provider) Close() {
	p.watcher.close()
	p.client.close()
}

// isAllowedNode reports whether the configuration allows machines on a node.
func (p *Provider) isAllowedNode(node string) bool {
	return len(p.config.Nodes) == 0 || slices.Contains(p.config.Nodes, node)
}

// listUsableNodes returns the nodes on which the configuration allows machines. If a node does not respond
// to requests, its status is statusUnresponsive, even if the cluster reports the node as online.
func (p *Provider) listUsableNodes(ctx context.Context) ([]nodeInfo, error) {
	all, _, err := p.nodeCache.get(ctx, nodesMaxAge)
	if err != nil {
		return nil, err
	}

	out := slices.DeleteFunc(slices.Clone(all), func(n nodeInfo) bool { return !p.isAllowedNode(n.Node) })
	for i, n := range out {
		if n.isOnline() && p.client.transport.isUnresponsive(n.Node) {
			out[i].Status = statusUnresponsive
		}
	}

	return out, nil
}

// isClusterMember reports whether a node is part of the cluster, whatever the node's status is. If the
// nodes cannot be listed, isClusterMember returns true.
func (p *Provider) isClusterMember(ctx context.Context, node string) bool {
	return p.isClusterMemberWithin(ctx, node, nodesMaxAge)
}

// isClusterMemberWithin is isClusterMember with a node list that is not older than age.
func (p *Provider) isClusterMemberWithin(ctx context.Context, node string, age time.Duration) bool {
	all, _, err := p.nodeCache.get(ctx, age)

	return err != nil || len(all) == 0 || slices.ContainsFunc(all, func(n nodeInfo) bool { return n.Node == node })
}

// isLostWithNode reports whether a machine was lost because an administrator removed the machine's node
// from the cluster, which removes the VM's configuration too. A node that only fails to respond is still
// part of the cluster, and isLostWithNode returns false. If the machine was lost, its phase is phaseReserved
// afterwards (see confirmAbsent).
func (p *Provider) isLostWithNode(ctx context.Context, m *machine) bool {
	if p.isClusterMemberWithin(ctx, m.node, p.watcher.busyListAge) {
		return false
	}

	return p.confirmAbsent(ctx, m) == nil
}

// explainUnusableNode returns the reason why no machine can be created on a node now, or "" if machines can
// be created there. A node that reports no status counts as usable, because such a node may still work.
func (p *Provider) explainUnusableNode(ctx context.Context, node string) (string, error) {
	nodes, err := p.listUsableNodes(ctx)
	if err != nil {
		return "", err
	}

	index := slices.IndexFunc(nodes, func(n nodeInfo) bool { return n.Node == node })

	switch {
	case index < 0:
		return "the node is not part of the cluster or not allowed by spec.nodes", nil
	case nodes[index].isOffline(), nodes[index].Status == statusUnresponsive:
		return "the node " + nodes[index].unusableReason(), nil
	default:
		return "", nil
	}
}

// listStorages returns the storages of a node. The result is cached.
func (p *Provider) listStorages(ctx context.Context, node string) ([]storageInfo, error) {
	p.mu.Lock()

	cache, ok := p.storageCaches[node]
	if !ok {
		cache = newCached(p.clock, func(ctx context.Context) ([]storageInfo, error) { return p.client.listStorages(ctx, node) })
		p.storageCaches[node] = cache
	}
	p.mu.Unlock()

	out, _, err := cache.get(ctx, max(storagesMaxAge, p.perNodeMaxAge()))

	return out, err
}

// perNodeMaxAge returns the maximum cache age of results that need one request per node. The age grows with
// the number of nodes (see nodeRequestsPerMinute).
func (p *Provider) perNodeMaxAge() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()

	return time.Duration(len(p.storageCaches)) * time.Minute / nodeRequestsPerMinute
}

// isoListMaxAge returns the maximum age of the cached ISO list. If the cluster has few nodes, isoListMaxAge
// returns 0, so that the provider lists the ISOs each time.
func (p *Provider) isoListMaxAge() time.Duration {
	if age := p.perNodeMaxAge(); age > time.Minute {
		return age
	}

	return 0
}

// findStorage returns one storage of a node. If the node has no storage of that name, the error is
// Rejected.
func (p *Provider) findStorage(ctx context.Context, node, name string) (storageInfo, error) {
	all, err := p.listStorages(ctx, node)
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

	return storageInfo{}, hypervisor.Errorf(hypervisor.Rejected, reasonStorageNotFound,
		"node %s has no storage %q (it has %s): use one of these storages, or grant %s Datastore.Audit on /storage/%s",
		node, name, strings.Join(names, ", "), p.client.principal(), name)
}

// findISOStorage returns the storage of a node that receives the cloud-init ISOs: the configured ISO
// storage, or otherwise the first active storage that accepts ISOs.
func (p *Provider) findISOStorage(ctx context.Context, node string) (storageInfo, error) {
	if name := p.config.ISOStorage; name != "" {
		s, err := p.findStorage(ctx, node, name)
		if err != nil {
			return s, err
		}

		if !s.hasContentType(isoContent) {
			return s, hypervisor.Errorf(hypervisor.Rejected, reasonStorageWithoutISO,
				"storage %s on node %s does not accept ISOs (it accepts %s): choose another isoStorage%s",
				name, node, s.Content, s.explainHowToAllow("ISOs", isoContent))
		}

		return s, nil
	}

	all, err := p.listStorages(ctx, node)
	if err != nil {
		return storageInfo{}, err
	}

	for _, s := range all {
		if s.hasContentType(isoContent) && s.isUsable() {
			return s, nil
		}
	}

	return storageInfo{}, hypervisor.Errorf(hypervisor.Rejected, reasonStorageWithoutISO,
		"no active storage of node %s accepts ISOs: allow ISOs on a storage with: pvesm set STORAGE --content ...,iso, "+
			"and grant %s Datastore.Audit, Datastore.AllocateSpace and Datastore.AllocateTemplate on that storage",
		node, p.client.principal())
}
