// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"net/http"
	"slices"
)

func networkRoutes() []route {
	kinds := schema{"type": {enum: []string{
		"bridge", "bond", "eth", "alias", "vlan", "fabric", "OVSBridge", "OVSBond", "OVSPort", "OVSIntPort", "vnet",
		"any_bridge", "any_local_bridge", "include_sdn",
	}}}

	return []route{
		newRoute(http.MethodGet, "/nodes/{node}/network", ClassOther, nil, kinds, listNetwork),
		newRoute(http.MethodGet, "/nodes/{node}/network/{iface}", ClassOther, requireAll("/nodes/{node}", "Sys.Audit"), nil,
			getInterface),
	}
}

// nodeNIC is the network device of each node.
const nodeNIC = "eth0"

// nodeAddress returns the address of a node, by its position in the model. The caller holds s.mu.
func (s *Server) nodeAddress(name string) string {
	const first = 11
	i := slices.IndexFunc(s.model.Nodes, func(n Node) bool { return n.Name == name })
	return fmt.Sprintf("192.0.2.%d", first+i)
}

// listNetwork returns a node's bridges and its only physical network device, which is the port of all bridges. A bridge
// is visible to callers with SDN.Audit or SDN.Use.
func listNetwork(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return slices.DeleteFunc(s.listInterfaces(c.node), func(row map[string]any) bool {
		bridge := row["type"] == "bridge"
		switch kind := c.param("type"); kind {
		case "", "include_sdn": // Proxmox VE would also list VNets. The simulator has none
		case "any_bridge", "any_local_bridge":
			if !bridge {
				return true
			}
		default:
			if row["type"] != kind {
				return true
			}
		}

		return bridge && !s.hasAnyPrivilege(c.auth, fmt.Sprint("/sdn/zones/localnetwork/", row["iface"]), "SDN.Audit", "SDN.Use")
	}), nil
}

// listInterfaces returns all devices of a node. The caller holds s.mu.
func (s *Server) listInterfaces(node string) []map[string]any {
	address := s.nodeAddress(node)
	rows := []map[string]any{{
		"iface": nodeNIC, "type": "eth", "active": 1, "method": "manual", "method6": "manual", "priority": 3,
		"families": []string{"inet"},
	}}

	for i, bridge := range s.model.Bridges {
		rows = append(rows, map[string]any{
			"iface": bridge, "type": "bridge", "active": 1, "autostart": 1, "method": "static",
			"bridge_ports": nodeNIC, "bridge_stp": "off", "bridge_fd": "0", "priority": 4 + i,
			"address": address, "netmask": "24", "cidr": address + "/24", "gateway": "192.0.2.1",
			"method6": "manual", "families": []string{"inet"},
		})
	}

	return rows
}

// getInterface returns one device of a node.
func getInterface(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, row := range s.listInterfaces(c.node) {
		if row["iface"] == c.vars["iface"] {
			delete(row, "iface")

			return row, nil
		}
	}

	return nil, newParamError("iface", "interface does not exist")
}
