// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"crypto/sha1" // #nosec G505 -- the digest algorithm of Proxmox VE
	"encoding/hex"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

func userRoutes() []route {
	user := schema{
		"comment": {}, "email": {check: checkEmail}, "expire": {kind: kInt}, "enable": {kind: kBool}, "groups": {},
		"firstname": {}, "lastname": {}, "keys": {},
	}
	change := user.merge(schema{"append": {kind: kBool, requires: "groups"}})
	create := user.merge(schema{"userid": {required: true}, "password": {minLen: 8, maxLen: 64}})
	one := "/access/users/{userid}"
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
		newRoute(http.MethodGet, one, ClassOther, checkReadUserPermission, nil, getUser),
		newRoute(http.MethodPut, one, ClassOther, checkUpdateUserPermission, change, updateUser),
		newRoute(http.MethodDelete, one, ClassOther, checkDeleteUserPermission, nil, deleteUser),
		newRoute(http.MethodGet, one+"/tfa", ClassOther, checkReadUserPermission, nil, newFixed(map[string]any{})),
		newRoute(http.MethodPut, "/access/password", ClassOther, nil, schema{
			"userid": {required: true}, "password": {required: true, minLen: 8, maxLen: 64}, "confirmation-password": {},
		}, changePassword),
		newRoute(http.MethodGet, "/access/roles", ClassOther, nil, nil, listRoles),
		newRoute(http.MethodGet, "/access/roles/{roleid}", ClassOther, nil, nil, getRole),
		newRoute(http.MethodPost, "/access/roles", ClassOther, roles,
			role.merge(schema{"roleid": {required: true, check: checkNewRoleID}}), createRole),
		newRoute(http.MethodPut, "/access/roles/{roleid}", ClassOther, roles,
			role.merge(schema{"append": {kind: kBool, requires: "privs"}}), updateRole),
		newRoute(http.MethodDelete, "/access/roles/{roleid}", ClassOther, roles, nil, deleteRole),
		newRoute(http.MethodGet, "/access/acl", ClassOther, nil, nil, listACL),
		newRoute(http.MethodPut, "/access/acl", ClassOther, checkACLPermission, acl, updateACL),
		newRoute(http.MethodGet, "/access/domains", ClassOther, nil, nil, listDomains),
		newRoute(http.MethodGet, "/access/domains/{realm}", ClassOther,
			requireAny("/access/realm", "Realm.Allocate", "Sys.Audit"), nil, getDomain),
	}
}

// reACLPath matches the paths on which a role can be granted (PVE::AccessControl).
var reACLPath = regexp.MustCompile(`^(?:/|/(?:access|nodes|pool|sdn|storage|vms|mapping)|` +
	`/access/(?:groups|realm)(?:/[\w.-]+)?|/(?:nodes|storage)/[\w.-]+|/pool/[\w.-]+(?:/[\w.-]+){0,2}|` +
	`/sdn/(?:controllers|dns|fabrics|ipams|prefix-lists|route-maps)(?:/[\w-]+)?|` +
	`/sdn/zones(?:/[\w.-]+(?:/[\w.-]+(?:/[1-9]\d{0,3})?)?)?|/vms/[1-9]\d{2,}|/mapping/[\w.-]+(?:/[\w.-]+)?)$`)

var (
	reUserID      = regexp.MustCompile(`^[^\s:/]+@[A-Za-z][A-Za-z0-9._-]+$`)
	reEmail       = regexp.MustCompile(`^[\w+.-]+@[\w.-]+$`)
	reGroupOrRole = regexp.MustCompile(`^[A-Za-z0-9._-]+$`)
)

// verifyUserID implements PVE::AccessControl::verify_username, which a permission check calls too.
func verifyUserID(id string) error {
	const shortest, longest = 3, 64
	switch {
	case len(id) < shortest:
		return dief("user name '%s' is too short", id)
	case len(id) > longest:
		return dief("user name '%s' is too long (%d > %d)", id, len(id), longest)
	case !reUserID.MatchString(id):
		return dief("value '%s' does not look like a valid user name", id)
	}
	return nil
}

