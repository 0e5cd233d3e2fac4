// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// permCheck decides whether a call is allowed before its parameters are read.
type permCheck func(s *Server, c *call) error

func setOf(names ...string) map[string]bool {
	out := map[string]bool{}
	for _, n := range names {
		out[n] = true
	}
	return out
}

// privilegesOf lists the privileges that version of Proxmox VE knows
// (PVE::AccessControl).
func privilegesOf(version string) []string {
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

func isPVE8(version string) bool { return strings.HasPrefix(version, "8.") }

func builtinRoles(version string) map[string]map[string]bool {
	all := privilegesOf(version)
	vmAdmin := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return !strings.HasPrefix(p, "VM.") })
	audit := slices.DeleteFunc(slices.Clone(all), func(p string) bool { return !strings.HasSuffix(p, ".Audit") })
	return map[string]map[string]bool{
		"Administrator":    setOf(all...),
		"NoAccess":         {},
		"PVEAuditor":       setOf(audit...),
		"PVEVMAdmin":       setOf(vmAdmin...),
		"PVEVMUser":        setOf("VM.Backup", "VM.Config.CDROM", "VM.Config.Cloudinit", "VM.Console", "VM.PowerMgmt", "VM.Audit"),
		"PVETemplateUser":  setOf("VM.Audit", "VM.Clone"),
		"PVEDatastoreUser": setOf("Datastore.AllocateSpace", "Datastore.Audit"),
		"PVEDatastoreAdmin": setOf("Datastore.Allocate", "Datastore.AllocateSpace",
			"Datastore.AllocateTemplate", "Datastore.Audit"),
		"PVEPoolUser":  setOf("Pool.Audit"),
		"PVEPoolAdmin": setOf("Pool.Audit", "Pool.Allocate"),
		"PVESDNUser":   setOf("SDN.Use", "SDN.Audit"),
		"PVESysAdmin":  setOf("Permissions.Modify", "Sys.Audit", "Sys.Console", "Sys.Syslog"),
	}
}

// rolesAt are the roles a principal holds on a path: the deepest grant wins,
// a grant to the user itself wins over one to its groups.
func (a *access) rolesAt(principal, path string) []string {
	var roles []string
	for _, prefix := range prefixes(path) {
		here := a.grants(prefix, prefix == path, func(who string) bool { return who == principal })
		if len(here) == 0 && !strings.Contains(principal, "!") {
			groups := a.users[principal].Groups
			here = a.grants(prefix, prefix == path, func(who string) bool {
				name, ok := strings.CutPrefix(who, "@")
				return ok && slices.Contains(groups, name)
			})
		}
		if len(here) > 0 {
			roles = here
		}
	}
	if slices.Contains(roles, "NoAccess") {
		return []string{"NoAccess"}
	}
	return roles
}

func (a *access) grants(path string, exact bool, who func(string) bool) []string {
	var out []string
	for _, g := range a.acl {
		if g.Path == path && (exact || !g.NoPropagate) && who(g.Principal) {
			out = append(out, g.Role)
		}
	}
	return out
}

