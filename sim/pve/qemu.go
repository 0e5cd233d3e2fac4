// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
)

func qemuRoutes() []route {
	base := "/nodes/{node}/qemu"
	one := base + "/{vmid}"
	audit := requireAll("/vms/{vmid}", "VM.Audit")
	destroy := schema{"skiplock": {kind: kBool}, "purge": {kind: kBool}, "destroy-unreferenced-disks": {kind: kBool}}
	resize := schema{
		"disk": {required: true}, "size": {required: true, check: checkResize}, "skiplock": {kind: kBool},
		"digest": {maxLen: 40},
	}
	return slices.Concat([]route{
		newRoute(http.MethodGet, base, ClassListing, nil, schema{"full": {kind: kBool}}, listQemu),
		newRoute(http.MethodGet, one+"/status/current", ClassVM, audit, nil, getVMStatus),
		newRoute(http.MethodPost, one+"/clone", ClassVM, checkClonePermission, cloneSchema(), cloneVM).asTask(),
		newRoute(http.MethodDelete, one, ClassVM, requireAll("/vms/{vmid}", "VM.Allocate"), destroy, destroyVM).asTask(),
		newRoute(http.MethodPut, one+"/resize", ClassVM, requireAll("/vms/{vmid}", "VM.Config.Disk"), resize, resizeDisk).asTask(),
		newRoute(http.MethodPost, one+"/template", ClassVM, requireAll("/vms/{vmid}", "VM.Allocate"),
			schema{"disk": {}}, convertToTemplate).asTask(),
	}, configRoutes(), powerRoutes(), agentRoutes())
}

func listQemu(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.vms)) {
		m := s.vms[id]
		if m.node != c.node || s.requireLocked(c.auth, vmPath(id), "VM.Audit") != nil {
			continue
		}
		row := s.encodeVMStatus(m)
		delete(row, "ha")
		if c.boolParam("full") {
			row["qmpstatus"] = m.qmpStatus()
		}
		out = append(out, row)
	}
	return out, nil
}

// encodeVMStatus returns the status of a VM as its node reports it. The caller holds s.mu.
func (s *Server) encodeVMStatus(m *machine) map[string]any {
	out := map[string]any{
		"vmid": m.id, "name": m.name(), "status": m.status(), "cpus": m.cpus(), "maxmem": m.memBytes(),
		"maxdisk": s.bootDiskSize(m), "uptime": 0, "cpu": 0, "mem": 0, "disk": 0, "memhost": 0, "netin": 0, "netout": 0,
	}
	for k := range m.conf {
		if reSerial.MatchString(k) {
			out["serial"] = 1
		}
	}
	if m.running {
		out["pid"] = m.pid
		out["uptime"] = int64(s.clk.Since(m.started).Seconds())
		out["mem"], out["cpu"] = m.memory/2, 0.01 //nolint:mnd // an arbitrary load
		for _, k := range []string{"cpusome", "cpufull", "iosome", "iofull", "memorysome", "memoryfull"} {
			out["pressure"+k] = 0
		}
	}
	if m.isTemplate() {
		out["template"] = 1
	}
	for _, k := range []string{"lock", "tags"} {
		if v := m.conf[k]; v != "" {
			out[k] = v
		}
	}
	return out
}

func getVMStatus(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	out := s.encodeVMStatus(m)
	out["qmpstatus"] = m.qmpStatus()
	if vga, ok := m.conf["vga"]; ok {
		out["clipboard"] = nil
		if p, err := parseProperties(vga, "type"); err == nil && p["clipboard"] != "" {
			out["clipboard"] = p["clipboard"]
		}
	}
	out["ha"] = map[string]any{"managed": boolToInt(s.isHAManaged(m.id))}
	if isAgentEnabled(m.conf["agent"]) {
		out["agent"] = 1
	}
	return out, nil
}

func (s *Server) checkDestroy(c *call) (*machine, error) {
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	if isTrue(m.conf["protection"]) {
		return nil, dief("can't remove VM %d - protection mode enabled", m.id)
	}
	if m.running {
		return nil, dief("VM %d is running - destroy failed", m.id)
	}
	return m, nil
}

