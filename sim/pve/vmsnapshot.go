// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// snapshot is a VM's configuration at a time. Simulated disks have no content, so a snapshot
// contains none.
type snapshot struct {
	conf        map[string]string
	parent      string
	time        time.Time
	description string
	hasMemory   bool
	isPartial   bool // a task has begun it, and has not completed it
}

func snapshotRoutes() []route {
	base := "/nodes/{node}/qemu/{vmid}/snapshot"
	one := base + "/{snapname}"
	audit, take := requireAll("/vms/{vmid}", "VM.Audit"), requireAll("/vms/{vmid}", "VM.Snapshot")
	back := requireAny("/vms/{vmid}", "VM.Snapshot", "VM.Snapshot.Rollback")
	create := schema{
		"snapname": {required: true, maxLen: 40, check: checkConfigID}, "description": {}, "vmstate": {kind: kBool},
	}
	return []route{
		newRoute(http.MethodGet, base, ClassVM, audit, nil, listSnapshots),
		newRoute(http.MethodPost, base, ClassVM, take, create, takeSnapshot).asTask(),
		newRoute(http.MethodGet, one, ClassVM, nil, nil, newIndex("cmd", "rollback", "config")),
		newRoute(http.MethodGet, one+"/config", ClassVM, requireAny("/vms/{vmid}", "VM.Snapshot", "VM.Snapshot.Rollback", "VM.Audit"),
			nil, snapshotConfig),
		newRoute(http.MethodPut, one+"/config", ClassVM, take, schema{"description": {}}, describeSnapshot),
		newRoute(http.MethodPost, one+"/rollback", ClassVM, back, schema{"start": {kind: kBool}}, rollBackSnapshot).asTask(),
		newRoute(http.MethodDelete, one, ClassVM, take, schema{"force": {kind: kBool}}, deleteSnapshot).asTask(),
	}
}

func checkConfigID(v string) error {
	if !reConfigID.MatchString(v) {
		return formatError("invalid configuration ID '%s'", v)
	}
	return nil
}

func listSnapshots(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(m.snapshots)) {
		sn := m.snapshots[name]
		row := map[string]any{
			"name": name, "description": sn.description, "snaptime": sn.time.Unix(), "vmstate": boolToInt(sn.hasMemory),
		}
		if sn.parent != "" {
			row["parent"] = sn.parent
		}
		if sn.isPartial {
			row["snapstate"] = "prepare"
		}
		out = append(out, row)
	}
	now := map[string]any{
		"name": "current", "description": "You are here!", "digest": m.digest(), "running": boolToInt(m.running),
	}
	if p := m.conf["parent"]; p != "" {
		now["parent"] = p
	}
	return append(out, now), nil
}

// findSnapshot returns the VM and the snapshot of a call. The caller holds s.mu.
func (s *Server) findSnapshot(c *call) (*machine, *snapshot, error) {
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, nil, err
	}
	name := c.vars["snapname"]
	if sn := m.snapshots[name]; sn != nil {
		return m, sn, nil
	}
	return nil, nil, newNoSnapshotError(name)
}

func newNoSnapshotError(name string) error { return dief("snapshot '%s' does not exist", name) }

func snapshotConfig(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, sn, err := s.findSnapshot(c)
	if err != nil {
		return nil, err
	}
	return sn.encode(), nil
}

// encode returns the configuration in a snapshot, with the snapshot's own fields.
func (sn *snapshot) encode() map[string]any {
	out := map[string]any{"snaptime": sn.time.Unix()}
	for k, v := range sn.conf {
		out[k] = encodeOption(k, v)
	}
	if sn.description != "" {
		out["description"] = sn.description
	}
	if sn.parent != "" {
		out["parent"] = sn.parent
	}
	return out
}

func describeSnapshot(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, sn, err := s.findSnapshot(c)
	if err == nil && c.hasParam("description") {
		sn.description = formatDescription(c.param("description"))
	}
	return nil, err
}

func takeSnapshot(s *Server, c *call) (any, error) {
	name := c.param("snapname")
	if name == "current" || name == "pending" {
		return nil, dief("unable to use snapshot name '%s' (reserved name)", name)
	}
	return s.forkVM(c, "qmsnapshot", func(_ context.Context, t *task) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		m, err := s.findVM(c.node, c.vmid)
		if err == nil {
			err = m.checkLock()
		}
		if err == nil && m.snapshots[name] != nil {
			err = dief("snapshot name '%s' already used", name)
		}
		if err != nil {
			return err
		}
		return s.recordSnapshot(c, m, t)
	})
}

