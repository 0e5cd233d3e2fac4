// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"crypto/sha1" // #nosec G505 -- the digest algorithm of Proxmox VE
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// readRoutes returns the calls with which clients explore a cluster: indexes, and lists that are
// always empty in the simulator.
func readRoutes() []route {
	node, vm, store := "/nodes/{node}", "/nodes/{node}/qemu/{vmid}", "/nodes/{node}/storage/{storage}"
	access := requireAny("/storage/{storage}", "Datastore.Audit", "Datastore.AllocateSpace")
	audit, auditNode := requireAll("/", "Sys.Audit"), requireAll("/nodes/{node}", "Sys.Audit")
	auditVM := requireAll("/vms/{vmid}", "VM.Audit")
	get := func(path string, perm permCheck, h handler) route {
		return newRoute(http.MethodGet, path, ClassOther, perm, nil, h)
	}
	graph := schema{"timeframe": {required: true, enum: []string{"hour", "day", "week", "month", "year", "decade"}},
		"cf": {enum: []string{"AVERAGE", "MAX"}}}
	return []route{
		get("/", nil, newIndex("subdir", "version", "cluster", "nodes", "storage", "access", "pools")),
		get("/cluster", nil, newIndex("name", strings.Fields("acme backup backup-info bulk-action ceph config firewall ha jobs "+
			"log mapping metrics notifications nextid options qemu replication resources status tasks sdn")...)),
		get(node, nil, newIndex("name", strings.Fields("aplinfo apt capabilities ceph certificates config disks dns firewall "+
			"hardware hosts journal lxc migrateall netstat network qemu query-oci-repo-tags query-url-metadata replication "+
			"report rrd rrddata scan sdn services spiceshell startall status stopall storage subscription suspendall syslog "+
			"tasks termproxy time version vncshell vzdump wakeonlan")...)),
		get(vm, nil, newIndex("subdir", strings.Fields("config cloudinit pending status unlink vncproxy termproxy migrate "+
			"resize move rrd rrddata monitor agent snapshot spiceproxy sendkey firewall mtunnel remote_migrate")...)),
		get(vm+"/agent", nil, newIndex("name", strings.Fields("exec exec-status file-read file-write fsfreeze-freeze "+
			"fsfreeze-status fsfreeze-thaw fstrim get-fsinfo get-host-name get-memory-block-info get-memory-blocks get-osinfo "+
			"get-time get-timezone get-users get-vcpus info network-get-interfaces ping set-user-password shutdown "+
			"suspend-disk suspend-hybrid suspend-ram")...)),
		get(store, access, newIndex("subdir", strings.Fields("content download-url file-restore import-metadata identity "+
			"oci-registry-pull prunebackups rrd rrddata status upload")...)),
		get("/storage", nil, listStorageConfig),
		get("/storage/{storage}", requireAll("/storage/{storage}", "Datastore.Allocate"), getStorageConfig),
		get("/cluster/options", nil, getOptions),
		newRoute(http.MethodPut, "/cluster/options", ClassOther, requireAll("/", "Sys.Modify"), nil, putOptions).withFreeParams(),
		get("/cluster/ha", audit, newIndex("id", "status", "resources", "groups", "rules")),
		get("/cluster/ha/resources", audit, listNothing), get("/cluster/ha/rules", audit, listNothing),
		get("/cluster/ha/groups", audit, listHAGroups), get("/cluster/ha/status/current", audit, getHAStatus),
		get("/cluster/replication", nil, listNothing), get("/cluster/backup", audit, listNothing),
		get("/cluster/sdn/zones", nil, listNothing), get("/cluster/sdn/vnets", nil, listNothing),
		get("/cluster/firewall", nil, newIndex("name", "aliases", "rules", "options", "groups", "ipset", "macros", "refs")),
		get("/cluster/firewall/options", audit, getFirewallOptions), get("/cluster/firewall/groups", nil, listNothing),
		get("/cluster/firewall/rules", audit, listNothing), get("/cluster/mapping/pci", nil, listNothing),
		get(node+"/firewall/options", auditNode, getFirewallOptions), get(node+"/firewall/rules", auditNode, listNothing),
		get(vm+"/firewall", nil, newIndex("name", "rules", "aliases", "ipset", "refs", "options")),
		get(vm+"/firewall/options", auditVM, getFirewallOptions), get(vm+"/firewall/rules", auditVM, listNothing),
		get(node+"/lxc", nil, listNothing),
		newRoute(http.MethodGet, vm+"/rrddata", ClassVM, auditVM, graph, listNothing),
		newRoute(http.MethodGet, node+"/rrddata", ClassOther, auditNode, graph, listNothing),
		newRoute(http.MethodGet, store+"/rrddata", ClassOther, access, graph, listNothing),
		newRoute(http.MethodGet, vm+"/migrate", ClassVM, requireAll("/vms/{vmid}", "VM.Migrate"), schema{"target": {}},
			getMigrationTargets),
		newRoute(http.MethodGet, vm+"/feature", ClassVM, auditVM, schema{
			"feature": {required: true, enum: []string{"snapshot", "clone", "copy"}}, "snapname": {maxLen: 40},
		}, getFeature),
	}
}