func destroyVM(s *Server, c *call) (any, error) {
	if err := requireRoot(c, "skiplock"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	_, err := s.checkDestroy(c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmdestroy", func(ctx context.Context, t *task) error {
		s.mu.Lock()
		m, err := s.checkDestroy(c)
		if err == nil && !c.boolParam("skiplock") {
			err = m.checkLock()
		}
		if err == nil {
			err = s.checkBaseUnused(m, t)
		}
		if err == nil {
			if err = s.checkWritable(c); err != nil {
				t.log = append(t.log, s.formatLockLog(m)...)
			}
		}
		if err != nil {
			s.mu.Unlock()
			return err
		}
		m.conf["lock"] = "destroyed"
		if c.boolParam("purge") {
			t.log = append(t.log, "purging VM "+strconv.Itoa(m.id)+" from related configurations..")
		}
		s.mu.Unlock()
		if !s.sleep(ctx, s.model.Delays.Destroy/2) { //nolint:mnd // one half before the disks are deleted, one half after
			return dief("interrupted by signal")
		}
		m.lastRun.waitForExit()
		// Only the lock remains of a VM whose disks are deleted. The VM is no longer in a pool, so a
		// caller whose privileges come from the pool can no longer see it.
		s.mu.Lock()
		s.deleteVMResources(m)
		s.mu.Unlock()
		if !s.sleep(ctx, s.model.Delays.Destroy/2) { //nolint:mnd // see above
			return dief("interrupted by signal")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.deleteVMLocked(m)
		return nil
	})
}

// formatLockLog returns what the deletion of a VM's disks prints without a quorum: shared storages have locks of the
// cluster.
func (s *Server) formatLockLog(m *machine) []string {
	const attempts = 9
	var out []string
	for _, v := range selectDrives(m.conf) {
		d, err := parseDrive(v)
		if st, _ := s.findVolume(m.node, d.file); err == nil && st != nil && st.Shared {
			out = append(out, slices.Repeat([]string{"trying to acquire cfs lock 'storage-" + st.Name + "' ..."}, attempts)...)
			out = append(out, fmt.Sprintf("WARN: Could not remove disk '%s', check manually: cfs-lock 'storage-%s' error: no quorum!",
				d.file, st.Name))
		}
	}
	return out
}

// checkBaseUnused refuses to destroy a template that has linked clones.
func (s *Server) checkBaseUnused(m *machine, t *task) error {
	if !m.isTemplate() {
		return nil
	}
	for k, v := range m.conf {
		if !isDriveName(k) {
			continue
		}
		d, err := parseDrive(v)
		if err != nil || d.isCDROM() {
			continue
		}
		// LVM-thin does not track clones, so their base can be deleted.
		st, _ := s.findVolume(m.node, d.file)
		if st != nil && s.checkImageLocks(st) != nil {
			st.logImageLocks(t, d.file, errorReason(s.checkImageLocks(st)))
			continue
		}
		if st != nil && st.Type != "lvmthin" && st.isBaseInUse(d.file) {
			return dief("base volume '%s' is still in use by linked cloned", d.file)
		}
	}
	return nil
}

// logImageLocks logs what the deletion of a base prints if the images of its storage cannot be read.
func (st *store) logImageLocks(t *task, volid, reason string) {
	path, _, _ := strings.Cut(strings.TrimPrefix(reason, "qemu-img: Could not open '"), "'")
	for _, warning := range []string{
		"failed to check if volume '" + volid + "' is used by linked clones", "Could not remove disk '" + volid + "', check manually",
	} {
		t.warnings++
		t.log = append(t.log, "command '/usr/bin/qemu-img info '--output=json' "+path+" -f qcow2' failed: exit code 1")
		t.log = append(t.log, strings.Split("WARN: "+warning+": "+reason, "\n")...)
	}
}

// deleteVMLocked deletes a VM, its volumes, its pool membership and its grants. The media in its CD
// drives remain. The caller holds s.mu.
func (s *Server) deleteVMLocked(m *machine) {
	s.deleteVMResources(m)
	delete(s.vms, m.id)
	if m.root != "" {
		s.wg.Go(func() {
			<-m.lastRun.done // its program may not have ended yet
			_ = os.RemoveAll(m.root)
		})
	}
}

// deleteVMResources deletes a VM's disks, pool membership and grants. Its configuration keeps only
// the lock. The caller holds s.mu.
func (s *Server) deleteVMResources(m *machine) {
	for _, st := range s.stores {
		if st.key.node != "" && st.key.node != m.node {
			continue
		}
		for _, v := range maps.Clone(st.vols) {
			if v.content == "images" && v.vmid == m.id {
				st.removeVolume(v)
			}
		}
	}
	for _, p := range s.pools {
		delete(p.vms, m.id)
	}
	s.access.acl = slices.DeleteFunc(s.access.acl, func(g ACL) bool { return g.Path == vmPath(m.id) })
	m.conf = map[string]string{"lock": "destroyed"}
	s.recordSighting(m)
}

func checkResize(v string) error {
	if !reSize.MatchString(strings.TrimPrefix(v, "+")) {
		return errors.New("value does not match the regex pattern")
	}
	return nil
}

// resizeDisk grows a disk. The task runs the checks, as in Proxmox VE 9.
func resizeDisk(s *Server, c *call) (any, error) {
	if err := requireRoot(c, "skiplock"); err != nil {
		return nil, err
	}
	if !isDriveName(c.param("disk")) {
		return nil, newParamError("disk", "%s", param{enum: driveNames()}.validate(c.param("disk")))
	}
	return s.forkVM(c, "resize", func(ctx context.Context, t *task) error {
		s.mu.Lock()
		r, err := s.planResize(c)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if r.newSize == r.vol.size {
			return nil
		}
		if err := s.resizeImage(ctx, r); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		t.log = append(t.log, "Image resized.")
		if err := s.checkWritable(c); err != nil {
			return err
		}
		r.commit()
		return nil
	})
}

// driveNames returns all slots of drives.
func driveNames() []string {
	var out []string
	for _, bus := range []struct {
		name string
		n    int
	}{{"ide", 4}, {"scsi", 31}, {"virtio", 16}, {"sata", 6}} {
		for i := range bus.n {
			out = append(out, bus.name+strconv.Itoa(i))
		}
	}
	return append(out, "efidisk0", tpmSlot)
}

// resize is a planned growth of a disk.
type resize struct {
	m       *machine
	disk    string
	d       drive
	vol     *volume
	newSize int64
	run     *guestRun // nil if the VM does not run
}

// planResize checks that a disk can grow. The caller holds s.mu.
func (s *Server) planResize(c *call) (*resize, error) {
	m, err := s.loadForUpdate(c, &update{digest: c.param("digest"), skiplock: c.boolParam("skiplock")})
	if err != nil {
		return nil, err
	}
	disk, size := c.param("disk"), c.param("size")
	value, ok := m.conf[disk]
	if !ok {
		return nil, dief("disk '%s' does not exist", disk)
	}
	d, err := parseDrive(value)
	switch {
	case err == nil && d.file == "none":
		return nil, dief("unable to parse volume ID 'none'")
	case err != nil || d.isCDROM():
		return nil, dief("you can't resize a cdrom")
	}
	st, vol := s.findVolume(m.node, d.file)
	if vol == nil {
		return nil, dief("volume '%s' does not exist", d.file)
	}
	want := parseSize(strings.TrimPrefix(size, "+"))
	if strings.HasPrefix(size, "+") {
		want += vol.size
	}
	if want < vol.size {
		return nil, dief("shrinking disks is not supported")
	}
	if vol.parent == "" && st.Size > 0 && st.usedBytes()+want-vol.size > st.Size {
		return nil, newNoSpaceError(st)
	}
	if st.isFileBased() && vol.format == "qcow2" && want-vol.size > maxGrowth {
		return nil, dief("command '/usr/bin/qemu-img resize '--preallocation=metadata' -f qcow2 %s %d' failed: got timeout",
			st.path(vol.id), want)
	}
	return &resize{m: m, disk: disk, d: d, vol: vol, newSize: want, run: m.guest}, nil
}

// maxGrowth is by how much a qcow2 image can grow before qemu-img takes longer to allocate its tables than Proxmox VE
// waits.
const maxGrowth = 4 << 40

// commit stores the new size. The caller holds Server.mu.
func (r *resize) commit() {
	if r.vol.parent == "" {
		r.vol.used += r.newSize - r.vol.size
	}
	r.vol.size = r.newSize
	r.m.conf[r.disk] = r.d.withSize(r.newSize).String()
}

// convertToTemplate converts a stopped VM to a template. Its disks become base volumes.
func convertToTemplate(s *Server, c *call) (any, error) {
	s.mu.Lock()
	_, err := s.checkTemplate(c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmtemplate", func(_ context.Context, _ *task) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		m, err := s.checkTemplate(c)
		if err == nil {
			err = s.checkWritable(c)
		}
		if err != nil {
			return err
		}
		s.convertDisksToBase(m)
		m.conf["template"] = "1"
		s.recordSighting(m)
		return nil
	})
}

