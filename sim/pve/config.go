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
)

func configRoutes() []route {
	base := "/nodes/{node}/qemu/{vmid}/config"
	anyConfig := needsAny("/vms/{vmid}", "VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU", "VM.Config.Memory",
		"VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "VM.Config.Cloudinit")
	read := schema{"current": {kind: kBool}, "snapshot": {}}
	put := newRoute(http.MethodPut, base, ClassVM, anyConfig, nil, putConfig)
	post := newRoute(http.MethodPost, base, ClassVM, anyConfig, nil, postConfig).async()
	put.freeParams, post.freeParams = true, true
	return []route{
		newRoute(http.MethodGet, base, ClassVM, needs("/vms/{vmid}", "VM.Audit"), read, getConfig), put, post,
		newRoute(http.MethodGet, "/nodes/{node}/qemu/{vmid}/pending", ClassVM, needs("/vms/{vmid}", "VM.Audit"),
			nil, getPending),
	}
}

const masked = "**********"

// getConfig shows the configuration with pending changes applied, unless the
// current one is asked for.
func getConfig(s *Server, c *call) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	if snap := c.param("snapshot"); snap != "" {
		return nil, dief("snapshot '%s' does not exist", snap)
	}
	conf := maps.Clone(m.conf)
	if !c.flag("current") {
		maps.Copy(conf, m.pending)
		for k := range m.pendingDel {
			delete(conf, k)
		}
	}
	out := map[string]any{"digest": m.digest()}
	for k, v := range conf {
		out[k] = typedOption(k, v)
	}
	return out, nil
}

// typedOption gives numbers and booleans as JSON numbers, as Proxmox does.
func typedOption(k, v string) any {
	if k == "cipassword" {
		return masked
	}
	o, ok := optionOf(k)
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
	m, err := s.get(c.node, c.vmid)
	if err != nil {
		return nil, err
	}
	out := []map[string]any{{"key": "digest", "value": m.digest()}}
	keys := maps.Clone(m.conf)
	maps.Copy(keys, m.pending)
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		row := map[string]any{"key": k}
		if v, ok := m.conf[k]; ok {
			row["value"] = typedOption(k, v)
		}
		if v, ok := m.pending[k]; ok {
			row["pending"] = typedOption(k, v)
		}
		if m.pendingDel[k] {
			row["delete"] = 1
		}
		out = append(out, row)
	}
	return out, nil
}

// update is a checked request to change a configuration.
type update struct {
	set      map[string]string
	delete   []string
	revert   []string
	digest   string
	skiplock bool
	force    bool
}

// summary is how a task's log names the changes; a password is not shown.
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
	return s.forkVM(c, "qmconfig", func(ctx context.Context, t *task) error {
		s.printf(t, "update VM %d:%s", c.vmid, u.summary())
		if !s.sleep(ctx, s.model.Delays.Config) {
			return dief("interrupted by signal")
		}
		return s.updateVM(ctx, c, u)
	})
}