func checkEmail(v string) error {
	if v != "" && !reEmail.MatchString(v) { // the format is email-opt
		return formatError("value does not look like a valid email address")
	}
	return nil
}

func checkPrivs(v string) error {
	for _, priv := range splitTags(v) {
		if !slices.Contains(listPrivileges("9"), priv) && !slices.Contains(listPrivileges("8."), priv) {
			return formatError("invalid privilege '%s'", priv)
		}
	}
	return nil
}

func checkNewRoleID(v string) error {
	switch {
	case strings.HasPrefix(strings.ToUpper(v), "PVE"):
		return errReservedRole
	case !reGroupOrRole.MatchString(v):
		return formatError("role name '%s' contains invalid characters", v)
	}
	return nil
}

var errReservedRole = errors.New("cannot use role ID starting with the (case-insensitive) 'PVE' namespace")

func checkCreateUserPermission(s *Server, c *call) error {
	if err := verifyUserID(c.param("userid")); err != nil {
		return err
	}
	_, realm, _ := strings.Cut(c.param("userid"), "@")
	if err := s.require(c.auth, "/access/realm/"+realm, "Realm.AllocateUser"); err != nil {
		return err
	}
	return s.require(c.auth, "/access/groups", "User.Modify")
}

// checkReadUserPermission passes for the user itself and for callers that can see or change users.
func checkReadUserPermission(s *Server, c *call) error {
	if err := verifyUserID(c.vars["userid"]); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.findUser(c); err != nil {
		return err
	}
	if c.auth.principal() == c.vars["userid"] || s.hasAnyPrivilege(c.auth, "/access/groups", "User.Modify", "Sys.Audit") {
		return nil
	}
	return newPermissionError()
}

func checkUpdateUserPermission(s *Server, c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.findUser(c); err != nil {
		return err
	}
	return s.requireLocked(c.auth, "/access/groups", "User.Modify")
}

func checkDeleteUserPermission(s *Server, c *call) error {
	_, realm, _ := strings.Cut(c.vars["userid"], "@")
	if err := s.require(c.auth, "/access/realm/"+realm, "Realm.AllocateUser"); err != nil {
		return err
	}
	return checkUpdateUserPermission(s, c)
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
	path := cmp.Or(c.param("path"), "/-")
	return s.requireAny(c.auth, path, grantPrivileges(path)...)
}

func newNoUserError(id string) error { return dief("no such user ('%s')", id) }

