// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"maps"
	"net/url"
	"slices"
	"strings"
)

// checkFiles validates what the schema cannot: the SSH keys, and that a hook script exists.
func (s *Server) checkFiles(c *call, set map[string]string) error {
	if v, ok := set["sshkeys"]; ok {
		if err := validateSSHKeys(v); err != nil {
			return err
		}
	}
	script, ok := set["hookscript"]
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, v := s.findVolume(c.node, script); v == nil {
		return newParamError("hookscript", "script '%s' does not exist\n", script)
	}
	return nil
}

// checkStorageAccess checks the rights to the volumes of a drive (check_storage_access of PVE::API2::Qemu). The right to
// an existing volume is checked when it is attached. The caller holds s.mu.
func (s *Server) checkStorageAccess(c *call, k, v string) error {
	d, err := parseDrive(v)
	if err != nil || !isDriveName(k) || v == "" {
		return nil //nolint:nilerr // another check refuses a drive that cannot be parsed
	}
	name, volume, _ := splitVolid(d.file)
	switch {
	case d.file == "cdrom": // the drive of the node
		err = s.requireLocked(c.auth, "/", "Sys.Console")
	case reNewDisk.MatchString(d.file):
		err = s.requireLocked(c.auth, "/storage/"+name, "Datastore.AllocateSpace")
	case volume != "" && volume != "cloudinit":
		err = s.checkVolumeName(d.file)
	}
	from := d.get("import-from")
	switch source := parseVolume(from); {
	case err != nil || from == "":
		return err
	case !reVolid.MatchString(from):
		return dief("Only root can pass arbitrary filesystem paths. at /usr/share/perl5/PVE/Storage.pm line 651.")
	case source.vmid != 0:
		return s.requireLocked(c.auth, vmPath(source.vmid), "VM.Clone")
	default:
		return s.checkVolumePermission(c.auth, source)
	}
}

// checkDrivePaths refuses paths of files, which belong to no storage.
func checkDrivePaths(set map[string]string) error {
	for k, v := range set {
		d, err := parseDrive(v)
		if isDriveName(k) && err == nil && strings.HasPrefix(d.file, "/") && !strings.HasPrefix(d.file, "/dev/") {
			return newParamError(k, "unable to associate path '%s' to any storage", d.file)
		}
	}
	return nil
}