// recordSnapshot takes a snapshot of a VM. It returns an error if one of the disks does not support
// snapshots. The caller holds s.mu.
func (s *Server) recordSnapshot(c *call, m *machine, t *task) error {
	var disks []string
	for _, slot := range slices.Sorted(maps.Keys(selectDrives(m.conf))) {
		d, err := parseDrive(m.conf[slot])
		if err != nil || d.isCDROM() {
			continue
		}
		st, _ := s.findVolume(m.node, d.file)
		if s.host != nil || st == nil || !st.canSnapshot(d.file) {
			return dief("snapshot feature is not available")
		}
		disks = append(disks, "snapshotting 'drive-"+slot+"' ("+d.file+")")
	}
	conf := maps.Clone(m.conf)
	delete(conf, "parent")
	name := c.param("snapname")
	if m.snapshots == nil {
		m.snapshots = map[string]*snapshot{}
	}
	m.snapshots[name] = &snapshot{
		conf: conf, parent: m.conf["parent"], time: s.clk.Now(), description: formatDescription(c.param("description")),
		hasMemory: c.boolParam("vmstate") && m.running,
	}
	if s.isAgentMissing(m) {
		t.log = append(t.log, "skipping guest filesystem freeze - agent configured but not running?")
	}
	if m.running && s.model.isMissing(MissingQEMUPatches) {
		m.snapshots[name].isPartial, m.conf["lock"] = true, "snapshot"
		t.log = append(t.log, fmt.Sprintf("VM %d qmp command 'savevm-end' failed - The command savevm-end has not been found", m.id))
		return dief("VM %d qmp command 'query-savevm' failed - The command query-savevm has not been found", m.id)
	}
	t.log = append(t.log, disks...)
	m.conf["parent"] = name
	return nil
}

// canSnapshot returns true if the storage supports snapshots of the volume.
func (st *store) canSnapshot(volid string) bool {
	return !st.isFileBased() || strings.HasSuffix(volid, ".qcow2")
}

func rollBackSnapshot(s *Server, c *call) (any, error) {
	return s.forkVM(c, "qmrollback", func(ctx context.Context, t *task) error {
		s.mu.Lock()
		m, sn, err := s.findSnapshot(c)
		if err == nil {
			err = m.checkLock()
		}
		if err != nil {
			s.mu.Unlock()
			return err
		}
		run := m.guest
		s.powerOff(m)
		m.conf = maps.Clone(sn.conf)
		m.conf["parent"] = c.vars["snapname"]
		m.pending, m.pendingDel = map[string]string{}, map[string]bool{}
		s.recordSighting(m)
		s.mu.Unlock()
		run.waitForExit()
		if c.boolParam("start") || sn.hasMemory {
			return s.bootVM(ctx, c, t)
		}
		return nil
	})
}

func deleteSnapshot(s *Server, c *call) (any, error) {
	return s.forkVM(c, "qmdelsnapshot", func(_ context.Context, _ *task) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		m, sn, err := s.findSnapshot(c)
		if err == nil {
			err = m.checkLock()
		}
		if err != nil {
			return err
		}
		name := c.vars["snapname"]
		delete(m.snapshots, name)
		for _, other := range m.snapshots {
			if other.parent == name {
				other.parent = sn.parent
			}
		}
		if m.conf["parent"] == name {
			delete(m.conf, "parent")
			if sn.parent != "" {
				m.conf["parent"] = sn.parent
			}
		}
		return nil
	})
}

// getFeature returns whether the disks of a VM can be cloned, copied or have snapshots.
func getFeature(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	if name := c.param("snapname"); name != "" && m.snapshots[name] == nil {
		return nil, newNoSnapshotError(name)
	}
	isSupported := true
	nodes := []string{}
	for _, n := range s.listMembers() {
		nodes = append(nodes, n.Name)
	}
	for _, v := range selectDrives(m.conf) {
		d, err := parseDrive(v)
		if err != nil || d.isCDROM() {
			continue
		}
		st, _ := s.findVolume(m.node, d.file)
		switch c.param("feature") {
		case "clone":
			isSupported = isSupported && strings.Contains(d.file, "base-"+strconv.Itoa(m.id)+"-")
		case "snapshot":
			isSupported = isSupported && st != nil && st.canSnapshot(d.file) && !m.isTemplate()
		}
		if st != nil && !st.Shared {
			nodes = []string{c.node}
		}
	}
	return map[string]any{"hasFeature": boolToInt(isSupported), "nodes": nodes}, nil
}
