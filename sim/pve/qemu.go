// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"errors"
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
	audit := needs("/vms/{vmid}", "VM.Audit")
	destroy := schema{"skiplock": {kind: kBool}, "purge": {kind: kBool}, "destroy-unreferenced-disks": {kind: kBool}}
	resize := schema{
		"disk": {required: true}, "size": {required: true, check: checkResize}, "skiplock": {kind: kBool},
		"digest": {maxLen: 40},
	}
	return slices.Concat([]route{
		newRoute(http.MethodGet, base, ClassListing, nil, schema{"full": {kind: kBool}}, listQemu),
		newRoute(http.MethodGet, one+"/status/current", ClassVM, audit, nil, statusCurrent),
		newRoute(http.MethodPost, one+"/clone", ClassVM, permClone, cloneSchema(), cloneVM).async(),
		newRoute(http.MethodDelete, one, ClassVM, needs("/vms/{vmid}", "VM.Allocate"), destroy, destroyVM).async(),
		newRoute(http.MethodPut, one+"/resize", ClassVM, needs("/vms/{vmid}", "VM.Config.Disk"), resize, resizeDisk).async(),
		newRoute(http.MethodPost, one+"/template", ClassVM, needs("/vms/{vmid}", "VM.Allocate"),
			schema{"disk": {}}, makeTemplate).async(),
	}, configRoutes(), powerRoutes(), agentRoutes())
}

func listQemu(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []map[string]any{}
	for _, id := range slices.Sorted(maps.Keys(s.vms)) {
		m := s.vms[id]
		if m.node != c.node || s.mayLocked(c.auth, vmPath(id), "VM.Audit") != nil {
			continue
		}
		row := s.vmStatus(m)
		delete(row, "ha")
		out = append(out, row)
	}
	return out, nil
}

// vmStatus is what the node itself knows of a VM; s.mu is held.
func (s *Server) vmStatus(m *machine) map[string]any {
	out := map[string]any{
		"vmid": m.id, "name": m.name(), "status": m.status(), "cpus": m.cpus(), "maxmem": m.memBytes(),
		"maxdisk": s.bootDisk(m), "uptime": 0, "cpu": 0, "mem": 0, "disk": 0, "memhost": 0, "netin": 0, "netout": 0,
	}
	for k := range m.conf {
		if reSerial.MatchString(k) {
			out["serial"] = 1
		}
	}
	if m.running {
		out["pid"] = m.pid
		out["uptime"] = int64(s.clk.Since(m.started).Seconds())
		out["mem"], out["cpu"] = m.memory/2, 0.01 //nolint:mnd // any load will do
		for _, k := range []string{"cpusome", "cpufull", "iosome", "iofull", "memorysome", "memoryfull"} {
			out["pressure"+k] = 0
		}
	}
	if m.template() {
		out["template"] = 1
	}
	for _, k := range []string{"lock", "tags"} {
		if v := m.conf[k]; v != "" {
			out[k] = v
		}
	}
	return out
}

func statusCurrent(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	out := s.vmStatus(m)
	out["qmpstatus"] = m.status()
	if m.paused {
		out["qmpstatus"] = "paused"
	}
	if vga, ok := m.conf["vga"]; ok {
		out["clipboard"] = nil
		if p, err := properties(vga, "type"); err == nil && p["clipboard"] != "" {
			out["clipboard"] = p["clipboard"]
		}
	}
	out["ha"] = map[string]any{"managed": 0}
	if agentEnabled(m.conf["agent"]) {
		out["agent"] = 1
	}
	return out, nil
}

func (s *Server) destroyChecks(c *call) (*machine, error) {
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	if truthy(m.conf["protection"]) {
		return nil, dief("can't remove VM %d - protection mode enabled", m.id)
	}
	if m.running {
		return nil, dief("VM %d is running - destroy failed", m.id)
	}
	return m, nil
}

