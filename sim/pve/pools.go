// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"maps"
	"net/http"
	"slices"
)

func poolRoutes() []route {
	allocate := requireAll("/pool/{poolid}", "Pool.Allocate")
	change := schema{
		"comment": {}, "vms": {}, "storage": {}, "delete": {kind: kBool}, "allow-move": {kind: kBool},
	}
	return []route{
		newRoute(http.MethodGet, "/pools", ClassOther, nil, schema{"poolid": {}, "type": {}}, listPools),
		newRoute(http.MethodGet, "/pools/{poolid}", ClassListing, requireAll("/pool/{poolid}", "Pool.Audit"),
			schema{"type": {enum: []string{"qemu", "lxc", "storage"}}}, getPool),
		newRoute(http.MethodPost, "/pools", ClassOther, allocate,
			schema{"poolid": {required: true, check: checkPoolID}, "comment": {}}, createPool),
		newRoute(http.MethodPut, "/pools", ClassOther, allocate, change.merge(schema{"poolid": {required: true}}), updatePool),
		newRoute(http.MethodPut, "/pools/{poolid}", ClassOther, allocate, change, updatePool),
		newRoute(http.MethodDelete, "/pools", ClassOther, allocate, schema{"poolid": {required: true}}, deletePool),
		newRoute(http.MethodDelete, "/pools/{poolid}", ClassOther, allocate, nil, deletePool),
	}
}

// listPools lists the pools that the caller can see. With poolid, it returns that pool and its
// members.
func listPools(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := c.param("poolid"); id != "" {
		if err := s.requireLocked(c.auth, "/pool/"+id, "Pool.Audit"); err != nil {
			return nil, err
		}
		p, err := s.describePool(id)
		if err != nil {
			return nil, err
		}
		p["poolid"] = id
		return []any{p}, nil
	}
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.pools)) {
		if s.requireLocked(c.auth, "/pool/"+id, "Pool.Audit") == nil {
			out = append(out, map[string]any{"poolid": id})
		}
	}
	return out, nil
}

func getPool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.describePool(c.vars["poolid"])
	if err == nil {
		p["poolid"] = c.vars["poolid"]
	}
	return p, err
}

func (s *Server) describePool(id string) (map[string]any, error) {
	members, ok := s.pools[id]
	if !ok {
		return nil, dief("pool '%s' does not exist", id)
	}
	rows := []map[string]any{}
	for _, vmid := range slices.Sorted(maps.Keys(members)) {
		if m := s.vms[vmid]; m != nil {
			rows = append(rows, s.newVMResource(m, s.broadcastTime()))
		}
	}
	return map[string]any{"members": rows}, nil
}

// poolID returns the pool of a call, from its path or its parameters.
func (c *call) poolID() string { return firstNonEmpty(c.vars["poolid"], c.param("poolid")) }

func createPool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.poolID()
	if s.pools[id] != nil {
		return nil, dief("create pool failed: pool '%s' already exists", id)
	}
	s.pools[id] = map[int]bool{}
	return nil, nil //nolint:nilnil // "data": null
}

// updatePool adds VMs to a pool or removes them. Storages in pools are not simulated.
func updatePool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.poolID()
	members := s.pools[id]
	if members == nil {
		return nil, dief("update pools failed: pool '%s' does not exist", id)
	}
	if c.hasParam("storage") {
		return nil, dief("update pools failed: storages in pools are not simulated")
	}
	for _, v := range splitTags(c.param("vms")) {
		vmid := atoi(v)
		current := s.findPool(vmid)
		switch {
		case c.boolParam("delete") && current != id:
			return nil, dief("update pools failed: VM %d is not a pool member", vmid)
		case c.boolParam("delete"):
			delete(members, vmid)
			continue
		case current == id:
			return nil, dief("update pools failed: VM %d is already a pool member", vmid)
		case current != "" && !c.boolParam("allow-move"):
			return nil, dief("update pools failed: VM %d belongs already to pool '%s' and 'allow-move' is not set", vmid, current)
		case current != "":
			delete(s.pools[current], vmid)
		}
		members[vmid] = true
	}
	return nil, nil //nolint:nilnil // "data": null
}

func deletePool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := c.poolID()
	members, ok := s.pools[id]
	if !ok {
		return nil, dief("delete pool failed: pool '%s' does not exist", id)
	}
	for _, vmid := range slices.Sorted(maps.Keys(members)) {
		return nil, dief("delete pool failed: pool '%s' is not empty (contains VM %d)", id, vmid)
	}
	delete(s.pools, id)
	return nil, nil //nolint:nilnil // "data": null
}
