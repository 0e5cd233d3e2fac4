// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"strconv"
	"strings"
)

// attach creates or finds the volume of a drive and returns the option as the configuration stores
// it. The caller holds s.mu.
func (s *Server) attach(c *call, m *machine, k, v string) (string, error) {
	d, err := parseDrive(v)
	if err != nil {
		return "", newParamError(k, "%s", err)
	}
	switch {
	case d.get("import-from") != "":
		return "", dief("import-from is not simulated")
	case d.file == "none" || d.file == "cdrom":
		return d.String(), nil
	case strings.HasSuffix(d.file, ":cloudinit"):
		return s.attachCloudInit(c, m, d)
	case reNewDisk.MatchString(d.file):
		return s.attachNew(c, m, k, d)
	}
	if old, err := parseDrive(m.conf[k]); err == nil && old.file == d.file {
		return d.String(), nil
	}
	name, _, ok := splitVolid(d.file)
	if !ok {
		return "", dief("unable to parse volume ID '%s'", d.file)
	}
	st, vol := s.findVolume(m.node, d.file)
	if st == nil {
		_, err := s.findStore(m.node, name)
		return "", err
	}
	if vol == nil {
		vol = &volume{id: d.file} // the permission check comes before the check for existence
	}
	if vol.vmid != m.id {
		if err := s.checkVolumePermission(c.auth, vol); err != nil {
			return "", err
		}
	}
	if st.vols[d.file] == nil {
		return "", dief("volume '%s' does not exist", d.file)
	}
	return d.withSize(vol.size).String(), nil
}

func (s *Server) attachCloudInit(c *call, m *machine, d drive) (string, error) {
	name, _, _ := splitVolid(d.file)
	st, err := s.findImageStore(c, m.node, name)
	if err != nil {
		return "", err
	}
	if _, taken := st.vols[st.formatImageID(m.id, "vm-"+strconv.Itoa(m.id)+"-cloudinit", nil)]; taken {
		return "", dief("cloud-init drive already exists on VM %d", m.id)
	}
	vol := s.newCloudInitVolume(st, m.id)
	return vol.id + ",media=cdrom,size=4M", nil
}

func (s *Server) attachNew(c *call, m *machine, k string, d drive) (string, error) {
	parts := reNewDisk.FindStringSubmatch(d.file)
	st, err := s.findImageStore(c, m.node, parts[1])
	if err != nil {
		return "", err
	}
	size := parseSize(parts[2] + "G")
	if k == tpmSlot {
		size = tpmStateSize
	}
	if st.Size > 0 && st.usedBytes()+size > st.Size {
		return "", newNoSpaceError(st)
	}
	if k == tpmSlot {
		d.file = s.newTPMState(st, m.id).id
		return d.withSize(size).String(), nil
	}
	if k == "efidisk0" {
		if s.model.NoOVMF {
			return "", dief("EFI base image '%s/OVMF_CODE_4M.secboot.fd' not found", ovmfDir)
		}
		size = efiVarsSize
	}
	vol := &volume{id: st.nextDiskID(m.id, nil), content: "images", format: "raw", size: size, used: size,
		ctime: s.clk.Now(), vmid: m.id}
	if d.get("format") != "qcow2" {
		vol.id = toRawName(vol.id)
	}
	st.addVolume(vol)
	d.file = vol.id
	d = d.withoutOption("format")
	return d.withSize(size).String(), nil
}

// The directory of a node's EFI firmware, and the size of an EFI disk.
const (
	ovmfDir     = "/usr/share/pve-edk2-firmware/"
	efiVarsSize = 528 << 10
)

// findImageStore returns a storage on which the caller can allocate disk images.
func (s *Server) findImageStore(c *call, node, name string) (*store, error) {
	if err := s.requireLocked(c.auth, "/storage/"+name, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	st, err := s.findEnabledStore(node, name)
	if err != nil {
		return nil, err
	}
	if !st.canHold("images") {
		return nil, newParamError("storage", "storage '%s' does not support vm images", name)
	}
	return st, nil
}
