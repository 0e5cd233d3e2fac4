// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

func createRoutes() []route {
	create := newRoute(http.MethodPost, "/nodes/{node}/qemu", ClassVM, nil, nil, createVM).async()
	create.freeParams = true
	return []route{create}
}

// createParams are what making a VM takes beside the options of its
// configuration.
func createParams() schema {
	return schema{
		"vmid": {kind: kInt, required: true, min: -maxVMID, check: checkVMID}, "pool": {check: checkPoolID},
		"start": {kind: kBool}, "storage": {check: checkStorageID}, "unique": {kind: kBool}, "bwlimit": {kind: kInt},
		"force": {kind: kBool}, "live-restore": {kind: kBool}, "archive": {},
	}
}

// createVM makes a VM out of options. Restoring a backup is not simulated.
func createVM(s *Server, c *call) (any, error) {
	own := createParams()
	given, rest := map[string]string{}, map[string]string{}
	for k, v := range c.params {
		if _, ok := own[k]; ok {
			given[k] = v
		} else {
			rest[k] = v
		}
	}
	u := &update{set: map[string]string{}}
	fields := own.validate(given)
	c.params = rest
	maps.Copy(fields, s.collect(c, u))
	c.params = given
	if len(fields) > 0 {
		return nil, badParams(fields)
	}
	if given["archive"] != "" {
		return nil, dief("restoring an archive is not simulated")
	}
	c.vmid = c.num("vmid")
	if err := s.mayCreate(c, u); err != nil {
		return nil, err
	}
	return s.forkVM(c, "qmcreate", func(ctx context.Context, t *task) error {
		if err := s.makeVM(c, t, u); err != nil || !c.flag("start") {
			return err
		}
		return s.boot(ctx, c, t)
	})
}

// mayCreate does the checks before the worker starts.
func (s *Server) mayCreate(c *call, u *update) error {
	if err := permNewVM(s, c, c.param("vmid")); err != nil && !c.auth.isRoot() {
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
	pool := c.param("pool")
	if pool == "" {
		return s.mayUpdate(c, u)
	}
	members := s.pools[pool]
	if members == nil {
		return dief("pool '%s' does not exist", pool)
	}
	members[c.vmid] = true // rights by the pool count already
	defer delete(members, c.vmid)
	return s.mayUpdate(c, u)
}

// makeVM is the worker: the disks, then the configuration.
func (s *Server) makeVM(c *call, t *task, u *update) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.vms[c.vmid]; m != nil {
		return dief("unable to create VM %d - VM %d already exists on node '%s'", c.vmid, c.vmid, m.node)
	}
	m := &machine{
		id: c.vmid, node: c.node, pending: map[string]string{}, pendingDel: map[string]bool{},
		conf: map[string]string{"smbios1": "uuid=" + s.newUUID(), "vmgenid": s.newUUID(), "meta": s.meta()},
	}
	s.vms[m.id] = m
	if pool := s.pools[c.param("pool")]; pool != nil {
		pool[m.id] = true
	}
	keys := slices.Sorted(maps.Keys(u.set))
	slices.SortStableFunc(keys, func(a, b string) int { return flag(a == "boot") - flag(b == "boot") }) // names the others
	for _, k := range keys {
		if err := s.setOption(c, m, k, u.set[k]); err != nil {
			s.remove(m)
			return dief("unable to create VM %d - %s", m.id, reasonOf(err))
		}
		if isDriveName(k) {
			t.log = append(t.log, k+": successfully created disk '"+m.conf[k]+"'")
		}
	}
	if _, ok := m.conf["boot"]; !ok {
		if order := defaultBoot(m.conf); order != "" {
			m.conf["boot"] = "order=" + order
		}
	}
	s.sight(m)
	return nil
}

// defaultBoot is the first disk, CD drive and network card.
func defaultBoot(conf map[string]string) string {
	var disk, cd, net string
	for _, k := range append(driveNames(), netNames()...) {
		v, ok := conf[k]
		d, err := parseDrive(v)
		switch {
		case !ok || k == tpmSlot || k == "efidisk0":
		case reNet.MatchString(k):
			net = cmpOr(net, k)
		case err == nil && d.isCDROM():
			cd = cmpOr(cd, k)
		default:
			disk = cmpOr(disk, k)
		}
	}
	order := slices.DeleteFunc([]string{disk, cd, net}, func(k string) bool { return k == "" })
	return strings.Join(order, ";")
}

func netNames() []string {
	const most = 32
	out := make([]string, most)
	for i := range out {
		out[i] = "net" + strconv.Itoa(i)
	}
	return out
}
