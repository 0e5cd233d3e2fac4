// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import "net/http"

func networkRoutes() []route {
	kinds := schema{"type": {enum: []string{
		"bridge", "bond", "eth", "alias", "vlan", "fabric", "OVSBridge", "OVSBond", "OVSPort", "OVSIntPort", "vnet",
		"any_bridge", "any_local_bridge", "include_sdn",
	}}}

	return []route{
		newRoute(http.MethodGet, "/nodes/{node}/network", ClassOther, nil, kinds, listNetwork),
	}
}

// listNetwork returns a node's bridges and the one device below them. A bridge is visible to callers
// with SDN.Audit or SDN.Use.
func listNetwork(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := []map[string]any{}
	kind := c.param("type")

	if kind == "" || kind == "eth" {
		rows = append(rows, map[string]any{
			"iface": "eno1", "type": "eth", "active": 1, "exists": 1, "method": "manual", "priority": 1,
		})
	}

	switch kind {
	case "", "bridge", "any_bridge", "any_local_bridge":
		for i, bridge := range s.model.Bridges {
			if !s.hasAnyPrivilege(c.auth, "/sdn/zones/localnetwork/"+bridge, "SDN.Audit", "SDN.Use") {
				continue
			}
			rows = append(rows, map[string]any{
				"iface": bridge, "type": "bridge", "active": 1, "autostart": 1, "method": "static",
				"bridge_ports": "eno1", "bridge_stp": "off", "bridge_fd": "0", "priority": 2 + i,
				"address": "192.0.2.1", "netmask": "24", "cidr": "192.0.2.1/24", "gateway": "192.0.2.254",
				"method6": "manual", "families": []string{"inet"},
			})
		}
	}

	return rows, nil
}
