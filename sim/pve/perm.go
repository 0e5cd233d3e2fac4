// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// permCheck checks the permission for a call. It runs before the validation of the parameters.
type permCheck func(s *Server, c *call) error

func newSet(names ...string) map[string]bool {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = true
	}
	return out
}

// listPrivileges returns the privileges of a version of Proxmox VE (PVE::AccessControl).
func listPrivileges(version string) []string {
	privs := []string{
		"Datastore.Allocate", "Datastore.AllocateSpace", "Datastore.AllocateTemplate", "Datastore.Audit",
		"Group.Allocate", "Mapping.Audit", "Mapping.Modify", "Mapping.Use", "Permissions.Modify",
		"Pool.Allocate", "Pool.Audit", "Realm.Allocate", "Realm.AllocateUser",
		"SDN.Allocate", "SDN.Audit", "SDN.Use",
		"Sys.AccessNetwork", "Sys.Audit", "Sys.Console", "Sys.Incoming", "Sys.Modify", "Sys.PowerMgmt", "Sys.Syslog",
		"User.Modify", "VM.Allocate", "VM.Audit", "VM.Backup", "VM.Clone",
		"VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Cloudinit", "VM.Config.Disk", "VM.Config.HWType",
		"VM.Config.Memory", "VM.Config.Network", "VM.Config.Options", "VM.Console", "VM.Migrate",
		"VM.PowerMgmt", "VM.Snapshot", "VM.Snapshot.Rollback",
	}
	if isPVE8(version) {
		return append(privs, "VM.Monitor")
	}
	return append(privs, "VM.GuestAgent.Audit", "VM.GuestAgent.FileRead", "VM.GuestAgent.FileSystemMgmt",
		"VM.GuestAgent.FileWrite", "VM.GuestAgent.Unrestricted", "VM.Replicate")
}

// version returns the version of Proxmox VE. It is that of the model until Upgrade is called.
func (s *Server) version() string { return *s.release.Load() }

// Upgrade changes the version, as an upgrade of all nodes does. Built-in roles get the privileges of the new version. Other
// roles lose the privileges that it does not have.
func (s *Server) Upgrade(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.release.Store(&version)
	maps.Copy(s.access.roles, newBuiltinRoles(version))

	valid := newSet(listPrivileges(version)...)
	for _, role := range s.access.roles {
		maps.DeleteFunc(role, func(p string, _ bool) bool { return !valid[p] })
	}
}

func isPVE8(version string) bool { return strings.HasPrefix(version, "8.") }

func newBuiltinRoles(version string) map[string]map[string]bool {
	all := listPrivileges(version)
	vmAdmin := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return !strings.HasPrefix(p, "VM.") })
	audit := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return !strings.HasSuffix(p, ".Audit") })
	vmUser := slices.DeleteFunc(slices.Clone(vmAdmin), func(p string) bool {
		return p == "VM.GuestAgent.Unrestricted" || !strings.HasPrefix(p, "VM.GuestAgent.") && !slices.Contains([]string{
			"VM.Audit", "VM.Backup", "VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.PowerMgmt"}, p)
	})
	admin := slices.DeleteFunc(slices.Clone(all), func(p string) bool { // without what gives power over the cluster
		return slices.Contains([]string{"Mapping.Modify", "Permissions.Modify", "Realm.Allocate", "Sys.AccessNetwork",
			"Sys.Incoming", "Sys.Modify", "Sys.PowerMgmt"}, p)
	})
	return map[string]map[string]bool{
		"Administrator":    newSet(all...),
		"NoAccess":         {},
		"PVEAuditor":       newSet(audit...),
		"PVEVMAdmin":       newSet(vmAdmin...),
		"PVEVMUser":        newSet(vmUser...),
		"PVEAdmin":         newSet(admin...),
		"PVETemplateUser":  newSet("VM.Audit", "VM.Clone"),
		"PVEDatastoreUser": newSet("Datastore.AllocateSpace", "Datastore.Audit"),
		"PVEDatastoreAdmin": newSet("Datastore.Allocate", "Datastore.AllocateSpace",
			"Datastore.AllocateTemplate", "Datastore.Audit"),
		"PVEPoolUser":  newSet("Pool.Audit"),
		"PVEPoolAdmin": newSet("Pool.Audit", "Pool.Allocate"),
		"PVESDNUser":   newSet("SDN.Use", "SDN.Audit"),
		"PVESDNAdmin":  newSet("SDN.Allocate", "SDN.Audit", "SDN.Use"),
		"PVESysAdmin":  newSet("Sys.Audit", "Sys.Console", "Sys.Syslog"),
		"PVEUserAdmin": newSet("Group.Allocate", "Realm.AllocateUser", "User.Modify"),

		"PVEMappingUser":  newSet("Mapping.Audit", "Mapping.Use"),
		"PVEMappingAdmin": newSet("Mapping.Audit", "Mapping.Modify", "Mapping.Use"),
	}
}

