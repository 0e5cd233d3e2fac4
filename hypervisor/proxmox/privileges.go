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

// permissions are a principal's privileges by path, as /access/permissions gives them:
// each with whether it reaches the paths below.
type permissions map[string]map[string]flag

// has tells whether a privilege is held on a path: there, or at the nearest path above
// that is listed. A role on a path replaces what comes from above (PVE::AccessControl).
func (p permissions) has(path, privilege string) bool {
	if held, ok := p[path]; ok {
		_, has := held[privilege]

		return has
	}

	for at := parentPath(path); ; at = parentPath(at) {
		if held, ok := p[at]; ok {
			return bool(held[privilege])
		}

		if at == "/" {
			return false
		}
	}
}

func parentPath(path string) string {
	at := strings.LastIndex(path, "/")
	if at <= 0 {
		return "/"
	}

	return path[:at]
}

// lacking gives those of the privileges that are not held on the path.
func (p permissions) lacking(path string, privileges []string) []string {
	var out []string

	for _, privilege := range privileges {
		if !p.has(path, privilege) {
			out = append(out, privilege)
		}
	}

	return out
}

// machinePrivileges are needed on the machines made. Each is named by a call of ours in
// the API viewer.
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

// need is a set of privileges on a path. any are paths of which one suffices.
type need struct {
	any        []string
	privileges []string
}

// unmet says what of the needs is missing, each with the command that fixes it.
func (c *client) unmet(held permissions, needs []need) []string {
	var out []string

	for _, n := range needs {
		var missing [][]string

		for _, path := range n.any {
			missing = append(missing, held.lacking(path, n.privileges))
		}

		if slices.ContainsFunc(missing, func(m []string) bool { return len(m) == 0 }) {
			continue
		}

		// Where several paths would do, the last is the narrowest: the pool.
		last := len(n.any) - 1
		out = append(out, c.missing(n.any[last], missing[last]))
	}

	return out
}

func privilegesMissing(what string, words []string) error {
	return hypervisor.Errorf(hypervisor.Rejected, reasonDenied, "%s: %s", what, strings.Join(words, "; "))
}

// outdated tells whether a node denies what the one that is asked grants, as it does after it was
// hung or cut off, until it has heard of what was granted meanwhile: a machine's pool for one.
func (c *client) outdated(ctx context.Context, err error, pool string) bool {
	answer, ok := errors.AsType[*APIError](err)
	if !ok || answer.Status != http.StatusForbidden {
		return false
	}

	found := permissionText.FindStringSubmatch(answer.Reason)
	if found == nil {
		return false
	}

	places := []string{found[1]}
	if pool != "" && strings.HasPrefix(found[1], "/vms/") {
		places = append(places, "/pool/"+pool)
	}

	held, err := c.permissions(ctx)

	return err == nil && len(c.unmet(held, []need{{any: places, privileges: privilegesOf(found[2])}})) == 0
}
