// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// minMajor is the oldest major version of Proxmox VE that is known to work.
const minMajor = 8

// Check connects to the cluster and verifies the configuration; see hypervisor.Provider.
func (p *Provider) Check(ctx context.Context) (hypervisor.Info, error) {
	version, err := p.client.readVersion(ctx)
	if err != nil {
		return hypervisor.Info{}, err
	}

	info := hypervisor.Info{Product: "Proxmox VE", Version: version.Version}
	if major := parseMajor(version.Version); major < minMajor {
		info.Warnings = append(info.Warnings, fmt.Sprintf("Proxmox VE %s is older than %d, the oldest version that is known to work",
			version.Version, minMajor))
	}

	nodes, _, err := p.nodeCache.get(ctx, 0)
	if err != nil {
		return info, err
	}

	if err := p.checkNodes(nodes, &info); err != nil {
		return info, err
	}

	granted, err := p.client.readPermissions(ctx)
	if err != nil {
		return info, err
	}

	if err := p.checkPrivileges(granted, nodes); err != nil {
		return info, err
	}

	info.Warnings = append(info.Warnings, p.listPrivilegeWarnings(granted, parseMajor(version.Version))...)

	vms, _, err := p.vmCache.get(ctx, p.watcher.idleListAge)
	if err != nil {
		return info, err
	}

	p.probeNodes(ctx, nodes)

	loads, err := p.listNodeLoads(ctx, vms)
	if err != nil {
		return info, err
	}

	for _, n := range loads {
		info.Nodes = append(info.Nodes, n.Node)

		if n.OfflineReason != "" {
			info.Warnings = append(info.Warnings, fmt.Sprintf("node %s %s", n.Name, n.OfflineReason))
		}
	}

	err = p.checkStorages(ctx, granted, &info)

	return info, err
}

// probeNodes requests the storages of the nodes in parallel, including the nodes in back-off. A request to
// a node that hangs takes half a minute, and parallel requests to several such nodes take no longer.
func (p *Provider) probeNodes(ctx context.Context, nodes []nodeInfo) {
	var all sync.WaitGroup

	for _, n := range nodes {
		switch {
		case !n.isOnline() || !p.isAllowedNode(n.Node):
		case p.client.transport.isUnresponsive(n.Node):
			all.Go(func() { _, _ = p.client.listStorages(ctx, n.Node) })
		default:
			all.Go(func() { _, _ = p.listStorages(ctx, n.Node) })
		}
	}

	all.Wait()
}

func parseMajor(version string) int {
	major := 0
	_, _ = fmt.Sscanf(version, "%d.", &major)

	return major
}

// checkNodes verifies that the configured nodes exist. If only some of them do, checkNodes adds a warning,
// because a node may have left the cluster.
func (p *Provider) checkNodes(nodes []nodeInfo, info *hypervisor.Info) error {
	var names []string
	for _, n := range nodes {
		names = append(names, n.Node)
	}

	slices.Sort(names)

	var unknown []string

	for _, name := range p.config.Nodes {
		if !slices.Contains(names, name) {
			unknown = append(unknown, name)
		}
	}

	if len(unknown) == 0 {
		return nil
	}

	err := hypervisor.Errorf(hypervisor.Rejected, "NodeNotFound",
		"%s has no node %s (its nodes are %s): correct spec.nodes",
		p.client.host(), strings.Join(unknown, ", "), strings.Join(names, ", "))
	if len(unknown) == len(p.config.Nodes) {
		return err
	}

	info.Warnings = append(info.Warnings, err.Error())

	return nil
}

