// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"
)

func clusterRoutes() []route {
	resources := schema{"type": {enum: []string{"vm", "storage", "node", "sdn"}}}
	return []route{
		newRoute(http.MethodGet, "/cluster/resources", ClassListing, nil, resources, listResources),
		newRoute(http.MethodGet, "/cluster/nextid", ClassOther, nil, schema{"vmid": newVMIDParam()}, getNextID),
		newRoute(http.MethodGet, "/cluster/status", ClassOther, requireAll("/", "Sys.Audit"), nil, getClusterStatus),
	}
}

func nodeRoutes() []route {
	return []route{
		newRoute(http.MethodGet, "/nodes", ClassOther, nil, nil, listNodes),
		newRoute(http.MethodGet, "/nodes/{node}/status", ClassOther, requireAll("/nodes/{node}", "Sys.Audit"), nil, getNodeStatus),
		newRoute(http.MethodGet, "/nodes/{node}/version", ClassOther, nil, nil, getVersion),
	}
}

// listResources is the listing of the whole cluster. The node, lock, tags and pool of a VM come from
// the cluster file system and are current. Its name, status and load come from the last broadcast.
func listResources(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	reportTime := s.findReportTime(c)
	out := []map[string]any{}
	kind := c.param("type")
	if kind == "" || kind == "vm" {
		for _, id := range slices.Sorted(maps.Keys(s.vms)) {
			if s.requireLocked(c.auth, vmPath(id), "VM.Audit") == nil {
				row := s.newVMResource(s.vms[id], reportTime)
				if pool := s.findPool(id); pool != "" && s.requireLocked(c.auth, "/pool/"+pool, "Pool.Audit") != nil {
					delete(row, "pool")
				}
				out = append(out, row)
			}
		}
	}
	if kind == "" || kind == "node" {
		for _, n := range s.listMembers() {
			row := s.newNodeRow(s.nodes[n.Name], c.auth)
			if row["status"] != "unknown" {
				row["cgroup-mode"] = 2
			}
			out = append(out, row)
		}
	}
	if kind == "" {
		out = append(out, s.listZones(c)...)
	}
	if kind == "" { // a filter by type excludes pools
		for _, id := range slices.Sorted(maps.Keys(s.pools)) {
			if s.requireLocked(c.auth, "/pool/"+id, "Pool.Audit") == nil {
				out = append(out, s.newPoolResource(id, reportTime))
			}
		}
	}
	if kind == "" || kind == "storage" {
		out = append(out, s.listStorageResources(c)...)
	}
	return out, nil
}

// listZones returns the network of each node, if the caller can see it. The caller holds s.mu.
func (s *Server) listZones(c *call) []map[string]any {
	if s.requireLocked(c.auth, "/sdn/zones/localnetwork", "SDN.Audit") != nil {
		return nil
	}
	var out []map[string]any
	for _, n := range s.listMembers() {
		out = append(out, map[string]any{
			"id": "network/" + n.Name + "/zone/localnetwork", "type": "network", "network": "localnetwork",
			"network-type": "zone", "node": n.Name, "status": "ok",
		})
	}
	return out
}

// newPoolResource returns a pool with the sums of its running VMs. The caller holds s.mu.
func (s *Server) newPoolResource(id string, reportTime time.Time) map[string]any {
	row := map[string]any{"id": "/pool/" + id, "type": "pool", "pool": id}
	var mem, maxMem, uptime int64
	cpus, isRunning := 0, false
	for vmid := range s.pools[id].vms {
		m := s.vms[vmid]
		if m == nil {
			continue
		}
		at, ok := s.lastReport(m.node, reportTime)
		seen, isSeen := s.findSighting(m.id, at)
		if ok && isSeen && seen.status == "running" {
			mem, maxMem, cpus, isRunning = mem+seen.mem/2, maxMem+seen.mem, cpus+seen.cpus, true //nolint:mnd // an arbitrary load
			uptime = max(uptime, int64(at.Sub(seen.started).Seconds()))
		}
	}
	if isRunning {
		row["cpu"] = 0.01 //nolint:mnd // an arbitrary load
		row["maxcpu"], row["mem"], row["maxmem"], row["uptime"] = cpus, mem, maxMem, uptime
	}
	return row
}

// findReportTime returns the time of the broadcast from which a call lists VMs.
func (s *Server) findReportTime(c *call) time.Time {
	reportTime := s.broadcastTime()
	if f := findFault(c.faults, FaultStale); f != nil {
		reportTime = reportTime.Add(-max(f.Delay, s.model.StatusLag))
	}
	return reportTime
}

