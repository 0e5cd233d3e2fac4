// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"crypto/sha1" // #nosec G505 -- the digest Proxmox uses
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// readRoutes are calls that clients make to look around: indexes, and lists of
// what the simulator has none of.
func readRoutes() []route {
	node, vm, store := "/nodes/{node}", "/nodes/{node}/qemu/{vmid}", "/nodes/{node}/storage/{storage}"
	see := needsAny("/storage/{storage}", "Datastore.Audit", "Datastore.AllocateSpace")
	audit, auditNode := needs("/", "Sys.Audit"), needs("/nodes/{node}", "Sys.Audit")
	auditVM := needs("/vms/{vmid}", "VM.Audit")
	get := func(path string, perm permCheck, h handler) route {
		return newRoute(http.MethodGet, path, ClassOther, perm, nil, h)
	}
	graph := schema{"timeframe": {required: true, enum: []string{"hour", "day", "week", "month", "year", "decade"}},
		"cf": {enum: []string{"AVERAGE", "MAX"}}}
	return []route{
		get("/", nil, index("subdir", "version", "cluster", "nodes", "storage", "access", "pools")),
		get("/cluster", nil, index("name", strings.Fields("acme backup backup-info bulk-action ceph config firewall ha jobs "+
			"log mapping metrics notifications nextid options qemu replication resources status tasks sdn")...)),
		get(node, nil, index("name", strings.Fields("aplinfo apt capabilities ceph certificates config disks dns firewall "+
			"hardware hosts journal lxc migrateall netstat network qemu query-oci-repo-tags query-url-metadata replication "+
			"report rrd rrddata scan sdn services spiceshell startall status stopall storage subscription suspendall syslog "+
			"tasks termproxy time version vncshell vzdump wakeonlan")...)),
		get(vm, nil, index("subdir", strings.Fields("config cloudinit pending status unlink vncproxy termproxy migrate "+
			"resize move rrd rrddata monitor agent snapshot spiceproxy sendkey firewall mtunnel remote_migrate")...)),
		get(vm+"/agent", nil, index("name", strings.Fields("exec exec-status file-read file-write fsfreeze-freeze "+
			"fsfreeze-status fsfreeze-thaw fstrim get-fsinfo get-host-name get-memory-block-info get-memory-blocks get-osinfo "+
			"get-time get-timezone get-users get-vcpus info network-get-interfaces ping set-user-password shutdown "+
			"suspend-disk suspend-hybrid suspend-ram")...)),
		get(store, see, index("subdir", strings.Fields("content download-url file-restore import-metadata identity "+
			"oci-registry-pull prunebackups rrd rrddata status upload")...)),
		get("/storage", nil, listStorageConfig),
		get("/storage/{storage}", needs("/storage/{storage}", "Datastore.Allocate"), getStorageConfig),
		get("/cluster/options", nil, getOptions),
		newRoute(http.MethodPut, "/cluster/options", ClassOther, needs("/", "Sys.Modify"), nil, putOptions).free(),
		get("/cluster/ha", audit, index("id", "status", "resources", "groups", "rules")),
		get("/cluster/ha/resources", audit, empty), get("/cluster/ha/rules", audit, empty),
		get("/cluster/ha/groups", audit, haGroups), get("/cluster/ha/status/current", audit, haStatus),
		get("/cluster/replication", nil, empty), get("/cluster/backup", audit, empty),
		get("/cluster/sdn/zones", nil, empty), get("/cluster/sdn/vnets", nil, empty),
		get("/cluster/firewall", nil, index("name", "aliases", "rules", "options", "groups", "ipset", "macros", "refs")),
		get("/cluster/firewall/options", audit, firewallOptions), get("/cluster/firewall/groups", nil, empty),
		get("/cluster/firewall/rules", audit, empty), get("/cluster/mapping/pci", nil, empty),
		get(node+"/firewall/options", auditNode, firewallOptions), get(node+"/firewall/rules", auditNode, empty),
		get(vm+"/firewall", nil, index("name", "rules", "aliases", "ipset", "refs", "options")),
		get(vm+"/firewall/options", auditVM, firewallOptions), get(vm+"/firewall/rules", auditVM, empty),
		get(node+"/lxc", nil, empty),
		newRoute(http.MethodGet, vm+"/rrddata", ClassVM, auditVM, graph, empty),
		newRoute(http.MethodGet, node+"/rrddata", ClassOther, auditNode, graph, empty),
		newRoute(http.MethodGet, store+"/rrddata", ClassOther, see, graph, empty),
		newRoute(http.MethodGet, vm+"/migrate", ClassVM, needs("/vms/{vmid}", "VM.Migrate"), schema{"target": {}}, mayMigrate),
		newRoute(http.MethodGet, vm+"/feature", ClassVM, auditVM, schema{
			"feature": {required: true, enum: []string{"snapshot", "clone", "copy"}}, "snapname": {maxLen: 40},
		}, hasFeature),
	}
}

