// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"maps"
	"net/http"
	"slices"
)

func poolRoutes() []route {
	return []route{
		newRoute(http.MethodGet, "/pools", ClassOther, nil, schema{"poolid": {}, "type": {}}, listPools),
		newRoute(http.MethodGet, "/pools/{poolid}", ClassListing, needs("/pool/{poolid}", "Pool.Audit"),
			schema{"type": {enum: []string{"qemu", "lxc", "storage"}}}, getPool),
	}
}

// listPools lists the pools the caller may see; with poolid, that pool and its
// members.
func listPools(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := c.param("poolid"); id != "" {
		if err := s.mayLocked(c.auth, "/pool/"+id, "Pool.Audit"); err != nil {
			return nil, err
		}
		p, err := s.pool(id)
		if err != nil {
			return nil, err
		}
		p["poolid"] = id
		return []any{p}, nil
	}
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.pools)) {
		if s.mayLocked(c.auth, "/pool/"+id, "Pool.Audit") == nil {
			out = append(out, map[string]any{"poolid": id})
		}
	}
	return out, nil
}

func getPool(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, err := s.pool(c.vars["poolid"])
	if err == nil {
		p["poolid"] = c.vars["poolid"]
	}
	return p, err
}

func (s *Server) pool(id string) (map[string]any, error) {
	members, ok := s.pools[id]
	if !ok {
		return nil, dief("pool '%s' does not exist", id)
	}
	rows := []map[string]any{}
	for _, vmid := range slices.Sorted(maps.Keys(members)) {
		if m := s.vms[vmid]; m != nil {
			rows = append(rows, s.vmResource(m, s.broadcastTime()))
		}
	}
	return map[string]any{"members": rows}, nil
}