func destroyVM(s *Server, c *call) (any, error) {
	if err := rootOnly(c, "skiplock"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	_, err := s.destroyChecks(c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmdestroy", func(ctx context.Context, t *task) error {
		s.mu.Lock()
		m, err := s.destroyChecks(c)
		if err == nil && !c.flag("skiplock") {
			err = m.checkLock()
		}
		if err == nil {
			err = s.baseFree(m)
		}
		if err != nil {
			s.mu.Unlock()
			return err
		}
		m.conf["lock"] = "destroyed"
		if c.flag("purge") {
			t.log = append(t.log, "purging VM "+strconv.Itoa(m.id)+" from related configurations..")
		}
		s.mu.Unlock()
		if !s.sleep(ctx, s.model.Delays.Destroy/2) { //nolint:mnd // the disks, and then the rest
			return dief("interrupted by signal")
		}
		m.last.awaitGone()
		// Without its disks nothing is left of it but the lock, and it is in no pool. What
		// it had in it is not seen by those with rights on the pool alone any more.
		s.mu.Lock()
		s.strip(m)
		s.mu.Unlock()
		if !s.sleep(ctx, s.model.Delays.Destroy/2) { //nolint:mnd // see above
			return dief("interrupted by signal")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(m)
		return nil
	})
}

// baseFree refuses to destroy a template whose disks others are cloned from.
func (s *Server) baseFree(m *machine) error {
	if !m.template() {
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
		// LVM-thin does not track clones and lets their base go.
		if st, _ := s.volumeOf(m.node, d.file); st != nil && st.Type != "lvmthin" && st.baseInUse(d.file) {
			return dief("base volume '%s' is still in use by linked cloned", d.file)
		}
	}
	return nil
}

// remove deletes a VM, its volumes, its pool membership and its grants; s.mu
// is held. What is merely in a CD drive stays.
func (s *Server) remove(m *machine) {
	s.strip(m)
	delete(s.vms, m.id)
	if m.root != "" {
		s.wg.Go(func() {
			<-m.last.done // its program may still be dying
			_ = os.RemoveAll(m.root)
		})
	}
}

// strip takes a machine's disks, memberships and grants; its configuration keeps the lock
// alone. s.mu is held.
func (s *Server) strip(m *machine) {
	for _, st := range s.stores {
		if st.key.node != "" && st.key.node != m.node {
			continue
		}
		for _, v := range maps.Clone(st.vols) {
			if v.content == "images" && v.vmid == m.id {
				st.drop(v)
			}
		}
	}
	for _, members := range s.pools {
		delete(members, m.id)
	}
	s.access.acl = slices.DeleteFunc(s.access.acl, func(g ACL) bool { return g.Path == vmPath(m.id) })
	m.conf = map[string]string{"lock": "destroyed"}
	s.sight(m)
}

func checkResize(v string) error {
	if !reSize.MatchString(strings.TrimPrefix(v, "+")) {
		return errors.New("value does not match the regex pattern")
	}
	return nil
}

// resizeDisk grows a disk; the checks run in the worker, as in Proxmox 9.
func resizeDisk(s *Server, c *call) (any, error) {
	if err := rootOnly(c, "skiplock"); err != nil {
		return nil, err
	}
	if !isDriveName(c.param("disk")) {
		return nil, badParam("disk", "%s", param{enum: driveNames()}.validate(c.param("disk")))
	}
	return s.forkVM(c, "resize", func(ctx context.Context, t *task) error {
		s.mu.Lock()
		r, err := s.planResize(c)
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if err := s.resizeImage(ctx, r); err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		r.commit()
		t.log = append(t.log, "Image resized.")
		return nil
	})
}

// driveNames are all slots of disks.
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

// resize is a disk that grows.
type resize struct {
	m    *machine
	disk string
	d    drive
	vol  *volume
	want int64
	run  *guestRun // of a VM that runs
}

// planResize checks that a disk can grow; s.mu is held.
func (s *Server) planResize(c *call) (*resize, error) {
	m, err := s.loadForUpdate(c, &update{digest: c.param("digest"), skiplock: c.flag("skiplock")})
	if err != nil {
		return nil, err
	}
	disk, size := c.param("disk"), c.param("size")
	value, ok := m.conf[disk]
	if !ok {
		return nil, dief("disk '%s' does not exist", disk)
	}
	d, err := parseDrive(value)
	if err != nil || d.isCDROM() {
		return nil, dief("you can't resize a cdrom")
	}
	st, vol := s.volumeOf(m.node, d.file)
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
		return nil, noSpace(st)
	}
	return &resize{m: m, disk: disk, d: d, vol: vol, want: want, run: m.guest}, nil
}

// commit writes the new size; Server.mu is held.
func (r *resize) commit() {
	if r.vol.parent == "" {
		r.vol.used += r.want - r.vol.size
	}
	r.vol.size = r.want
	r.m.conf[r.disk] = r.d.sized(r.want).String()
}

// makeTemplate converts a stopped VM; its disks become bases.
func makeTemplate(s *Server, c *call) (any, error) {
	s.mu.Lock()
	_, err := s.templateChecks(c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmtemplate", func(_ context.Context, _ *task) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		m, err := s.templateChecks(c)
		if err != nil {
			return err
		}
		s.toBase(m)
		m.conf["template"] = "1"
		s.sight(m)
		return nil
	})
}

// templateChecks refuses what can't be made a template; s.mu is held.
func (s *Server) templateChecks(c *call) (*machine, error) {
	m, err := s.get(c.node, c.vmid)
	if err == nil {
		err = m.checkLock()
	}
	switch {
	case err != nil:
		return nil, err
	case m.template():
		return nil, dief("you can't convert a template to a template")
	case m.running:
		return nil, dief("you can't convert a VM to template if VM is running")
	default:
		return m, nil
	}
}

func (s *Server) toBase(m *machine) {
	for k, v := range m.conf {
		d, err := parseDrive(v)
		if !isDriveName(k) || err != nil || d.isCDROM() {
			continue
		}
		st, vol := s.volumeOf(m.node, d.file)
		if vol == nil {
			continue
		}
		delete(st.vols, vol.id)
		vol.id = strings.Replace(vol.id, "vm-"+strconv.Itoa(m.id)+"-", "base-"+strconv.Itoa(m.id)+"-", 1)
		st.add(vol)
		d.file = vol.id
		m.conf[k] = d.String()
	}
}