// prefixes of /a/b are /, /a and /a/b.
func prefixes(path string) []string {
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

// privs are the privileges of a caller on a path. A VM in a pool has those of
// the pool as well. s.mu is held.
func (s *Server) privs(who identity, path string) map[string]bool {
	if who.user == RootUser && who.token == "" {
		return setOf(privilegesOf(s.model.Version)...)
	}
	user := s.privsOf(who.user, path)
	if who.user == RootUser {
		user = setOf(privilegesOf(s.model.Version)...)
	}
	if who.token == "" || s.access.tokens[who.principal()].NoPrivSep {
		return user
	}
	token := s.privsOf(who.principal(), path)
	maps.DeleteFunc(token, func(p string, _ bool) bool { return !user[p] })
	return token
}

func (s *Server) privsOf(principal, path string) map[string]bool {
	out := map[string]bool{}
	roles := s.access.rolesAt(principal, path)
	if slices.Contains(roles, "NoAccess") {
		return out
	}
	if id, ok := strings.CutPrefix(path, "/vms/"); ok {
		if vmid, err := strconv.Atoi(id); err == nil {
			if pool := s.poolOf(vmid); pool != "" {
				roles = append(slices.Clone(roles), s.access.rolesAt(principal, "/pool/"+pool)...)
			}
		}
	}
	for _, r := range roles {
		maps.Copy(out, s.access.roles[r])
	}
	return out
}

// poolOf is the pool a VM is a member of; s.mu is held.
func (s *Server) poolOf(vmid int) string {
	for pool, members := range s.pools {
		if members[vmid] {
			return pool
		}
	}
	return ""
}

// may tells whether a caller has every one of the privileges.
func (s *Server) may(who identity, path string, privs ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayLocked(who, path, privs...)
}

func (s *Server) mayLocked(who identity, path string, privs ...string) error {
	have := s.privs(who, path)
	for _, p := range privs {
		if !have[p] {
			return forbidden(path, strings.Join(privs, "|"))
		}
	}
	return nil
}

// mayAny tells whether a caller has one of the privileges.
func (s *Server) mayAny(who identity, path string, privs ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mayAnyLocked(who, path, privs...)
}

func (s *Server) mayAnyLocked(who identity, path string, privs ...string) error {
	if s.hasAny(who, path, privs...) {
		return nil
	}
	return forbidden(path, strings.Join(privs, "|"))
}

// hasAny tells whether a caller has one of the privileges; s.mu is held.
func (s *Server) hasAny(who identity, path string, privs ...string) bool {
	have := s.privs(who, path)
	return slices.ContainsFunc(privs, func(p string) bool { return have[p] })
}

// The path templates permissions are declared on.

func expand(c *call, path string) string {
	for k, v := range c.vars {
		path = strings.ReplaceAll(path, "{"+k+"}", v)
	}
	for k, v := range c.params {
		path = strings.ReplaceAll(path, "{"+k+"}", v)
	}
	return path
}

// needs asks for all privileges on a path such as /vms/{vmid}.
func needs(path string, privs ...string) permCheck {
	return func(s *Server, c *call) error { return s.may(c.auth, expand(c, path), privs...) }
}

// needsAny asks for one of the privileges.
func needsAny(path string, privs ...string) permCheck {
	return func(s *Server, c *call) error { return s.mayAny(c.auth, expand(c, path), privs...) }
}

// vmPath is the permission path of a VM.
func vmPath(vmid int) string { return fmt.Sprintf("/vms/%d", vmid) }

// isRoot is true for root itself; its tokens do not count, as in Proxmox.
func (i identity) isRoot() bool { return i.user == RootUser && i.token == "" }

// capabilities is the summary a ticket carries for the web interface; s.mu is
// held.
func (s *Server) capabilities(who identity) map[string]map[string]int {
	out := map[string]map[string]int{}
	for key, path := range map[string]string{
		"vms": "/vms", "storage": "/storage", "access": "/access", "nodes": "/nodes", "dc": "/", "sdn": "/sdn",
	} {
		out[key] = map[string]int{}
		for p := range s.privs(who, path) {
			out[key][p] = 1
		}
	}
	return out
}

// getPermissions lists what the caller may do, by path.
func getPermissions(s *Server, c *call) (any, error) {
	who := c.auth
	if id := c.param("userid"); id != "" && id != who.principal() {
		if err := s.may(c.auth, "/access", "Sys.Audit"); err != nil {
			return nil, err
		}
		who.user, who.token, _ = strings.Cut(id, "!")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	paths := setOf("/", "/access", "/nodes", "/sdn", "/storage", "/vms")
	if p := c.param("path"); p != "" {
		paths = setOf(p)
	} else {
		for _, g := range s.access.acl {
			paths[g.Path] = true
		}
	}
	out := map[string]map[string]int{}
	for p := range paths {
		privs := map[string]int{}
		for name := range s.privs(who, p) {
			privs[name] = 1
		}
		if len(privs) > 0 || c.has("path") {
			out[p] = privs
		}
	}
	return out, nil
}

// SetPrivilege adds a privilege to a role, or takes it away, as an administrator would
// while clients are at work.
func (s *Server) SetPrivilege(role, privilege string, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !held {
		delete(s.access.roles[role], privilege)
		return
	}
	s.access.roles[role][privilege] = true
}
