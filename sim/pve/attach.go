// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"strconv"
	"strings"
)

// attach makes or finds the volume of a drive and returns the option as
// stored; s.mu is held.
func (s *Server) attach(c *call, m *machine, k, v string) (string, error) {
	d, err := parseDrive(v)
	if err != nil {
		return "", badParam(k, "%s", err)
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
	st, vol := s.volumeOf(m.node, d.file)
	if st == nil {
		_, err := s.storeOn(m.node, name)
		return "", err
	}
	if vol == nil {
		vol = &volume{id: d.file} // rights first, as for any file
	}
	if vol.vmid != m.id {
		if err := s.maySee(c.auth, vol); err != nil {
			return "", err
		}
	}
	if st.vols[d.file] == nil {
		return "", dief("volume '%s' does not exist", d.file)
	}
	return d.sized(vol.size).String(), nil
}

func (s *Server) attachCloudInit(c *call, m *machine, d drive) (string, error) {
	name, _, _ := splitVolid(d.file)
	st, err := s.imageStore(c, m.node, name)
	if err != nil {
		return "", err
	}
	if _, taken := st.vols[st.imageID(m.id, "vm-"+strconv.Itoa(m.id)+"-cloudinit", nil)]; taken {
		return "", dief("cloud-init drive already exists on VM %d", m.id)
	}
	vol := s.newCloudInitVolume(st, m.id)
	return vol.id + ",media=cdrom,size=4M", nil
}

func (s *Server) attachNew(c *call, m *machine, k string, d drive) (string, error) {
	parts := reNewDisk.FindStringSubmatch(d.file)
	st, err := s.imageStore(c, m.node, parts[1])
	if err != nil {
		return "", err
	}
	size := parseSize(parts[2] + "G")
	if k == tpmSlot {
		size = tpmStateSize
	}
	if st.Size > 0 && st.usedBytes()+size > st.Size {
		return "", noSpace(st)
	}
	if k == tpmSlot {
		d.file = s.newTPMState(st, m.id).id
		return d.sized(size).String(), nil
	}
	if k == "efidisk0" {
		if s.model.NoOVMF {
			return "", dief("EFI base image '%s/OVMF_CODE_4M.secboot.fd' not found", ovmfDir)
		}
		size = efiVarsSize
	}
	vol := &volume{id: st.nextDisk(m.id, nil), content: "images", format: "raw", size: size, used: size,
		ctime: s.clk.Now(), vmid: m.id}
	if d.get("format") != "qcow2" {
		vol.id = rawName(vol.id)
	}
	st.add(vol)
	d.file = vol.id
	d = d.without("format")
	return d.sized(size).String(), nil
}

// Where a node has its EFI firmware, and how much an EFI disk takes.
const (
	ovmfDir     = "/usr/share/pve-edk2-firmware/"
	efiVarsSize = 528 << 10
)

// imageStore is a storage the caller may allocate disk images on.
func (s *Server) imageStore(c *call, node, name string) (*store, error) {
	if err := s.mayLocked(c.auth, "/storage/"+name, "Datastore.AllocateSpace"); err != nil {
		return nil, err
	}
	st, err := s.enabledStore(node, name)
	if err != nil {
		return nil, err
	}
	if !st.holds("images") {
		return nil, badParam("storage", "storage '%s' does not support vm images", name)
	}
	return st, nil
}
