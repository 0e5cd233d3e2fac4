// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// haRoutes returns the calls for high availability. Resources and rules are kept and listed, but no manager acts on
// them.
func haRoutes() []route {
	audit, manage := requireAll("/", "Sys.Audit"), requireAll("/", "Sys.Console")
	change := schema{
		"comment": {maxLen: 4096}, "state": {enum: []string{"started", "stopped", "enabled", "disabled", "ignored"}},
		"max_restart": {kind: kInt}, "max_relocate": {kind: kInt}, "failback": {kind: kBool}, "group": {check: checkConfigID},
		"delete": {}, "digest": {},
	}
	rule := schema{
		"nodes": {}, "resources": {}, "comment": {}, "disable": {kind: kBool}, "strict": {kind: kBool},
		"affinity": {enum: []string{"positive", "negative"}}, "delete": {}, "digest": {},
	}
	types := param{required: true, enum: []string{"node-affinity", "resource-affinity"}}
	var routes []route
	for _, object := range []struct {
		kind, id       string
		create, change schema
	}{
		{"resources", "sid", change.merge(schema{"sid": {required: true, check: checkServiceID}, "type": {}}), change},
		{"rules", "rule", rule.merge(schema{"rule": {required: true, check: checkConfigID}, "type": types}),
			rule.merge(schema{"type": types})},
	} {
		list, h := "/cluster/ha/"+object.kind, haObjects{kind: object.kind, id: object.id}
		one := list + "/{" + object.id + "}"
		routes = append(routes,
			newRoute(http.MethodGet, list, ClassOther, audit, schema{"type": {}, "resource": {}}, h.list),
			newRoute(http.MethodGet, one, ClassOther, audit, nil, h.get),
			newRoute(http.MethodPost, list, ClassOther, manage, object.create, h.create),
			newRoute(http.MethodPut, one, ClassOther, manage, object.change, h.update),
			newRoute(http.MethodDelete, one, ClassOther, manage, schema{"purge": {kind: kBool}}, h.remove))
	}
	return append(routes,
		newRoute(http.MethodGet, "/cluster/ha", ClassOther, audit, nil, newIndex("id", "status", "resources", "groups", "rules")),
		newRoute(http.MethodGet, "/cluster/ha/groups", ClassOther, audit, nil, newGroupsHandler("index groups")),
		newRoute(http.MethodPost, "/cluster/ha/groups", ClassOther, manage,
			schema{"group": {required: true, check: checkConfigID}, "nodes": {required: true}, "comment": {}, "restricted": {kind: kBool},
				"nofailback": {kind: kBool}, "type": {}}, newGroupsHandler("create group")),
		newRoute(http.MethodGet, "/cluster/ha/status/current", ClassOther, audit, nil, getHAStatus),
		newRoute(http.MethodGet, "/cluster/ha/status/manager_status", ClassOther, audit, nil, getHAManager))
}

var reServiceID = regexp.MustCompile(`^(?:(?:vm|ct):)?\d+$`)

func checkServiceID(v string) error {
	if !reServiceID.MatchString(v) {
		return formatError("value does not look like a valid HA resource ID")
	}
	return nil
}

// haObjects handles the calls for one kind of objects: resources or rules. The ID is in the path, or in the
// parameter of that name.
type haObjects struct{ kind, id string }

// find returns the key of the call's object and the object, or nil. The caller holds s.mu.
func (h haObjects) find(s *Server, c *call) (string, map[string]any) {
	id := cmp.Or(c.vars[h.id], c.param(h.id))
	if h.kind == "resources" && !strings.Contains(id, ":") {
		id = "vm:" + id
	}
	return id, s.ha[h.kind+"/"+id]
}

func (h haObjects) list(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(s.ha)) {
		if strings.HasPrefix(key, h.kind+"/") {
			out = append(out, s.ha[key])
		}
	}
	return out, nil
}

func (h haObjects) get(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, object := h.find(s, c)
	if object == nil {
		return nil, dief("no such %s '%s'", strings.TrimSuffix(h.kind, "s"), id)
	}
	return object, nil
}

func (h haObjects) create(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, object := h.find(s, c)
	name := strings.TrimSuffix(h.kind, "s")
	switch {
	case object != nil:
		return nil, dief("%s '%s' already defined", name, id)
	case h.kind == "resources" && s.vms[atoi(strings.TrimPrefix(id, "vm:"))] == nil:
		return nil, dief("%s '%s' does not exist in cluster", name, id)
	}
	object = map[string]any{h.id: id}
	if h.kind == "resources" {
		object["type"], object["state"] = "vm", "started"
	}
	c.applyTo(object, h.id)
	s.ha[h.kind+"/"+id] = object
	return nil, nil //nolint:nilnil // "data": null
}

// applyTo sets the fields of an object that the call has, and removes those that its parameter delete names.
func (c *call) applyTo(object map[string]any, id string) {
	for k, v := range c.params {
		if k != id && k != "delete" && k != "digest" {
			object[k] = v
		}
	}
	for _, k := range splitTags(c.param("delete")) {
		delete(object, k)
	}
}

func (h haObjects) update(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, object := h.find(s, c)
	if object == nil {
		return nil, dief("no such %s '%s'", strings.TrimSuffix(h.kind, "s"), id)
	}
	c.applyTo(object, h.id)
	return nil, nil //nolint:nilnil // "data": null
}

func (h haObjects) remove(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, object := h.find(s, c)
	if object == nil && h.kind == "resources" {
		return nil, dief("cannot delete service '%s', not HA managed!", id)
	}
	delete(s.ha, h.kind+"/"+id)
	return nil, nil //nolint:nilnil // "data": null
}

// newGroupsHandler returns the handler of calls for groups, which version 9 has replaced with rules.
func newGroupsHandler(action string) handler {
	return func(*Server, *call) (any, error) {
		return nil, dief("cannot %s: ha groups have been migrated to rules", action)
	}
}

// isHAManaged reports whether a VM is a resource. The caller holds s.mu.
func (s *Server) isHAManaged(vmid int) bool { return s.ha[fmt.Sprintf("resources/vm:%d", vmid)] != nil }

func getHAStatus(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []map[string]any{
		{"id": "quorum", "type": "quorum", "node": s.findEntryNode(), "quorate": boolToInt(s.isQuorate()), "status": "OK"},
		{"id": "fencing", "type": "fencing", "node": s.findEntryNode(), "armed-state": "standby",
			"status": "standby (CRM watchdog standby)"},
	}, nil
}

func getHAManager(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return map[string]any{
		"manager_status": map[string]any{"node_status": map[string]any{}},
		"quorum":         map[string]any{"node": s.findEntryNode(), "quorate": strconv.Itoa(boolToInt(s.isQuorate()))},
	}, nil
}
