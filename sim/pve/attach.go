// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
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
		return s.attachImport(c, m, k, d)
	case d.file == "none" || d.file == "cdrom":
		return d.String(), nil
	case strings.HasSuffix(d.file, ":cloudinit"):
		if slot := m.findCloudInitSlot(k); slot != "" {
			return "", dief("%s - cloud-init drive is already attached at '%s'", k, slot)
		}
		return s.attachCloudInit(c, m, k, d)
	case reNewDisk.MatchString(d.file):
		return s.attachNew(c, m, k, d)
	}
	if old, err := parseDrive(m.conf[k]); err == nil && old.file == d.file {
		if _, ok := d.opts["size"]; !ok && old.get("size") != "" {
			d = d.withSize(parseSize(old.get("size")))
		}
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
		vol = parseVolume(d.file) // the permission check comes before the check for existence
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

// findCloudInitSlot returns another slot that has the VM's cloud-init drive, or "".
func (m *machine) findCloudInitSlot(slot string) string {
	for _, k := range driveNames() {
		if d, err := parseDrive(m.conf[k]); k != slot && err == nil && d.isCloudInit() {
			return k
		}
	}
	return ""
}

func (s *Server) attachCloudInit(c *call, m *machine, k string, d drive) (string, error) {
	name, _, _ := splitVolid(d.file)
	st, err := s.findImageStore(c, m.node, name)
	if err != nil {
		return "", err
	}
	if id := st.formatImageID(m.id, "vm-"+strconv.Itoa(m.id)+"-cloudinit", nil); st.vols[id] != nil {
		return "", dief("disk image '%s' already exists", st.path(id))
	}
	vol := s.newCloudInitVolume(st, m.id)
	if st.isFileBased() {
		c.log(st.formatImageLog(vol, nil)...)
	}
	return c.logDrive(k, drive{file: vol.id, keys: []string{"media"}, opts: map[string]string{"media": "cdrom"}}), nil
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
	if k == "efidisk0" {
		if err := s.checkFirmware(d); err != nil {
			return "", err
		}
		size = efiVarsSize
	}
	vol := s.allocateImage(m, k, st, d.get("format"), size)
	if st.isFileBased() {
		c.log(st.formatImageLog(vol, nil)...)
	}
	if m.isTemplate() {
		st.renameToBase(vol)
	}
	d.file = vol.id
	return c.logDrive(k, d.withoutOption("format").withSize(size)), nil
}

// logDrive logs that the volume of a drive was created, and returns the drive as the configuration stores it.
func (c *call) logDrive(k string, d drive) string {
	stored := d.String()
	c.log(k + ": successfully created disk '" + stored + "'")
	return stored
}

// allocateImage creates an empty image for a drive.
func (s *Server) allocateImage(m *machine, k string, st *store, format string, size int64) *volume {
	if k == tpmSlot {
		return s.newTPMState(st, m.id)
	}
	vol := &volume{id: st.nextDiskID(m.id, nil), content: "images", format: "raw", size: size, used: size,
		ctime: s.clk.Now(), vmid: m.id}
	if format != "qcow2" {
		vol.id = toRawName(vol.id)
	}
	st.addVolume(vol)
	return vol
}

// checkFirmware returns an error if the files of which an EFI disk is a copy are missing.
func (s *Server) checkFirmware(d drive) error {
	switch {
	case !s.model.isMissing(MissingOVMF):
		return nil
	case d.get("efitype") != "4m":
		return dief("EFI base image '%s/OVMF_CODE.fd' not found", ovmfDir)
	case isTrue(d.get("pre-enrolled-keys")):
		return dief("EFI vars image '%s/OVMF_VARS_4M.ms.fd' not found", ovmfDir)
	default:
		return dief("EFI base image '%s/OVMF_CODE_4M.secboot.fd' not found", ovmfDir)
	}
}

// attachImport copies a volume into a new image.
func (s *Server) attachImport(c *call, m *machine, k string, d drive) (string, error) {
	from := d.get("import-from")
	name, _, _ := splitVolid(d.file)
	st, err := s.findImageStore(c, m.node, name)
	if err != nil {
		return "", err
	}
	source, base := s.findVolume(m.node, from)
	if base == nil {
		return "", dief("volume '%s' does not exist", from)
	}
	clone := cloneDisk{
		opt: k, drive: drive{file: from}, source: source, target: st, base: base, format: d.get("format"), full: true,
	}
	c.log(fmt.Sprintf("create full clone of drive %s (%s)", k, from))
	vol, err := s.newImage(m, clone)
	if err != nil {
		return "", err
	}
	c.log(formatCloneLog(clone, vol)...)
	d.file = vol.id
	return c.logDrive(k, d.withoutOption("import-from").withoutOption("format").withSize(vol.size)), nil
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