// withFreeParams marks a method whose handler validates the parameters itself.
func (r route) withFreeParams() route {
	r.freeParams = true
	return r
}

// newIndex returns a handler that lists the names below a path, each under the key.
func newIndex(key string, names ...string) handler {
	return func(*Server, *call) (any, error) {
		out := make([]map[string]any, 0, len(names))
		for _, n := range names {
			out = append(out, map[string]any{key: n})
		}
		return out, nil
	}
}

// listNothing returns an empty list.
func listNothing(*Server, *call) (any, error) { return []any{}, nil }

func getFirewallOptions(*Server, *call) (any, error) {
	sum := sha1.Sum(nil) // #nosec G401 -- the digest of a missing file
	return map[string]any{"digest": hex.EncodeToString(sum[:])}, nil
}

func listHAGroups(*Server, *call) (any, error) {
	return nil, dief("cannot index groups: ha groups have been migrated to rules")
}

func getHAStatus(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []map[string]any{
		{"id": "quorum", "type": "quorum", "node": s.findEntryNode(), "quorate": boolToInt(s.isQuorate()), "status": "OK"},
		{"id": "fencing", "type": "fencing", "node": s.findEntryNode(), "armed-state": "standby",
			"status": "standby (CRM watchdog standby)"},
	}, nil
}

func (cfg Storage) toRow(digest string) map[string]any {
	out := map[string]any{
		"storage": cfg.Name, "type": cfg.Type, "content": strings.Join(cfg.Content, ","), "digest": digest,
	}
	switch cfg.Type {
	case "dir", "nfs", "cifs":
		out["path"] = "/var/lib/" + cfg.Name
	case "lvmthin":
		out["vgname"], out["thinpool"] = "pve", "data"
	case "zfspool", "rbd":
		out["pool"] = cfg.Name
	}
	if cfg.Shared {
		out["shared"] = 1
	}
	if cfg.Disabled {
		out["disable"] = 1
	}
	if len(cfg.Nodes) > 0 {
		out["nodes"] = strings.Join(cfg.Nodes, ",")
	}
	return out
}

func (s *Server) computeStorageDigest() string {
	sum := sha1.Sum(fmt.Append(nil, s.model.Storages)) // #nosec G401 -- the digest algorithm of Proxmox VE
	return hex.EncodeToString(sum[:])
}

func listStorageConfig(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, cfg := range s.model.Storages {
		if s.hasAnyPrivilege(c.auth, "/storage/"+cfg.Name, "Datastore.Audit", "Datastore.AllocateSpace") {
			out = append(out, cfg.toRow(s.computeStorageDigest()))
		}
	}
	return out, nil
}

func getStorageConfig(s *Server, c *call) (any, error) {
	i := slices.IndexFunc(s.model.Storages, func(cfg Storage) bool { return cfg.Name == c.vars["storage"] })
	if i < 0 {
		return nil, dief("storage '%s' does not exist", c.vars["storage"])
	}
	return s.model.Storages[i].toRow(s.computeStorageDigest()), nil
}

// getOptions returns the datacenter options. A caller without Sys.Audit sees only the allowed tags.
func getOptions(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]any{"allowed-tags": append([]string{}, s.model.RegisteredTags...)}
	if s.requireLocked(c.auth, "/", "Sys.Audit") != nil {
		return out, nil
	}
	out["mac_prefix"] = "BC:24:11"
	for k, v := range s.options {
		out[k] = v
	}
	return out, nil
}

func putOptions(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, v := range c.params {
		if k != "delete" && k != "digest" {
			s.options[k] = v
		}
	}
	for _, k := range splitTags(c.param("delete")) {
		delete(s.options, k)
	}
	return nil, nil //nolint:nilnil // "data": null
}

// getMigrationTargets returns the nodes to which a VM can be migrated.
func getMigrationTargets(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	disks := []map[string]any{}
	for slot, v := range selectDrives(m.conf) {
		d, err := parseDrive(v)
		if st, vol := s.findVolume(m.node, d.file); err == nil && vol != nil && !st.Shared {
			disks = append(disks, map[string]any{
				"volid": vol.id, "size": vol.size, "cdrom": boolToInt(d.isCDROM()), "drivename": slot, "is_attached": 1, "is_unused": 0,
				"is_cloudinit": boolToInt(d.isCloudInit()), "is_tpmstate": boolToInt(slot == tpmSlot), "is_vmstate": 0, "replicate": 1,
				"shared": 0,
			})
		}
	}
	nodes := []string{}
	for _, n := range s.listMembers() {
		if n.Name != c.node && (len(disks) == 0 || m.running) {
			nodes = append(nodes, n.Name)
		}
	}
	return map[string]any{
		"running": boolToInt(m.running), "local_disks": disks, "local_resources": []string{}, "mapped-resources": []string{},
		"mapped-resource-info": map[string]any{}, "allowed_nodes": nodes, "not_allowed_nodes": map[string]any{},
		"has-dbus-vmstate": 1,
	}, nil
}
