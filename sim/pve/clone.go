// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// manyHolders is the limit of a lock that any number of holders can share.
const manyHolders = 1 << 30

func cloneSchema() schema {
	return schema{
		"newid": {kind: kInt, required: true, min: -maxVMID, check: checkVMID},
		"name":  {check: checkDNSName}, "description": {}, "pool": {check: checkPoolID},
		"snapname": {maxLen: 40, check: checkConfigID}, "storage": {check: checkStorageID},
		"format": {enum: []string{"raw", "qcow2", "vmdk"}}, "full": {kind: kBool},
		"target": {check: checkNodeName}, "bwlimit": {kind: kInt},
	}
}

// checkClonePermission requires VM.Clone on the source, and VM.Allocate on the new VM or on its
// pool.
func checkClonePermission(s *Server, c *call) error {
	if err := s.checkPoolExists(c); err != nil {
		return err
	}
	if err := s.require(c.auth, vmPath(c.vmid), "VM.Clone"); err != nil {
		return err
	}
	return checkNewVMPermission(s, c, c.param("newid"))
}

// checkPoolExists refuses a pool that does not exist. The check belongs to the permissions.
func (s *Server) checkPoolExists(c *call) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkPoolExistsLocked(c)
}

func (s *Server) checkPoolExistsLocked(c *call) error {
	if pool := c.param("pool"); pool != "" && checkPoolID(pool) == nil && s.pools[pool] == nil {
		return &apiError{status: http.StatusForbidden, reason: "Permission check failed (pool '" + pool + "' does not exist)"}
	}
	return nil
}

// checkNewVMPermission requires VM.Allocate on a new VM or on the pool in which it is created.
func checkNewVMPermission(s *Server, c *call, vmid string) error {
	if s.require(c.auth, "/vms/"+vmid, "VM.Allocate") == nil ||
		c.hasParam("pool") && s.require(c.auth, "/pool/"+c.param("pool"), "VM.Allocate") == nil {
		return nil
	}
	return newPermissionError()
}

// clonePlan describes what a clone does. It is computed before the task starts and again in the
// task.
type clonePlan struct {
	src    *machine
	newID  int
	conf   map[string]string
	disks  []cloneDisk
	full   bool
	target string
}

type cloneDisk struct {
	opt    string
	drive  drive
	source *store
	target *store
	base   *volume // nil if the source has no such volume
	format string  // of a full clone; empty means the storage's
	full   bool
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
		return s.runClone(ctx, c, t)
	})
}

// trimStorage returns the name of a volume without its storage.
func trimStorage(volid string) string {
	_, name, _ := splitVolid(volid)
	return name
}

// lockVM acquires the file lock of a VM's configuration and returns a function that releases it.
func (s *Server) lockVM(ctx context.Context, vmid, limit int, timeout time.Duration) (func(), error) {
	release, err := s.locks.acquire(ctx, fmt.Sprintf("vm/%d", vmid), limit, timeout)
	if errors.Is(err, errLockTimeout) {
		return nil, newLockTimeoutError(vmid)
	}
	if err != nil {
		return nil, newInterruptError()
	}
	return release, nil
}

// planClone runs all checks that are possible before the task. The caller holds s.mu.
func (s *Server) planClone(c *call) (*clonePlan, error) {
	p := &clonePlan{newID: c.intParam("newid")}
	if t := c.param("target"); t != "" && t != c.node && t != "localhost" {
		p.target = t
	}
	if err := s.checkCloneTarget(c, p); err != nil {
		return nil, err
	}
	src := s.vms[c.vmid]
	if src == nil || src.node != c.node {
		return nil, newNoVMError(c.node, c.vmid)
	}
	p.src = src
	if err := src.checkLock(); err != nil {
		return nil, err
	}
	if c.hasParam("snapname") {
		sn := src.snapshots[c.param("snapname")]
		if sn == nil {
			return nil, newNoSnapshotError(c.param("snapname"))
		}
		p.src = &machine{id: src.id, node: src.node, conf: sn.conf, imageDir: src.imageDir}
	}
	p.full = !src.isTemplate()
	if c.hasParam("full") {
		p.full = c.boolParam("full")
	}
	for _, name := range []string{"storage", "format"} {
		if c.hasParam(name) && !p.full {
			return nil, dief("parameter '%s' not allowed for linked clones", name)
		}
	}
	if err := s.planDisks(c, p); err != nil {
		return nil, err
	}
	return p, s.checkMappingAccess(c, p.conf)
}

