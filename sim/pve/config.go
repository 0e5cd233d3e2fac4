// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func configRoutes() []route {
	base := "/nodes/{node}/qemu/{vmid}/config"
	anyConfig := requireAny("/vms/{vmid}", "VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory",
		"VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.Config.Cloudinit")
	read := schema{"current": {kind: kBool}, "snapshot": {}}
	put := newRoute(http.MethodPut, base, ClassVM, anyConfig, nil, putConfig)
	post := newRoute(http.MethodPost, base, ClassVM, anyConfig, nil, postConfig).asTask()
	put.freeParams, post.freeParams = true, true
	return []route{
		newRoute(http.MethodGet, base, ClassVM, requireAll("/vms/{vmid}", "VM.Audit"), read, getConfig), put, post,
		newRoute(http.MethodGet, "/nodes/{node}/qemu/{vmid}/pending", ClassVM, requireAll("/vms/{vmid}", "VM.Audit"),
			nil, getPending),
	}
}

const masked = "**********"

// getConfig returns the configuration with the pending changes applied, unless the call requests the
// current one.
func getConfig(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	if name := c.param("snapshot"); name != "" {
		sn := m.snapshots[name]
		if sn == nil {
			return nil, newNoSnapshotError(name)
		}
		out := sn.encode()
		out["digest"] = m.digest()
		return out, nil
	}
	conf := maps.Clone(m.conf)
	if !c.boolParam("current") {
		maps.Copy(conf, m.pending)
		for k := range m.pendingDel {
			delete(conf, k)
		}
	}
	out := map[string]any{"digest": m.digest()}
	for k, v := range conf {
		out[k] = encodeOption(k, v)
	}
	return out, nil
}

// encodeOption returns the value of an option for a response. Numbers and booleans become JSON
// numbers, as in Proxmox VE. A password is masked.
func encodeOption(k, v string) any {
	if k == "cipassword" {
		return masked
	}
	o, ok := findOption(k)
	if ok && (o.kind == kInt || o.kind == kBool) {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n
		}
	}
	return v
}

func getPending(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.findVM(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	out := []map[string]any{{"key": "digest", "value": m.digest()}}
	keys := maps.Clone(m.conf)
	maps.Copy(keys, m.pending)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		row := map[string]any{"key": k}
		if v, ok := m.conf[k]; ok {
			row["value"] = encodeOption(k, v)
		}
		if v, ok := m.pending[k]; ok {
			row["pending"] = encodeOption(k, v)
		}
		if m.pendingDel[k] {
			row["delete"] = 1
		}
		out = append(out, row)
	}
	return out, nil
}

// update is a validated request to change a configuration.
type update struct {
	set      map[string]string
	delete   []string
	revert   []string
	digest   string
	skiplock bool
	force    bool
}

// summary returns the changes in the format of the task's log. A password is hidden.
func (u *update) summary() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(u.set)) {
		v := u.set[k]
		if k == "cipassword" {
			v = "<hidden>"
		}
		fmt.Fprintf(&b, " -%s %s", k, v)
	}
	if len(u.delete) > 0 {
		fmt.Fprintf(&b, " -delete %s", strings.Join(u.delete, ","))
	}
	return b.String()
}

func putConfig(s *Server, c *call) (any, error) {
	u, err := s.checkUpdate(c)
	if err != nil {
		return nil, err
	}
	release, err := s.lockVM(c.ctx, c.vmid, 0, configLockWait)
	if err != nil {
		return nil, err
	}
	defer release()
	return nil, s.updateVM(c.ctx, c, u)
}

func postConfig(s *Server, c *call) (any, error) {
	u, err := s.checkUpdate(c)
	if err != nil {
		return nil, err
	}
	delay := time.Duration(c.intParam("background_delay")) * time.Second
	upid, err := s.forkVM(c, "qmconfig", func(ctx context.Context, t *task) error {
		s.printf(t, "update VM %d:%s", c.vmid, u.summary())
		if !s.sleep(ctx, s.model.Delays.Config) {
			return dief("interrupted by signal")
		}
		return s.updateVM(ctx, c, u)
	})
	if err != nil || delay == 0 {
		return upid, err
	}
	return s.awaitTask(c, upid, delay)
}

