// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

func poolRoutes() []route {
	allocate := requireAll("/pool/{poolid}", "Pool.Allocate")
	change := schema{
		"comment": {}, "vms": {check: checkVMIDList}, "storage": {}, "delete": {kind: kBool}, "allow-move": {kind: kBool},
	}
	return []route{
		newRoute(http.MethodGet, "/pools", ClassOther, nil,
			schema{"poolid": {}, "type": {enum: []string{"qemu", "lxc", "storage"}, requires: "poolid"}}, listPools),
		newRoute(http.MethodGet, "/pools/{poolid}", ClassListing, requireAll("/pool/{poolid}", "Pool.Audit"),
			schema{"type": {enum: []string{"qemu", "lxc", "storage"}}}, getPool),
		newRoute(http.MethodPost, "/pools", ClassOther, allocate,
			schema{"poolid": {required: true, check: checkPoolID}, "comment": {}}, createPool),
		newRoute(http.MethodPut, "/pools", ClassOther, allocate,
			change.merge(schema{"poolid": {required: true, check: checkPoolID}}), updatePool),
		newRoute(http.MethodPut, "/pools/{poolid}", ClassOther, allocate, change, updatePool),
		newRoute(http.MethodDelete, "/pools", ClassOther, allocate, schema{"poolid": {required: true, check: checkPoolID}}, deletePool),
		newRoute(http.MethodDelete, "/pools/{poolid}", ClassOther, allocate, nil, deletePool),
	}
}

// pool is a resource pool.
type pool struct {
	comment  string
	vms      map[int]bool // also of VMs that do not exist
	storages map[string]bool
}

func newPool() *pool { return &pool{vms: map[int]bool{}, storages: map[string]bool{}} }

// listPools lists the pools that the caller can see. With poolid, it returns that pool and its members to any
// caller, as Proxmox VE 9.2 does.
func listPools(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := c.param("poolid"); id != "" {
		row, err := s.describePool(c, id)
		return []any{row}, err
	}
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.pools)) {
		if s.requireLocked(c.auth, "/pool/"+id, "Pool.Audit") == nil {
			out = append(out, s.pools[id].toRow(id))
		}
	}
	return out, nil
}

func (p *pool) toRow(id string) map[string]any {
	row := map[string]any{"poolid": id}
	if p.comment != "" {
		row["comment"] = p.comment
	}
	return row
}

func getPool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.describePool(c, c.vars["poolid"])
}

// describePool returns a pool with its members of the call's type. The caller holds s.mu.
func (s *Server) describePool(c *call, id string) (map[string]any, error) {
	p, ok := s.pools[id]
	if !ok {
		return nil, dief("pool '%s' does not exist", id)
	}
	kind := c.param("type")
	rows := []map[string]any{}
	for _, vmid := range slices.Sorted(maps.Keys(p.vms)) {
		if m := s.vms[vmid]; m != nil && (kind == "" || kind == "qemu") {
			row := s.newVMResource(m, s.findReportTime(c))
			delete(row, "pool")
			delete(row, "lock")
			rows = append(rows, row)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.storages)) {
		if i := s.findStorageConfig(name); i >= 0 && (kind == "" || kind == "storage") {
			rows = append(rows, s.listStorageRows(s.model.Storages[i])...)
		}
	}
	out := p.toRow(id)
	out["members"] = rows
	return out, nil
}

// poolID returns the pool of a call, from its path or its parameters.
func (c *call) poolID() string { return cmp.Or(c.vars["poolid"], c.param("poolid")) }

func createPool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.poolID()
	if s.pools[id] != nil {
		return nil, dief("create pool failed: pool '%s' already exists", id)
	}
	if parent, _, ok := cutLast(id, "/"); ok && s.pools[parent] == nil {
		return nil, dief("create pool failed: parent '%s' of pool '%s' does not exist", parent, id)
	}
	s.pools[id] = newPool()
	s.pools[id].comment = c.param("comment")
	return nil, nil //nolint:nilnil // "data": null
}

// cutLast cuts a text around the last separator.
func cutLast(text, sep string) (before, after string, found bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}

// updatePool adds VMs and storages to a pool or removes them.
func updatePool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.poolID()
	p := s.pools[id]
	if p == nil {
		return nil, dief("update pools failed: pool '%s' does not exist", id)
	}
	if c.hasParam("comment") {
		p.comment = c.param("comment")
	}
	for _, v := range splitTags(c.param("vms")) {
		if err := s.updatePoolVM(c, id, atoi(v)); err != nil {
			return nil, err
		}
	}
	for _, name := range splitTags(c.param("storage")) {
		switch isDelete := c.boolParam("delete"); {
		case isDelete && !p.storages[name]:
			return nil, dief("update pools failed: Storage '%s' is not a pool member", name)
		case isDelete:
			delete(p.storages, name)
		case p.storages[name]:
			return nil, dief("update pools failed: Storage '%s' is already a pool member", name)
		default:
			p.storages[name] = true
		}
	}
	return nil, nil //nolint:nilnil // "data": null
}

// updatePoolVM adds a VM to a pool or removes it. The caller holds s.mu.
func (s *Server) updatePoolVM(c *call, id string, vmid int) error {
	current := s.findPool(vmid)
	switch {
	case c.boolParam("delete") && current != id:
		return dief("update pools failed: VM %d is not a pool member", vmid)
	case c.boolParam("delete"):
		delete(s.pools[id].vms, vmid)
		return nil
	case current == id:
		return dief("update pools failed: VM %d is already a pool member", vmid)
	case current != "" && !c.boolParam("allow-move"):
		return dief("update pools failed: VM %d belongs already to pool '%s' and 'allow-move' is not set", vmid, current)
	case current != "":
		delete(s.pools[current].vms, vmid)
	}
	s.pools[id].vms[vmid] = true
	return nil
}

func deletePool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.poolID()
	p, ok := s.pools[id]
	if !ok {
		return nil, dief("delete pool failed: pool '%s' does not exist", id)
	}
	content := ""
	for other := range s.pools {
		if strings.HasPrefix(other, id+"/") {
			content = "pool '" + other + "'"
		}
	}
	for _, vmid := range slices.Sorted(maps.Keys(p.vms)) {
		if s.vms[vmid] != nil {
			content = cmp.Or(content, fmt.Sprintf("VM %d", vmid))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.storages)) {
		if s.findStorageConfig(name) >= 0 {
			content = cmp.Or(content, "storage '"+name+"'")
		}
	}
	if content != "" {
		return nil, dief("delete pool failed: pool '%s' is not empty (contains %s)", id, content)
	}
	delete(s.pools, id)
	return nil, nil //nolint:nilnil // "data": null
}

func checkVMIDList(v string) error {
	for _, id := range splitTags(v) {
		if err := checkVMID(id); err != nil {
			return err
		}
	}
	return nil
}
