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

// Resolve finds templates and verifies that machines of a shape can be cloned from them;
// see hypervisor.Provider.
func (p *Provider) Resolve(ctx context.Context, ref hypervisor.TemplateRef, want hypervisor.Shape,
) ([]hypervisor.Template, error) {
	snap, _, err := p.listing.get(ctx, p.watch.listBusy)
	if err != nil {
		return nil, err
	}

	templates, err := p.resolve(ctx, snap, ref)
	if err != nil {
		return nil, err
	}

	loads, err := p.nodeLoads(ctx, snap)
	if err != nil {
		return nil, err
	}

	held, err := p.client.permissions(ctx)
	if err != nil {
		return nil, err
	}

	usable, nodes := p.reachable(templates, loads)
	if len(usable) > 0 && len(nodes) == 0 {
		return nil, unavailable(refText(ref), loads)
	}

	if len(nodes) == 0 {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "TemplateNotUsable",
			"%s lives on %s, which is none of the cluster's usable nodes, and its disks are not shared",
			refText(ref), nodesOf(templates))
	}

	if err := tooLarge(nodes, want); err != nil {
		return nil, err
	}

	for _, t := range usable {
		if err := p.checkTemplate(ctx, held, t, want); err != nil {
			return nil, p.unlessGone(ctx, ref, err)
		}
	}

	return usable, p.checkBridges(ctx, held, nodes, want)
}

// unavailable says that the nodes that something could be made on are in trouble.
func unavailable(what string, loads []nodeLoad) error {
	var words []string

	for _, n := range loads {
		if n.Trouble != "" {
			words = append(words, fmt.Sprintf("node %s %s", n.Name, n.Trouble))
		}
	}

	return hypervisor.Errorf(hypervisor.Unavailable, reasonNoNode,
		"no node can be used for %s: %s", what, strings.Join(words, ", "))
}

// unlessGone gives what is wrong with a template, unless it has gone since it was listed: then
// it is that. A template takes the privileges on it along.
func (p *Provider) unlessGone(ctx context.Context, ref hypervisor.TemplateRef, wrong error) error {
	snap, _, err := p.listing.get(ctx, 0)
	if err != nil {
		return wrong
	}

	if _, err := p.resolve(ctx, snap, ref); hypervisor.Is(err, hypervisor.NotFound) {
		return err
	}

	return wrong
}

// reachable gives the templates that machines on usable nodes can be cloned from, and
// those nodes.
func (p *Provider) reachable(templates []hypervisor.Template, loads []nodeLoad) ([]hypervisor.Template, []hypervisor.Node) {
	var (
		usable []hypervisor.Template
		nodes  []hypervisor.Node
	)

	for _, n := range loads {
		t, ok := templateFor(templates, n.Name)
		if !ok {
			continue
		}

		// A node that is offline tells nothing of its size.
		if n.Online {
			nodes = append(nodes, n.Node)
		}

		if !slices.ContainsFunc(usable, func(u hypervisor.Template) bool { return u.ID == t.ID }) {
			usable = append(usable, t)
		}
	}

	return usable, nodes
}

func nodesOf(templates []hypervisor.Template) string {
	var out []string
	for _, t := range templates {
		out = append(out, t.Node)
	}

	return strings.Join(slices.Compact(out), ", ")
}

// checkTemplate makes sure that one template gives machines of the shape.
func (p *Provider) checkTemplate(ctx context.Context, held permissions, t hypervisor.Template, want hypervisor.Shape) error {
	storage := p.targetStorage(t, want)
	needs := []need{
		{any: []string{fmt.Sprintf("/vms/%d", t.ID)}, privileges: []string{"VM.Clone", "VM.Audit"}},
		{any: []string{"/storage/" + storage}, privileges: diskPrivileges()},
	}

	if words := p.client.unmet(held, needs); len(words) > 0 {
		return privilegesMissing(fmt.Sprintf("clone template %d", t.ID), words)
	}

	config, err := p.templateConfig(ctx, t.Node, t.ID)
	if err != nil {
		return err
	}

	if err := checkConfig(config, t, want); err != nil {
		return err
	}

	if want.CloudInitSource == hypervisor.SourceBuiltin {
		if err := p.checkSnippets(ctx, t, want); err != nil {
			return err
		}
	}

	return p.checkCloneStorage(ctx, t, want, storage)
}

