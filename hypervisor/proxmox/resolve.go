// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Resolve finds templates and verifies that machines of a shape can be cloned from them; see
// hypervisor.Provider.
func (p *Provider) Resolve(ctx context.Context, ref hypervisor.TemplateRef, shape hypervisor.Shape,
) ([]hypervisor.Template, error) {
	vms, _, err := p.vmCache.get(ctx, p.watcher.busyListAge)
	if err != nil {
		return nil, err
	}

	templates, err := p.findTemplates(ctx, vms, ref)
	if err != nil {
		return nil, err
	}

	loads, err := p.listNodeLoads(ctx, vms)
	if err != nil {
		return nil, err
	}

	granted, err := p.client.readPermissions(ctx)
	if err != nil {
		return nil, err
	}

	usable, nodes := p.filterReachable(templates, loads)
	if len(usable) > 0 && len(nodes) == 0 {
		return nil, newNoUsableNodeError(formatRef(ref), loads)
	}

	if len(nodes) == 0 {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "TemplateNotUsable",
			"%s is on %s and not on a usable node of the cluster, and its disks are not shared",
			formatRef(ref), joinNodes(templates))
	}

	if err := checkNodeSize(nodes, shape); err != nil {
		return nil, err
	}

	if err := p.checkDevices(ctx, granted, nodes, shape); err != nil {
		return nil, err
	}

	if usable, err = p.filterByStorage(ctx, granted, usable, shape); err != nil {
		return nil, p.preferNotFound(ctx, ref, err)
	}

	return usable, p.checkBridges(ctx, granted, nodes, shape)
}

// filterByStorage checks the templates, and returns those whose nodes have the storage for the disks of clones.
func (p *Provider) filterByStorage(
	ctx context.Context, granted permissions, templates []hypervisor.Template, shape hypervisor.Shape,
) ([]hypervisor.Template, error) {
	var (
		out      []hypervisor.Template
		firstErr error
	)

	for _, t := range templates {
		switch err := p.checkTemplate(ctx, granted, t, shape); {
		case err == nil:
			out = append(out, t)
		case hasReason(err, reasonStorageNotFound):
			firstErr = cmp.Or(firstErr, err)
		default:
			return nil, err
		}
	}

	if len(out) > 0 {
		return out, nil
	}

	return nil, firstErr
}

// newNoUsableNodeError returns an error that lists the unusable nodes and the reasons.
func newNoUsableNodeError(target string, loads []nodeLoad) error {
	var problems []string

	for _, n := range loads {
		if n.OfflineReason != "" {
			problems = append(problems, fmt.Sprintf("node %s %s", n.Name, n.OfflineReason))
		}
	}

	return hypervisor.Errorf(hypervisor.Unavailable, reasonNoUsableNode,
		"no node can be used for %s: %s", target, strings.Join(problems, ", "))
}

// preferNotFound returns a NotFound error if the template was deleted after it was listed, and cause
// otherwise. When Proxmox deletes a template, the privileges on the template are deleted too, so cause can
// be a misleading denial.
func (p *Provider) preferNotFound(ctx context.Context, ref hypervisor.TemplateRef, cause error) error {
	vms, _, err := p.vmCache.get(ctx, 0)
	if err != nil {
		return cause
	}

	if _, err := p.findTemplates(ctx, vms, ref); hypervisor.Is(err, hypervisor.NotFound) {
		return err
	}

	return cause
}

// filterReachable returns the templates that can be cloned to usable nodes, and those nodes.
func (p *Provider) filterReachable(templates []hypervisor.Template, loads []nodeLoad) ([]hypervisor.Template, []hypervisor.Node) {
	var (
		usable []hypervisor.Template
		nodes  []hypervisor.Node
	)

	for _, n := range loads {
		t, ok := selectTemplate(templates, n.Name)
		if !ok {
			continue
		}

		// The size of an offline node is unknown.
		if n.Online {
			nodes = append(nodes, n.Node)
		}

		if !slices.ContainsFunc(usable, func(u hypervisor.Template) bool { return u.ID == t.ID }) {
			usable = append(usable, t)
		}
	}

	return usable, nodes
}

func joinNodes(templates []hypervisor.Template) string {
	var out []string
	for _, t := range templates {
		out = append(out, t.Node)
	}

	return strings.Join(slices.Compact(out), ", ")
}

// checkTemplate verifies that machines of the shape can be cloned from a template.
func (p *Provider) checkTemplate(ctx context.Context, granted permissions, t hypervisor.Template, shape hypervisor.Shape) error {
	storage := p.selectStorage(t, shape)
	requirements := []requirement{
		{paths: []string{fmt.Sprintf("/vms/%d", t.ID)}, privileges: []string{"VM.Clone", "VM.Audit"}},
		{paths: []string{"/storage/" + storage}, privileges: diskPrivileges()},
	}

	if problems := p.client.describeUnmet(granted, requirements); len(problems) > 0 {
		return newPrivilegesError(fmt.Sprintf("clone template %d", t.ID), problems)
	}

	config, err := p.readTemplateConfig(ctx, t.Node, t.ID)
	if err != nil {
		return err
	}

	if err := checkTemplateConfig(config, t, shape); err != nil {
		return err
	}

	if shape.CloudInitSource == hypervisor.SourceBuiltin {
		if err := p.checkSnippetsStorage(ctx, t, shape); err != nil {
			return err
		}
	}

	return p.checkCloneStorage(ctx, t, shape, storage)
}

