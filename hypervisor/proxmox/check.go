// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"fmt"
	"slices"
	"strings"

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

	loads, err := p.nodeLoads(ctx, snap)
	if err != nil {
		return info, err
	}

	for _, n := range loads {
		info.Nodes = append(info.Nodes, n.Node)
	}

	return info, p.checkStorages(ctx, held, info.Nodes)
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

	return &hypervisor.Error{
		Kind: hypervisor.Rejected, Reason: "NodeNotFound",
		Message: fmt.Sprintf("%s has no node %s: its nodes are %s; correct spec.nodes",
			p.client.host(), strings.Join(unknown, ", "), strings.Join(names, ", ")),
	}
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

// checkStorages makes sure that each online node has a storage for cloud-init ISOs, and that the
// default storage takes disks.
func (p *Provider) checkStorages(ctx context.Context, held permissions, nodes []hypervisor.Node) error {
	for _, n := range nodes {
		if !n.Online {
			continue
		}

		iso, err := p.isoStorage(ctx, n.Name)
		if err != nil {
			return err
		}

		missing := held.lacking("/storage/"+iso.Storage, isoPrivileges())
		if len(missing) > 0 {
			return privilegesMissing("check the storage for ISOs",
				[]string{p.client.missing("/storage/"+iso.Storage, missing)})
		}

		if p.config.DefaultStorage == "" {
			continue
		}

		disks, err := p.storageOf(ctx, n.Name, p.config.DefaultStorage)
		if err != nil {
			return err
		}

		if !disks.holds("images") {
			return storageWithoutImages(n.Name, disks)
		}
	}

	return nil
}

func storageWithoutImages(node string, s storageInfo) error {
	return &hypervisor.Error{
		Kind: hypervisor.Rejected, Reason: "StorageWithoutImages",
		Message: fmt.Sprintf("storage %s on node %s does not take disks of machines (it takes %s): choose another, "+
			"or allow it with: pvesm set %s --content %s,images", s.Storage, node, s.Content, s.Storage, s.Content),
	}
}