func (s *Server) checkCloneTarget(c *call, p *clonePlan) error {
	if err := s.checkPoolExistsLocked(c); err != nil { // root's permissions are not checked
		return err
	}
	if p.target != "" {
		if err := s.checkMember(p.target); err != nil {
			return err
		}
	}
	name := c.param("storage")
	if name == "" {
		return nil
	}
	st, err := s.findEnabledStore(c.node, name)
	if err != nil {
		return err
	}
	if !st.canHold("images") {
		return newParamError("storage", "storage '%s' does not support vm images", name)
	}
	if p.target != "" && !st.Shared {
		return dief("can't clone to non-shared storage '%s'", name)
	}
	return nil
}

// planDisks copies the configuration and plans the clone of each drive.
func (s *Server) planDisks(c *call, p *clonePlan) error {
	p.conf = map[string]string{}
	allShared := true
	for _, opt := range slices.Sorted(maps.Keys(p.src.conf)) {
		value := p.src.conf[opt]
		switch {
		case reUnused.MatchString(opt):
		case reNet.MatchString(opt):
			if err := s.checkBridgePermission(c.auth, value); err != nil {
				return err
			}
			p.conf[opt] = s.replaceMAC(value)
		case isDriveName(opt):
			isShared, err := s.planDisk(c, p, opt, value)
			if err != nil {
				return err
			}
			allShared = allShared && isShared
		default:
			p.conf[opt] = value
		}
	}
	if p.target != "" && !allShared {
		return dief("can't clone VM to node '%s' (VM uses local storage)", p.target)
	}
	if m := s.vms[p.newID]; m != nil && m.node == c.node {
		return dief("unable to create VM %d: config file already exists", p.newID)
	}
	return nil
}

// planDisk plans the clone of a drive and returns true if the new drive is on shared storage.
func (s *Server) planDisk(c *call, p *clonePlan, opt, value string) (isShared bool, err error) {
	d, err := parseDrive(value)
	if err != nil {
		return false, dief("unable to parse drive options for '%s'", opt)
	}
	if d.isCDROM() && !d.isCloudInit() {
		p.conf[opt] = value
		st, _ := s.findVolume(c.node, d.file)
		return st == nil || st.Shared, nil
	}
	source, base := s.findVolume(c.node, d.file)
	if source == nil {
		return false, dief("volume '%s' does not exist", d.file)
	}
	if _, err := s.findEnabledStore(c.node, source.Name); err != nil {
		return false, err
	}
	cd := cloneDisk{
		opt: opt, drive: d, source: source, target: source, base: base,
		format: c.param("format"), full: p.full || d.isCloudInit() || opt == tpmSlot,
	}
	if name := c.param("storage"); name != "" {
		if cd.target, err = s.findEnabledStore(c.node, name); err != nil {
			return false, err
		}
	}
	if err := s.requireLocked(c.auth, "/storage/"+cd.target.Name, "Datastore.AllocateSpace"); err != nil {
		return false, err
	}
	isBase := base != nil && strings.HasPrefix(path.Base(trimStorage(base.id)), "base-")
	switch {
	case !cd.full && c.hasParam("snapname"):
		return false, dief("Linked clone feature is not supported for a snapshot of '%s' (%s)", d.file, opt)
	case !cd.full && !isBase:
		return false, dief("Linked clone feature is not supported for '%s' (%s)", d.file, opt)
	}
	p.disks = append(p.disks, cd)
	return cd.target.Shared && cd.source.Shared, nil
}

var reMAC = regexp.MustCompile(`(?i)=([0-9a-f]{2}(?::[0-9a-f]{2}){5})`)

func (s *Server) replaceMAC(net string) string {
	return reMAC.ReplaceAllString(net, "="+s.newMAC())
}

// runClone is the work of a clone task. It creates a locked configuration, then the disks, then the
// complete configuration, and adds the VM to the pool.
func (s *Server) runClone(ctx context.Context, c *call, t *task) error {
	s.mu.Lock()
	p, err := s.planClone(c)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	t.log = append(t.log, fmt.Sprintf("creating a clone of VM %d with ID %d", c.vmid, p.newID))
	if other := s.vms[p.newID]; other != nil {
		s.mu.Unlock()
		// The cluster file system refuses a VMID that exists on another node.
		return dief("close (rename) atomic file '/etc/pve/nodes/%s/qemu-server/%d.conf' failed: File exists",
			c.node, p.newID)
	}
	m := &machine{
		id: p.newID, node: c.node, imageDir: p.src.imageDir,
		// The first line of the file is a comment and therefore the VM's description (PVE::API2::Qemu).
		conf:    map[string]string{"lock": "clone", "description": " qmclone temporary file"},
		pending: map[string]string{}, pendingDel: map[string]bool{},
	}
	s.vms[m.id] = m
	s.recordSighting(m)
	s.mu.Unlock()

	s.mu.Lock()
	s.prepareConf(c, p)
	s.mu.Unlock()
	if err := s.cloneDisks(ctx, t, p, m); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeCloneConfig(p, m)
	delete(m.conf, "lock")
	if p.target != "" {
		m.node = p.target
	}
	if pool := c.param("pool"); pool != "" {
		s.pools[pool].vms[m.id] = true
	}
	s.recordSighting(m)
	return nil
}