// checkUpdate validates an update before the VM's lock is acquired.
func (s *Server) checkUpdate(c *call) (*update, error) {
	u := &update{
		set: map[string]string{}, delete: splitTags(c.param("delete")), revert: splitTags(c.param("revert")),
		digest: c.param("digest"), skiplock: c.boolParam("skiplock"), force: c.boolParam("force"),
	}
	if fields := s.collectOptions(c, u); len(fields) > 0 {
		return nil, newParamsError(fields)
	}
	if err := requireRoot(c, "skiplock"); err != nil {
		return nil, err
	}
	for _, k := range c.undefined {
		if _, ok := findOption(k); ok {
			return nil, dief("unable to parse value of '%s' - got undefined value", k)
		}
	}
	if len(u.set)+len(u.delete)+len(u.revert) == 0 {
		return nil, dief("no options specified")
	}
	if err := s.checkFiles(c, u.set); err != nil {
		return nil, err
	}
	for _, k := range u.revert {
		if _, ok := findOption(k); !ok {
			return nil, newParamError("revert", "unknown option '%s'", k)
		}
	}
	for i, k := range u.delete {
		if k == "cdrom" {
			u.delete[i] = "ide2"
			k = "ide2"
		}
		if _, isSetToo := u.set[k]; isSetToo {
			return nil, newParamError("delete", "you can't use '-%s' and -delete %s' at the same time", k, k)
		}
		if _, ok := findOption(k); !ok {
			return nil, newParamError("delete", "unknown option '%s'", k)
		}
	}
	if err := checkDrivePaths(u.set); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkUpdatePermission(c, u); err != nil {
		return nil, err
	}
	_, err := s.loadForUpdate(c, u)
	return u, err
}

// collectOptions validates the options of a call by their schemas and adds them to the update. It
// returns error messages by field.
func (s *Server) collectOptions(c *call, u *update) map[string]string {
	control := schema{
		"delete": {}, "revert": {}, "digest": {maxLen: 40}, "skiplock": {kind: kBool}, "force": {kind: kBool},
		"import-working-storage": {check: checkStorageID},
	}
	if c.method == http.MethodPost {
		control["background_delay"] = param{kind: kInt, min: 1, max: 30}
	}
	fields := map[string]string{}
	if c.hasParam("force") && !c.hasParam("delete") {
		fields["delete"] = "missing property required by 'force'"
	}
	for k, v := range c.params {
		if p, ok := control[k]; ok {
			if msg := p.validate(v); msg != "" {
				fields[k] = msg
			}
			continue
		}
		if k == "cdrom" {
			k = "ide2"
			v += ",media=cdrom"
		}
		o, ok := findOption(k)
		if !ok {
			fields[k] = "property is not defined in schema and the schema does not allow additional properties"
			continue
		}
		if msg := o.validate(v); msg != "" {
			fields[k] = strings.ReplaceAll(msg, propertyPath, k+".")
			continue
		}
		u.set[k] = s.formatStoredValue(k, v, o)
	}
	return fields
}

// formatStoredValue returns the value of an option as the configuration file stores it.
func (s *Server) formatStoredValue(k, v string, o option) string {
	switch {
	case o.kind == kBool:
		if isTrue(v) {
			return "1"
		}
		return "0"
	case k == "description":
		return formatDescription(v)
	case k == "tags":
		return normalizeTags(v)
	case k == "boot" && strings.HasPrefix(v, "order="):
		order := slices.DeleteFunc(strings.Split(v[len("order="):], ";"), func(d string) bool { return d == "" })
		return "order=" + strings.Join(order, ";")
	case reNet.MatchString(k):
		return s.formatNet(v)
	case k == "cipassword" && !reCrypted.MatchString(v):
		s.mu.Lock()
		defer s.mu.Unlock()
		return encryptPassword(v, s.newSalt())
	case k == "vmgenid" && v == "1":
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.newUUID()
	default:
		return v
	}
}