func (u User) toRow() map[string]any {
	_, realm, _ := strings.Cut(u.ID, "@")
	out := map[string]any{"userid": u.ID, "enable": boolToInt(!u.Disabled), "expire": u.Expire}
	if realm == "pam" || realm == "pve" {
		out["realm-type"] = realm
	}
	for k, v := range map[string]string{
		"comment": u.Comment, "email": u.Email, "firstname": u.FirstName, "lastname": u.LastName,
	} {
		if v != "" {
			out[k] = v
		}
	}
	if u.Comment != "" { // in the line of the file, the comment follows the email
		out["email"] = u.Email
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
			row := u.toRow()
			if c.boolParam("full") {
				row["groups"], row["tokens"] = strings.Join(u.Groups, ","), nil
				if tokens := s.listTokenRows(id); tokens != nil {
					row["tokens"] = tokens
				}
			}
			out = append(out, row)
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
	out["groups"], out["tokens"] = append([]string{}, u.Groups...), nil
	if len(tokens) > 0 {
		out["tokens"] = tokens
	}
	return out, nil
}

func (c *call) applyUser(u User) User {
	for k, field := range map[string]*string{
		"comment": &u.Comment, "email": &u.Email, "password": &u.Password, "firstname": &u.FirstName, "lastname": &u.LastName,
	} {
		if c.hasParam(k) {
			*field = c.param(k)
		}
	}
	if c.hasParam("enable") {
		u.Disabled = !c.boolParam("enable")
	}
	if c.hasParam("expire") {
		u.Expire = int64(c.intParam("expire"))
	}
	if c.hasParam("groups") {
		groups := splitTags(c.param("groups"))
		if c.boolParam("append") {
			groups = append(slices.Clone(u.Groups), groups...)
		}
		u.Groups = groups
	}
	return u
}

// checkGroups returns an error if one of the call's groups does not exist. The caller holds s.mu.
func (s *Server) checkGroups(c *call, action string) error {
	for _, g := range splitTags(c.param("groups")) {
		if _, ok := s.access.groups[g]; !ok {
			return dief("%s failed: no such group '%s'", action, g)
		}
	}
	return nil
}

// changePassword sets the password of a user. A token cannot call it.
func changePassword(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, ok := s.access.users[c.param("userid")]
	switch {
	case !ok:
		return nil, newNoUserError(c.param("userid"))
	case c.auth.user != u.ID && !s.hasAnyPrivilege(c.auth, "/access/groups", "User.Modify"):
		return nil, newPermissionError()
	}
	u.Password = c.param("password")
	s.access.users[u.ID] = u
	return nil, nil //nolint:nilnil // "data": null
}

func createUser(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.param("userid")
	if _, ok := s.access.users[id]; ok {
		return nil, dief("create user failed: user '%s' already exists", id)
	}
	if err := s.checkGroups(c, "create user"); err != nil {
		return nil, err
	}
	s.access.users[id] = c.applyUser(User{ID: id})
	return nil, nil //nolint:nilnil // "data": null
}

func updateUser(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, err := s.findUser(c)
	if err == nil {
		err = s.checkGroups(c, "update user")
	}
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

func (s *Server) isBuiltinRole(name string) bool {
	return newBuiltinRoles(s.version())[name] != nil
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

// checkVersionPrivs refuses the privileges of another version of Proxmox VE.
func (s *Server) checkVersionPrivs(c *call) error {
	for _, priv := range splitTags(c.param("privs")) {
		if !slices.Contains(listPrivileges(s.version()), priv) {
			return newParamError("privs", "invalid format - invalid privilege '%s'\n", priv)
		}
	}
	return nil
}

func createRole(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := c.param("roleid")
	if err := s.checkVersionPrivs(c); err != nil {
		return nil, err
	}
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
	if err := s.checkVersionPrivs(c); err != nil {
		return nil, err
	}
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
		if _, ok := s.access.groups[g]; !ok {
			return nil, dief("ACL update failed: group '%s' does not exist", g)
		}
		out = append(out, "@"+g)
	}
	return out, nil
}

func updateACL(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isDelete := c.boolParam("delete")
	path := "/" + strings.Trim(c.param("path"), "/")
	if !isDelete && !reACLPath.MatchString(path) {
		return nil, newParamError("path", "invalid ACL path '%s'", path)
	}
	if !c.hasParam("users") && !c.hasParam("groups") && !c.hasParam("tokens") {
		const text = "either 'users', 'groups' or 'tokens' is required."
		return nil, newParamsError(map[string]string{"users": text, "groups": text, "tokens": text})
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

func getDomain(_ *Server, c *call) (any, error) {
	comment, ok := map[string]string{
		"pam": "Linux PAM standard authentication", "pve": "Proxmox VE authentication server",
	}[c.vars["realm"]]
	if !ok {
		return nil, dief("domain '%s' does not exist", c.vars["realm"])
	}
	sum := sha1.Sum([]byte(comment)) // #nosec G401 -- the digest algorithm of Proxmox VE
	return map[string]any{"comment": comment, "type": c.vars["realm"], "digest": hex.EncodeToString(sum[:])}, nil
}

func listDomains(_ *Server, _ *call) (any, error) {
	return []map[string]any{
		{"realm": "pam", "type": "pam", "comment": "Linux PAM standard authentication"},
		{"realm": "pve", "type": "pve", "comment": "Proxmox VE authentication server"},
	}, nil
}
