// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// migrateRoutes returns the calls that move VMs to other nodes, and disks to other storages.
func migrateRoutes() []route {
	vm := "/nodes/{node}/qemu/{vmid}"
	migrate := requireAll("/vms/{vmid}", "VM.Migrate")
	params := schema{
		"target": {required: true, check: checkNodeName}, "online": {kind: kBool}, "force": {kind: kBool},
		"migration_type": {enum: []string{"secure", "insecure"}}, "migration_network": {}, "with-local-disks": {kind: kBool},
		"targetstorage": {}, "bwlimit": {kind: kInt}, "with-conntrack-state": {kind: kBool},
	}
	move := schema{
		"disk": {required: true, check: checkMovedDisk}, "storage": {check: checkStorageID},
		"format": {enum: []string{"raw", "qcow2", "vmdk"}},
		"delete": {kind: kBool}, "digest": {maxLen: 40}, "bwlimit": {kind: kInt},
	}
	return []route{
		newRoute(http.MethodGet, vm+"/migrate", ClassVM, migrate, schema{"target": {}}, getMigrationTargets),
		newRoute(http.MethodPost, vm+"/migrate", ClassVM, migrate, params, migrateVM).asTask(),
		newRoute(http.MethodPost, vm+"/move_disk", ClassVM, requireAll("/vms/{vmid}", "VM.Config.Disk"), move, moveDisk).asTask(),
	}
}

// migrateVM moves a VM with its local disks to another node. A running VM stays up.
func migrateVM(s *Server, c *call) (any, error) {
	target := c.param("target")
	if target == c.node {
		return nil, newParamError("target", "target is local node.")
	}
	s.mu.Lock()
	m, err := s.checkMigration(c, target)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmigrate", func(ctx context.Context, t *task) error {
		s.mu.Lock()
		address := s.nodeAddress(target)
		s.mu.Unlock()
		if s.model.isMissing(MissingSSH) {
			s.logTimef(t, "# /usr/bin/ssh -e none -o 'BatchMode=yes' -o 'HostKeyAlias=%s' root@%s /bin/true", target, address)
			s.logTimef(t, "ssh: connect to host %s port 22: Connection refused", address)
			s.logTimef(t, "ERROR: migration aborted (duration 00:00:00): Can't connect to destination address using public key")
			return dief("migration aborted")
		}
		s.logTimef(t, "starting migration of VM %d to node '%s' (%s)", m.id, target, address)
		if !s.sleep(ctx, s.model.Delays.FullClone) {
			return dief("migration aborted")
		}
		s.Migrate(m.id, target)
		s.logTimef(t, "migration finished successfully (duration 00:00:00)")
		return nil
	})
}

// logTimef adds a line to the task's log with the time before it.
func (s *Server) logTimef(t *task, format string, args ...any) {
	s.printf(t, "%s %s", s.clk.Now().UTC().Format(time.DateTime), fmt.Sprintf(format, args...))
}

// checkMigration runs the checks before the task starts. The caller holds s.mu.
func (s *Server) checkMigration(c *call, target string) (*machine, error) {
	if err := s.checkMember(target); err != nil {
		return nil, err
	}
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	if err := m.checkLock(); err != nil {
		return nil, err
	}
	if m.running && !c.boolParam("online") {
		return nil, dief("can't migrate running VM without --online")
	}
	return m, nil
}

// checkMember returns an error if a node is not a member of the cluster. The caller holds s.mu.
func (s *Server) checkMember(name string) error {
	if !slices.ContainsFunc(s.listMembers(), func(n Node) bool { return n.Name == name }) {
		return dief("no such cluster node '%s'", name)
	}
	return nil
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
	nodes, refused := []string{}, map[string]any{}
	for _, n := range s.listMembers() {
		if n.Name != c.node {
			nodes, refused[n.Name] = append(nodes, n.Name), map[string]any{} // with no reason against it
		}
	}
	return map[string]any{
		"running": boolToInt(m.running), "local_disks": disks, "local_resources": []string{}, "mapped-resources": []string{},
		"mapped-resource-info": map[string]any{}, "allowed_nodes": nodes, "not_allowed_nodes": refused, "has-dbus-vmstate": 1,
	}, nil
}

func checkMovedDisk(v string) error {
	if !isDriveName(v) && !reUnused.MatchString(v) {
		return fmt.Errorf("%s", param{enum: driveNames()}.validate(v))
	}
	return nil
}

// moveDisk copies a disk to another storage, or to another format.
func moveDisk(s *Server, c *call) (any, error) {
	s.mu.Lock()
	_, err := s.planMove(c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmmove", func(ctx context.Context, t *task) error {
		if !s.sleep(ctx, s.model.Delays.FullClone) {
			return dief("storage migration failed: interrupted by signal")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		move, err := s.planMove(c)
		if err != nil {
			return err
		}
		t.log = append(t.log, fmt.Sprintf("create full clone of drive %s (%s)", c.param("disk"), move.drive.file))
		v, err := s.newImage(move.m, move.cloneDisk)
		if err != nil {
			return dief("storage migration failed: %s", errorReason(err))
		}
		t.log = append(t.log, formatCloneLog(move.cloneDisk, v)...)
		old := move.drive.file
		move.drive.file = v.id
		move.m.conf[move.opt] = move.drive.withSize(v.size).String()
		if c.boolParam("delete") {
			s.freeVolume(move.m.node, old)
			return nil
		}
		move.m.keepUnused(old)
		return nil
	})
}

// diskMove is the planned move of a disk.
type diskMove struct {
	cloneDisk

	m *machine
}

// planMove checks that a disk can be moved. The caller holds s.mu.
func (s *Server) planMove(c *call) (*diskMove, error) {
	m, err := s.loadForUpdate(c, &update{digest: c.param("digest")})
	if err != nil {
		return nil, err
	}
	slot := c.param("disk")
	value, ok := m.conf[slot]
	if !ok {
		return nil, dief("disk '%s' does not exist", slot)
	}
	d, err := parseDrive(value)
	switch {
	case err != nil || d.isCDROM() && !d.isCloudInit():
		return nil, dief("you can't move a cdrom")
	case !c.hasParam("storage"):
		return nil, dief("No storage or target-vmid specified")
	}
	source, base := s.findVolume(m.node, d.file)
	if source == nil {
		return nil, dief("volume '%s' does not exist", d.file)
	}
	target, err := s.findImageStore(c, m.node, c.param("storage"))
	if err != nil {
		return nil, err
	}
	if format := c.param("format"); target == source && (format == "" || base != nil && format == base.format) {
		return nil, dief("you can't move to the same storage with same format")
	}
	return &diskMove{m: m, cloneDisk: cloneDisk{
		opt: slot, drive: d, source: source, target: target, base: base, format: c.param("format"), full: true,
	}}, nil
}

// keepUnused lists a volume of the VM that no drive uses.
func (m *machine) keepUnused(volid string) {
	for n := 0; ; n++ {
		key := "unused" + strconv.Itoa(n)
		if _, isTaken := m.conf[key]; !isTaken {
			m.conf[key] = volid
			return
		}
	}
}