// checkTemplateConfig validates the configuration of a template.
func checkTemplateConfig(config vmConfig, t hypervisor.Template, shape hypervisor.Shape) error {
	reject := func(reason, format string, args ...any) error {
		return hypervisor.Errorf(hypervisor.Rejected, reason,
			"template %d (%s) on node %s %s", t.ID, t.Name, t.Node, fmt.Sprintf(format, args...))
	}

	switch {
	case !isAgentEnabled(config["agent"]):
		return reject("TemplateWithoutAgent", "has no guest agent: install qemu-guest-agent in it and run: qm set %d --agent 1", t.ID)
	case shape.CloudInitSource == hypervisor.SourceBuiltin && findCloudInitSlot(config) == "":
		return reject("TemplateWithoutCloudInit", "has no cloud-init drive, which cloudInitSource builtin needs: "+
			"add one with: qm set %d --ide2 %s:cloudinit", t.ID, t.Storage)
	case shape.CloudInitSource != hypervisor.SourceBuiltin && findISOSlot(config) == "":
		return reject("TemplateWithoutCloudInit", "has no cloud-init drive and no free CD-ROM slot for the cloud-init ISO: "+
			"free one with: qm set %d --delete ide2", t.ID)
	case shape.Disk > 0 && shape.Disk < t.DiskBytes:
		return reject("DiskTooSmall", "has a disk of %s, but the requested disk has %s: "+
			"a disk can only grow, so request a larger disk or none", formatBytes(t.DiskBytes), formatBytes(shape.Disk))
	case config["lock"] != "":
		return reject("TemplateLocked", "is locked (%s)", config["lock"])
	case config["net0"] == "" && shape.Bridge == "" && shape.VLAN > 0:
		return reject("TemplateWithoutNetwork", "has no network device net0 for VLAN %d: set a bridge", shape.VLAN)
	}

	return nil
}

// typesWithoutLinkedClones returns the storage types that cannot share a template's disks. Their images are
// plain block devices (PVE::Storage plug-ins without the feature `clone`).
func typesWithoutLinkedClones() []string { return []string{"lvm", "iscsi", "iscsidirect"} }

// checkCloneStorage verifies that the target storage can hold the disks of a clone.
func (p *Provider) checkCloneStorage(ctx context.Context, t hypervisor.Template, shape hypervisor.Shape, name string) error {
	storage, err := p.findStorage(ctx, t.Node, name)
	if err != nil {
		return err
	}

	if shape.Linked && slices.Contains(typesWithoutLinkedClones(), storage.Type) {
		return hypervisor.Errorf(hypervisor.Rejected, "LinkedCloneImpossible",
			"template %d (%s) on node %s has its disk on storage %s of type %s, which does not support linked clones: "+
				"set linkedClone to false or move the disk", t.ID, t.Name, t.Node, name, storage.Type)
	}

	if !shape.Linked && !storage.hasContentType("images") {
		return newStorageWithoutImagesError(t.Node, storage)
	}

	return nil
}

// checkSnippetsStorage verifies that the builtin cloud-init source has a storage for its data.
func (p *Provider) checkSnippetsStorage(ctx context.Context, t hypervisor.Template, shape hypervisor.Shape) error {
	if err := p.checkSnippetsConfig(shape); err != nil {
		return err
	}

	storage, err := p.findStorage(ctx, t.Node, shape.SnippetsStorage)
	if err != nil {
		return err
	}

	if storage.hasContentType("snippets") {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "StorageWithoutSnippets",
		"storage %s on node %s does not accept snippets (it accepts %s): choose another snippetsStorage%s",
		storage.Storage, t.Node, storage.Content, storage.explainHowToAllow("snippets", "snippets"))
}

// checkBridges verifies that the bridge exists on the nodes and that the principal may use it. It skips the
// nodes whose bridges it cannot list: the principal lacks the privilege, the node has no such API call, or the
// node is unreachable. If the bridge cannot be used there, the clone call reports the error.
func (p *Provider) checkBridges(ctx context.Context, granted permissions, nodes []hypervisor.Node, shape hypervisor.Shape) error {
	bridge := p.selectBridge(shape)
	if bridge == "" {
		return nil
	}

	path := "/sdn/zones/localnetwork/" + bridge
	missing := granted.listMissing(path, []string{"SDN.Use"})

	for _, n := range nodes {
		bridges, err := p.client.listBridges(ctx, n.Name)

		switch {
		case hasReason(err, reasonPermissionDenied), hasReason(err, reasonNotImplemented), hasReason(err, reasonNodeUnreachable):
			continue
		case err != nil:
			return err
		case !slices.ContainsFunc(bridges, func(b bridgeInfo) bool { return b.Iface == bridge }):
			// Proxmox omits the bridges that the principal may not use, and returns no error for them.
			if len(missing) > 0 {
				return newPrivilegesError("use bridge "+bridge, []string{p.client.describeMissingPrivileges(path, missing)})
			}

			return newBridgeNotFoundError(n.Name, bridge, bridges)
		case slices.ContainsFunc(bridges, func(b bridgeInfo) bool { return b.Iface == bridge && b.Type == "vnet" }):
			// The bridge is a VNet of an SDN zone. Zones are configured for the whole cluster, so the other
			// nodes need no check. missing is about the zone localnetwork, so it does not apply.
			return nil
		}
	}

	if len(missing) > 0 {
		return newPrivilegesError("use bridge "+bridge, []string{p.client.describeMissingPrivileges(path, missing)})
	}

	return nil
}

func newBridgeNotFoundError(node, bridge string, bridges []bridgeInfo) error {
	var names []string
	for _, b := range bridges {
		names = append(names, b.Iface)
	}

	slices.Sort(names)

	return hypervisor.Errorf(hypervisor.Rejected, "BridgeNotFound",
		"node %s has no bridge %s (it has %s): correct the template's network.bridge or the cluster's "+
			"defaultNetwork", node, bridge, strings.Join(names, ", "))
}
