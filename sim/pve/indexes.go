// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"net/http"
	"strings"
	"time"
)

// exploreRoutes returns the calls for parts of a cluster that the simulator does not have. They respond with
// the indexes and the empty lists of a cluster that does not use these parts.
func exploreRoutes() []route {
	node, vm := "/nodes/{node}", "/nodes/{node}/qemu/{vmid}"
	audit, auditNode := requireAll("/", "Sys.Audit"), requireAll("/nodes/{node}", "Sys.Audit")
	auditVM := requireAll("/vms/{vmid}", "VM.Audit")
	get := func(path string, perm permCheck, h handler) route {
		return newRoute(http.MethodGet, path, ClassOther, perm, nil, h)
	}
	index := func(path string, perm permCheck, key, names string) route {
		return get(path, perm, newIndex(key, strings.Fields(names)...))
	}
	return []route{
		index("/cluster/config", audit, "name", "nodes totem join qdevice apiversion"),
		get("/cluster/config/apiversion", audit, newFixed("1")), get("/cluster/config/totem", audit, newFixed(nil)),
		get("/cluster/config/nodes", audit, listClusterNodes),
		index("/cluster/ha/status", nil, "name", "current manager_status disarm-ha arm-ha"),
		index("/cluster/jobs", nil, "subdir", "schedule-analyze realm-sync"),
		index("/cluster/mapping", nil, "name", "dir pci usb"),
		index("/cluster/metrics", nil, "name", "server"),
		index("/cluster/notifications", nil, "name", "endpoints matchers targets matcher-fields matcher-field-values"),
		index("/cluster/sdn", requireAll("/sdn", "SDN.Audit"), "id", "vnets zones controllers ipams dns fabrics"),
		index(node+"/apt", nil, "id", "changelog repositories update versions"),
		index(node+"/capabilities", nil, "name", "qemu"),
		index(node+"/capabilities/qemu", nil, "name", "cpu cpu-flags machines migration"),
		index(node+"/disks", nil, "name", "list initgpt smart lvm lvmthin directory wipedisk zfs"),
		index(node+"/firewall", nil, "name", "rules options log"),
		index(node+"/hardware", nil, "type", "pci usb"),
		get("/cluster/acme/account", nil, listNothing), get("/cluster/mapping/dir", nil, listNothing),
		get("/cluster/mapping/usb", nil, listNothing), get("/cluster/firewall/aliases", audit, listNothing),
		get("/cluster/firewall/ipset", audit, listNothing), get(node+"/replication", nil, listNothing),
		get(node+"/services", auditNode, listNothing), get(node+"/sdn/zones", nil, listNothing),
		get(vm+"/firewall/aliases", auditVM, listNothing), get(vm+"/firewall/ipset", auditVM, listNothing),
		get(node+"/hardware/pci", requireAny("/", "Sys.Audit", "Sys.Modify"), listNothing),
		get(node+"/hardware/usb", requireAll("/", "Sys.Modify"), listNothing),
		get(node+"/config", audit, newFixed(map[string]any{})), get(node+"/subscription", nil, getSubscription),
		get("/cluster/log", nil, listNothing), get("/access/ticket", nil, newFixed(nil)),
	}
}

// newFixed returns a handler that always returns the value.
func newFixed(value any) handler {
	return func(*Server, *call) (any, error) { return value, nil }
}

// listClusterNodes returns the members as corosync's configuration has them. A single node has none.
func listClusterNodes(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rows := []map[string]any{}
	members := s.listMembers()
	if len(members) == 1 {
		return rows, nil
	}
	for i, n := range members {
		rows = append(rows, map[string]any{
			"name": n.Name, "node": n.Name, "nodeid": string(rune('1' + i)), "quorum_votes": "1", "ring0_addr": s.nodeAddress(n.Name),
		})
	}
	return rows, nil
}

func getSubscription(s *Server, c *call) (any, error) {
	out := map[string]any{
		"status": "notfound", "message": "There is no subscription key",
		"url": "https://www.proxmox.com/en/proxmox-virtual-environment/pricing",
	}
	if s.hasAnyPrivilege(c.auth, "/nodes/"+c.node, "Sys.Audit") {
		out["serverid"] = nil
	}
	return out, nil
}

// graph has the number of points of a graph and their distance.
type graph struct {
	count int
	step  time.Duration
}

// newGraph returns the graph of Proxmox VE 9 for a time frame.
func newGraph(timeframe string) graph {
	return map[string]graph{
		"hour": {60, time.Minute}, "day": {1440, time.Minute}, "week": {335, 30 * time.Minute},
		"month": {248, 3 * time.Hour}, "year": {545, 12 * time.Hour},
	}[timeframe]
}

// listPoints returns the points of a graph without values, as a cluster does that has just started.
func listPoints(s *Server, c *call) (any, error) {
	graph := newGraph(c.param("timeframe"))
	now := s.clk.Now().Truncate(graph.step)
	rows := make([]map[string]any, 0, graph.count)
	for i := range graph.count {
		rows = append(rows, map[string]any{"time": now.Add(-time.Duration(graph.count-i) * graph.step).Unix()})
	}
	return rows, nil
}
