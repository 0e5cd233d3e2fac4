// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
)

// backupRoutes returns the calls for backups. A backup is a volume without content.
func backupRoutes() []route {
	dump := schema{
		"vmid": {check: checkVMIDList}, "storage": {check: checkStorageID},
		"mode":     {enum: []string{"snapshot", "suspend", "stop"}},
		"compress": {enum: []string{"0", "1", "gzip", "lzo", "zstd"}},
		"remove":   {kind: kBool}, "notes-template": {}, "all": {kind: kBool},
		"node": {check: checkNodeName}, "protected": {kind: kBool}, "bwlimit": {kind: kInt}, "quiet": {kind: kBool},
		"prune-backups": {}, "mailto": {}, "notification-mode": {}, "pool": {}, "exclude": {}, "stdout": {kind: kBool},
	}
	access := requireAny("/storage/{storage}", "Datastore.Audit", "Datastore.AllocateSpace")
	return []route{
		newRoute(http.MethodPost, "/nodes/{node}/vzdump", ClassStorage, checkBackupPermission, dump, backUp).asTask(),
		newRoute(http.MethodGet, "/nodes/{node}/vzdump/defaults", ClassOther, checkBackupDefaultsPermission, schema{"storage": {}},
			getBackupDefaults),
		newRoute(http.MethodGet, "/nodes/{node}/storage/{storage}/prunebackups", ClassListing, access,
			schema{"prune-backups": {}, "type": {enum: []string{"qemu", "lxc"}}, "vmid": newVMIDParam()}, listPrunedBackups),
	}
}

// backupStorage returns the storage of a backup: local, unless the call names another.
func (c *call) backupStorage() string { return cmp.Or(c.param("storage"), "local") }

func checkBackupPermission(s *Server, c *call) error {
	for _, vmid := range splitTags(c.param("vmid")) {
		if s.require(c.auth, "/storage/"+c.backupStorage(), "Datastore.AllocateSpace") == nil {
			if err := s.require(c.auth, "/vms/"+vmid, "VM.Backup"); err != nil {
				return err
			}
		}
	}
	return s.require(c.auth, "/storage/"+c.backupStorage(), "Datastore.AllocateSpace")
}

func checkBackupDefaultsPermission(s *Server, c *call) error {
	return s.requireAny(c.auth, "/storage/"+c.backupStorage(), "Datastore.Audit", "Datastore.AllocateSpace")
}

// findBackupStore returns a storage that can hold backups. The caller holds s.mu.
func (s *Server) findBackupStore(node, name string) (*store, error) {
	st, err := s.findEnabledStore(node, name)
	if err == nil && !st.canHold("backup") {
		err = dief("storage '%s' does not support backups", name)
	}
	return st, err
}

func backUp(s *Server, c *call) (any, error) {
	vmids := splitTags(c.param("vmid"))
	s.mu.Lock()
	st, err := s.findBackupStore(c.node, c.backupStorage())
	s.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case len(vmids) == 0:
		return nil, newParamError("vmid", "property is missing and it is not optional")
	}
	return s.fork(c, "vzdump", strings.Join(vmids, ","), func(ctx context.Context, t *task) error {
		if !s.sleep(ctx, s.model.Delays.FullClone) {
			return newInterruptError()
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, vmid := range vmids {
			m, err := s.findVM(c.node, atoi(vmid))
			if err != nil {
				return dief("unable to find VM '%s'", vmid)
			}
			now := s.clk.Now()
			name := fmt.Sprintf("%s:backup/vzdump-qemu-%s-%s.vma.zst", st.Name, vmid, now.UTC().Format("2006_01_02-15_04_05"))
			st.addVolume(&volume{id: name, content: "backup", format: "vma.zst", ctime: now, vmid: m.id})
			t.log = append(t.log, "INFO: Finished Backup of VM "+vmid)
		}
		return nil
	})
}

// getBackupDefaults returns the settings of a backup for which vzdump.conf has none.
func getBackupDefaults(_ *Server, c *call) (any, error) {
	return map[string]any{
		"all": 0, "bwlimit": 0, "compress": "0", "dumpdir": "/var/lib/vz/dump", "fleecing": map[string]any{"enabled": 0}, "ionice": 7,
		"lockwait": 180, "mailnotification": "always", "mode": "snapshot", "notification-mode": "auto",
		"performance": map[string]any{"max-workers": 16, "pbs-entries-max": 1 << 20}, "pigz": 0, "prune-backups": "keep-all=1",
		"quiet": 0, "remove": 1, "stdexcludes": 1, "stop": 0, "stopwait": 10, "storage": c.backupStorage(), "zstd": 1,
	}, nil
}

// listPrunedBackups lists the backups of a storage. All are kept, as without a rule.
func listPrunedBackups(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findBackupStore(c.node, c.vars["storage"])
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for id, v := range st.vols {
		if v.content == "backup" && (!c.hasParam("vmid") || c.intParam("vmid") == v.vmid) {
			out = append(out, map[string]any{"volid": id, "ctime": v.ctime.Unix(), "mark": "keep", "type": "qemu", "vmid": v.vmid})
		}
	}
	return out, nil
}
