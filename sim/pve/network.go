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
		newRoute(http.MethodGet, "/nodes/{node}/network", ClassOther, needs("/nodes/{node}", "Sys.Audit"), kinds, listNetwork),
	}
}

// listNetwork gives a node's bridges and the one device below them.
func listNetwork(s *Server, c *call) (any, error) {
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
			rows = append(rows, map[string]any{
				"iface": bridge, "type": "bridge", "active": 1, "autostart": 1, "method": "static",
				"bridge_ports": "eno1", "bridge_stp": "off", "bridge_fd": "0", "priority": 2 + i,
			})
		}
	}

	return rows, nil
}
