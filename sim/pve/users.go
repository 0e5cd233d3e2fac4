// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func userRoutes() []route {
	user := schema{
		"comment": {}, "email": {}, "expire": {kind: kInt}, "enable": {kind: kBool}, "groups": {}, "firstname": {},
		"lastname": {}, "keys": {},
	}
	change := user.merge(schema{"append": {kind: kBool}})
	create := user.merge(schema{"userid": {required: true, maxLen: 64, check: checkUserID}, "password": {maxLen: 64}})
	token := schema{"comment": {}, "expire": {kind: kInt}, "privsep": {kind: kBool}}
	one, tokens := "/access/users/{userid}", "/access/users/{userid}/token"
	role := schema{"privs": {check: checkPrivs}}
	roles := requireAll("/access", "Sys.Modify")
	acl := schema{
		"path": {required: true}, "roles": {required: true}, "users": {}, "groups": {}, "tokens": {},
		"propagate": {kind: kBool}, "delete": {kind: kBool},
	}
	return []route{
		newRoute(http.MethodGet, "/access", ClassOther, nil, nil,
			newIndex("subdir", "users", "groups", "roles", "acl", "domains", "openid", "tfa", "ticket", "password")),
		newRoute(http.MethodGet, "/access/users", ClassOther, nil,
			schema{"enabled": {kind: kBool}, "full": {kind: kBool}}, listUsers),
		newRoute(http.MethodPost, "/access/users", ClassOther, checkCreateUserPermission, create, createUser),
		newRoute(http.MethodGet, one, ClassOther, newUserPermission("Sys.Audit"), nil, getUser),
		newRoute(http.MethodPut, one, ClassOther, newUserPermission(), change, updateUser),
		newRoute(http.MethodDelete, one, ClassOther, newUserPermission(), nil, deleteUser),
		newRoute(http.MethodGet, tokens, ClassOther, newUserPermission("Sys.Audit"), nil, listTokens),
		newRoute(http.MethodGet, tokens+"/{tokenid}", ClassOther, newUserPermission("Sys.Audit"), nil, getToken),
		newRoute(http.MethodPost, tokens+"/{tokenid}", ClassOther, newUserPermission(), token, createToken),
		newRoute(http.MethodDelete, tokens+"/{tokenid}", ClassOther, newUserPermission(), nil, deleteToken),
		newRoute(http.MethodGet, "/access/roles", ClassOther, nil, nil, listRoles),
		newRoute(http.MethodGet, "/access/roles/{roleid}", ClassOther, nil, nil, getRole),
		newRoute(http.MethodPost, "/access/roles", ClassOther, roles, role.merge(schema{"roleid": {required: true}}), createRole),
		newRoute(http.MethodPut, "/access/roles/{roleid}", ClassOther, roles, role.merge(schema{"append": {kind: kBool}}), updateRole),
		newRoute(http.MethodDelete, "/access/roles/{roleid}", ClassOther, roles, nil, deleteRole),
		newRoute(http.MethodGet, "/access/acl", ClassOther, nil, nil, listACL),
		newRoute(http.MethodPut, "/access/acl", ClassOther, checkACLPermission, acl, updateACL),
		newRoute(http.MethodGet, "/access/groups", ClassOther, nil, nil, listGroups),
		newRoute(http.MethodGet, "/access/domains", ClassOther, nil, nil, listDomains),
	}
}