// checkConfig judges a template's configuration.
func checkConfig(config vmConfig, t hypervisor.Template, want hypervisor.Shape) error {
	reject := func(reason, format string, args ...any) error {
		return hypervisor.Errorf(hypervisor.Rejected, reason,
			"template %d (%s) on node %s %s", t.ID, t.Name, t.Node, fmt.Sprintf(format, args...))
	}

	switch {
	case !agentEnabled(config["agent"]):
		return reject("TemplateWithoutAgent", "has no guest agent: install qemu-guest-agent in it and run: qm set %d --agent 1", t.ID)
	case want.CloudInitSource == hypervisor.SourceBuiltin && cloudInitSlot(config) == "":
		return reject("TemplateWithoutCloudInit", "has no cloud-init drive, which cloudInitSource builtin needs: "+
			"add one with: qm set %d --ide2 %s:cloudinit", t.ID, t.Storage)
	case want.CloudInitSource != hypervisor.SourceBuiltin && isoSlot(config) == "":
		return reject("TemplateWithoutCloudInit", "has no cloud-init drive and no free CD-ROM slot for the cloud-init ISO: "+
			"free one with: qm set %d --delete ide2", t.ID)
	case want.Disk > 0 && want.Disk < t.DiskBytes:
		return reject("DiskTooSmall", "has a disk of %s, and %s are wanted: disks only grow; ask for at least as much, or for none",
			bytesText(t.DiskBytes), bytesText(want.Disk))
	case config["lock"] != "":
		return reject("TemplateLocked", "is locked (%s)", config["lock"])
	case config["net0"] == "" && want.Bridge == "" && want.VLAN > 0:
		return reject("TemplateWithoutNetwork", "has no network device net0 for VLAN %d: name a bridge", want.VLAN)
	}

	return nil
}

// noLinkedClones are the storage types that can't share a template's disks: their images
// are plain block devices (PVE::Storage plug-ins without the feature `clone`).
func noLinkedClones() []string { return []string{"lvm", "iscsi", "iscsidirect"} }

// checkCloneStorage makes sure that the clone's disks can go where they are to.
func (p *Provider) checkCloneStorage(ctx context.Context, t hypervisor.Template, want hypervisor.Shape, name string) error {
	storage, err := p.storageOf(ctx, t.Node, name)
	if err != nil {
		return err
	}

	if want.Linked && slices.Contains(noLinkedClones(), storage.Type) {
		return hypervisor.Errorf(hypervisor.Rejected, "LinkedCloneImpossible",
			"template %d (%s) on node %s has its disk on storage %s of type %s, which has no linked clones: "+
				"set linkedClone to false or move the disk", t.ID, t.Name, t.Node, name, storage.Type)
	}

	if !want.Linked && !storage.holds("images") {
		return storageWithoutImages(t.Node, storage)
	}

	return nil
}

// checkSnippets makes sure that the builtin source has where to keep its data.
func (p *Provider) checkSnippets(ctx context.Context, t hypervisor.Template, want hypervisor.Shape) error {
	if err := p.snippetsMissing(want); err != nil {
		return err
	}

	storage, err := p.storageOf(ctx, t.Node, want.SnippetsStorage)
	if err != nil {
		return err
	}

	if storage.holds("snippets") {
		return nil
	}

	return hypervisor.Errorf(hypervisor.Rejected, "StorageWithoutSnippets",
		"storage %s on node %s does not take snippets (it takes %s): choose another snippetsStorage, "+
			"or allow it with: pvesm set %s --content %s,snippets",
		storage.Storage, t.Node, storage.Content, storage.Storage, storage.Content)
}

// checkBridges makes sure that the bridge exists on the nodes and may be used. A token
// that may not list bridges is not asked for more: the clone says what is missing.
func (p *Provider) checkBridges(ctx context.Context, held permissions, nodes []hypervisor.Node, want hypervisor.Shape) error {
	bridge := cmp.Or(want.Bridge, p.config.DefaultNetwork)
	if bridge == "" {
		return nil
	}

	path := "/sdn/zones/localnetwork/" + bridge
	missing := held.lacking(path, []string{"SDN.Use"})

	for _, n := range nodes {
		bridges, err := p.client.bridges(ctx, n.Name)

		switch {
		case reasonIs(err, reasonDenied), reasonIs(err, "NotImplemented"), reasonIs(err, reasonSilent):
			continue
		case err != nil:
			return err
		case !slices.ContainsFunc(bridges, func(b bridgeInfo) bool { return b.Iface == bridge }):
			// Bridges that may not be used are not listed, and no word is said of that.
			if len(missing) > 0 {
				return privilegesMissing("use bridge "+bridge, []string{p.client.missing(path, missing)})
			}

			return bridgeNotFound(n.Name, bridge, bridges)
		case slices.ContainsFunc(bridges, func(b bridgeInfo) bool { return b.Iface == bridge && b.Type == "vnet" }):
			// A virtual network belongs to a zone of its own.
			return nil
		}
	}

	if len(missing) > 0 {
		return privilegesMissing("use bridge "+bridge, []string{p.client.missing(path, missing)})
	}

	return nil
}

func bridgeNotFound(node, bridge string, bridges []bridgeInfo) error {
	var names []string
	for _, b := range bridges {
		names = append(names, b.Iface)
	}

	slices.Sort(names)

	return hypervisor.Errorf(hypervisor.Rejected, "BridgeNotFound",
		"node %s has no bridge %s (it has %s): correct the template's network.bridge or the cluster's "+
			"defaultNetwork", node, bridge, strings.Join(names, ", "))
}