// checkUpdate does the checks before anything is locked.
func (s *Server) checkUpdate(c *call) (*update, error) {
	u := &update{
		set: map[string]string{}, delete: splitTags(c.param("delete")), revert: splitTags(c.param("revert")),
		digest: c.param("digest"), skiplock: c.flag("skiplock"), force: c.flag("force"),
	}
	if fields := s.collect(c, u); len(fields) > 0 {
		return nil, badParams(fields)
	}
	if err := rootOnly(c, "skiplock"); err != nil {
		return nil, err
	}
	if len(u.set)+len(u.delete)+len(u.revert) == 0 {
		return nil, dief("no options specified")
	}
	if err := s.checkFiles(c, u.set); err != nil {
		return nil, err
	}
	for i, k := range u.delete {
		if k == "cdrom" {
			u.delete[i] = "ide2"
			k = "ide2"
		}
		if _, both := u.set[k]; both {
			return nil, badParam("delete", "you can't use '-%s' and -delete %s' at the same time", k, k)
		}
		if _, ok := optionOf(k); !ok {
			return nil, badParam("delete", "unknown option '%s'", k)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.mayUpdate(c, u); err != nil {
		return nil, err
	}
	_, err := s.loadForUpdate(c, u)
	return u, err
}

// collect validates each option by its schema.
func (s *Server) collect(c *call, u *update) map[string]string {
	control := schema{
		"delete": {}, "revert": {}, "digest": {maxLen: 40}, "skiplock": {kind: kBool}, "force": {kind: kBool},
		"import-working-storage": {check: checkStorageID},
	}
	if c.method == http.MethodPost {
		control["background_delay"] = param{kind: kInt, min: 1, max: 30}
	}
	fields := map[string]string{}
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
		o, ok := optionOf(k)
		if !ok {
			fields[k] = "property is not defined in schema and the schema does not allow additional properties"
			continue
		}
		if msg := o.validate(v); msg != "" {
			// errors of a property name its option
			fields[k] = strings.Replace(msg, "format error\n", "format error\n"+k+".", 1)
			continue
		}
		u.set[k] = s.storedValue(k, v, o)
	}
	return fields
}

// storedValue is how an option is written to the file.
func (s *Server) storedValue(k, v string, o option) string {
	switch {
	case o.kind == kBool:
		if truthy(v) {
			return "1"
		}
		return "0"
	case k == "description":
		return storedDescription(v)
	case k == "tags":
		return normalTags(v)
	case reNet.MatchString(k):
		return s.storedNet(v)
	case k == "vmgenid" && v == "1":
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.newUUID()
	default:
		return v
	}
}

// storedDescription: comments at the head of the file, read back without the
// blanks at their end.
func storedDescription(v string) string { return strings.TrimRight(v, " \t\r\n") }

// storedNet adds the MAC address a network device was not given.
func (s *Server) storedNet(v string) string {
	if reMAC.MatchString(v) || strings.Contains(v, "macaddr=") {
		return v
	}
	first, rest, _ := strings.Cut(v, ",")
	model := strings.TrimPrefix(first, "model=")
	s.mu.Lock()
	defer s.mu.Unlock()
	out := model + "=" + s.newMAC()
	if rest != "" {
		out += "," + rest
	}
	return out
}

// applyUpdate writes the changes: at once on a stopped VM and for live
// options, else as pending.
func (s *Server) applyUpdate(c *call, u *update) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, err := s.loadForUpdate(c, u)
	if err != nil {
		return err
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
	s.sight(m)
	return nil
}

func (s *Server) deleteOption(c *call, m *machine, k string, force bool) error {
	if _, ok := m.conf[k]; !ok {
		delete(m.pending, k)
		return nil // Proxmox only warns
	}
	if err := s.mayTouch(c, m, k, m.conf[k]); err != nil {
		return err
	}
	if isDriveName(k) || reUnused.MatchString(k) {
		if truthy(m.conf["protection"]) {
			return dief("can't remove drive '%s' - protection mode enabled", k)
		}
	}
	if k == "tags" {
		if err := s.mayTag(c, m, ""); err != nil {
			return err
		}
	}
	if force || reUnused.MatchString(k) {
		if err := s.mayFree(c, m.conf[k]); err != nil {
			return err
		}
	}
	delete(m.pending, k)
	if m.running && !hotUnplug(k) {
		m.pendingDel[k] = true
		return nil
	}
	v := m.conf[k]
	s.dropOption(m, k)
	if force {
		s.purgeUnused(m, v)
	}
	return nil
}

// purgeUnused frees the volume of a disk that was taken off by force: it does not stay as
// unusedN.
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

// hotUnplug tells what can be taken from a running VM at once.
func hotUnplug(k string) bool {
	if strings.HasPrefix(k, "ide") || strings.HasPrefix(k, "sata") {
		return false
	}
	o, _ := optionOf(k)
	return o.live || isDriveName(k) && k != tpmSlot || k == "tags" || reUnused.MatchString(k)
}

// dropOption removes an option; a disk stays as unusedN, a cloud-init drive is
// freed.
func (s *Server) dropOption(m *machine, k string) {
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
		for n := 0; ; n++ {
			key := "unused" + strconv.Itoa(n)
			if _, taken := m.conf[key]; !taken {
				m.conf[key] = d.file
				return
			}
		}
	}
}

func (s *Server) setOption(c *call, m *machine, k, v string) error {
	if old, ok := m.conf[k]; ok {
		if err := s.mayTouch(c, m, k, old); err != nil {
			return err
		}
	}
	if err := s.mayTouch(c, m, k, v); err != nil {
		return err
	}
	switch {
	case k == "tags":
		if err := s.mayTag(c, m, v); err != nil {
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
		s.bootFrom(m, k, v)
	}
	delete(m.pendingDel, k)
	if m.running && !s.hotPlug(m, k, v) {
		m.pending[k] = v
		return nil
	}
	s.storeOption(m, k, v)
	return nil
}

// hotPlug tells whether a change reaches a running VM: live options, new disks
// on a hot-pluggable bus, and another medium in a drive that is there.
func (s *Server) hotPlug(m *machine, k, v string) bool {
	if !isDriveName(k) {
		o, _ := optionOf(k)
		return o.live
	}
	old, had := m.conf[k]
	if !had {
		return strings.HasPrefix(k, "scsi") || strings.HasPrefix(k, "virtio")
	}
	od, err1 := parseDrive(old)
	nd, err2 := parseDrive(v)
	return err1 == nil && err2 == nil && od.isCDROM() && nd.isCDROM()
}

func (s *Server) storeOption(m *machine, k, v string) {
	old, had := m.conf[k]
	if had && isDriveName(k) {
		od, _ := parseDrive(old)
		nd, _ := parseDrive(v)
		if od.file != nd.file {
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

// applyPending makes pending changes real; s.mu is held.
func (s *Server) applyPending(m *machine) {
	for k := range m.pendingDel {
		s.dropOption(m, k)
	}
	for _, k := range slices.Sorted(maps.Keys(m.pending)) {
		s.storeOption(m, k, m.pending[k])
	}
	m.pending, m.pendingDel = map[string]string{}, map[string]bool{}
}