var (
	reUserID = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9._-]+$`)
	// reACLPath matches the paths on which a role can be granted (PVE::AccessControl).
	reACLPath = regexp.MustCompile(`^(?:/|/(?:access|nodes|pool|sdn|storage|vms|mapping)|` +
		`/access/(?:groups|realm)(?:/[\w.-]+)?|/(?:nodes|storage)/[\w.-]+|/pool/[\w.-]+(?:/[\w.-]+){0,2}|` +
		`/sdn/(?:controllers|dns|fabrics|ipams|prefix-lists|route-maps)(?:/[\w-]+)?|` +
		`/sdn/zones(?:/[\w.-]+(?:/[\w.-]+(?:/[1-9]\d{0,3})?)?)?|/vms/[1-9]\d{2,}|/mapping/[\w.-]+(?:/[\w.-]+)?)$`)
)

func checkUserID(v string) error {
	if !reUserID.MatchString(v) {
		return formatError("value '%s' does not look like a valid user name", v)
	}
	return nil
}

func checkPrivs(v string) error {
	for _, priv := range splitTags(v) {
		if !slices.Contains(listPrivileges("9"), priv) && priv != "VM.Monitor" {
			return formatError("invalid privilege '%s'", priv)
		}
	}
	return nil
}

func checkCreateUserPermission(s *Server, c *call) error {
	_, realm, _ := strings.Cut(c.param("userid"), "@")
	if err := s.require(c.auth, "/access/realm/"+realm, "Realm.AllocateUser"); err != nil {
		return err
	}
	return s.require(c.auth, "/access/groups", "User.Modify")
}

// newUserPermission returns a check that passes for the user itself and for callers that can change
// users or that have one of the given privileges.
func newUserPermission(privs ...string) permCheck {
	return func(s *Server, c *call) error {
		if c.auth.principal() == c.vars["userid"] ||
			s.requireAny(c.auth, "/access/groups", append(privs, "User.Modify")...) == nil {
			return nil
		}
		return newPermissionError()
	}
}

// grantPrivileges returns the privileges of which a caller needs one to grant a role on a path.
func grantPrivileges(path string) []string {
	privs := []string{"Permissions.Modify"}
	switch {
	case strings.HasPrefix(path, "/storage/"):
		privs = append(privs, "Datastore.Allocate")
	case strings.HasPrefix(path, "/vms/"):
		privs = append(privs, "VM.Allocate")
	case strings.HasPrefix(path, "/pool/"):
		privs = append(privs, "Pool.Allocate")
	}
	return privs
}

func checkACLPermission(s *Server, c *call) error {
	return s.requireAny(c.auth, c.param("path"), grantPrivileges(c.param("path"))...)
}

func newNoUserError(id string) error { return dief("no such user ('%s')", id) }

func (u User) toRow() map[string]any {
	_, realm, _ := strings.Cut(u.ID, "@")
	out := map[string]any{"userid": u.ID, "enable": boolToInt(!u.Disabled), "expire": 0, "realm-type": realm}
	for k, v := range map[string]string{"comment": u.Comment, "email": u.Email} {
		if v != "" {
			out[k] = v
		}
	}
	return out
}

func listUsers(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.hasAnyPrivilege(c.auth, "/access/groups", "User.Modify", "Sys.Audit")
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.access.users)) {
		if u := s.access.users[id]; (all || c.auth.principal() == id) && (!c.boolParam("enabled") || !u.Disabled) {
			out = append(out, u.toRow())
		}
	}
	return out, nil
}

// findUser returns the user of a call. The caller holds s.mu.
func (s *Server) findUser(c *call) (User, error) {
	u, ok := s.access.users[c.vars["userid"]]
	if !ok {
		return u, newNoUserError(c.vars["userid"])
	}
	return u, nil
}

func getUser(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.findUser(c)
	if err != nil {
		return nil, err
	}
	out := u.toRow()
	delete(out, "userid")
	delete(out, "realm-type")
	tokens := map[string]any{}
	for id, t := range s.access.tokens {
		if name, ok := strings.CutPrefix(id, u.ID+"!"); ok {
			tokens[name] = t.toRow()
		}
	}
	out["groups"], out["tokens"] = append([]string{}, u.Groups...), tokens
	return out, nil
}

func (t Token) toRow() map[string]any {
	return map[string]any{"privsep": boolToInt(!t.NoPrivSep), "expire": t.Expire}
}

func (c *call) applyUser(u User) User {
	for k, field := range map[string]*string{"comment": &u.Comment, "email": &u.Email, "password": &u.Password} {
		if c.hasParam(k) {
			*field = c.param(k)
		}
	}
	if c.hasParam("enable") {
		u.Disabled = !c.boolParam("enable")
	}
	if c.hasParam("groups") {
		u.Groups = splitTags(c.param("groups"))
	}
	return u
}

func createUser(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.param("userid")
	if _, ok := s.access.users[id]; ok {
		return nil, dief("create user failed: user '%s' already exists", id)
	}
	s.access.users[id] = c.applyUser(User{ID: id})
	return nil, nil //nolint:nilnil // "data": null
}

func updateUser(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.findUser(c)
	if err == nil {
		s.access.users[u.ID] = c.applyUser(u)
	}
	return nil, err
}

// deleteUser deletes a user, the user's tokens and their grants.
func deleteUser(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.findUser(c)
	if err != nil {
		return nil, err
	}
	delete(s.access.users, u.ID)
	maps.DeleteFunc(s.access.tokens, func(id string, _ Token) bool { return strings.HasPrefix(id, u.ID+"!") })
	s.access.acl = slices.DeleteFunc(s.access.acl, func(g ACL) bool {
		return g.Principal == u.ID || strings.HasPrefix(g.Principal, u.ID+"!")
	})
	return nil, nil //nolint:nilnil // "data": null
}

func (c *call) tokenID() string { return c.vars["userid"] + "!" + c.vars["tokenid"] }

func listTokens(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.access.tokens)) {
		if name, ok := strings.CutPrefix(id, c.vars["userid"]+"!"); ok {
			row := s.access.tokens[id].toRow()
			row["tokenid"] = name
			out = append(out, row)
		}
	}
	return out, nil
}

func getToken(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.access.tokens[c.tokenID()]
	if !ok {
		return nil, dief("no such token '%s' for user '%s'", c.vars["tokenid"], c.vars["userid"])
	}
	return t.toRow(), nil
}

func createToken(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.findUser(c); err != nil {
		return nil, err
	}
	id := c.tokenID()
	if _, ok := s.access.tokens[id]; ok {
		return nil, newParamError("tokenid", "Token already exists.")
	}
	t := Token{
		ID: id, Secret: s.newUUID(), NoPrivSep: c.hasParam("privsep") && !c.boolParam("privsep"), Expire: int64(c.intParam("expire")),
	}
	s.access.tokens[id] = t
	privsep := "1"
	if t.NoPrivSep {
		privsep = "0"
	}
	return map[string]any{"full-tokenid": id, "value": t.Secret, "info": map[string]any{"privsep": privsep}}, nil
}

func deleteToken(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.access.tokens[c.tokenID()]; !ok {
		return nil, dief("no such token '%s' for user '%s'", c.vars["tokenid"], c.vars["userid"])
	}
	delete(s.access.tokens, c.tokenID())
	s.access.acl = slices.DeleteFunc(s.access.acl, func(g ACL) bool { return g.Principal == c.tokenID() })
	return nil, nil //nolint:nilnil // "data": null
}

func (s *Server) isBuiltinRole(name string) bool {
	return newBuiltinRoles(s.model.Version)[name] != nil
}

func listRoles(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(s.access.roles)) {
		out = append(out, map[string]any{
			"roleid": name, "special": boolToInt(s.isBuiltinRole(name)),
			"privs": strings.Join(slices.Sorted(maps.Keys(s.access.roles[name])), ","),
		})
	}
	return out, nil
}

func getRole(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	role, ok := s.access.roles[c.vars["roleid"]]
	if !ok {
		return nil, dief("role '%s' does not exist", c.vars["roleid"])
	}
	out := map[string]any{}
	for p := range role {
		out[p] = 1
	}
	return out, nil
}

func createRole(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := c.param("roleid")
	if s.access.roles[name] != nil {
		return nil, dief("create role failed: role '%s' already exists", name)
	}
	s.access.roles[name] = newSet(splitTags(c.param("privs"))...)
	return nil, nil //nolint:nilnil // "data": null
}

func updateRole(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := c.vars["roleid"]
	role := s.access.roles[name]
	switch {
	case s.isBuiltinRole(name):
		return nil, dief("auto-generated role '%s' cannot be modified", name)
	case role == nil:
		return nil, dief("update role failed: role '%s' does not exist", name)
	}
	privs := newSet(splitTags(c.param("privs"))...)
	if c.boolParam("append") {
		maps.Copy(privs, role)
	}
	s.access.roles[name] = privs
	return nil, nil //nolint:nilnil // "data": null
}

func deleteRole(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := c.vars["roleid"]
	switch {
	case s.isBuiltinRole(name):
		return nil, dief("auto-generated role '%s' cannot be deleted", name)
	case s.access.roles[name] == nil:
		return nil, dief("delete role failed: role '%s' does not exist", name)
	}
	delete(s.access.roles, name)
	s.access.acl = slices.DeleteFunc(s.access.acl, func(g ACL) bool { return g.Role == name })
	return nil, nil //nolint:nilnil // "data": null
}

// principalType returns the type of a grant's principal.
func principalType(name string) string {
	switch {
	case strings.HasPrefix(name, "@"):
		return "group"
	case strings.Contains(name, "!"):
		return "token"
	default:
		return "user"
	}
}

func listACL(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.hasAnyPrivilege(c.auth, "/access", "Sys.Audit", "Permissions.Modify")
	out := []map[string]any{}
	for _, g := range s.access.acl {
		if !all && !s.hasAnyPrivilege(c.auth, g.Path, grantPrivileges(g.Path)...) {
			continue
		}
		out = append(out, map[string]any{
			"path": g.Path, "roleid": g.Role, "type": principalType(g.Principal),
			"ugid": strings.TrimPrefix(g.Principal, "@"), "propagate": boolToInt(!g.NoPropagate),
		})
	}
	return out, nil
}

// findGrantees returns the principals to which a call grants a role, and an error if one of them
// does not exist. The caller holds s.mu.
func (s *Server) findGrantees(c *call) ([]string, error) {
	var out []string
	for _, u := range splitTags(c.param("users")) {
		if _, ok := s.access.users[u]; !ok {
			return nil, dief("ACL update failed: user '%s' does not exist", u)
		}
		out = append(out, u)
	}
	for _, t := range splitTags(c.param("tokens")) {
		if _, ok := s.access.tokens[t]; !ok {
			user, name, _ := strings.Cut(t, "!")
			return nil, dief("ACL update failed: no such token '%s' for user '%s'", name, user)
		}
		out = append(out, t)
	}
	for _, g := range splitTags(c.param("groups")) {
		out = append(out, "@"+g)
	}
	return out, nil
}

func updateACL(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isDelete := c.boolParam("delete")
	path := cmp.Or(strings.TrimRight(c.param("path"), "/"), "/")
	if !isDelete && !reACLPath.MatchString(path) {
		return nil, newParamError("path", "invalid ACL path '%s'", path)
	}
	principals, err := s.findGrantees(c)
	if err != nil {
		return nil, err
	}
	for _, role := range splitTags(c.param("roles")) {
		if s.access.roles[role] == nil && !isDelete {
			return nil, dief("ACL update failed: role '%s' does not exist", role)
		}
		for _, p := range principals {
			s.access.acl = slices.DeleteFunc(s.access.acl, func(g ACL) bool {
				return g.Path == path && g.Principal == p && g.Role == role
			})
			if !isDelete {
				s.access.acl = append(s.access.acl, ACL{
					Path: path, Principal: p, Role: role, NoPropagate: c.hasParam("propagate") && !c.boolParam("propagate"),
				})
			}
		}
	}
	return nil, nil //nolint:nilnil // "data": null
}

func listGroups(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	members := map[string][]string{}
	for _, id := range slices.Sorted(maps.Keys(s.access.users)) {
		for _, g := range s.access.users[id].Groups {
			members[g] = append(members[g], id)
		}
	}
	out := []map[string]any{}
	for _, g := range slices.Sorted(maps.Keys(members)) {
		if s.hasAnyPrivilege(c.auth, "/access/groups/"+g, "User.Modify", "Sys.Audit", "Group.Allocate") {
			out = append(out, map[string]any{"groupid": g, "users": strings.Join(members[g], ",")})
		}
	}
	return out, nil
}

func listDomains(_ *Server, _ *call) (any, error) {
	return []map[string]any{
		{"realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication"},
		{"realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server"},
	}, nil
}
