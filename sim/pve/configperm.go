// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"maps"
	"net/url"
	"slices"
	"strings"
)

// checkFiles checks what the schema does not: the keys, and that a hook script is there.
func (s *Server) checkFiles(c *call, set map[string]string) error {
	if v, ok := set["sshkeys"]; ok {
		if err := validKeys(v); err != nil {
			return err
		}
	}
	script, ok := set["hookscript"]
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, v := s.volumeOf(c.node, script); v == nil {
		return badParam("hookscript", "script '%s' does not exist\n", script)
	}
	return nil
}

// mayUpdate checks the privileges of every option touched; s.mu is held.
func (s *Server) mayUpdate(c *call, u *update) error {
	if c.auth.isRoot() {
		return nil
	}
	for _, k := range slices.Concat(u.delete, slices.Sorted(maps.Keys(u.set))) {
		o, _ := optionOf(k)
		switch o.priv {
		case "":
			continue // drives, tags and serial ports depend on their value
		case rootPriv:
			return dief("only root can set '%s' config", k)
		case "VM.Config.Cloudinit":
			if err := s.mayAnyLocked(c.auth, vmPath(c.vmid), o.priv, "VM.Config.Network"); err != nil {
				return err
			}
			continue
		}
		if err := s.mayLocked(c.auth, vmPath(c.vmid), o.priv); err != nil {
			return err
		}
		if k == "startup" {
			if err := s.mayLocked(c.auth, "/", "Sys.Modify"); err != nil {
				return err
			}
		}
	}
	for k, v := range u.set {
		if reNet.MatchString(k) {
			if err := s.mayUseBridge(c.auth, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// loadForUpdate reads the configuration and refuses what is out of date or
// locked; s.mu is held.
func (s *Server) loadForUpdate(c *call, u *update) (*machine, error) {
	m, err := s.get(c.node, c.vmid)
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
		next := &machine{conf: map[string]string{"memory": cmpOr(u.set["memory"], m.conf["memory"])}}
		if int64(atoi(b))<<20 > next.memBytes() {
			return nil, dief("balloon value too large (must be smaller than assigned memory)")
		}
	}
	return m, nil
}

// mayFree asks for the right to free a disk's volume (try_deallocate_drive of
// PVE::QemuServer). CD-ROMs are not freed.
func (s *Server) mayFree(c *call, v string) error {
	d, err := parseDrive(v)
	if err != nil || d.isCDROM() || c.auth.isRoot() {
		return nil //nolint:nilerr // no drive is nothing to free
	}
	name, _, _ := splitVolid(d.file)
	return s.mayLocked(c.auth, "/storage/"+name, "Datastore.AllocateSpace")
}

// mayTouch checks what depends on the value: drives, tags, serial ports.
func (s *Server) mayTouch(c *call, m *machine, k, v string) error {
	if c.auth.isRoot() {
		return nil
	}
	path := vmPath(m.id)
	switch {
	case isDriveName(k):
		d, err := parseDrive(v)
		switch {
		case err == nil && d.isCloudInit():
			return s.mayLocked(c.auth, path, "VM.Config.Cloudinit", "VM.Config.CDROM")
		case err == nil && d.isCDROM():
			return s.mayLocked(c.auth, path, "VM.Config.CDROM")
		default:
			return s.mayLocked(c.auth, path, "VM.Config.Disk")
		}
	case reSerial.MatchString(k):
		if v != "socket" {
			return dief("only root can modify '%s' config for real devices", k)
		}
		return s.mayLocked(c.auth, path, "VM.Config.HWType")
	case k == "tags":
		return s.mayLocked(c.auth, path, "VM.Config.Options")
	case reUnused.MatchString(k):
		return s.mayLocked(c.auth, path, "VM.Config.Disk")
	case reOnHost.MatchString(k):
		return s.mayUseHost(c, k, v, path)
	}
	return nil
}

// mayUseHost checks devices of the host: raw ones are root's.
func (s *Server) mayUseHost(c *call, k, v, path string) error {
	if err := s.mayLocked(c.auth, path, "VM.Config.HWType"); err != nil {
		return err
	}
	p, err := properties(v, "host")
	kind, what := "usb", "real devices"
	if strings.HasPrefix(k, "hostpci") {
		kind, what = "pci", "non-mapped devices"
	}
	switch {
	case err != nil:
		return dief("%s", err)
	case p["host"] == "spice" && kind == "usb":
		return nil
	case p["host"] != "":
		return dief("only root can set '%s' config for %s", k, what)
	case p["mapping"] != "":
		return s.mayLocked(c.auth, "/mapping/"+kind+"/"+p["mapping"], "Mapping.Use")
	default:
		return dief("either 'host' or 'mapping' must be set.")
	}
}

// bootFrom adds a new CD drive to a boot order that is there.
func (s *Server) bootFrom(m *machine, k, v string) {
	d, err := parseDrive(v)
	order, has := strings.CutPrefix(cmpOr(m.pending["boot"], m.conf["boot"]), "order=")
	if err != nil || !has || !d.isCDROM() || d.isCloudInit() || slices.Contains(strings.Split(order, ";"), k) {
		return
	}
	boot := "order=" + strings.TrimPrefix(order+";"+k, ";")
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
		_, here := m.conf[dev]
		_, soon := m.pending[dev]
		if dev != "" && !here && !soon {
			return dief("invalid bootorder: device '%s' does not exist'", dev)
		}
	}
	return nil
}

// mayTag applies the datacenter's rules for tags; s.mu is held.
func (s *Server) mayTag(c *call, m *machine, v string) error {
	if c.auth.isRoot() || s.mayLocked(c.auth, "/", "Sys.Modify") == nil {
		return nil
	}
	had, want := splitTags(m.conf["tags"]), splitTags(v)
	for _, t := range slices.Concat(had, want) {
		if slices.Contains(had, t) && slices.Contains(want, t) {
			continue // neither added nor removed
		}
		if slices.Contains(s.model.RegisteredTags, t) || s.model.UserTagAccess == "none" {
			return forbidden("/", "Sys.Modify for modifying tag '"+t+"'")
		}
	}
	return nil
}

// decodedKeys are the SSH keys of a configuration.
func decodedKeys(v string) []string {
	text, err := url.PathUnescape(v)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
}
