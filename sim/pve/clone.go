// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// manyHolders is the limit of a lock that is merely shared.
const manyHolders = 1 << 30

func cloneSchema() schema {
	return schema{
		"newid": {kind: kInt, required: true, min: -maxVMID, check: checkVMID},
		"name":  {check: checkDNSName}, "description": {}, "pool": {check: checkPoolID},
		"snapname": {maxLen: 40}, "storage": {check: checkStorageID},
		"format": {enum: []string{"raw", "qcow2", "vmdk"}}, "full": {kind: kBool}, "target": {}, "bwlimit": {kind: kInt},
	}
}

// permClone asks for VM.Clone on the source and VM.Allocate on the new VM or
// its pool.
func permClone(s *Server, c *call) error {
	if err := s.may(c.auth, vmPath(c.vmid), "VM.Clone"); err != nil {
		return err
	}
	return permNewVM(s, c, c.param("newid"))
}

// permNewVM asks for VM.Allocate on a new VM or on the pool it is made in.
func permNewVM(s *Server, c *call, vmid string) error {
	if s.may(c.auth, "/vms/"+vmid, "VM.Allocate") == nil ||
		c.has("pool") && s.may(c.auth, "/pool/"+c.param("pool"), "VM.Allocate") == nil {
		return nil
	}
	return noPermission()
}

// clonePlan is what a clone will do, worked out before the worker starts and
// once more inside it.
type clonePlan struct {
	src    *machine
	newID  int
	conf   map[string]string
	disks  []cloneDisk
	full   bool
	target string
}

type cloneDisk struct {
	opt   string
	drive drive
	from  *store
	to    *store
	base  *volume // nil for a cloud-init drive
	full  bool
}

func cloneVM(s *Server, c *call) (any, error) {
	s.mu.Lock()
	plan, err := s.planClone(c)
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return s.fork(c, "qmclone", strconv.Itoa(c.vmid), func(ctx context.Context, t *task) error {
		limit := manyHolders
		if plan.src.running {
			limit = 0
		}
		unlockSrc, err := s.lockVM(ctx, c.vmid, limit, time.Second)
		if err != nil {
			return err
		}
		defer unlockSrc()
		unlockNew, err := s.lockVM(ctx, plan.newID, 0, time.Second)
		if err != nil {
			return err
		}
		defer unlockNew()
		return s.clone(ctx, c, t)
	})
}

// lockVM takes the file lock of a VM's configuration.
func (s *Server) lockVM(ctx context.Context, vmid, limit int, timeout time.Duration) (func(), error) {
	release, err := s.locks.acquire(ctx, fmt.Sprintf("vm/%d", vmid), limit, timeout)
	if errors.Is(err, errLockTimeout) {
		return nil, lockTimeout(vmid)
	}
	return release, err
}

// planClone checks everything that can be checked beforehand; s.mu is held.
func (s *Server) planClone(c *call) (*clonePlan, error) {
	p := &clonePlan{newID: c.num("newid")}
	if t := c.param("target"); t != "" && t != c.node && t != "localhost" {
		p.target = t
	}
	if err := s.checkCloneTarget(c, p); err != nil {
		return nil, err
	}
	src, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	p.src = src
	if err := src.checkLock(); err != nil {
		return nil, err
	}
	if c.has("snapname") {
		return nil, dief("snapshot '%s' does not exist", c.param("snapname"))
	}
	p.full = !src.template()
	if c.has("full") {
		p.full = c.flag("full")
	}
	for _, name := range []string{"storage", "format"} {
		if c.has(name) && !p.full {
			return nil, dief("parameter '%s' not allowed for linked clones", name)
		}
	}
	return p, s.planDisks(c, p)
}

func (s *Server) checkCloneTarget(c *call, p *clonePlan) error {
	if pool := c.param("pool"); pool != "" && s.pools[pool] == nil {
		return dief("pool '%s' does not exist", pool)
	}
	if p.target != "" && (s.nodes[p.target] == nil || s.nodes[p.target].trouble == FaultNodeLost) {
		return dief("no such cluster node '%s'", p.target)
	}
	name := c.param("storage")
	if name == "" {
		return nil
	}
	st, err := s.enabledStore(c.node, name)
	if err != nil {
		return err
	}
	if !st.holds("images") {
		return badParam("storage", "storage '%s' does not support vm images", name)
	}
	if p.target != "" && !st.Shared {
		return dief("can't clone to non-shared storage '%s'", name)
	}
	return nil
}

// planDisks copies the configuration and decides what happens to each drive.
func (s *Server) planDisks(c *call, p *clonePlan) error {
	p.conf = map[string]string{}
	shared := true
	for _, opt := range slices.Sorted(maps.Keys(p.src.conf)) {
		value := p.src.conf[opt]
		switch {
		case reUnused.MatchString(opt):
		case reNet.MatchString(opt):
			if err := s.mayUseBridge(c.auth, value); err != nil {
				return err
			}
			p.conf[opt] = s.renewMAC(value)
		case isDriveName(opt):
			isShared, err := s.planDisk(c, p, opt, value)
			if err != nil {
				return err
			}
			shared = shared && isShared
		default:
			p.conf[opt] = value
		}
	}
	if p.target != "" && !shared {
		return dief("can't clone VM to node '%s' (VM uses local storage)", p.target)
	}
	if m := s.vms[p.newID]; m != nil && m.node == c.node {
		return dief("unable to create VM %d: config file already exists", p.newID)
	}
	return nil
}

