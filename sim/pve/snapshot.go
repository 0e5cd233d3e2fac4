// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"maps"
	"slices"
	"strings"
)

// VMState is the current state of a VM, without the lag of the listing.
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
	// Foreign is true for VMs and templates that exist from the start.
	Foreign bool `json:"foreign,omitempty"`
	// Starts is the number of starts.
	Starts int `json:"starts"`
	// TPM identifies the seeds of the VM's TPM. VMs with the same value have the same TPM. It is
	// empty if the VM has no TPM, and until the first start of a TPM.
	TPM string `json:"tpm,omitempty"`
	// Devices are the addresses of the PCI devices that the VM has while it runs.
	Devices []string `json:"devices,omitempty"`
}

// VolumeState is the state of a volume.
type VolumeState struct {
	VolID   string `json:"volid"`
	Node    string `json:"node,omitempty"` // empty on shared storage
	Content string `json:"content"`
	Size    int64  `json:"size"`
	VMID    int    `json:"vmid,omitempty"`
}

// TaskState is the state of a task.
type TaskState struct {
	UPID string `json:"upid"`
	Node string `json:"node"`
	Type string `json:"type"`
	ID   string `json:"id"`
	// Exit is the exit status, which is empty while the task runs.
	Exit string `json:"exit,omitempty"`
}

// State is the state of a cluster.
type State struct {
	VMs     []VMState     `json:"vms"`
	Volumes []VolumeState `json:"volumes"`
	Tasks   []TaskState   `json:"tasks"`
	// Crashes is the number of VMs that a fault has ended.
	Crashes int `json:"crashes"`
}

// Snapshot returns the current state of the cluster. Passwords in it are masked.
func (s *Server) Snapshot() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := State{VMs: []VMState{}, Volumes: []VolumeState{}, Tasks: []TaskState{}, Crashes: s.crashes}
	for _, id := range slices.Sorted(maps.Keys(s.vms)) {
		out.VMs = append(out.VMs, s.newVMState(s.vms[id]))
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

func (s *Server) newVMState(m *machine) VMState {
	conf := maps.Clone(m.conf)
	if conf["cipassword"] != "" {
		conf["cipassword"] = masked
	}
	tpm := ""
	if v := s.findTPM(m); v != nil {
		tpm = v.seed
	}
	return VMState{
		TPM: tpm, Devices: slices.Clone(m.devices),
		VMID: m.id, Name: m.name(), Node: m.node, Status: m.status(), Lock: conf["lock"], Pool: s.findPool(m.id),
		Tags: conf["tags"], Template: m.isTemplate(), Config: conf, Pending: maps.Clone(m.pending),
		Foreign: m.foreign, Starts: m.starts,
	}
}

// CreatedVMs returns the VMs that did not exist from the start.
func (st State) CreatedVMs() []VMState {
	return slices.DeleteFunc(slices.Clone(st.VMs), func(v VMState) bool { return v.Foreign })
}

// VM returns the VM with the id and false if there is none.
func (st State) VM(vmid int) (VMState, bool) {
	i := slices.IndexFunc(st.VMs, func(v VMState) bool { return v.VMID == vmid })
	if i < 0 {
		return VMState{}, false
	}
	return st.VMs[i], true
}

// ISOs returns the uploaded ISO images.
func (st State) ISOs() []VolumeState {
	return slices.DeleteFunc(slices.Clone(st.Volumes), func(v VolumeState) bool { return v.Content != "iso" })
}

// VolumeData returns the content of a volume on a node. It returns nil if the volume does not exist
// or if the simulator does not store its content (disk images).
func (s *Server) VolumeData(node, volid string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, v := s.findVolume(node, volid); v != nil {
		return slices.Clone(v.data)
	}
	return nil
}

// AddISO adds an ISO image to a storage without a call of the API.
func (s *Server) AddISO(node, storage, name string, data []byte) (volid string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st, err := s.findStore(node, storage)
	if err != nil {
		return "", err
	}
	volid = storage + ":iso/" + name
	size := int64(len(data))
	st.addVolume(&volume{id: volid, content: "iso", format: "iso", size: size, used: size, ctime: s.clk.Now(),
		data: slices.Clone(data)})
	return volid, nil
}

// SetLock sets or clears a VM's lock, as an administrator with a root shell can.
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

// SetTags replaces the tags of a VM, which semicolons separate, as an administrator can.
func (s *Server) SetTags(vmid int, tags string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[vmid]; m != nil {
		m.conf["tags"] = tags
	}
}

// Migrate moves a VM and its local disks to another node, as an administrator can.
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
		source, vol := s.findVolume(m.node, d.file)
		if vol == nil || source.Shared || vol.content != "images" {
			continue
		}
		if target, err := s.findStore(node, source.Name); err == nil {
			delete(source.vols, vol.id)
			vol.parent = ""
			target.addVolume(vol)
		}
	}
	m.node = node
	s.recordSighting(m)
}