// findRoles returns the roles of a principal on a path. The deepest grant has precedence. On the
// same path, a grant to the user has precedence over the grants to the user's groups.
func (a *access) findRoles(principal, path string) []string {
	var roles []string
	for _, prefix := range listPrefixes(path) {
		granted := a.findGrants(prefix, prefix == path, func(grantee string) bool { return grantee == principal })
		if len(granted) == 0 && !strings.Contains(principal, "!") {
			groups := a.users[principal].Groups
			granted = a.findGrants(prefix, prefix == path, func(grantee string) bool {
				name, ok := strings.CutPrefix(grantee, "@")
				return ok && slices.Contains(groups, name)
			})
		}
		if len(granted) > 0 {
			roles = granted
		}
	}
	if slices.Contains(roles, "NoAccess") {
		return []string{"NoAccess"}
	}
	return roles
}

func (a *access) findGrants(path string, isExact bool, isGrantee func(string) bool) []string {
	var out []string
	for _, g := range a.acl {
		if g.Path == path && (isExact || !g.NoPropagate) && isGrantee(g.Principal) {
			out = append(out, g.Role)
		}
	}
	return out
}

// listPrefixes returns a path and all paths above it: for /a/b, it returns /, /a and /a/b.
func listPrefixes(path string) []string {
	out := []string{"/"}
	if path == "/" {
		return out
	}
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			out = append(out, path[:i])
		}
	}
	return append(out, path)
}

// findPrivileges returns the privileges of a caller on a path. On a VM, they include the privileges
// on the VM's pool. The caller holds s.mu.
func (s *Server) findPrivileges(caller identity, path string) map[string]bool {
	if caller.user == RootUser && caller.token == "" {
		return newSet(listPrivileges(s.version())...)
	}
	user := s.findPrincipalPrivileges(caller.user, path)
	if caller.user == RootUser {
		user = newSet(listPrivileges(s.version())...)
	}
	if caller.token == "" || s.access.tokens[caller.principal()].NoPrivSep {
		return user
	}
	token := s.findPrincipalPrivileges(caller.principal(), path)
	maps.DeleteFunc(token, func(p string, _ bool) bool { return !user[p] })
	return token
}

func (s *Server) findPrincipalPrivileges(principal, path string) map[string]bool {
	out := map[string]bool{}
	roles := s.access.findRoles(principal, path)
	if slices.Contains(roles, "NoAccess") {
		return out
	}
	if id, ok := strings.CutPrefix(path, "/vms/"); ok {
		if vmid, err := strconv.Atoi(id); err == nil {
			if pool := s.findPool(vmid); pool != "" {
				roles = append(slices.Clone(roles), s.access.findRoles(principal, "/pool/"+pool)...)
			}
		}
	}
	for _, r := range roles {
		maps.Copy(out, s.access.roles[r])
	}
	return out
}

// findPool returns the pool of a VM, or an empty string. The caller holds s.mu.
func (s *Server) findPool(vmid int) string {
	for id, p := range s.pools {
		if p.vms[vmid] {
			return id
		}
	}
	return ""
}

// require returns an error if the caller lacks one of the privileges.
func (s *Server) require(caller identity, path string, privs ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requireLocked(caller, path, privs...)
}

func (s *Server) requireLocked(caller identity, path string, privs ...string) error {
	granted := s.findPrivileges(caller, path)
	for _, p := range privs {
		if !granted[p] {
			return newForbiddenError(path, strings.Join(privs, "|"))
		}
	}
	return nil
}

// requireAny returns an error if the caller has none of the privileges.
func (s *Server) requireAny(caller identity, path string, privs ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requireAnyLocked(caller, path, privs...)
}

func (s *Server) requireAnyLocked(caller identity, path string, privs ...string) error {
	if s.hasAnyPrivilege(caller, path, privs...) {
		return nil
	}
	return newForbiddenError(path, strings.Join(privs, "|"))
}

// hasAnyPrivilege returns true if the caller has one of the privileges. The caller holds s.mu.
func (s *Server) hasAnyPrivilege(caller identity, path string, privs ...string) bool {
	granted := s.findPrivileges(caller, path)
	return slices.ContainsFunc(privs, func(p string) bool { return granted[p] })
}

// expandPath replaces the variables of a permission path, such as /vms/{vmid}, with the variables and
// parameters of the call. A variable that is missing, empty or 0 becomes "-", as in PVE::RPCEnvironment.
func expandPath(c *call, path string) string {
	return rePathVar.ReplaceAllStringFunc(path, func(name string) string {
		name = strings.Trim(name, "{}")
		v := cmp.Or(c.vars[name], c.params[name])
		if v == "" || v == "0" {
			return "-"
		}
		return v
	})
}

var (
	rePathVar  = regexp.MustCompile(`\{[a-z]+\}`)
	rePermPath = regexp.MustCompile(`^/[[:alnum:]@._/!-]*$`)
)