// planDisk tells whether the drive is on shared storage.
func (s *Server) planDisk(c *call, p *clonePlan, opt, value string) (bool, error) {
	d, err := parseDrive(value)
	if err != nil {
		return false, dief("unable to parse drive options for '%s'", opt)
	}
	if d.isCDROM() && !d.isCloudInit() {
		p.conf[opt] = value
		st, _ := s.volumeOf(c.node, d.file)
		return st == nil || st.Shared, nil
	}
	from, base := s.volumeOf(c.node, d.file)
	if from == nil {
		return false, dief("volume '%s' does not exist", d.file)
	}
	if _, err := s.enabledStore(c.node, from.Name); err != nil {
		return false, err
	}
	cd := cloneDisk{opt: opt, drive: d, from: from, to: from, base: base, full: p.full || d.isCloudInit() || opt == tpmSlot}
	if name := c.param("storage"); name != "" {
		if cd.to, err = s.enabledStore(c.node, name); err != nil {
			return false, err
		}
	}
	if err := s.mayLocked(c.auth, "/storage/"+cd.to.Name, "Datastore.AllocateSpace"); err != nil {
		return false, err
	}
	isBase := base != nil && strings.Contains(base.id, "base-")
	if !cd.full && !isBase {
		return false, dief("Linked clone feature is not supported for '%s' (%s)", d.file, opt)
	}
	p.disks = append(p.disks, cd)
	return cd.to.Shared, nil
}

var reMAC = regexp.MustCompile(`(?i)=([0-9a-f]{2}(?::[0-9a-f]{2}){5})`)

func (s *Server) renewMAC(net string) string {
	return reMAC.ReplaceAllString(net, "="+s.newMAC())
}

// clone is the worker: a locked stub, the disks, then the whole configuration,
// then the pool.
func (s *Server) clone(ctx context.Context, c *call, t *task) error {
	s.mu.Lock()
	p, err := s.planClone(c)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	if other := s.vms[p.newID]; other != nil {
		s.mu.Unlock()
		// The cluster file system refuses a VMID that another node has.
		return dief("close (rename) atomic file '/etc/pve/nodes/%s/qemu-server/%d.conf' failed: File exists",
			c.node, p.newID)
	}
	m := &machine{
		id: p.newID, node: c.node, imageDir: p.src.imageDir,
		// The file's first line is a comment, and so the machine's notes (PVE::API2::Qemu).
		conf:    map[string]string{"lock": "clone", "description": " qmclone temporary file"},
		pending: map[string]string{}, pendingDel: map[string]bool{},
	}
	s.vms[m.id] = m
	s.sight(m)
	s.mu.Unlock()
	s.printf(t, "creating a clone of VM %d with ID %d", c.vmid, p.newID)

	s.mu.Lock()
	s.prepareConf(c, p)
	s.mu.Unlock()
	if err := s.cloneDisks(ctx, t, p, m); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeClone(p, m)
	delete(m.conf, "lock")
	if p.target != "" {
		m.node = p.target
	}
	if pool := c.param("pool"); pool != "" {
		s.pools[pool][m.id] = true
	}
	s.sight(m)
	return nil
}

// prepareConf is the new configuration but for its drives.
func (s *Server) prepareConf(c *call, p *clonePlan) {
	delete(p.conf, "template")
	p.conf["lock"] = "clone"
	p.conf["smbios1"] = renewUUID(p.conf["smbios1"], s.newUUID())
	if p.conf["vmgenid"] != "" {
		p.conf["vmgenid"] = s.newUUID()
	}
	p.conf["name"] = c.param("name")
	if p.conf["name"] == "" {
		p.conf["name"] = "Copy-of-VM-" + cmpOr(p.src.conf["name"], strconv.Itoa(p.src.id))
	}
	if d := c.param("description"); d != "" {
		p.conf["description"] = storedDescription(d)
	}
}

// writeClone writes the configuration with the drives made so far. Proxmox
// does so after each drive: until the first one is there the file is a stub.
func (s *Server) writeClone(p *clonePlan, m *machine) {
	conf := maps.Clone(p.conf)
	maps.Copy(conf, driveOptionsOf(m.conf))
	m.conf = conf
	s.sight(m)
}

