// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// permissions maps paths to the privileges of a principal, as /access/permissions returns them. The flag of
// a privilege is true if the privilege propagates to the paths below.
type permissions map[string]map[string]flag

// has reports whether the principal has a privilege on a path: on the path itself, or propagated from the
// nearest listed path above. A role on a path replaces the roles from above (PVE::AccessControl).
func (p permissions) has(path, privilege string) bool {
	if granted, ok := p[path]; ok {
		_, isGranted := granted[privilege]

		return isGranted
	}

	for parent := parentPath(path); ; parent = parentPath(parent) {
		if granted, ok := p[parent]; ok {
			return bool(granted[privilege])
		}

		if parent == "/" {
			return false
		}
	}
}

func parentPath(path string) string {
	index := strings.LastIndex(path, "/")
	if index <= 0 {
		return "/"
	}

	return path[:index]
}

// listMissing returns the privileges that the principal does not have on the path.
func (p permissions) listMissing(path string, privileges []string) []string {
	var out []string

	for _, privilege := range privileges {
		if !p.has(path, privilege) {
			out = append(out, privilege)
		}
	}

	return out
}

// machinePrivileges returns the privileges that are needed on the machines. The API viewer names each of
// them on the page of a call that this package uses.
func machinePrivileges() []string {
	return []string{
		"VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Config.CPU", "VM.Config.Memory", "VM.Config.Disk",
		"VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.Config.CDROM",
	}
}

func isoPrivileges() []string {
	return []string{"Datastore.Audit", "Datastore.AllocateTemplate", "Datastore.Allocate"}
}

func diskPrivileges() []string { return []string{"Datastore.Audit", "Datastore.AllocateSpace"} }

// requirement is a set of privileges that are needed on one of the paths.
type requirement struct {
	paths      []string
	privileges []string
}

// describeUnmet returns a message for each unmet requirement, with the command that grants the privileges.
func (c *client) describeUnmet(granted permissions, requirements []requirement) []string {
	var out []string

	for _, n := range requirements {
		var missing [][]string

		for _, path := range n.paths {
			missing = append(missing, granted.listMissing(path, n.privileges))
		}

		if slices.ContainsFunc(missing, func(m []string) bool { return len(m) == 0 }) {
			continue
		}

		// If several paths would suffice, the last path is the narrowest one: the pool.
		last := len(n.paths) - 1
		out = append(out, c.describeMissingPrivileges(n.paths[last], missing[last]))
	}

	return out
}

func newPrivilegesError(operation string, problems []string) error {
	return hypervisor.Errorf(hypervisor.Rejected, reasonPermissionDenied, "%s: %s", operation, strings.Join(problems, "; "))
}

// isDenialOutdated reports whether a node denies a privilege that the connected node grants. A node that
// was hung or cut off does so until it has received the permissions that were granted in the meantime, for
// example on the pool of a machine.
func (c *client) isDenialOutdated(ctx context.Context, err error, pool string) bool {
	apiErr, ok := errors.AsType[*APIError](err)
	if !ok || apiErr.Status != http.StatusForbidden {
		return false
	}

	found := permissionPattern.FindStringSubmatch(apiErr.Reason)
	if found == nil {
		return false
	}

	paths := []string{found[1]}
	if pool != "" && strings.HasPrefix(found[1], "/vms/") {
		paths = append(paths, "/pool/"+pool)
	}

	granted, err := c.readPermissions(ctx)

	return err == nil && len(c.describeUnmet(granted, []requirement{{paths: paths, privileges: parsePrivileges(found[2])}})) == 0
}