// checkTemplate returns the VM of a call, or an error if the VM can't be converted to a template.
// The caller holds s.mu.
func (s *Server) checkTemplate(c *call) (*machine, error) {
	m, err := s.findVM(c.node, c.vmid)
	if err == nil {
		err = m.checkLock()
	}
	switch {
	case err != nil:
		return nil, err
	case len(m.snapshots) > 0:
		return nil, dief("unable to create template, because VM contains snapshots")
	case m.isTemplate() && !c.hasParam("disk"):
		return nil, dief("you can't convert a template to a template")
	case m.running:
		return nil, dief("you can't convert a VM to template if VM is running")
	default:
		return m, nil
	}
}

func (s *Server) convertDisksToBase(m *machine) {
	for k, v := range m.conf {
		d, err := parseDrive(v)
		if !isDriveName(k) || err != nil || d.isCDROM() {
			continue
		}
		st, vol := s.findVolume(m.node, d.file)
		if vol == nil {
			continue
		}
		st.renameToBase(vol)
		d.file = vol.id
		m.conf[k] = d.String()
	}
}

// renameToBase gives an image of a template the name of a base.
func (st *store) renameToBase(v *volume) {
	delete(st.vols, v.id)
	v.id = strings.Replace(v.id, "vm-"+strconv.Itoa(v.vmid)+"-", "base-"+strconv.Itoa(v.vmid)+"-", 1)
	st.addVolume(v)
}