// free leaves the parameters to the handler.
func (r route) free() route {
	r.freeParams = true
	return r
}

// index lists what is below a path, each under a key.
func index(key string, names ...string) handler {
	return func(*Server, *call) (any, error) {
		out := make([]map[string]any, 0, len(names))
		for _, n := range names {
			out = append(out, map[string]any{key: n})
		}
		return out, nil
	}
}

// empty is a list of what the simulator has none of.
func empty(*Server, *call) (any, error) { return []any{}, nil }

func firewallOptions(*Server, *call) (any, error) {
	sum := sha1.Sum(nil) // #nosec G401 -- of a file that is not there
	return map[string]any{"digest": hex.EncodeToString(sum[:])}, nil
}

func haGroups(*Server, *call) (any, error) {
	return nil, dief("cannot index groups: ha groups have been migrated to rules")
}

func haStatus(s *Server, _ *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return []map[string]any{
		{"id": "quorum", "type": "quorum", "node": s.entryNode(), "quorate": flag(s.quorate()), "status": "OK"},
		{"id": "fencing", "type": "fencing", "node": s.entryNode(), "armed-state": "standby",
			"status": "standby (CRM watchdog standby)"},
	}, nil
}

func (cfg Storage) row(digest string) map[string]any {
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

func (s *Server) storageDigest() string {
	sum := sha1.Sum(fmt.Append(nil, s.model.Storages)) // #nosec G401 -- the digest Proxmox uses
	return hex.EncodeToString(sum[:])
}

func listStorageConfig(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, cfg := range s.model.Storages {
		if s.hasAny(c.auth, "/storage/"+cfg.Name, "Datastore.Audit", "Datastore.AllocateSpace") {
			out = append(out, cfg.row(s.storageDigest()))
		}
	}
	return out, nil
}

func getStorageConfig(s *Server, c *call) (any, error) {
	i := slices.IndexFunc(s.model.Storages, func(cfg Storage) bool { return cfg.Name == c.vars["storage"] })
	if i < 0 {
		return nil, dief("storage '%s' does not exist", c.vars["storage"])
	}
	return s.model.Storages[i].row(s.storageDigest()), nil
}

// getOptions are the datacenter's; who has no Sys.Audit sees those of consoles
// and tags only.
func getOptions(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string]any{"allowed-tags": append([]string{}, s.model.RegisteredTags...)}
	if s.mayLocked(c.auth, "/", "Sys.Audit") != nil {
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

// mayMigrate tells where a VM could move to.
func mayMigrate(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	disks := []map[string]any{}
	for slot, v := range driveOptionsOf(m.conf) {
		d, err := parseDrive(v)
		if st, vol := s.volumeOf(m.node, d.file); err == nil && vol != nil && !st.Shared {
			disks = append(disks, map[string]any{
				"volid": vol.id, "size": vol.size, "cdrom": flag(d.isCDROM()), "drivename": slot, "is_attached": 1, "is_unused": 0,
				"is_cloudinit": flag(d.isCloudInit()), "is_tpmstate": flag(slot == tpmSlot), "is_vmstate": 0, "replicate": 1,
				"shared": 0,
			})
		}
	}
	nodes := []string{}
	for _, n := range s.members() {
		if n.Name != c.node && (len(disks) == 0 || m.running) {
			nodes = append(nodes, n.Name)
		}
	}
	return map[string]any{
		"running": flag(m.running), "local_disks": disks, "local_resources": []string{}, "mapped-resources": []string{},
		"mapped-resource-info": map[string]any{}, "allowed_nodes": nodes, "not_allowed_nodes": map[string]any{},
		"has-dbus-vmstate": 1,
	}, nil
}