func cmpOr(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func driveOptionsOf(conf map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range conf {
		if isDriveName(k) {
			out[k] = v
		}
	}
	return out
}

func renewUUID(smbios, uuid string) string {
	parts := []string{"uuid=" + uuid}
	for p := range strings.SplitSeq(smbios, ",") {
		if p != "" && !strings.HasPrefix(p, "uuid=") {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, ",")
}

// cloneDisks makes the new disks and, on failure, removes what it made. A
// worker that is killed removes nothing.
func (s *Server) cloneDisks(ctx context.Context, t *task, p *clonePlan, m *machine) error {
	var made []string
	err := func() error {
		for _, d := range p.disks {
			volid, err := s.cloneDisk(ctx, t, p, m, d)
			if err != nil {
				return err
			}
			made = append(made, volid)
		}
		return nil
	}()
	if errors.Is(err, errKilled) || err == nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range made {
		s.freeVolume(m.node, v)
	}
	delete(s.vms, m.id)
	return dief("clone failed: %s", reasonOf(err))
}

func (s *Server) cloneDisk(ctx context.Context, t *task, p *clonePlan, m *machine, d cloneDisk) (string, error) {
	how := "linked"
	if d.full {
		how = "full"
	}
	s.printf(t, "create %s clone of drive %s (%s)", how, d.opt, d.drive.file)
	if !d.drive.isCloudInit() {
		release, err := s.lockStore(ctx, d.to)
		if err != nil {
			return "", err
		}
		defer release()
		if err := s.cloneWork(ctx, t, d); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	v, err := s.newImage(m, d)
	s.mu.Unlock()
	if err != nil {
		return "", err
	}
	if err := s.makeImage(ctx, v); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.freeVolume(m.node, v.id)
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.log = append(t.log, cloneLog(d, v)...)
	d.drive.file = v.id
	d.drive = d.drive.sized(v.size)
	m.conf[d.opt] = d.drive.String()
	s.writeClone(p, m)
	return v.id, nil
}

// cloneLog is what the log says of a drive that was copied.
func cloneLog(d cloneDisk, v *volume) []string {
	if !d.full {
		return nil
	}
	lines := []string{"allocated target volume '" + v.id + "'"}
	if d.drive.isCloudInit() {
		return lines
	}
	size := renderBytes(v.size)
	return append(lines, "transferred 0.0 B of "+size+" (0.00%)", "transferred "+size+" of "+size+" (100.00%)")
}

// renderBytes writes a size as people read it, with one digit after the point.
func renderBytes(n int64) string {
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && f >= 1<<10 {
		f, units = f/(1<<10), units[1:]
	}
	return fmt.Sprintf("%.1f %s", f, units[0])
}

// lockStore waits for one of the places a storage has for clones.
func (s *Server) lockStore(ctx context.Context, st *store) (func(), error) {
	limit := s.model.Limits.ClonesPerStorage
	if limit <= 0 {
		limit = manyHolders
	}
	release, err := s.locks.acquire(ctx, "storage/"+st.key.node+"/"+st.key.name, limit, cloneLockWait)
	if errors.Is(err, errLockTimeout) {
		return nil, dief("%s", st.lockError())
	}
	return release, err
}

// cloneWork is the time a clone takes and what can go wrong in it.
func (s *Server) cloneWork(ctx context.Context, t *task, d cloneDisk) error {
	took := s.model.Delays.Clone
	if d.full && s.model.Delays.FullClone > 0 {
		took = s.model.Delays.FullClone
	}
	if struck(t.faults, FaultHalfClone) != nil {
		s.sleep(ctx, took/2)
		return errKilled
	}
	if !s.sleep(ctx, took) {
		return dief("interrupted by signal")
	}
	if struck(t.faults, FaultStorageFull) != nil {
		return noSpace(d.to)
	}
	return nil
}

func noSpace(st *store) error {
	if st.fileBased() {
		return dief("unable to create image: qemu-img: No space left on device")
	}
	return dief("lvcreate '%s' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.",
		st.Name)
}

// newImage makes the volume of a cloned drive; s.mu is held.
func (s *Server) newImage(m *machine, d cloneDisk) (*volume, error) {
	if d.drive.isCloudInit() {
		return s.newCloudInitVolume(d.to, m.id), nil
	}
	if d.base == nil {
		return nil, dief("volume '%s' does not exist", d.drive.file)
	}
	v := &volume{content: "images", format: "raw", size: d.base.size, ctime: s.clk.Now(), vmid: m.id, seed: d.base.seed}
	if d.full {
		v.used = d.base.size
		v.id = d.to.nextDisk(m.id, nil)
	} else {
		v.parent = d.base.id
		v.id = d.to.nextDisk(m.id, d.base)
	}
	if d.to.Size > 0 && d.to.usedBytes()+v.used > d.to.Size {
		return nil, noSpace(d.to)
	}
	d.to.add(v)
	v.image = s.host.clone(v, d)
	return v, nil
}

// mayUseBridge asks for SDN.Use on the bridge of a network device; s.mu is held.
func (s *Server) mayUseBridge(who identity, net string) error {
	for part := range strings.SplitSeq(net, ",") {
		if bridge, ok := strings.CutPrefix(part, "bridge="); ok {
			return s.mayLocked(who, "/sdn/zones/localnetwork/"+bridge, "SDN.Use")
		}
	}
	return nil
}
