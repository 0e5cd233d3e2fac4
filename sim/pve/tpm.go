// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

const (
	tpmSlot = "tpmstate0"
	// tpmStateSize is the size of each TPM state, whatever size was requested (TPMSTATE_DISK_SIZE of
	// PVE::QemuServer::Drive).
	tpmStateSize = 4 << 20
)

// newTPMState creates the volume of a TPM without seeds. swtpm_setup creates the seeds at the first
// start. swtpm supports only raw volumes.
func (s *Server) newTPMState(st *store, vmid int) *volume {
	id := st.nextDiskID(vmid, nil)
	id = toRawName(id)
	v := &volume{id: id, content: "images", format: "raw", size: tpmStateSize, used: tpmStateSize, ctime: s.clk.Now(), vmid: vmid}
	st.addVolume(v)
	return v
}

// findTPM returns the volume of a VM's TPM, or nil if it has none. The caller holds s.mu.
func (s *Server) findTPM(m *machine) *volume {
	d, err := parseDrive(m.conf[tpmSlot])
	if err != nil {
		return nil
	}
	_, v := s.findVolume(m.node, d.file)
	return v
}

// initializeTPM creates the seeds of a TPM that has none. A cloned volume has the seeds of its
// source (swtpm_setup --not-overwrite). The caller holds s.mu.
func (s *Server) initializeTPM(m *machine) {
	if v := s.findTPM(m); v != nil && v.seed == "" {
		v.seed = s.newUUID()
	}
}