func (s *Server) newVMResource(m *machine, reportTime time.Time) map[string]any {
	row := map[string]any{
		"id": "qemu/" + strconv.Itoa(m.id), "type": "qemu", "vmid": m.id, "node": m.node,
		"status": "unknown",
	}
	for _, k := range []string{"lock", "tags"} {
		if v := m.conf[k]; v != "" {
			row[k] = v
		}
	}
	if p := s.findPool(m.id); p != "" {
		row["pool"] = p
	}
	reportTime, ok := s.lastReport(m.node, reportTime)
	if !ok {
		return row
	}
	seen, ok := s.findSighting(m.id, reportTime)
	if !ok {
		return row
	}
	row["name"], row["status"], row["template"] = seen.name, seen.status, boolToInt(seen.template)
	row["maxcpu"], row["maxmem"], row["maxdisk"] = seen.cpus, seen.mem, seen.disk
	for _, k := range []string{"cpu", "mem", "memhost", "disk", "uptime", "netin", "netout", "diskread", "diskwrite"} {
		row[k] = 0
	}
	if seen.status == "running" {
		row["cpu"], row["mem"] = 0.01, seen.mem/2 //nolint:mnd // an arbitrary load
		row["uptime"] = max(0, int64(reportTime.Sub(seen.started).Seconds()))
	}
	return row
}

func (s *Server) listStorageResources(c *call) []map[string]any {
	var out []map[string]any
	for _, cfg := range s.model.Storages {
		if s.hasAnyPrivilege(c.auth, "/storage/"+cfg.Name, "Datastore.Audit", "Datastore.AllocateSpace") {
			out = append(out, s.listStorageRows(cfg)...)
		}
	}
	return out
}

// listStorageRows returns a storage on each of its nodes, as the cluster listing and pools have it. The caller
// holds s.mu.
func (s *Server) listStorageRows(cfg Storage) []map[string]any {
	var out []map[string]any
	for _, n := range s.listMembers() {
		st, err := s.findStore(n.Name, cfg.Name)
		if err != nil {
			continue
		}
		d := st.describe()
		row := map[string]any{
			"id": fmt.Sprintf("storage/%s/%s", n.Name, cfg.Name), "type": "storage", "storage": cfg.Name, "node": n.Name,
			"status": "unknown", "plugintype": cfg.Type, "content": d["content"], "shared": d["shared"],
		}
		if _, ok := s.lastReport(n.Name, s.clk.Now()); ok && !cfg.Disabled {
			row["status"], row["disk"], row["maxdisk"] = "available", d["used"], d["total"]
		}
		out = append(out, row)
	}
	return out
}

// getNextID checks a VMID or returns the lowest free one. It reserves nothing.
func getNextID(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.hasParam("vmid") {
		if s.vms[c.intParam("vmid")] != nil {
			return nil, newParamError("vmid", "VM %s already exists", c.param("vmid"))
		}
		return c.param("vmid"), nil
	}
	low, high := s.findNextIDs()
	for id := low; id <= high; id++ {
		if s.vms[id] == nil {
			return strconv.Itoa(id), nil
		}
	}
	return nil, dief("unable to get any free VMID in range [%d, %d]", low, high)
}

// usedMemory returns the memory in use on a node. The caller holds s.mu.
func (s *Server) usedMemory(name string) (mem int64) {
	for _, m := range s.vms {
		if m.node == name { // includes VMs that are being started
			mem += m.memory
		}
	}
	return mem
}

func listNodes(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, n := range s.listMembers() {
		row := s.newNodeRow(s.nodes[n.Name], c.auth)
		if certs := s.certs.Load(); certs != nil {
			row["ssl_fingerprint"] = certs.fingerprint
		}
		out = append(out, row)
	}
	return out, nil
}

// kernel is the release of the nodes' kernel.
const kernel = "6.17.2-1-pve"

func getNodeStatus(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[c.node]
	used := s.usedMemory(n.Name)
	return map[string]any{
		"cpu": 0.01, "uptime": int64(s.clk.Since(n.started).Seconds()),
		"memory": map[string]any{"used": used, "total": n.Memory, "free": n.Memory - used, "available": n.Memory - used},
		"cpuinfo": map[string]any{
			"cpus": n.CPUs, "cores": n.CPUs, "sockets": 1, "model": "Simulated CPU", "family": "26", "flags": "hypervisor",
			"hvm": "1", "mhz": "2000.000", "user_hz": 100, "vendor": "Simulated",
		},
		"boot-info": map[string]any{"mode": "legacy-bios"}, "idle": 0, "wait": 0, "ksm": map[string]any{"shared": 0},
		"kversion": "Linux " + kernel + " #1 SMP", "current-kernel": map[string]any{
			"machine": "x86_64", "release": kernel, "sysname": "Linux", "version": "#1 SMP",
		},
		"loadavg": []string{"0.10", "0.20", "0.30"}, "pveversion": "pve-manager/" + s.version() + "/0000000000000000",
		"rootfs": map[string]any{"used": 0, "total": 100 * gib, "free": 100 * gib, "avail": 100 * gib},
		"swap":   map[string]any{"used": 0, "total": 0, "free": 0},
	}, nil
}
