// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// maxTagged limits how many templates with the same tags are read to find the newest.
const maxTagged = 64

// hasTags reports whether a VM has all tags, which commas separate. Proxmox VE writes tags in lower case unless
// the datacenter distinguishes the case.
func hasTags(r resource, tags string) bool {
	has := splitTags(r.Tags)

	for tag := range strings.SplitSeq(tags, ",") {
		if !slices.ContainsFunc(has, func(other string) bool { return strings.EqualFold(other, tag) }) {
			return false
		}
	}

	return true
}

// selectRelease returns those of the templates with the tags of ref that belong to one release. The templates of
// a release have the same name: they are copies, one on each node. If there are several releases, ref must request the newest.
func (p *Provider) selectRelease(ctx context.Context, templates []resource, ref hypervisor.TemplateRef) ([]resource, error) {
	byName := map[string][]resource{}
	for _, r := range templates {
		byName[r.Name] = append(byName[r.Name], r)
	}

	names := slices.Sorted(maps.Keys(byName))

	switch {
	case len(names) <= 1:
		return templates, nil
	case !ref.Newest:
		return nil, hypervisor.Errorf(hypervisor.Rejected, "TemplateAmbiguous",
			"the templates %s have the tags %s: set template.proxmox.newest, or remove a tag from all but one of them",
			strings.Join(names[:min(len(names), 8)], ", "), ref.Tags)
	case len(templates) > maxTagged:
		return nil, hypervisor.Errorf(hypervisor.Rejected, "TemplateAmbiguous",
			"%d templates have the tags %s, which is more than %d: delete old templates, or remove a tag from them",
			len(templates), ref.Tags, maxTagged)
	}

	newest, err := p.findNewestName(ctx, names, byName)

	return byName[newest], err
}

// findNewestName returns the name of the newest release. names are sorted, and the last one wins if several releases have
// the same creation time. The creation time of a release is that of its oldest copy, because somebody may copy a
// template to another node after the next release was created. Templates whose node does not respond are skipped.
func (p *Provider) findNewestName(ctx context.Context, names []string, byName map[string][]resource) (string, error) {
	var (
		newest     string
		newestTime int64
		firstErr   error
	)

	for _, name := range names {
		created, err := p.readCreationTime(ctx, byName[name])

		switch {
		case hasReason(err, reasonNodeUnreachable):
			firstErr = cmp.Or(firstErr, err)
		case err != nil:
			return "", err
		case newest == "" || created >= newestTime:
			newest, newestTime = name, created
		}
	}

	if newest == "" {
		return "", firstErr
	}

	return newest, nil
}

// readCreationTime returns the creation time of a release, which is that of its oldest copy, in seconds since 1970.
func (p *Provider) readCreationTime(ctx context.Context, copies []resource) (int64, error) {
	var (
		oldest   int64
		firstErr error
	)

	for _, r := range copies {
		config, err := p.readTemplateConfig(ctx, r.Node, r.VMID)
		if hasReason(err, reasonNodeUnreachable) {
			firstErr = cmp.Or(firstErr, err)

			continue
		}

		if err != nil {
			return 0, err
		}

		created, err := strconv.ParseInt(parseProperty(config["meta"], "ctime"), 10, 64)
		if err != nil || created <= 0 {
			return 0, hypervisor.Errorf(hypervisor.Rejected, "TemplateWithoutTime",
				"template %d (%s) on node %s has no creation time (ctime in its option meta), so it is unknown which template is "+
					"the newest: remove its tag, or create it again with Proxmox VE 7.2 or newer", r.VMID, r.Name, r.Node)
		}

		if oldest == 0 || created < oldest {
			oldest = created
		}
	}

	if oldest == 0 {
		return 0, firstErr
	}

	return oldest, nil
}
