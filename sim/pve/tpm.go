// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"slices"
)

const (
	tpmSlot = "tpmstate0"
	// tpmStateSize is what every TPM state takes, whatever was asked for
	// (TPMSTATE_DISK_SIZE of PVE::QemuServer::Drive).
	tpmStateSize = 4 << 20
)

// checkTPMState applies the schema of tpmstate0 (PVE::QemuServer::Drive).
func checkTPMState(d drive) error {
	for _, k := range d.keys {
		if !slices.Contains([]string{"size", "version", "import-from"}, k) {
			return fmt.Errorf("invalid format - format error\n%s: property is not defined in schema "+
				"and the schema does not allow additional properties", k)
		}
	}
	if v := d.get("version"); v != "" && v != "v1.2" && v != "v2.0" {
		return fmt.Errorf("invalid format - format error\nversion: value '%s' does not have a value in the "+
			"enumeration 'v1.2, v2.0'", v)
	}
	return nil
}

// newTPMState makes the volume of a TPM that has not been made yet: swtpm_setup makes its
// seeds at the first start. swtpm takes raw volumes only.
func (s *Server) newTPMState(st *store, vmid int) *volume {
	id := st.nextDisk(vmid, nil)
	id = rawName(id)
	v := &volume{id: id, content: "images", format: "raw", size: tpmStateSize, used: tpmStateSize, ctime: s.clk.Now(), vmid: vmid}
	st.add(v)
	return v
}

// tpmOf is the volume of a VM's TPM; nil if it has none. s.mu is held.
func (s *Server) tpmOf(m *machine) *volume {
	d, err := parseDrive(m.conf[tpmSlot])
	if err != nil {
		return nil
	}
	_, v := s.volumeOf(m.node, d.file)
	return v
}

// makeTPM gives a TPM its seeds, unless it has some: a volume that was copied brings along
// those of its origin (swtpm_setup --not-overwrite). s.mu is held.
func (s *Server) makeTPM(m *machine) {
	if v := s.tpmOf(m); v != nil && v.seed == "" {
		v.seed = s.newUUID()
	}
}
