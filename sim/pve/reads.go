// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"crypto/sha1" // #nosec G505 -- the digest algorithm of Proxmox VE
	"encoding/hex"
	"net/http"
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
	graph := schema{"timeframe": {required: true, enum: []string{"hour", "day", "week", "month", "year"}},
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
			"suspend-disk suspend-hybrid suspend-ram")...)).withFreeParams(),
		get(store, access, newIndex("subdir", strings.Fields("content download-url file-restore import-metadata identity "+
			"oci-registry-pull prunebackups rrd rrddata status upload")...)),
		get("/cluster/options", nil, getOptions),
		newRoute(http.MethodPut, "/cluster/options", ClassOther, requireAll("/", "Sys.Modify"), optionSchema(), putOptions),
		get("/cluster/replication", nil, listNothing), get("/cluster/backup", audit, listNothing),
		get("/cluster/sdn/zones", nil, listNothing), get("/cluster/sdn/vnets", nil, listNothing),
		get("/cluster/firewall", nil, newIndex("name", "aliases", "rules", "options", "groups", "ipset", "macros", "refs")).
			withFreeParams(),
		get("/cluster/firewall/options", audit, getFirewallOptions).withFreeParams(), get("/cluster/firewall/groups", nil, listNothing),
		get("/cluster/firewall/rules", audit, listNothing),
		get(node+"/firewall/options", auditNode, getFirewallOptions), get(node+"/firewall/rules", auditNode, listNothing),
		get(vm+"/firewall", nil, newIndex("name", "rules", "aliases", "ipset", "refs", "options")),
		get(vm+"/firewall/options", auditVM, getFirewallOptions), get(vm+"/firewall/rules", auditVM, listNothing),
		get(node+"/lxc", nil, listNothing),
		newRoute(http.MethodGet, vm+"/rrddata", ClassVM, auditVM, graph, listPoints),
		newRoute(http.MethodGet, node+"/rrddata", ClassOther, auditNode, graph, listPoints),
		newRoute(http.MethodGet, store+"/rrddata", ClassOther, access, graph, listPoints),
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
