// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"fmt"
	"slices"
)

// populate creates the inventory of the model.
func (s *Server) populate() error {
	s.started = s.clk.Now()
	for _, n := range s.model.Nodes {
		s.nodes[n.Name] = &node{Node: n, started: s.started}
	}
	for _, cfg := range s.model.Storages {
		s.addStores(cfg)
	}
	for _, m := range s.model.PCIMappings {
		s.pciMappings[m.ID] = m
	}
	for _, p := range s.model.Pools {
		s.pools[p] = newPool()
	}
	for _, t := range s.model.Templates {
		if err := s.addTemplate(t); err != nil {
			return err
		}
	}
	for _, v := range s.model.VMs {
		if err := s.addVM(v); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) addStores(cfg Storage) {
	keys := []storeKey{{"", cfg.Name}}
	if !cfg.Shared {
		keys = nil
		for _, n := range s.model.Nodes {
			if len(cfg.Nodes) == 0 || slices.Contains(cfg.Nodes, n.Name) {
				keys = append(keys, storeKey{n.Name, cfg.Name})
			}
		}
	}
	for _, k := range keys {
		st := &store{Storage: cfg, key: k, vols: map[string]*volume{}}
		for name, text := range cfg.Snippets {
			id := cfg.Name + ":snippets/" + name
			st.addVolume(&volume{id: id, content: "snippets", format: "snippet", size: int64(len(text)),
				used: int64(len(text)), ctime: s.started, data: []byte(text)})
		}
		s.stores[k] = st
	}
}

func (s *Server) addTemplate(t Template) error {
	nodes := t.Nodes
	if len(nodes) == 0 {
		for _, n := range s.model.Nodes {
			nodes = append(nodes, n.Name)
		}
	}
	for i, n := range nodes {
		st, err := s.findStore(n, t.Storage)
		if err != nil {
			return fmt.Errorf("place template %s on node %s: %w", t.Name, n, err)
		}
		id := t.VMID + i
		if s.vms[id] != nil {
			return fmt.Errorf("place template %s on node %s: VMID %d is taken", t.Name, n, id)
		}
		m := &machine{id: id, node: n, imageDir: t.ImageDir, foreign: true}
		if m.conf, err = s.newTemplateConfig(t, id, st); err != nil {
			return fmt.Errorf("place template %s on node %s: %w", t.Name, n, err)
		}
		m.pending, m.pendingDel = map[string]string{}, map[string]bool{}
		s.vms[id] = m
		s.recordSighting(m)
	}
	return nil
}

func (s *Server) newTemplateConfig(t Template, id int, st *store) (map[string]string, error) {
	size := int64(t.DiskSize) * gib
	if size == 0 {
		size = 20 * gib
	}
	base := &volume{id: st.formatImageID(id, fmt.Sprintf("base-%d-disk-0", id), nil), content: "images",
		format: "raw", size: size, used: size, ctime: s.started, vmid: id}
	st.addVolume(base)
	if err := s.createTemplateImage(t, base); err != nil {
		return nil, err
	}
	disk := cmp.Or(t.DiskSlot, "scsi0")
	conf := map[string]string{
		"name": t.Name, "template": "1", "cores": "2", "memory": "2048", "ostype": "l26",
		"scsihw": "virtio-scsi-single", "boot": "order=" + disk, "agent": "1",
		disk:      fmt.Sprintf("%s,size=%s", base.id, formatSize(base.size)),
		"net0":    fmt.Sprintf("virtio=%s,bridge=%s", s.newMAC(), s.firstBridge()),
		"smbios1": "uuid=" + s.newUUID(), "vmgenid": s.newUUID(), "serial0": "socket", "meta": s.newMeta(),
	}
	if t.NoAgent {
		delete(conf, "agent")
	}
	if !t.NoCloudInit {
		ci := s.newCloudInitVolume(st, id)
		conf[cmp.Or(t.CloudInitSlot, "ide2")] = ci.id + ",media=cdrom,size=4M"
	}
	if t.TPM {
		state := s.newTPMState(st, id)
		state.seed = s.newUUID()
		conf[tpmSlot] = state.id + ",size=" + formatSize(tpmStateSize) + ",version=v2.0"
	}
	applyOptions(conf, t.Config)
	return conf, nil
}

// newMeta returns the option meta of a new VM, which contains the time of its creation.
func (s *Server) newMeta() string {
	return fmt.Sprintf("creation-qemu=10.1.2,ctime=%d", s.clk.Now().Unix())
}

// applyOptions applies the options of a model in their stored format. An empty value deletes the
// option.
func applyOptions(conf, options map[string]string) {
	for k, v := range options {
		if k == "description" {
			v = formatDescription(v)
		}
		conf[k] = v
		if v == "" {
			delete(conf, k)
		}
	}
}

func (s *Server) newCloudInitVolume(st *store, vmid int) *volume {
	const size = 4 << 20
	v := &volume{id: st.formatImageID(vmid, fmt.Sprintf("vm-%d-cloudinit", vmid), nil), content: "images",
		format: "raw", size: size, used: size, ctime: s.clk.Now(), vmid: vmid}
	st.addVolume(v)
	return v
}

func (s *Server) addVM(v VM) error {
	if s.vms[v.VMID] != nil {
		return fmt.Errorf("place vm %s: VMID %d is taken", v.Name, v.VMID)
	}
	m := &machine{id: v.VMID, node: v.Node, foreign: true, pending: map[string]string{}, pendingDel: map[string]bool{}}
	m.conf = map[string]string{"name": v.Name, "cores": "1", "memory": "1024", "smbios1": "uuid=" + s.newUUID()}
	if v.Storage != "" {
		st, err := s.findStore(v.Node, v.Storage)
		if err != nil {
			return fmt.Errorf("place vm %s: %w", v.Name, err)
		}
		disk := &volume{id: st.nextDiskID(v.VMID, nil), content: "images", format: "raw", size: 10 * gib,
			used: 10 * gib, ctime: s.started, vmid: v.VMID}
		st.addVolume(disk)
		m.conf["scsi0"] = disk.id + ",size=10G"
	}
	applyOptions(m.conf, v.Config)
	if v.Running {
		m.running, m.pid, m.started, m.memory = true, s.newPID(), s.started, m.memBytes()
		if err := s.reserveHostPCI(m); err != nil {
			return fmt.Errorf("place vm %s: %w", v.Name, err)
		}
	}
	if v.Pool != "" {
		if s.pools[v.Pool] == nil {
			return fmt.Errorf("place vm %s: no pool %q", v.Name, v.Pool)
		}
		s.pools[v.Pool].vms[v.VMID] = true
	}
	s.vms[v.VMID] = m
	s.recordSighting(m)
	return nil
}

func (s *Server) firstBridge() string {
	if len(s.model.Bridges) == 0 {
		return "vmbr0"
	}
	return s.model.Bridges[0]
}

func (s *Server) newPID() int {
	s.nextPID++
	return s.nextPID
}

// newMAC returns a random MAC address with the prefix of Proxmox VE. The caller holds s.mu.
func (s *Server) newMAC() string {
	return fmt.Sprintf("BC:24:11:%02X:%02X:%02X", s.rng.IntN(256), s.rng.IntN(256), s.rng.IntN(256))
}

func (s *Server) newUUID() string {
	var b [16]byte
	for i := range b {
		b[i] = byte(s.rng.IntN(256))
	}
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:])
}