// checkUpdatePermission checks the privileges for all options of an update. The caller holds s.mu.
func (s *Server) checkUpdatePermission(c *call, u *update) error {
	if c.auth.isRoot() {
		return nil
	}
	for _, k := range slices.Concat(u.delete, slices.Sorted(maps.Keys(u.set))) {
		if err := s.checkStorageAccess(c, k, u.set[k]); err != nil {
			return err
		}
		o, _ := findOption(k)
		switch o.priv {
		case "":
			continue // for drives, tags and serial ports, the privilege depends on the value
		case rootPriv:
			return dief("only root can set '%s' config", k)
		case "VM.Config.Cloudinit":
			if err := s.requireAnyLocked(c.auth, vmPath(c.vmid), o.priv, "VM.Config.Network"); err != nil {
				return err
			}
			continue
		}
		if err := s.requireLocked(c.auth, vmPath(c.vmid), o.priv); err != nil {
			return err
		}
		if k == "startup" {
			if err := s.requireLocked(c.auth, "/", "Sys.Modify"); err != nil {
				return err
			}
		}
	}
	for k, v := range u.set {
		if reNet.MatchString(k) {
			if err := s.checkBridgePermission(c.auth, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadForUpdate returns the VM of an update. It returns an error if the digest is outdated, if the
// VM is locked, or if the balloon value is too large. The caller holds s.mu.
func (s *Server) loadForUpdate(c *call, u *update) (*machine, error) {
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	if u.digest != "" && u.digest != m.digest() {
		return nil, dief("checksum mismatch (file change by other user?)")
	}
	if !u.skiplock {
		if err := m.checkLock(); err != nil {
			return nil, err
		}
	}
	if b, ok := u.set["balloon"]; ok {
		next := &machine{conf: map[string]string{"memory": cmp.Or(u.set["memory"], m.conf["memory"])}}
		if int64(atoi(b))<<20 > next.memBytes() {
			return nil, dief("balloon value too large (must be smaller than assigned memory)")
		}
	}
	return m, nil
}

// checkFreePermission checks the privilege to free a disk's volume (try_deallocate_drive of
// PVE::QemuServer). The medium of a CD drive is not freed.
func (s *Server) checkFreePermission(c *call, v string) error {
	d, err := parseDrive(v)
	if err != nil || d.isCDROM() || c.auth.isRoot() {
		return nil //nolint:nilerr // an option that is no drive has no volume
	}
	name, _, _ := splitVolid(d.file)
	return s.requireLocked(c.auth, "/storage/"+name, "Datastore.AllocateSpace")
}

// checkOptionPermission checks the privileges that depend on an option's value: those of drives,
// tags, serial ports and host devices.
func (s *Server) checkOptionPermission(c *call, m *machine, k, v string) error {
	if c.auth.isRoot() {
		return nil
	}
	path := vmPath(m.id)
	switch {
	case isDriveName(k):
		d, err := parseDrive(v)
		switch {
		case err == nil && d.isCloudInit():
			return s.requireLocked(c.auth, path, "VM.Config.Cloudinit", "VM.Config.CDROM")
		case err == nil && d.isCDROM():
			return s.requireLocked(c.auth, path, "VM.Config.CDROM")
		default:
			return s.requireLocked(c.auth, path, "VM.Config.Disk")
		}
	case reSerial.MatchString(k):
		if v != "socket" {
			return dief("only root can modify '%s' config for real devices", k)
		}
		return s.requireLocked(c.auth, path, "VM.Config.HWType")
	case k == "tags":
		return s.requireLocked(c.auth, path, "VM.Config.Options")
	case reUnused.MatchString(k):
		return s.requireLocked(c.auth, path, "VM.Config.Disk")
	case reHostDevice.MatchString(k):
		return s.checkHostDevicePermission(c, k, v, path)
	}
	return nil
}

// checkHostDevicePermission checks the privileges for devices of the host.
func (s *Server) checkHostDevicePermission(c *call, k, v, path string) error {
	if err := s.checkMappedDevice(c, k, v); err != nil {
		return err
	}
	if p, err := parseProperties(v, "host"); err == nil && p["romfile"] != "" && strings.HasPrefix(k, "hostpci") {
		return newParamError(k, "only root@pam can set 'romfile' option")
	}
	return s.requireLocked(c.auth, path, "VM.Config.HWType")
}

// checkMappedDevice requires Mapping.Use on the mapping of a device. Only root can use devices without a mapping.
func (s *Server) checkMappedDevice(c *call, k, v string) error {
	p, err := parseProperties(v, "host")
	kind, devices := "usb", "real devices"
	if strings.HasPrefix(k, "hostpci") {
		kind, devices = "pci", "non-mapped devices"
	}
	switch {
	case err != nil:
		return dief("%s", err)
	case p["host"] == "spice" && kind == "usb":
		return nil
	case p["host"] != "":
		return dief("only root can set '%s' config for %s", k, devices)
	case p["mapping"] != "":
		return s.requireLocked(c.auth, "/mapping/"+kind+"/"+p["mapping"], "Mapping.Use")
	default:
		return dief("either 'host' or 'mapping' must be set.")
	}
}

// addToBootOrder adds a new CD drive to the VM's boot order, if the VM has a boot order.
func (s *Server) addToBootOrder(m *machine, key, value string) {
	d, err := parseDrive(value)
	order, hasOrder := strings.CutPrefix(cmp.Or(m.pending["boot"], m.conf["boot"]), "order=")
	if err != nil || !hasOrder || !d.isCDROM() || d.isCloudInit() || slices.Contains(strings.Split(order, ";"), key) {
		return
	}
	boot := "order=" + strings.TrimPrefix(order+";"+key, ";")
	if m.running {
		m.pending["boot"] = boot
		return
	}
	m.conf["boot"] = boot
}

func (s *Server) checkBootOrder(m *machine, v string) error {
	order, ok := strings.CutPrefix(v, "order=")
	if !ok {
		return nil
	}
	for dev := range strings.SplitSeq(order, ";") {
		_, isSet := m.conf[dev]
		_, isPending := m.pending[dev]
		if dev != "" && !isSet && !isPending {
			return dief("invalid bootorder: device '%s' does not exist'", dev)
		}
	}
	return nil
}

// checkTagPermission applies the datacenter's rules for tags. The caller holds s.mu.
func (s *Server) checkTagPermission(c *call, m *machine, v string) error {
	if c.auth.isRoot() || s.requireLocked(c.auth, "/", "Sys.Modify") == nil {
		return nil
	}
	current, desired := splitTags(m.conf["tags"]), splitTags(v)
	for _, t := range slices.Concat(current, desired) {
		if slices.Contains(current, t) && slices.Contains(desired, t) {
			continue // neither added nor removed
		}
		if !s.canSetTag(t) {
			return newForbiddenError("/", "Sys.Modify for modifying tag '"+t+"'")
		}
	}
	return nil
}

// decodeSSHKeys returns the SSH keys of a configuration.
func decodeSSHKeys(v string) []string {
	text, err := url.PathUnescape(v)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
}