// requireAll returns a check for all of the privileges on a path such as /vms/{vmid}.
func requireAll(path string, privs ...string) permCheck {
	return func(s *Server, c *call) error {
		expanded, err := expandValidPath(c, path, privs)
		if err != nil {
			return err
		}
		return s.require(c.auth, expanded, privs...)
	}
}

// expandValidPath refuses a path that no object can have, for every caller but root. The refusal does not name it.
func expandValidPath(c *call, path string, privs []string) (string, error) {
	expanded := expandPath(c, path)
	if !rePermPath.MatchString(expanded) {
		return "", newForbiddenError("", strings.Join(privs, "|"))
	}
	return expanded, nil
}

// requireAny returns a check for one of the privileges.
func requireAny(path string, privs ...string) permCheck {
	return func(s *Server, c *call) error {
		expanded, err := expandValidPath(c, path, privs)
		if err != nil {
			return err
		}
		return s.requireAny(c.auth, expanded, privs...)
	}
}

// vmPath returns the permission path of a VM.
func vmPath(vmid int) string { return fmt.Sprintf("/vms/%d", vmid) }

// isRoot returns true for root itself. As in Proxmox VE, it returns false for root's tokens.
func (i identity) isRoot() bool { return i.user == RootUser && i.token == "" }

// listCapabilities returns the summary of privileges that a ticket contains for the web interface.
// The caller holds s.mu.
func (s *Server) listCapabilities(caller identity) map[string]map[string]int {
	out := map[string]map[string]int{}
	for key, path := range map[string]string{
		"vms": "/vms", "storage": "/storage", "access": "/access", "nodes": "/nodes", "dc": "/", "sdn": "/sdn", "mapping": "/mapping",
	} {
		out[key] = map[string]int{}
		for _, below := range s.listGrantedPaths(path) {
			for p := range s.findPrivileges(caller, below) {
				if isCapability(key, p) && (below == path || p != "Permissions.Modify") {
					out[key][p] = 1
				}
			}
		}
	}
	return out
}

// listGrantedPaths returns a path, the paths below it that have grants, and those of pools, whose grants apply to their
// members. The caller holds s.mu.
func (s *Server) listGrantedPaths(path string) []string {
	out := []string{path}
	for _, g := range s.access.acl {
		if path != "/" && (strings.HasPrefix(g.Path, path+"/") || strings.HasPrefix(g.Path, "/pool/")) {
			out = append(out, g.Path)
		}
	}
	return out
}

// isCapability reports whether a part of the web interface asks for a privilege.
func isCapability(part, priv string) bool {
	if part == "dc" {
		return slices.Contains([]string{"Sys.Audit", "Sys.Modify", "SDN.Use", "SDN.Allocate", "SDN.Audit"}, priv)
	}
	prefixes := map[string][]string{
		"vms": {"VM."}, "storage": {"Datastore."}, "access": {"User.", "Group."}, "nodes": {"Sys."}, "sdn": {"SDN."},
		"mapping": {"Mapping."},
	}[part]
	return priv == "Permissions.Modify" || slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(priv, p) })
}

// getPermissions returns the caller's privileges by path.
func getPermissions(s *Server, c *call) (any, error) {
	caller := c.auth
	if id := c.param("userid"); id != "" && id != caller.principal() {
		if err := s.require(c.auth, "/access", "Sys.Audit"); err != nil {
			return nil, err
		}
		caller.user, caller.token, _ = strings.Cut(id, "!")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	paths := newSet("/", "/access", "/access/groups", "/nodes", "/pool", "/sdn", "/sdn/zones", "/sdn/zones/localnetwork", "/storage",
		"/vms")
	if p := c.param("path"); p != "" {
		paths = newSet(p)
	} else {
		for _, g := range s.access.acl {
			paths[g.Path] = true
		}
		for vmid := range s.vms {
			paths[vmPath(vmid)] = paths[vmPath(vmid)] || s.findPool(vmid) != ""
		}
		maps.DeleteFunc(paths, func(_ string, isListed bool) bool { return !isListed })
	}
	out := map[string]map[string]int{}
	inherited := s.findPrivileges(caller, "/vms")
	for p := range paths {
		privs := map[string]int{}
		for name := range s.findPrivileges(caller, p) { // those of a pool do not propagate
			privs[name] = boolToInt(!s.isPoolMember(p) || inherited[name])
		}
		if len(privs) > 0 || c.hasParam("path") {
			out[p] = privs
		}
	}
	return out, nil
}

// isPoolMember reports whether a path is that of a VM in a pool. The caller holds s.mu.
func (s *Server) isPoolMember(path string) bool {
	vmid, ok := strings.CutPrefix(path, "/vms/")
	return ok && s.findPool(atoi(vmid)) != ""
}

// SetPrivilege adds a privilege to a role or removes it, as an administrator does while clients are
// running.
func (s *Server) SetPrivilege(role, privilege string, granted bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !granted {
		delete(s.access.roles[role], privilege)
		return
	}
	s.access.roles[role][privilege] = true
}