// formatDescription returns a description as the configuration stores it. The file stores the
// description as comments, and reading them removes white space at the end.
func formatDescription(v string) string { return strings.TrimRight(v, " \t\r\n") }

// formatNet returns a network device as the configuration stores it, with a MAC address.
func (s *Server) formatNet(v string) string {
	p, err := netFormat().parse(v)
	if err != nil {
		return v
	}
	mac := p["macaddr"]
	if mac == "" {
		s.mu.Lock()
		mac = s.newMAC()
		s.mu.Unlock()
	}
	parts := []string{p["model"] + "=" + mac}
	for _, key := range slices.Sorted(maps.Keys(p)) {
		if key != "model" && key != "macaddr" {
			parts = append(parts, key+"="+p[key])
		}
	}
	return strings.Join(parts, ",")
}

// applyUpdate writes the changes. Changes of a stopped VM and of live options take effect at once.
// Other changes become pending.
func (s *Server) applyUpdate(c *call, u *update) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.loadForUpdate(c, u)
	if err == nil {
		err = s.checkWritable(c)
	}
	if err != nil {
		return err
	}
	for k, v := range u.set {
		if o, _ := findOption(k); o.kind == kInt && strings.HasPrefix(v, "+") { // the file's parser is stricter than the API
			return dief("unable to parse value of '%s' - type check ('integer') failed - got '%s'", k, v)
		}
	}
	for _, k := range u.revert {
		delete(m.pending, k)
		delete(m.pendingDel, k)
	}
	for _, k := range u.delete {
		if err := s.deleteOption(c, m, k, u.force); err != nil {
			return err
		}
	}
	for _, k := range slices.Sorted(maps.Keys(u.set)) {
		if err := s.setOption(c, m, k, u.set[k]); err != nil {
			return err
		}
	}
	if !m.running {
		s.applyPending(m)
	}
	s.recordSighting(m)
	return nil
}

func (s *Server) deleteOption(c *call, m *machine, k string, isForced bool) error {
	if _, ok := m.conf[k]; !ok {
		delete(m.pending, k)
		return nil // Proxmox VE only logs a warning
	}
	if err := s.checkOptionPermission(c, m, k, m.conf[k]); err != nil {
		return err
	}
	if isDriveName(k) || reUnused.MatchString(k) {
		if isTrue(m.conf["protection"]) {
			return dief("can't remove drive '%s' - protection mode enabled", k)
		}
	}
	if k == "tags" {
		if err := s.checkTagPermission(c, m, ""); err != nil {
			return err
		}
	}
	if isForced || reUnused.MatchString(k) {
		if err := s.checkFreePermission(c, m.conf[k]); err != nil {
			return err
		}
	}
	delete(m.pending, k)
	if m.running && !canHotUnplug(k) {
		m.pendingDel[k] = true
		return nil
	}
	v := m.conf[k]
	s.removeOption(m, k)
	if isForced {
		s.purgeUnused(m, v)
	}
	return nil
}

// purgeUnused frees the volume of a disk that was detached by force, so that the volume does not
// remain as unusedN.
func (s *Server) purgeUnused(m *machine, v string) {
	d, err := parseDrive(v)
	if err != nil {
		return
	}
	for k, unused := range m.conf {
		if reUnused.MatchString(k) && unused == d.file {
			delete(m.conf, k)
			s.freeVolume(m.node, d.file)
		}
	}
}

// canHotUnplug returns true if the option can be removed from a running VM.
func canHotUnplug(k string) bool {
	if strings.HasPrefix(k, "ide") || strings.HasPrefix(k, "sata") {
		return false
	}
	o, _ := findOption(k)
	return o.live || isDriveName(k) && k != tpmSlot || k == "tags" || reUnused.MatchString(k)
}