// prepareConf completes the new configuration, except for its drives.
func (s *Server) prepareConf(c *call, p *clonePlan) {
	delete(p.conf, "template")
	p.conf["lock"] = "clone"
	p.conf["smbios1"] = replaceUUID(p.conf["smbios1"], s.newUUID())
	if p.conf["vmgenid"] != "" {
		p.conf["vmgenid"] = s.newUUID()
	}
	p.conf["name"] = c.param("name")
	if p.conf["name"] == "" {
		p.conf["name"] = "Copy-of-VM-" + cmp.Or(p.src.conf["name"], strconv.Itoa(p.src.id))
	}
	if d := c.param("description"); d != "" {
		p.conf["description"] = formatDescription(d)
	}
}

// writeCloneConfig writes the configuration with the drives that exist so far. Proxmox VE does this
// after each drive. Before the first drive exists, the file contains only the lock.
func (s *Server) writeCloneConfig(p *clonePlan, m *machine) {
	conf := maps.Clone(p.conf)
	maps.Copy(conf, selectDrives(m.conf))
	m.conf = conf
	s.recordSighting(m)
}

func selectDrives(conf map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range conf {
		if isDriveName(k) {
			out[k] = v
		}
	}
	return out
}

func replaceUUID(smbios, uuid string) string {
	parts := []string{"uuid=" + uuid}
	for p := range strings.SplitSeq(smbios, ",") {
		if p != "" && !strings.HasPrefix(p, "uuid=") {
			parts = append(parts, p)
		}
	}
	return strings.Join(parts, ",")
}

// cloneDisks creates the new disks. If it fails, it deletes the disks that it has created. A killed
// task deletes nothing.
func (s *Server) cloneDisks(ctx context.Context, t *task, p *clonePlan, m *machine) error {
	var created []string
	err := func() error {
		for _, d := range p.disks {
			volid, err := s.cloneDisk(ctx, t, p, m, d)
			if err != nil {
				return err
			}
			created = append(created, volid)
		}
		return nil
	}()
	if errors.Is(err, errKilled) || err == nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range created {
		s.freeVolume(m.node, v)
	}
	delete(s.vms, m.id)
	return dief("clone failed: %s", errorReason(err))
}

func (s *Server) cloneDisk(ctx context.Context, t *task, p *clonePlan, m *machine, d cloneDisk) (string, error) {
	mode := "linked"
	if d.full {
		mode = "full"
	}
	s.printf(t, "create %s clone of drive %s (%s)", mode, d.opt, d.drive.file)
	if !d.drive.isCloudInit() {
		release, err := s.lockStore(ctx, d.target)
		if err != nil {
			return "", err
		}
		defer release()
		if err := s.waitForClone(ctx, t, d); err != nil {
			return "", err
		}
	}
	s.mu.Lock()
	v, err := s.newImage(m, d)
	s.mu.Unlock()
	if err != nil {
		return "", err
	}
	if err := s.createCloneImage(ctx, v); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.freeVolume(m.node, v.id)
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.log = append(t.log, formatCloneLog(d, v)...)
	d.drive.file = v.id
	d.drive = d.drive.withSize(v.size)
	m.conf[d.opt] = d.drive.String()
	s.writeCloneConfig(p, m)
	return v.id, nil
}

// formatCloneLog returns the log lines of a cloned drive. A linked clone has none on lvmthin.
func formatCloneLog(d cloneDisk, v *volume) []string {
	var lines []string
	if d.target.isFileBased() {
		lines = d.target.formatImageLog(v, d.base)
	}
	if !d.full {
		return lines
	}
	lines = append(lines, "allocated target volume '"+v.id+"'")
	if d.drive.isCloudInit() {
		return lines
	}
	size := formatBytes(v.size)
	return append(lines, "transferred 0.0 B of "+size+" (0.00%)", "transferred "+size+" of "+size+" (100.00%)")
}

