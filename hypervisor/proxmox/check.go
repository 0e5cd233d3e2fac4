// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// oldestMajor is the oldest version of Proxmox VE that is known to work.
const oldestMajor = 8

// Check connects and verifies; see hypervisor.Provider.
func (p *Provider) Check(ctx context.Context) (hypervisor.Info, error) {
	version, err := p.client.version(ctx)
	if err != nil {
		return hypervisor.Info{}, err
	}

	info := hypervisor.Info{Product: "Proxmox VE", Version: version.Version}
	if major := majorOf(version.Version); major < oldestMajor {
		info.Warnings = append(info.Warnings, fmt.Sprintf("Proxmox VE %s is older than %d", version.Version, oldestMajor))
	}

	nodes, _, err := p.nodes.get(ctx, 0)
	if err != nil {
		return info, err
	}

	if err := p.checkNodes(nodes); err != nil {
		return info, err
	}

	held, err := p.client.permissions(ctx)
	if err != nil {
		return info, err
	}

	if err := p.checkPrivileges(held, nodes); err != nil {
		return info, err
	}

	info.Warnings = append(info.Warnings, p.privilegeWarnings(held, majorOf(version.Version))...)

	snap, _, err := p.listing.get(ctx, p.watch.listQuiet)
	if err != nil {
		return info, err
	}

	p.askAll(ctx, nodes)

	loads, err := p.nodeLoads(ctx, snap)
	if err != nil {
		return info, err
	}

	for _, n := range loads {
		info.Nodes = append(info.Nodes, n.Node)

		if n.Trouble != "" {
			info.Warnings = append(info.Warnings, fmt.Sprintf("node %s %s", n.Name, n.Trouble))
		}
	}

	err = p.checkStorages(ctx, held, &info)

	return info, err
}

// askAll asks the nodes for their storages side by side, those that did not answer a
// while ago too: one that hangs takes half a minute, and so do two.
func (p *Provider) askAll(ctx context.Context, nodes []nodeInfo) {
	var all sync.WaitGroup

	for _, n := range nodes {
		switch {
		case !n.online() || !p.usable(n.Node):
		case p.client.transport.silent(n.Node):
			all.Go(func() { _, _ = p.client.storages(ctx, n.Node) })
		default:
			all.Go(func() { _, _ = p.storagesOf(ctx, n.Node) })
		}
	}

	all.Wait()
}

func majorOf(version string) int {
	major := 0
	_, _ = fmt.Sscanf(version, "%d.", &major)

	return major
}

// checkNodes makes sure that the nodes named exist.
func (p *Provider) checkNodes(nodes []nodeInfo) error {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Node)
	}

	slices.Sort(names)

	var unknown []string

	for _, want := range p.config.Nodes {
		if !slices.Contains(names, want) {
			unknown = append(unknown, want)
		}
	}

	if len(unknown) == 0 {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "NodeNotFound",
		"%s has no node %s: its nodes are %s; correct spec.nodes",
		p.client.host(), strings.Join(unknown, ", "), strings.Join(names, ", "))
}

// checkPrivileges makes sure of the privileges that do not depend on a template.
func (p *Provider) checkPrivileges(held permissions, nodes []nodeInfo) error {
	machines := []string{fmt.Sprintf("/vms/%d", p.config.IDMin)}
	if p.config.ResourcePool != "" {
		machines = append(machines, "/pool/"+p.config.ResourcePool)
	}

	// On the narrowest path that covers the range.
	if len(machines) == 1 && !held.has(machines[0], "VM.Allocate") {
		machines[0] = "/vms"
	}

	needs := []need{{any: machines, privileges: machinePrivileges()}}

	for _, n := range nodes {
		if p.usable(n.Node) {
			needs = append(needs, need{any: []string{"/nodes/" + n.Node}, privileges: []string{"Sys.Audit"}})
		}
	}

	if p.config.ISOStorage != "" {
		needs = append(needs, need{any: []string{"/storage/" + p.config.ISOStorage}, privileges: isoPrivileges()})
	}

	if p.config.DefaultStorage != "" {
		needs = append(needs, need{any: []string{"/storage/" + p.config.DefaultStorage}, privileges: diskPrivileges()})
	}

	if words := p.client.unmet(held, needs); len(words) > 0 {
		return privilegesMissing("check the privileges on "+p.client.host(), words)
	}

	return nil
}

// privilegeWarnings name what is not needed for machines to run.
func (p *Provider) privilegeWarnings(held permissions, major int) []string {
	agent := "VM.GuestAgent.Audit"
	if major <= oldestMajor {
		agent = "VM.Monitor"
	}

	path := fmt.Sprintf("/vms/%d", p.config.IDMin)
	if held.has(path, agent) || p.config.ResourcePool != "" && held.has("/pool/"+p.config.ResourcePool, agent) {
		return nil
	}

	return []string{"machines' addresses stay unknown: " + p.client.missing("/vms", []string{agent})}
}

// checkStorages makes sure that each online node has a storage for cloud-init ISOs, and
// that the default storage takes disks. A node that does not answer is told of as a
// warning and is not online, unless there is no other.
func (p *Provider) checkStorages(ctx context.Context, held permissions, info *hypervisor.Info) error {
	var silent error

	answered := false

	for i, n := range info.Nodes {
		if !n.Online {
			continue
		}

		err := p.checkStoragesOf(ctx, held, n.Name)

		switch {
		case hypervisor.Is(err, hypervisor.Unavailable):
			silent = err
			info.Nodes[i].Online = false
			info.Warnings = append(info.Warnings, fmt.Sprintf("node %s does not answer: %v", n.Name, err))
		case err != nil:
			return err
		default:
			answered = true
		}
	}

	if answered {
		return nil
	}

	return silent
}

func (p *Provider) checkStoragesOf(ctx context.Context, held permissions, node string) error {
	iso, err := p.isoStorage(ctx, node)
	if err != nil {
		return err
	}

	missing := held.lacking("/storage/"+iso.Storage, isoPrivileges())
	if len(missing) > 0 {
		return privilegesMissing("check the storage for ISOs",
			[]string{p.client.missing("/storage/"+iso.Storage, missing)})
	}

	if p.config.DefaultStorage == "" {
		return nil
	}

	disks, err := p.storageOf(ctx, node, p.config.DefaultStorage)
	if err != nil {
		return err
	}

	if !disks.holds("images") {
		return storageWithoutImages(node, disks)
	}

	return nil
}

func storageWithoutImages(node string, s storageInfo) error {
	return hypervisor.Errorf(hypervisor.Rejected, "StorageWithoutImages",
		"storage %s on node %s does not take disks of machines (it takes %s): choose another, "+
			"or allow it with: pvesm set %s --content %s,images", s.Storage, node, s.Content, s.Storage, s.Content)
}
