// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"maps"
	"net/http"
	"slices"
	"strings"
)

func groupRoutes() []route {
	one := "/access/groups/{groupid}"
	allocate := requireAll("/access/groups", "Group.Allocate")
	read := requireAny("/access/groups", "Sys.Audit", "Group.Allocate")
	group := schema{"comment": {}}
	return []route{
		newRoute(http.MethodGet, "/access/groups", ClassOther, nil, nil, listGroups),
		newRoute(http.MethodPost, "/access/groups", ClassOther, allocate,
			group.merge(schema{"groupid": {required: true, check: checkGroupID}}), createGroup),
		newRoute(http.MethodGet, one, ClassOther, read, nil, getGroup),
		newRoute(http.MethodPut, one, ClassOther, allocate, group, updateGroup),
		newRoute(http.MethodDelete, one, ClassOther, allocate, nil, deleteGroup),
	}
}

func checkGroupID(v string) error {
	if !reGroupOrRole.MatchString(v) {
		return formatError("group name '%s' contains invalid characters", v)
	}
	return nil
}

// listMembersOf returns the users of a group. The caller holds s.mu.
func (s *Server) listMembersOf(group string) []string {
	out := []string{}
	for _, id := range slices.Sorted(maps.Keys(s.access.users)) {
		if slices.Contains(s.access.users[id].Groups, group) {
			out = append(out, id)
		}
	}
	return out
}

func listGroups(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.access.groups)) {
		if !s.hasAnyPrivilege(c.auth, "/access/groups/"+id, "User.Modify", "Sys.Audit", "Group.Allocate") {
			continue
		}
		row := map[string]any{"groupid": id, "users": strings.Join(s.listMembersOf(id), ",")}
		if comment := s.access.groups[id]; comment != "" {
			row["comment"] = comment
		}
		out = append(out, row)
	}
	return out, nil
}

func getGroup(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	comment, ok := s.access.groups[c.vars["groupid"]]
	if !ok {
		return nil, dief("group '%s' does not exist", c.vars["groupid"])
	}
	out := map[string]any{"members": s.listMembersOf(c.vars["groupid"])}
	if comment != "" {
		out["comment"] = comment
	}
	return out, nil
}

func createGroup(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.param("groupid")
	if _, ok := s.access.groups[id]; ok {
		return nil, dief("create group failed: group '%s' already exists", id)
	}
	s.access.groups[id] = c.param("comment")
	return nil, nil //nolint:nilnil // "data": null
}

func updateGroup(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.vars["groupid"]
	if _, ok := s.access.groups[id]; !ok {
		return nil, dief("update group failed: group '%s' does not exist", id)
	}
	if c.hasParam("comment") {
		s.access.groups[id] = c.param("comment")
	}
	return nil, nil //nolint:nilnil // "data": null
}

// deleteGroup deletes a group, its memberships and its grants.
func deleteGroup(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.vars["groupid"]
	if _, ok := s.access.groups[id]; !ok {
		return nil, dief("delete group failed: group '%s' does not exist", id)
	}
	delete(s.access.groups, id)
	for name, u := range s.access.users {
		u.Groups = slices.DeleteFunc(slices.Clone(u.Groups), func(g string) bool { return g == id })
		s.access.users[name] = u
	}
	s.access.acl = slices.DeleteFunc(s.access.acl, func(g ACL) bool { return g.Principal == "@"+id })
	return nil, nil //nolint:nilnil // "data": null
}
