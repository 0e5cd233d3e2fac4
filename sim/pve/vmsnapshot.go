// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// snapshot is a VM's configuration at a moment. What is on its disks is kept by
// nobody: the simulated ones hold nothing.
type snapshot struct {
	conf   map[string]string
	parent string
	at     time.Time
	text   string
	memory bool
}

func snapshotRoutes() []route {
	base := "/nodes/{node}/qemu/{vmid}/snapshot"
	one := base + "/{snapname}"
	audit, take := needs("/vms/{vmid}", "VM.Audit"), needs("/vms/{vmid}", "VM.Snapshot")
	back := needsAny("/vms/{vmid}", "VM.Snapshot", "VM.Snapshot.Rollback")
	create := schema{
		"snapname": {required: true, maxLen: 40, check: checkConfigID}, "description": {}, "vmstate": {kind: kBool},
	}
	return []route{
		newRoute(http.MethodGet, base, ClassVM, audit, nil, listSnapshots),
		newRoute(http.MethodPost, base, ClassVM, take, create, takeSnapshot).async(),
		newRoute(http.MethodGet, one, ClassVM, nil, nil, index("cmd", "rollback", "config")),
		newRoute(http.MethodGet, one+"/config", ClassVM, needsAny("/vms/{vmid}", "VM.Snapshot", "VM.Snapshot.Rollback", "VM.Audit"),
			nil, snapshotConfig),
		newRoute(http.MethodPut, one+"/config", ClassVM, take, schema{"description": {}}, describeSnapshot),
		newRoute(http.MethodPost, one+"/rollback", ClassVM, back, schema{"start": {kind: kBool}}, rollBack).async(),
		newRoute(http.MethodDelete, one, ClassVM, take, schema{"force": {kind: kBool}}, dropSnapshot).async(),
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
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	out := []map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(m.snapshots)) {
		sn := m.snapshots[name]
		row := map[string]any{"name": name, "description": sn.text, "snaptime": sn.at.Unix(), "vmstate": flag(sn.memory)}
		if sn.parent != "" {
			row["parent"] = sn.parent
		}
		out = append(out, row)
	}
	now := map[string]any{
		"name": "current", "description": "You are here!", "digest": m.digest(), "running": flag(m.running),
	}
	if p := m.conf["parent"]; p != "" {
		now["parent"] = p
	}
	return append(out, now), nil
}

// snapshotOf finds a snapshot; s.mu is held.
func (s *Server) snapshotOf(c *call) (*machine, *snapshot, error) {
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, nil, err
	}
	name := c.vars["snapname"]
	if sn := m.snapshots[name]; sn != nil {
		return m, sn, nil
	}
	return nil, nil, noSnapshot(name)
}

func noSnapshot(name string) error { return dief("snapshot '%s' does not exist", name) }

func snapshotConfig(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, sn, err := s.snapshotOf(c)
	if err != nil {
		return nil, err
	}
	return sn.shown(), nil
}

// shown is the configuration in a snapshot, with what is said of it.
func (sn *snapshot) shown() map[string]any {
	out := map[string]any{"snaptime": sn.at.Unix()}
	for k, v := range sn.conf {
		out[k] = typedOption(k, v)
	}
	if sn.text != "" {
		out["description"] = sn.text
	}
	if sn.parent != "" {
		out["parent"] = sn.parent
	}
	return out
}

func describeSnapshot(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, sn, err := s.snapshotOf(c)
	if err == nil && c.has("description") {
		sn.text = storedDescription(c.param("description"))
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
		m, err := s.get(c.node, c.vmid)
		if err == nil {
			err = m.checkLock()
		}
		if err == nil && m.snapshots[name] != nil {
			err = dief("snapshot name '%s' already used", name)
		}
		if err != nil {
			return err
		}
		return s.keepSnapshot(c, m, t)
	})
}

// keepSnapshot notes a snapshot of every disk; s.mu is held.
func (s *Server) keepSnapshot(c *call, m *machine, t *task) error {
	for _, slot := range slices.Sorted(maps.Keys(driveOptionsOf(m.conf))) {
		d, err := parseDrive(m.conf[slot])
		if err != nil || d.isCDROM() {
			continue
		}
		st, _ := s.volumeOf(m.node, d.file)
		if s.host != nil || st == nil || !st.snapshots(d.file) {
			return dief("snapshot feature is not available")
		}
		t.log = append(t.log, "snapshotting 'drive-"+slot+"' ("+d.file+")")
	}
	conf := maps.Clone(m.conf)
	delete(conf, "parent")
	name := c.param("snapname")
	if m.snapshots == nil {
		m.snapshots = map[string]*snapshot{}
	}
	m.snapshots[name] = &snapshot{
		conf: conf, parent: m.conf["parent"], at: s.clk.Now(), text: storedDescription(c.param("description")),
		memory: c.flag("vmstate") && m.running,
	}
	m.conf["parent"] = name
	return nil
}

// snapshots tells whether a storage can take one of a volume.
func (st *store) snapshots(volid string) bool {
	return !st.fileBased() || strings.HasSuffix(volid, ".qcow2")
}

func rollBack(s *Server, c *call) (any, error) {
	return s.forkVM(c, "qmrollback", func(ctx context.Context, t *task) error {
		s.mu.Lock()
		m, sn, err := s.snapshotOf(c)
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
		s.sight(m)
		s.mu.Unlock()
		run.awaitGone()
		if c.flag("start") || sn.memory {
			return s.boot(ctx, c, t)
		}
		return nil
	})
}

func dropSnapshot(s *Server, c *call) (any, error) {
	return s.forkVM(c, "qmdelsnapshot", func(_ context.Context, _ *task) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		m, sn, err := s.snapshotOf(c)
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

// hasFeature tells whether the disks of a VM can be cloned, copied or have
// snapshots taken.
func hasFeature(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	can := true
	for _, v := range driveOptionsOf(m.conf) {
		d, err := parseDrive(v)
		if err != nil || d.isCDROM() {
			continue
		}
		st, _ := s.volumeOf(m.node, d.file)
		switch c.param("feature") {
		case "clone":
			can = can && strings.Contains(d.file, "base-"+strconv.Itoa(m.id)+"-")
		case "snapshot":
			can = can && st != nil && st.snapshots(d.file)
		}
	}
	return map[string]any{"hasFeature": flag(can), "nodes": []string{c.node}}, nil
}
