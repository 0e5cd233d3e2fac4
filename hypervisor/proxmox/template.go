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

type templateKey struct {
	node string
	id   int
}

// templateConfig gives a template's configuration, read once in a while for all.
func (p *Provider) templateConfig(ctx context.Context, node string, id int) (vmConfig, error) {
	key := templateKey{node: node, id: id}

	p.mu.Lock()

	cache, ok := p.templates[key]
	if !ok {
		cache = newCached(p.clock, func(ctx context.Context) (vmConfig, error) { return p.client.config(ctx, node, id) })
		p.templates[key] = cache
	}
	p.mu.Unlock()

	out, _, err := cache.get(ctx, templateAge)

	return out, err
}

// refText names a template for messages.
func refText(ref hypervisor.TemplateRef) string {
	if ref.ID != 0 {
		return fmt.Sprintf("template %d", ref.ID)
	}

	return fmt.Sprintf("template %q", ref.Name)
}

// find gives the machines of the listing that ref means, by node.
func find(snap snapshot, ref hypervisor.TemplateRef) []resource {
	var out []resource

	for _, r := range snap {
		if r.Type == "qemu" && (ref.ID != 0 && r.VMID == ref.ID || ref.ID == 0 && r.Name == ref.Name) {
			out = append(out, r)
		}
	}

	slices.SortFunc(out, func(a, b resource) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), a.VMID-b.VMID)
	})

	return out
}

// checkStale makes sure that what ref means is not on a node whose machines can't be told
// apart. A machine's status alone says little: it is unknown for a moment after its clone.
func (p *Provider) checkStale(ctx context.Context, snap snapshot, ref hypervisor.TemplateRef) error {
	nodes, _, err := p.nodes.get(ctx, nodesAge)
	if err != nil {
		return err
	}

	for _, n := range nodes {
		for _, r := range snap {
			if n.online() || r.Node != n.Node || r.Status != statusStale || ref.ID != 0 && r.VMID != ref.ID {
				continue
			}

			return hypervisor.Errorf(hypervisor.Unavailable, reasonStale,
				"find %s: node %s %s; until it does, Proxmox gives neither its machines' names nor "+
					"which of them are templates", refText(ref), n.Node, n.trouble())
		}
	}

	return nil
}

// resolve gives the templates that ref means, with their first disks.
func (p *Provider) resolve(ctx context.Context, snap snapshot, ref hypervisor.TemplateRef) ([]hypervisor.Template, error) {
	found := find(snap, ref)
	templates := slices.DeleteFunc(slices.Clone(found), func(r resource) bool { return !bool(r.Template) })

	if len(templates) == 0 {
		if err := p.checkStale(ctx, snap, ref); err != nil {
			return nil, err
		}
	}

	if len(found) == 0 {
		return nil, hypervisor.Errorf(hypervisor.NotFound, "TemplateNotFound",
			"there is no %s on %s that %s can see: create it, correct its name, or grant VM.Audit "+
				"and VM.Clone on it", refText(ref), p.client.host(), p.client.who())
	}

	if len(templates) == 0 {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "NotATemplate",
			"machine %d (%s) on node %s is not a template: convert it with: qm template %d",
			found[0].VMID, found[0].Name, found[0].Node, found[0].VMID)
	}

	out := make([]hypervisor.Template, 0, len(templates))

	var silent error

	for _, r := range templates {
		t, err := p.describe(ctx, r)

		switch {
		case reasonIs(err, reasonSilent):
			silent = err
		case err != nil:
			return nil, err
		default:
			out = append(out, t)
		}
	}

	if len(out) == 0 {
		return nil, silent
	}

	return out, nil
}

// describe reads what a template's clones need to know of it.
func (p *Provider) describe(ctx context.Context, r resource) (hypervisor.Template, error) {
	t := hypervisor.Template{ID: r.VMID, Name: r.Name, Node: r.Node}

	config, err := p.templateConfig(ctx, r.Node, r.VMID)
	if err != nil {
		return t, err
	}

	first, ok := firstDisk(config)
	if !ok {
		return t, hypervisor.Errorf(hypervisor.Rejected, "TemplateWithoutDisk",
			"template %d (%s) on node %s has no disk to boot from", r.VMID, r.Name, r.Node)
	}

	t.Storage, t.DiskBytes = first.Storage, first.Bytes

	storage, err := p.storageOf(ctx, r.Node, first.Storage)
	if err != nil {
		return t, err
	}

	t.Shared = bool(storage.Shared)

	return t, nil
}

// templateFor gives the template to clone from for a machine on node: one that lives
// there, else one whose disks are shared.
func templateFor(templates []hypervisor.Template, node string) (hypervisor.Template, bool) {
	var shared *hypervisor.Template

	for i, t := range templates {
		if t.Node == node {
			return t, true
		}

		if t.Shared && shared == nil {
			shared = &templates[i]
		}
	}

	if shared == nil {
		return hypervisor.Template{}, false
	}

	return *shared, true
}

// targetStorage is where the clone's disks go: for linked clones the template's.
func (p *Provider) targetStorage(t hypervisor.Template, want hypervisor.Shape) string {
	switch {
	case want.Linked:
		return t.Storage
	case want.Storage != "":
		return want.Storage
	case p.config.DefaultStorage != "":
		return p.config.DefaultStorage
	default:
		return t.Storage
	}
}

// gateKey names the storage that a clone on node works on.
func (p *Provider) gateKey(ctx context.Context, node, storage string) (string, error) {
	s, err := p.storageOf(ctx, node, storage)
	if err != nil {
		return "", err
	}

	return s.gate(node), nil
}