// checkPrivileges verifies the privileges that do not depend on a template.
func (p *Provider) checkPrivileges(granted permissions, nodes []nodeInfo) error {
	machines := []string{fmt.Sprintf("/vms/%d", p.config.IDMin)}
	if p.config.ResourcePool != "" {
		machines = append(machines, "/pool/"+p.config.ResourcePool)
	}

	// If the privilege is missing on the first ID, the error names /vms, the narrowest path that covers the
	// range of IDs.
	if len(machines) == 1 && !granted.has(machines[0], "VM.Allocate") {
		machines[0] = "/vms"
	}

	requirements := []requirement{{paths: machines, privileges: machinePrivileges()}}

	for _, n := range nodes {
		if p.isAllowedNode(n.Node) {
			requirements = append(requirements, requirement{paths: []string{"/nodes/" + n.Node}, privileges: []string{"Sys.Audit"}})
		}
	}

	if p.config.ISOStorage != "" {
		requirements = append(requirements,
			requirement{paths: []string{"/storage/" + p.config.ISOStorage}, privileges: isoPrivileges()})
	}

	if p.config.DefaultStorage != "" {
		requirements = append(requirements,
			requirement{paths: []string{"/storage/" + p.config.DefaultStorage}, privileges: diskPrivileges()})
	}

	if problems := p.client.describeUnmet(granted, requirements); len(problems) > 0 {
		return newPrivilegesError("check the privileges on "+p.client.host(), problems)
	}

	return nil
}

// listPrivilegeWarnings returns warnings about missing privileges that machines can run without.
func (p *Provider) listPrivilegeWarnings(granted permissions, major int) []string {
	agent := "VM.GuestAgent.Audit"
	if major <= minMajor {
		agent = "VM.Monitor"
	}

	path := fmt.Sprintf("/vms/%d", p.config.IDMin)
	if granted.has(path, agent) || p.config.ResourcePool != "" && granted.has("/pool/"+p.config.ResourcePool, agent) {
		return nil
	}

	return []string{"the addresses of machines stay unknown: " + p.client.describeMissingPrivileges("/vms", []string{agent})}
}

// checkStorages verifies that each online node has a storage for cloud-init ISOs, and that the default storage
// accepts disks. If a node does not respond or has no such storage, checkStorages adds a warning and sets the
// node offline. If no node is left, it returns the error of the first node.
func (p *Provider) checkStorages(ctx context.Context, granted permissions, info *hypervisor.Info) error {
	var firstErr error

	hasUsableNode := false

	for i, n := range info.Nodes {
		if !n.Online {
			continue
		}

		err := p.checkNodeStorages(ctx, granted, n.Name)

		switch {
		case err == nil:
			hasUsableNode = true
		case hypervisor.Is(err, hypervisor.Unavailable):
			disableNode(info, i, "does not respond: "+err.Error())
		case isStorageProblem(err):
			disableNode(info, i, "is not used: "+err.Error())
		default:
			return err
		}

		firstErr = cmp.Or(firstErr, err)
	}

	if hasUsableNode {
		return nil
	}

	return firstErr
}

// disableNode sets a node offline and adds a warning with the reason.
func disableNode(info *hypervisor.Info, index int, reason string) {
	info.Nodes[index].Online, info.Nodes[index].OfflineReason = false, reason
	info.Warnings = append(info.Warnings, "node "+info.Nodes[index].Name+" "+reason)
}

// isStorageProblem reports whether the error is about the storages of one node, so that another node may not have it.
func isStorageProblem(err error) bool {
	return hasReason(err, reasonStorageNotFound) || hasReason(err, reasonStorageWithoutISO)
}

// checkNodeStorages verifies that a node has a storage for ISOs on which the principal has the privileges,
// and that the default storage, if one is configured, accepts disk images.
func (p *Provider) checkNodeStorages(ctx context.Context, granted permissions, node string) error {
	iso, err := p.findISOStorage(ctx, node)
	if err != nil {
		return err
	}

	missing := granted.listMissing("/storage/"+iso.Storage, isoPrivileges())
	if len(missing) > 0 {
		return newPrivilegesError("check the storage for ISOs",
			[]string{p.client.describeMissingPrivileges("/storage/"+iso.Storage, missing)})
	}

	if p.config.DefaultStorage == "" {
		return nil
	}

	disks, err := p.findStorage(ctx, node, p.config.DefaultStorage)
	if err != nil {
		return err
	}

	if !disks.hasContentType("images") {
		return newStorageWithoutImagesError(node, disks)
	}

	return nil
}

func newStorageWithoutImagesError(node string, s storageInfo) error {
	return hypervisor.Errorf(hypervisor.Rejected, "StorageWithoutImages",
		"storage %s on node %s does not accept VM disks (it accepts %s): choose another storage%s",
		s.Storage, node, s.Content, s.explainHowToAllow("disks", "images"))
}
