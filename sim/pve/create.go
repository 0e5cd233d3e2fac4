// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

func createRoutes() []route {
	create := newRoute(http.MethodPost, "/nodes/{node}/qemu", ClassVM, nil, nil, createVM).asTask()
	create.freeParams = true
	return []route{create}
}

// createParams returns the parameters of a VM's creation, except the options of its configuration.
func createParams() schema {
	return schema{
		"vmid": {kind: kInt, required: true, min: -maxVMID, check: checkVMID}, "pool": {check: checkPoolID},
		"start": {kind: kBool}, "storage": {check: checkStorageID}, "unique": {kind: kBool, requires: "archive"},
		"bwlimit":      {kind: kInt},
		"force":        {kind: kBool, requires: "archive"},
		"live-restore": {kind: kBool, requires: "archive"}, "archive": {},
	}
}

// createVM creates a VM from options. Restoring a backup is not simulated.
func createVM(s *Server, c *call) (any, error) {
	vmSchema := createParams()
	vmParams, options := map[string]string{}, map[string]string{}
	for k, v := range c.params {
		if _, ok := vmSchema[k]; ok {
			vmParams[k] = v
		} else {
			options[k] = v
		}
	}
	u := &update{set: map[string]string{}}
	fields := vmSchema.validate(vmParams)
	c.params = options
	maps.Copy(fields, s.collectOptions(c, u))
	c.params = vmParams
	if len(fields) > 0 {
		return nil, newParamsError(fields)
	}
	if archive := vmParams["archive"]; archive != "" {
		s.mu.Lock()
		_, v := s.findVolume(c.node, archive)
		s.mu.Unlock()
		if v == nil {
			return nil, dief("volume '%s' does not exist", archive)
		}
		return nil, dief("restoring an archive is not simulated")
	}
	c.vmid = c.intParam("vmid")
	if err := s.checkCreate(c, u); err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmcreate", func(ctx context.Context, t *task) error {
		if err := s.buildVM(c, u); err != nil || !c.boolParam("start") {
			return err
		}
		s.printf(t, "Execute autostart")
		return s.bootVM(ctx, c, t)
	})
}

// checkCreate runs the checks before the task starts.
func (s *Server) checkCreate(c *call, u *update) error {
	if err := s.checkPoolExists(c); err != nil {
		return err
	}
	if err := checkNewVMPermission(s, c, c.param("vmid")); err != nil && !c.auth.isRoot() {
		return err
	}
	if err := checkDrivePaths(u.set); err != nil {
		return err
	}
	if err := s.checkFiles(c, u.set); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[c.vmid]; m != nil {
		return dief("unable to create VM %d - VM %d already exists on node '%s'", c.vmid, c.vmid, m.node)
	}
	p := s.pools[c.param("pool")]
	if p == nil {
		return s.checkUpdatePermission(c, u)
	}
	p.vms[c.vmid] = true // privileges on the pool apply to the new VM
	defer delete(p.vms, c.vmid)
	return s.checkUpdatePermission(c, u)
}

// buildVM is the work of a creation task. It creates the disks and then the configuration.
func (s *Server) buildVM(c *call, u *update) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[c.vmid]; m != nil {
		return dief("unable to create VM %d - VM %d already exists on node '%s'", c.vmid, c.vmid, m.node)
	}
	m := &machine{
		id: c.vmid, node: c.node, pending: map[string]string{}, pendingDel: map[string]bool{},
		conf: map[string]string{"smbios1": "uuid=" + s.newUUID(), "vmgenid": s.newUUID(), "meta": s.newMeta()},
	}
	s.vms[m.id] = m
	if pool := s.pools[c.param("pool")]; pool != nil {
		pool.vms[m.id] = true
	}
	keys := slices.Sorted(maps.Keys(u.set))
	// The option boot is the last one, because it names other options.
	slices.SortStableFunc(keys, func(a, b string) int { return boolToInt(a == "boot") - boolToInt(b == "boot") })
	for _, k := range keys {
		if err := s.setOption(c, m, k, u.set[k]); err != nil {
			s.deleteVMLocked(m)
			return dief("unable to create VM %d - %s", m.id, errorReason(err))
		}
	}
	if _, ok := m.conf["boot"]; !ok {
		m.conf["boot"] = " "
		if order := findDefaultBoot(m.conf); order != "" {
			m.conf["boot"] = "order=" + order
		}
	}
	s.recordSighting(m)
	return nil
}

// findDefaultBoot returns the default boot order: the first disk, CD drive and network card.
func findDefaultBoot(conf map[string]string) string {
	var disk, cd, net string
	for _, k := range append(driveNames(), netNames()...) {
		v, ok := conf[k]
		d, err := parseDrive(v)
		switch {
		case !ok || k == tpmSlot || k == "efidisk0":
		case reNet.MatchString(k):
			net = cmp.Or(net, k)
		case err == nil && d.isCDROM():
			cd = cmp.Or(cd, k)
		default:
			disk = cmp.Or(disk, k)
		}
	}
	order := slices.DeleteFunc([]string{disk, cd, net}, func(k string) bool { return k == "" })
	return strings.Join(order, ";")
}

func netNames() []string {
	const maxNICs = 32
	out := make([]string, maxNICs)
	for i := range out {
		out[i] = "net" + strconv.Itoa(i)
	}
	return out
}