// formatImageLog returns what qemu-img and the storage plug-in print about a new image of a file-based
// storage. base is the image of which a linked clone is created, or any other source of a full clone.
func (st *store) formatImageLog(v, base *volume) []string {
	target := st.path(v.id)
	if v.format != "qcow2" {
		return []string{fmt.Sprintf("Formatting '%s', fmt=raw size=%d preallocation=off", target, v.size)}
	}
	if v.parent == "" {
		return []string{fmt.Sprintf("Formatting '%s', fmt=qcow2 cluster_size=65536 extended_l2=off preallocation=metadata "+
			"compression_type=zlib size=%d lazy_refcounts=off refcount_bits=16", target, v.size)}
	}
	_, baseName, _ := splitVolid(base.id)
	name, backing, preallocation := path.Base(target), "../"+baseName, "metadata"
	if base.format != "qcow2" {
		preallocation = "off"
	}
	return []string{
		fmt.Sprintf("clone %s: images, %s, %d to %s (base=%s)", baseName, name, v.vmid, name, backing),
		fmt.Sprintf("Formatting '%s', fmt=qcow2 cluster_size=131072 extended_l2=on preallocation=%s compression_type=zlib size=%d "+
			"backing_file=%s backing_fmt=%s lazy_refcounts=off refcount_bits=16", target, preallocation, v.size, backing, base.format),
	}
}

// formatBytes formats a size with a binary unit and one decimal.
func formatBytes(n int64) string {
	f, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && f >= 1<<10 {
		f, units = f/(1<<10), units[1:]
	}
	return fmt.Sprintf("%.1f %s", f, units[0])
}

// lockStore waits until the storage can create another clone. It returns a function that releases
// the lock.
func (s *Server) lockStore(ctx context.Context, st *store) (func(), error) {
	limit := s.model.Limits.ClonesPerStorage
	if limit <= 0 {
		limit = manyHolders
	}
	release, err := s.locks.acquire(ctx, "storage/"+st.key.node+"/"+st.key.name, limit, cloneLockTimeout)
	if errors.Is(err, errLockTimeout) {
		return nil, dief("%s", st.lockTimeoutReason())
	}
	return release, err
}

// waitForClone waits for the time of a clone and applies the faults of clones.
func (s *Server) waitForClone(ctx context.Context, t *task, d cloneDisk) error {
	duration := s.model.Delays.Clone
	if d.full && s.model.Delays.FullClone > 0 {
		duration = s.model.Delays.FullClone
	}
	if findFault(t.faults, FaultHalfClone) != nil {
		s.sleep(ctx, duration/2)
		return errKilled
	}
	if !s.sleep(ctx, duration) {
		return dief("interrupted by signal")
	}
	if findFault(t.faults, FaultStorageFull) != nil {
		return newNoSpaceError(d.target)
	}
	return nil
}

func newNoSpaceError(st *store) error {
	if st.isFileBased() {
		return dief("unable to create image: qemu-img: No space left on device")
	}
	return dief("lvcreate '%s' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.",
		st.Name)
}

// newImage creates the volume of a cloned drive. The caller holds s.mu.
func (s *Server) newImage(m *machine, d cloneDisk) (*volume, error) {
	if d.drive.isCloudInit() {
		return s.newCloudInitVolume(d.target, m.id), nil
	}
	if d.base == nil {
		return nil, dief("volume '%s' does not exist", d.drive.file)
	}
	v := &volume{content: "images", format: "raw", size: d.base.size, ctime: s.clk.Now(), vmid: m.id, seed: d.base.seed}
	if d.full {
		v.used = d.base.size
		v.id = d.target.nextDiskID(m.id, nil)
		if d.format == "raw" {
			v.id = toRawName(v.id)
		}
	} else {
		v.parent = d.base.id
		v.id = d.target.nextDiskID(m.id, d.base)
	}
	if d.target.Size > 0 && d.target.usedBytes()+v.used > d.target.Size {
		return nil, newNoSpaceError(d.target)
	}
	d.target.addVolume(v)
	v.image = s.host.cloneImage(v, d)
	return v, nil
}

// checkBridgePermission requires SDN.Use on the bridge of a network device. The caller holds s.mu.
func (s *Server) checkBridgePermission(caller identity, net string) error {
	for part := range strings.SplitSeq(net, ",") {
		if bridge, ok := strings.CutPrefix(part, "bridge="); ok {
			return s.requireLocked(caller, "/sdn/zones/localnetwork/"+bridge, "SDN.Use")
		}
	}
	return nil
}
