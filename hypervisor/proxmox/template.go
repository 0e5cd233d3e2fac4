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

// readTemplateConfig returns the configuration of a template. All callers share a cached result of at most
// templateMaxAge.
func (p *Provider) readTemplateConfig(ctx context.Context, node string, id int) (vmConfig, error) {
	key := templateKey{node: node, id: id}

	p.mu.Lock()

	cache, ok := p.templateCaches[key]
	if !ok {
		cache = newCached(p.clock, func(ctx context.Context) (vmConfig, error) { return p.client.readConfig(ctx, node, id) })
		p.templateCaches[key] = cache
	}
	p.mu.Unlock()

	out, _, err := cache.get(ctx, templateMaxAge)

	return out, err
}

// formatRef returns the name of a template for messages.
func formatRef(ref hypervisor.TemplateRef) string {
	switch {
	case ref.ID != 0:
		return fmt.Sprintf("template %d", ref.ID)
	case ref.Name == "":
		return "template with the tags " + ref.Tags
	}

	return fmt.Sprintf("template %q", ref.Name)
}

// listMatchingVMs returns the listed VMs that match ref, sorted by node.
func listMatchingVMs(vms vmsByID, ref hypervisor.TemplateRef) []resource {
	var matches []resource

	for _, r := range vms {
		if r.Type == "qemu" && matchesRef(r, ref) {
			matches = append(matches, r)
		}
	}

	slices.SortFunc(matches, func(a, b resource) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), a.VMID-b.VMID)
	})

	return matches
}

// matchesRef reports whether a VM is what ref refers to. A VM that only has the tags must be a template, because
// machines may have the same tags.
func matchesRef(r resource, ref hypervisor.TemplateRef) bool {
	if ref.ID != 0 {
		return r.VMID == ref.ID
	}

	if ref.Tags != "" && (!bool(r.Template) || !hasTags(r, ref.Tags)) {
		return false
	}

	return r.Name == ref.Name || ref.Name == "" && ref.Tags != ""
}

// checkStaleNodes returns an error if a VM that ref may refer to is on a node that reports no status. The
// list does not show which VMs of such a node are templates. The status of the VM alone is not sufficient,
// because the status of a new clone is unknown for a short time too.
func (p *Provider) checkStaleNodes(ctx context.Context, vms vmsByID, ref hypervisor.TemplateRef) error {
	nodes, _, err := p.nodeCache.get(ctx, nodesMaxAge)
	if err != nil {
		return err
	}

	for _, n := range nodes {
		for _, r := range vms {
			if n.isOnline() || r.Node != n.Node || r.Status != statusStale || ref.ID != 0 && r.VMID != ref.ID {
				continue
			}

			return hypervisor.Errorf(hypervisor.Unavailable, reasonStatusStale,
				"find %s: node %s %s; until the node recovers, Proxmox shows neither the names of its machines nor "+
					"which of them are templates", formatRef(ref), n.Node, n.unusableReason())
		}
	}

	return nil
}

// findTemplates returns the templates that match ref, with their boot disks.
func (p *Provider) findTemplates(ctx context.Context, vms vmsByID, ref hypervisor.TemplateRef) ([]hypervisor.Template, error) {
	found := listMatchingVMs(vms, ref)
	templates := slices.DeleteFunc(slices.Clone(found), func(r resource) bool { return !bool(r.Template) })

	if len(templates) == 0 {
		if err := p.checkStaleNodes(ctx, vms, ref); err != nil {
			return nil, err
		}
	}

	if len(found) == 0 {
		return nil, hypervisor.Errorf(hypervisor.NotFound, "TemplateNotFound",
			"there is no %s on %s that %s can see: create it, correct its name or tags, or grant VM.Audit "+
				"and VM.Clone on it", formatRef(ref), p.client.host(), p.client.principal())
	}

	if len(templates) == 0 {
		return nil, hypervisor.Errorf(hypervisor.Rejected, "NotATemplate",
			"machine %d (%s) on node %s is not a template: convert it with: qm template %d",
			found[0].VMID, found[0].Name, found[0].Node, found[0].VMID)
	}

	templates, err := p.selectRelease(ctx, templates, ref)
	if err != nil {
		return nil, err
	}

	out := make([]hypervisor.Template, 0, len(templates))

	var unavailableErr error

	for _, r := range templates {
		t, err := p.describeTemplate(ctx, r)

		switch {
		case hasReason(err, reasonNodeUnreachable):
			unavailableErr = err
		case err != nil:
			return nil, err
		default:
			out = append(out, t)
		}
	}

	if len(out) == 0 {
		return nil, unavailableErr
	}

	return out, nil
}

// describeTemplate returns a template with the storage and the size of its boot disk, and whether the nodes
// share this storage. It returns an error if the template has no boot disk.
func (p *Provider) describeTemplate(ctx context.Context, r resource) (hypervisor.Template, error) {
	t := hypervisor.Template{ID: r.VMID, Name: r.Name, Node: r.Node}

	config, err := p.readTemplateConfig(ctx, r.Node, r.VMID)
	if err != nil {
		return t, err
	}

	bootDisk, ok := findBootDisk(config)
	if !ok {
		return t, hypervisor.Errorf(hypervisor.Rejected, "TemplateWithoutDisk",
			"template %d (%s) on node %s has no disk to boot from", r.VMID, r.Name, r.Node)
	}

	t.Storage, t.DiskBytes, t.OS = bootDisk.Storage, bootDisk.Bytes, parseOSType(config["ostype"])

	storage, err := p.findStorage(ctx, r.Node, bootDisk.Storage)
	if err != nil {
		return t, err
	}

	t.Shared = bool(storage.Shared)

	return t, nil
}

// parseOSType returns the operating system of the option ostype. It returns "" for Solaris and for other systems.
func parseOSType(text string) string {
	switch {
	case strings.HasPrefix(text, "w"): // win11, wxp, w2k8, wvista
		return hypervisor.OSWindows
	case text == "l24", text == "l26":
		return hypervisor.OSLinux
	default:
		return ""
	}
}

// selectTemplate returns the template from which a machine on the node is cloned: a template on the same
// node, or otherwise a template on shared storage. It returns false if there is none.
func selectTemplate(templates []hypervisor.Template, node string) (hypervisor.Template, bool) {
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

// selectStorage returns the storage of the clone's disks. A linked clone uses the template's storage.
func (p *Provider) selectStorage(t hypervisor.Template, shape hypervisor.Shape) string {
	switch {
	case shape.Linked:
		return t.Storage
	case shape.Storage != "":
		return shape.Storage
	case p.config.DefaultStorage != "":
		return p.config.DefaultStorage
	default:
		return t.Storage
	}
}

// selectBridge returns the bridge of a machine's first network device. It is empty if neither the template nor the
// cluster names one.
func (p *Provider) selectBridge(shape hypervisor.Shape) string {
	return cmp.Or(shape.Bridge, p.config.DefaultNetwork)
}

// cloneQueueKey returns the clone queue of a storage on a node.
func (p *Provider) cloneQueueKey(ctx context.Context, node, storage string) (string, error) {
	s, err := p.findStorage(ctx, node, storage)
	if err != nil {
		return "", err
	}

	return s.cloneQueueKey(node), nil
}