// removeOption removes an option. The volume of a disk remains as unusedN, and a cloud-init drive is
// freed.
func (s *Server) removeOption(m *machine, k string) {
	v := m.conf[k]
	delete(m.conf, k)
	delete(m.pendingDel, k)
	s.releaseDrive(m, k, v)
	if boot, ok := strings.CutPrefix(m.conf["boot"], "order="); ok && isDriveName(k) {
		order := slices.DeleteFunc(strings.Split(boot, ";"), func(d string) bool { return d == k })
		m.conf["boot"] = "order=" + strings.Join(order, ";")
	}
}

func (s *Server) releaseDrive(m *machine, k, v string) {
	if reUnused.MatchString(k) {
		s.freeVolume(m.node, v)
		return
	}
	if !isDriveName(k) {
		return
	}
	d, err := parseDrive(v)
	switch {
	case err != nil:
	case d.isCloudInit():
		s.freeVolume(m.node, d.file)
	case !d.isCDROM():
		m.keepUnused(d.file)
	}
}

func (s *Server) setOption(c *call, m *machine, k, v string) error {
	if old, ok := m.conf[k]; ok {
		if err := s.checkOptionPermission(c, m, k, old); err != nil {
			return err
		}
	}
	if err := s.checkOptionPermission(c, m, k, v); err != nil {
		return err
	}
	switch {
	case k == "sshkeys" && v == "": // the file cannot have an empty value, so that the old one remains
		return nil
	case k == "tags":
		if err := s.checkTagPermission(c, m, v); err != nil {
			return err
		}
	case k == "boot":
		if err := s.checkBootOrder(m, v); err != nil {
			return err
		}
	case isDriveName(k):
		stored, err := s.attach(c, m, k, v)
		if err != nil {
			return err
		}
		v = stored
		s.addToBootOrder(m, k, v)
	}
	delete(m.pendingDel, k)
	if m.conf[k] == v {
		delete(m.pending, k)
		return nil
	}
	isNetwork := m.running && reNet.MatchString(k)
	if m.running && !s.canHotPlug(m, k, v) || isNetwork && s.model.isMissing(MissingTUN) {
		m.pending[k] = v
		if isNetwork {
			return newParamError(k, "hotplug problem - VM %d qmp command 'netdev_add' failed - could not open /dev/net/tun: "+
				"No such file or directory\n", m.id)
		}
		return nil
	}
	s.storeOption(m, k, v)
	return nil
}

// canHotPlug returns true if a change takes effect on a running VM: live options, new disks on a bus
// that supports hot-plugging, and another medium in an existing CD drive.
func (s *Server) canHotPlug(m *machine, k, v string) bool {
	if !isDriveName(k) {
		o, _ := findOption(k)
		return o.live
	}
	old, exists := m.conf[k]
	if !exists {
		return strings.HasPrefix(k, "scsi") || strings.HasPrefix(k, "virtio")
	}
	od, err1 := parseDrive(old)
	nd, err2 := parseDrive(v)
	return err1 == nil && err2 == nil && od.isCDROM() && nd.isCDROM()
}

func (s *Server) storeOption(m *machine, k, v string) {
	old, exists := m.conf[k]
	if exists && isDriveName(k) {
		oldDrive, _ := parseDrive(old)
		newDrive, _ := parseDrive(v)
		if oldDrive.file != newDrive.file {
			s.releaseDrive(m, k, old)
		}
	}
	delete(m.pending, k)
	if v == "" {
		delete(m.conf, k)
		return
	}
	m.conf[k] = v
}

// applyPending applies the pending changes. The caller holds s.mu.
func (s *Server) applyPending(m *machine) {
	for k := range m.pendingDel {
		s.removeOption(m, k)
	}
	for _, k := range slices.Sorted(maps.Keys(m.pending)) {
		s.storeOption(m, k, m.pending[k])
	}
	m.pending, m.pendingDel = map[string]string{}, map[string]bool{}
}
