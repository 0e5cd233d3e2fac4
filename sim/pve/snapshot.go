// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"maps"
	"slices"
	"strings"
)

// VMState is one VM as it is now, without any lag.
type VMState struct {
	VMID     int               `json:"vmid"`
	Name     string            `json:"name"`
	Node     string            `json:"node"`
	Status   string            `json:"status"`
	Lock     string            `json:"lock,omitempty"`
	Pool     string            `json:"pool,omitempty"`
	Tags     string            `json:"tags,omitempty"`
	Template bool              `json:"template,omitempty"`
	Config   map[string]string `json:"config"`
	Pending  map[string]string `json:"pending,omitempty"`
	// Foreign VMs and templates were there from the start.
	Foreign bool `json:"foreign,omitempty"`
	// Starts counts how often it was started.
	Starts int `json:"starts"`
	// TPM stands for the seeds of its TPM: VMs of which it is the same have one TPM. It is
	// empty without a TPM, and until the first start of one.
	TPM string `json:"tpm,omitempty"`
}

// VolumeState is one volume.
type VolumeState struct {
	VolID   string `json:"volid"`
	Node    string `json:"node,omitempty"` // empty on shared storage
	Content string `json:"content"`
	Size    int64  `json:"size"`
	VMID    int    `json:"vmid,omitempty"`
}

// TaskState is one task.
type TaskState struct {
	UPID string `json:"upid"`
	Node string `json:"node"`
	Type string `json:"type"`
	ID   string `json:"id"`
	// Exit is empty while it runs.
	Exit string `json:"exit,omitempty"`
}

// State is everything a cluster holds.
type State struct {
	VMs     []VMState     `json:"vms"`
	Volumes []VolumeState `json:"volumes"`
	Tasks   []TaskState   `json:"tasks"`
	// Crashes counts the VMs that a fault ended.
	Crashes int `json:"crashes"`
}

// Snapshot shows the cluster as it is now. Passwords in it are masked.
func (s *Server) Snapshot() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := State{VMs: []VMState{}, Volumes: []VolumeState{}, Tasks: []TaskState{}, Crashes: s.crashes}
	for _, id := range slices.Sorted(maps.Keys(s.vms)) {
		out.VMs = append(out.VMs, s.vmState(s.vms[id]))
	}
	for _, st := range s.stores {
		for _, v := range st.vols {
			out.Volumes = append(out.Volumes, VolumeState{
				VolID: v.id, Node: st.key.node, Content: v.content, Size: v.size, VMID: v.vmid,
			})
		}
	}
	slices.SortFunc(out.Volumes, func(a, b VolumeState) int {
		return strings.Compare(a.Node+"/"+a.VolID, b.Node+"/"+b.VolID)
	})
	for _, t := range s.taskOrder {
		out.Tasks = append(out.Tasks, TaskState{UPID: t.upid, Node: t.node, Type: t.kind, ID: t.id, Exit: t.exit})
	}
	return out
}

func (s *Server) vmState(m *machine) VMState {
	conf := maps.Clone(m.conf)
	if conf["cipassword"] != "" {
		conf["cipassword"] = masked
	}
	tpm := ""
	if v := s.tpmOf(m); v != nil {
		tpm = v.seed
	}
	return VMState{
		TPM:  tpm,
		VMID: m.id, Name: m.name(), Node: m.node, Status: m.status(), Lock: conf["lock"], Pool: s.poolOf(m.id),
		Tags: conf["tags"], Template: m.template(), Config: conf, Pending: maps.Clone(m.pending),
		Foreign: m.foreign, Starts: m.starts,
	}
}

// Made are the VMs that were not there from the start.
func (st State) Made() []VMState {
	return slices.DeleteFunc(slices.Clone(st.VMs), func(v VMState) bool { return v.Foreign })
}

// VM finds a VM by id.
func (st State) VM(vmid int) (VMState, bool) {
	i := slices.IndexFunc(st.VMs, func(v VMState) bool { return v.VMID == vmid })
	if i < 0 {
		return VMState{}, false
	}
	return st.VMs[i], true
}

// ISOs are the uploaded ISO images.
func (st State) ISOs() []VolumeState {
	return slices.DeleteFunc(slices.Clone(st.Volumes), func(v VolumeState) bool { return v.Content != "iso" })
}

// Volume reads what a volume on a node holds; nil when there is none or its
// content is not kept (disk images).
func (s *Server) Volume(node, volid string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, v := s.volumeOf(node, volid); v != nil {
		return slices.Clone(v.data)
	}
	return nil
}

// AddISO puts an ISO image onto a storage without the API.
func (s *Server) AddISO(node, storage, name string, data []byte) (volid string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.storeOn(node, storage)
	if err != nil {
		return "", err
	}
	volid = storage + ":iso/" + name
	size := int64(len(data))
	st.add(&volume{id: volid, content: "iso", format: "iso", size: size, used: size, ctime: s.clk.Now(),
		data: slices.Clone(data)})
	return volid, nil
}

// SetLock sets or clears a VM's lock, as a person with a root shell would.
func (s *Server) SetLock(vmid int, lock string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.vms[vmid]
	if m == nil {
		return
	}
	delete(m.conf, "lock")
	if lock != "" {
		m.conf["lock"] = lock
	}
}

// Migrate moves a VM to another node, as a person would.
func (s *Server) Migrate(vmid int, node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.vms[vmid]
	if m == nil || s.nodes[node] == nil {
		return
	}
	for k, v := range m.conf {
		d, err := parseDrive(v)
		if !isDriveName(k) || err != nil {
			continue
		}
		from, vol := s.volumeOf(m.node, d.file)
		if vol == nil || from.Shared || vol.content != "images" {
			continue
		}
		if to, err := s.storeOn(node, from.Name); err == nil {
			delete(from.vols, vol.id)
			vol.parent = ""
			to.add(vol)
		}
	}
	m.node = node
	s.sight(m)
}
